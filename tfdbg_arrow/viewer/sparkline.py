"""Sparklines: a measure over time as lines of an SVG, for pages without the script that draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 1000, 100
"""Size of the drawing, in its own units."""


def sparkline(values: Sequence[float | None], *, is_log: bool = False) -> tuple[Markup, ...]:
    """Returns a measure as the points of lines, e.g. `0,100 10,90`. A line ends at a missing value.

    Args:
        values: The values, from left to right.
        is_log: Whether the scale is logarithmic. Zeros are then drawn one decade below the lowest positive value.
    """
    heights = _heights(values, is_log=is_log)
    known = [height for height in heights if height is not None]
    if not known:
        return ()
    low, high = (min(known), max(known)) if is_log else (0.0, max(known))
    step = WIDTH / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for number, height in enumerate(heights):
        if height is None:
            lines.append([])
            continue
        y = HEIGHT * (1 - ((height - low) / (high - low) if high > low else 0.0))
        lines[-1].append(f"{number * step:.1f},{y:.1f}")
    # A single point becomes a line to itself, so that it is visible.
    return tuple(escape(" ".join(line if len(line) > 1 else line * 2)) for line in lines if line)


def _heights(values: Sequence[float | None], *, is_log: bool) -> list[float | None]:
    if not is_log:
        return list(values)
    least = min((value for value in values if value is not None and value > 0), default=1.0)
    foot = math.log10(least) - 1
    return [None if value is None else math.log10(value) if value > 0 else foot for value in values]
