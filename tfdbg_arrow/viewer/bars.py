"""Bars: a histogram as rectangles, with separate bars for infinities and NaN."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.histogram import Histogram, HistogramBin

_GAP = 1.5
"""Gap between the finite bins and the other bars, in widths of a bar."""
_LEAST_PERCENT = 1.5


@dataclass(frozen=True)
class Bar:
    """One bar.

    Attributes:
        kind: `finite`, `neg-inf`, `pos-inf` or `nan`.
        text: Its label.
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
    """Returns a histogram as bars from left to right, with bars for infinities and NaN only if there are any."""
    before = [("neg-inf", "-Inf", histogram.num_neg_inf)] if histogram.num_neg_inf else []
    after = [one for one in (("pos-inf", "+Inf", histogram.num_pos_inf), ("nan", "NaN", histogram.num_nan)) if one[2]]
    num_slots = len(before) * (1 + _GAP) + max(1, len(histogram.bins)) + len(after) * (1 + _GAP)
    most = max([*(bin_.num_elements for bin_ in histogram.bins), *(num for _, _, num in (*before, *after))], default=0)
    found: list[Bar] = []
    at = 0.0

    def add(kind: str, text: str, num: int) -> None:
        height = max(100 * num / most, _LEAST_PERCENT) if num else 0.0
        found.append(Bar(kind, text, round(100 * at / num_slots, 3), round(90 / num_slots, 3), round(height, 2)))

    for kind, name, num in before:
        add(kind, f"{name}: {num:,} elements", num)
        at += 1 + _GAP
    for bin_ in histogram.bins:
        add("finite", f"{bin_text(bin_)}: {bin_.num_elements:,} elements", bin_.num_elements)
        at += 1
    for kind, name, num in after:
        at += _GAP
        add(kind, f"{name}: {num:,} elements", num)
        at += 1
    return tuple(found)


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
