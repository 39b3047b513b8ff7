"""Drawings of one tensor: the bars of its histogram, and the pills and shares of its health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.query import TensorHealth
from tfdbg_arrow.query.display.graph_ops import OutputHealth
from tfdbg_arrow.query.values import Histogram, HistogramBin
from tfdbg_arrow.query.wording import first_bad_text
from tfdbg_arrow.safe_text import number_of

_GAP = 1.5
"""Gap between the finite bins and the other bars, in widths of a bar."""
_LEAST_PERCENT = 1.5
"""The minimum height of a bar and the minimum width of a share. They keep small values visible."""
_BAD = (("nan", "num_nan", "NaN"), ("neg-inf", "num_neg_inf", "-Inf"), ("pos-inf", "num_pos_inf", "+Inf"))
_FINITE = (("neg", "num_neg_finite", "negative"), ("zero", "num_zero", "zero"), ("pos", "num_pos_finite", "positive"))
_NUMERICS = (("min_finite", "min"), ("max_finite", "max"), ("mean_finite", "mean"), ("stddev_finite", "stddev"))


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram.

    Attributes:
        kind: `finite`, `neg-inf`, `pos-inf` or `nan`.
        text: The label of the bar.
        start: Left edge, in percent of the width.
        width: Width, in percent of the total width.
        height: Height, in percent; at least a visible minimum unless the bar is empty.
    """

    kind: str
    text: str
    start: float
    width: float
    height: float


def bars(histogram: Histogram) -> tuple[Bar, ...]:
    """Returns the bars of a histogram from left to right. Infinities and NaN have bars only if the tensor has them."""
    before = [("neg-inf", "-Inf", histogram.num_neg_inf)] if histogram.num_neg_inf else []
    after = [one for one in (("pos-inf", "+Inf", histogram.num_pos_inf), ("nan", "NaN", histogram.num_nan)) if one[2]]
    num_slots = len(before) * (1 + _GAP) + max(1, len(histogram.bins)) + len(after) * (1 + _GAP)
    most = max([*(bin_.num_elements for bin_ in histogram.bins), *(num for _, _, num in (*before, *after))], default=0)
    bars: list[Bar] = []
    at = 0.0

    def add(kind: str, text: str, num: int) -> None:
        height = max(100 * num / most, _LEAST_PERCENT) if num else 0.0
        bars.append(Bar(kind, text, round(100 * at / num_slots, 3), round(90 / num_slots, 3), round(height, 2)))

    for kind, name, num in before:
        add(kind, f"{name}: {number_of(num, 'element')}", num)
        at += 1 + _GAP
    for bin_ in histogram.bins:
        add("finite", f"{bin_text(bin_)}: {number_of(bin_.num_elements, 'element')}", bin_.num_elements)
        at += 1
    for kind, name, num in after:
        at += _GAP
        add(kind, f"{name}: {number_of(num, 'element')}", num)
        at += 1
    return tuple(bars)


def bin_text(bin_: HistogramBin) -> str:
    """Returns the range of a bin as text."""
    return f"{bin_.low:.4g}" if bin_.low == bin_.high else f"{bin_.low:.4g} to {bin_.high:.4g}"


def histogram_text(histogram: Histogram) -> str:
    """Returns a histogram in words."""
    what = "moduli" if histogram.is_modulus else "elements"
    first = f"the first {histogram.num_counted:,} of " if histogram.num_counted < histogram.num_elements else ""
    text = f"{first}{histogram.num_elements:,} {what}"
    if histogram.bins:
        most = max(histogram.bins, key=lambda bin_: bin_.num_elements)
        low, high = histogram.bins[0].low, histogram.bins[-1].high
        text += f", {histogram.num_finite:,} finite from {low:.4g} to {high:.4g}"
        if len(histogram.bins) > 1:
            text += f", most ({most.num_elements:,}) at {bin_text(most)}"
    for name, num in (
        ("NaN", histogram.num_nan),
        ("-Inf", histogram.num_neg_inf),
        ("infinite" if histogram.is_modulus else "+Inf", histogram.num_pos_inf),
    ):
        if num:
            text += f"; {num:,} {name}"
    return text


@dataclass(frozen=True)
class Pill:
    """One fact about a tensor: a kind, which determines the style, and a text."""

    kind: str
    text: str


@dataclass(frozen=True)
class Share:
    """The share of one kind of elements. `start` and `width` are percentages of the total width."""

    kind: str
    start: float
    width: float


def pills(health: TensorHealth) -> tuple[Pill, ...]:
    """Returns the measured health of a tensor, bad elements first, without zero counts."""
    bad = bad_pills(health)
    pills = [*bad, *_count_pills(health, _FINITE)]
    if health.has_inf_or_nan and not bad:
        pills.insert(0, Pill("bad", "Inf or NaN"))
    if health.has_inf_or_nan is None and not pills:
        pills.append(Pill("unmeasured", "not measured"))
    elif health.has_inf_or_nan is False and not pills:
        pills.append(Pill("pos", "no Inf, no NaN"))
    if health.num_subnormal:
        pills.append(Pill("zero", f"{health.num_subnormal:,} subnormal"))
    return tuple(pills)


def bad_pills(health: TensorHealth | OutputHealth) -> tuple[Pill, ...]:
    """Returns the counts of bad elements of a tensor, or over all tensors of an output, without zero counts."""
    return _count_pills(health, _BAD)


def _count_pills(health: TensorHealth | OutputHealth, kinds: Sequence[tuple[str, str, str]]) -> tuple[Pill, ...]:
    return tuple(Pill(kind, f"{count:,} {text}") for kind, name, text in kinds if (count := getattr(health, name)))


def facts(health: TensorHealth) -> tuple[Pill, ...]:
    """Returns dtype, shape and size of a tensor, its first bad element, and its magnitudes if they were measured."""
    pills = [Pill("fact", health.dtype)] if health.dtype is not None else []
    if health.shape is not None:
        pills.append(Pill("fact", f"[{', '.join(map(str, health.shape))}]"))
    if health.size is not None:
        pills.append(Pill("fact", number_of(health.size, "element")))
    if (first := first_bad_text(health)) is not None:
        pills.append(Pill("fact", first))
    pills += [
        Pill("fact", f"{text} {value:.4g}") for name, text in _NUMERICS if (value := getattr(health, name)) is not None
    ]
    return tuple(pills)


def shares(health: TensorHealth) -> tuple[Share, ...]:
    """Returns the share of each kind of a tensor's elements. Every share has a visible minimum width."""
    counts = [(kind, getattr(health, name)) for kind, name, _ in (*_BAD, *_FINITE)]
    total = sum(count or 0 for _, count in counts)
    if not total or any(count is None for _, count in counts):
        return ()
    widths = [(kind, max(100 * count / total, _LEAST_PERCENT)) for kind, count in counts if count]
    scale = 100 / sum(width for _, width in widths)
    shares, start = [], 0.0
    for kind, width in widths:
        shares.append(Share(kind, round(start, 2), round(width * scale, 2)))
        start += width * scale
    return tuple(shares)
