"""Pills: the health of a tensor as short labels, and as shares of its elements."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import TensorHealth

_BAD = (("nan", "num_nan", "NaN"), ("neg-inf", "num_neg_inf", "-Inf"), ("pos-inf", "num_pos_inf", "+Inf"))
_FINITE = (("neg", "num_neg_finite", "negative"), ("zero", "num_zero", "zero"), ("pos", "num_pos_finite", "positive"))
_LEAST_SHARE = 1.5
_NUMERICS = (("min_finite", "min"), ("max_finite", "max"), ("mean_finite", "mean"), ("stddev_finite", "stddev"))


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
    found = [
        Pill(kind, f"{count:,} {text}") for kind, name, text in (*_BAD, *_FINITE) if (count := getattr(health, name))
    ]
    if health.has_inf_or_nan and not any(getattr(health, name) for _, name, _ in _BAD):
        found.insert(0, Pill("bad", "Inf or NaN"))
    if health.has_inf_or_nan is None and not found:
        found.append(Pill("unmeasured", "not measured"))
    elif health.has_inf_or_nan is False and not found:
        found.append(Pill("pos", "no Inf, no NaN"))
    if health.num_subnormal:
        found.append(Pill("zero", f"{health.num_subnormal:,} subnormal"))
    return tuple(found)


def facts(health: TensorHealth) -> tuple[Pill, ...]:
    """Returns dtype, shape and size of a tensor, and its magnitudes if they were measured."""
    found = [Pill("fact", health.dtype)] if health.dtype is not None else []
    if health.shape is not None:
        found.append(Pill("fact", f"[{', '.join(map(str, health.shape))}]"))
    if health.size is not None:
        found.append(Pill("fact", f"{health.size:,} element" + ("" if health.size == 1 else "s")))
    found += [
        Pill("fact", f"{text} {value:.4g}") for name, text in _NUMERICS if (value := getattr(health, name)) is not None
    ]
    return tuple(found)


def shares(health: TensorHealth) -> tuple[Share, ...]:
    """Returns the share of each kind of a tensor's elements. Every share has a visible minimum width."""
    counts = [(kind, getattr(health, name)) for kind, name, _ in (*_BAD, *_FINITE)]
    total = sum(count or 0 for _, count in counts)
    if not total or any(count is None for _, count in counts):
        return ()
    widths = [(kind, max(100 * count / total, _LEAST_SHARE)) for kind, count in counts if count]
    scale = 100 / sum(width for _, width in widths)
    found, start = [], 0.0
    for kind, width in widths:
        found.append(Share(kind, round(start, 2), round(width * scale, 2)))
        start += width * scale
    return tuple(found)
