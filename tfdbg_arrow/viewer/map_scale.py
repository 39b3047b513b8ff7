"""The choice of the measure that a map of layers shows, and the scale that converts its values to colours."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfdbg_arrow.query.model_health.answers import LayerMap, Measure
from tfdbg_arrow.viewer.svg import number_text

_MEASURES = ("difference", "max_abs", "norm", "bad_share")
"""The preferred measures, in order. A recording may not have all of them."""
_LINEAR_SHARE = 1e-3
"""The share of the largest value below which a scale with both signs is linear, because 0 has no logarithm."""
_LINEAR = {"relative": 1e-6, "share_difference": 1e-3}
"""Below this difference, the scale of differences is linear; by `Measure.scale`. Rounding errors are smaller."""
_SAME = 1e-7
"""Differences up to this value have the colour of equal values."""
_GAP = 1e6
"""Magnitudes above a gap of this factor do not widen the scale. They are constants of masks, such as -1e9 or -2.4e38,
and values that just overflowed. Magnitudes of different layers are closer together."""
_NOTICEABLE = 1e-3
"""A difference that has its own label on the scale."""


def shown_measure(health: LayerMap, name: str | None = None) -> Measure | None:
    """Returns the named measure. If there is none, returns the preferred measure, or None without measures."""
    measures = {measure.name: measure for measure in health.measures}
    return next((measures[candidate] for candidate in (name, *_MEASURES, *measures) if candidate in measures), None)


@dataclass(frozen=True, kw_only=True)
class ColourScale:
    """A scale that converts values of a measure to positions from 0 to 1. Each position has a colour.

    Attributes:
        kind: As in Measure.
        low: The value at position 0. For the scale `log`, this value is positive, and zeros are at position 0 too.
        high: The value at position 1.
        linear: For the scale `signed`: below this magnitude, the scale is linear.
        is_difference: Whether the values are differences of two runs.
    """

    kind: str
    low: float
    high: float
    linear: float = 1.0
    is_difference: bool = False

    def place(self, value: float) -> float:
        """Returns the position of a value."""
        if self.kind == "signed":
            magnitude = math.log1p(min(abs(value), self.high) / self.linear) / math.log1p(self.high / self.linear)
            return 0.5 + math.copysign(magnitude, value) / 2
        if self.kind == "log":
            if value <= self.low or self.high <= self.low:
                return 0.0
            return min(1.0, math.log(value / self.low) / math.log(self.high / self.low))
        return min(1.0, max(0.0, value))

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """The positions and texts of the labels on the scale."""
        if self.kind == "share":
            return tuple((share / 4, f"{25 * share} %") for share in range(5))
        if self.is_difference and self.kind == "log":
            return ((0.0, "same"), *((self.place(share), f"{100 * share:g} %") for share in (1e-4, 1e-2, 1.0)))
        if self.is_difference:
            middle = self.place(_NOTICEABLE)
            text = f"{100 * _NOTICEABLE:g} %"
            return ((0.0, "B smaller"), (1 - middle, text), (0.5, "same"), (middle, text), (1.0, "B larger"))
        if self.kind == "signed":
            return ((0.0, number_text(-self.high)), (0.5, "0"), (1.0, number_text(self.high)))
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if last - first < 1:
            return ((0.0, number_text(self.low)), (1.0, number_text(self.high)))
        by = -(-(last - first) // 4)
        return tuple((self.place(10.0**power), number_text(10.0**power)) for power in range(first, last + 1, by))


def colour_scale(health: LayerMap, measure: Measure) -> ColourScale:
    """Returns the scale of a measure over all rows of a map.

    If the run went bad, the scale covers the columns up to the origin. Later values can be so large that the earlier
    values would all have the same colour. Magnitudes that are far above most others, such as those of masks, do not
    widen the scale. Values outside the scale have the colours of its ends.
    """
    if measure.scale == "difference":
        return ColourScale(kind="log", low=_SAME, high=1.0, is_difference=True)
    if measure.scale in _LINEAR:
        return ColourScale(kind="signed", low=-1.0, high=1.0, linear=_LINEAR[measure.scale], is_difference=True)
    end = len(health.columns) if not health.origin else health.origin.column + 1
    values = [value for row in health.values[measure.name] for value in row[:end] if value is not None]
    sizes = _without_far_ones(sorted(abs(value) for value in values if math.isfinite(value) and value))
    if measure.scale == "share":
        return ColourScale(kind="share", low=0.0, high=1.0)
    high = sizes[-1] if sizes else 1.0
    if measure.scale == "signed":
        return ColourScale(kind="signed", low=-high, high=high, linear=max(high * _LINEAR_SHARE, 1e-300))
    # The lowest 2 % of the values share a colour, so that a few tiny numbers do not use up the scale.
    low = sizes[len(sizes) // 50] if sizes else 0.1
    return ColourScale(kind="log", low=low if low < high else high / 10, high=high)


def _without_far_ones(sizes: list[float]) -> list[float]:
    """Returns sorted magnitudes up to the first gap in their larger half."""
    for index in range(len(sizes) // 2 + 1, len(sizes)):
        if sizes[index] > _GAP * sizes[index - 1]:
            return sizes[:index]
    return sizes
