"""What the drawings of charts are made of.

Places are percentages, so a drawing fits an area of any size: a page lets its style sheet choose the size, and
`placed` gives it one in a drawing of fixed size, which notebooks show without a style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tfdbg_arrow.safe_text import printable_line
from tfdbg_arrow.viewer.colours import paint

_LEAST_TICKS_APART = 0.16
"""Distance of two numbers of an axis from which their texts do not meet, as a share of the width of a small chart."""
_LARGE = 6
"""The power of ten from which on numbers are written with a power of ten."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a chart.

    Attributes:
        axis: What the positions are: `step`, `execution` or `event`.
        ranges: The first and the last position of each.
        is_cells: Whether they are cells of equal width. Otherwise, they are points at their first positions.
        queries: The part of an address that selects each; empty for one without tensors.
    """

    axis: str
    ranges: tuple[tuple[int, int], ...]
    is_cells: bool
    queries: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[float, ...]:
        """Where they are, from 0 to 1; the middles of cells."""
        if self.is_cells:
            return tuple((index + 0.5) / len(self.ranges) for index in range(len(self.ranges)))
        (start, _), (end, _) = self.ranges[0], self.ranges[-1]
        return tuple((first - start) / (end - start) if end > start else 0.5 for first, _ in self.ranges)

    @property
    def texts(self) -> tuple[str, ...]:
        """What a reader calls them."""
        return tuple(
            f"{self.axis} {first:,}" if first == last else f"{self.axis}s {first:,} to {last:,}"
            for first, last in self.ranges
        )

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Places and texts of the first column, and of round numbers at a distance at which their texts do not meet."""
        places = self.places
        ticks = [(0.0 if self.is_cells else places[0], f"{self.axis} {self.ranges[0][0]:,}")]
        by = max(1.0, round_step(_LEAST_TICKS_APART * (self.ranges[-1][1] - self.ranges[0][0] + 1)))
        for place, (first, last) in zip(places, self.ranges, strict=True):
            number = int(last // by * by)
            # The first text is longer, because it names the axis.
            least = (1.4 if len(ticks) == 1 else 0.9) * _LEAST_TICKS_APART
            if number >= max(first, self.ranges[0][0] + 1) and place - ticks[-1][0] >= least:
                ticks.append((place, f"{number:,}"))
        return tuple(ticks)

    @property
    def attributes(self) -> Markup:
        """What the script chart.js reads of them."""
        lists = {
            "columns": self.texts,
            "places": () if self.is_cells else [f"{place:.4f}" for place in self.places],
            "queries": self.queries,
            "ranges": [f"{first}-{last}" for first, last in self.ranges],
        }
        return Markup(" ").join(Markup(f'data-{name}="{{}}"').format("|".join(of)) for name, of in lists.items() if of)


def round_step(least: float) -> float:
    """Returns the smallest of 1, 2 and 5 times a power of ten that is not below a positive number."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((times * power for times in (1, 2, 5) if times * power >= least), 10 * power)


def axis_labels(columns: Columns) -> Markup:
    """Returns the numbers of an axis, with a small line above each. They need 16 px."""
    return Markup("").join(
        Markup('<line x1="{0}" x2="{0}" y2="4" stroke="currentColor" stroke-opacity="0.5"/>').format(percent(place))
        + label(text, x=percent(place), y=14, anchor="start" if place < 0.02 else "end" if place > 0.95 else "middle")
        for place, text in columns.ticks
    )


def label(text: str, *, x: str | float, y: str | float, anchor: str = "start", more: str = "") -> Markup:
    """Returns a text."""
    return Markup('<text x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(
        x, y, anchor, Markup(more and f" {more}"), printable_line(text)
    )


def cells(rows: Iterable[tuple[float, float, Sequence[str | None]]]) -> Markup:
    """Returns the cells of rows, one path for each colour. A column is 1 wide.

    Args:
        rows: The top, the height and the class of each column's colour; None means that a column has no cell.
    """
    paths: dict[str, list[str]] = {}
    for top, height, names in rows:
        first = 0
        for end in range(1, len(names) + 1):
            if end < len(names) and names[end] == names[first]:
                continue
            if (name := names[first]) is not None:
                area = f"M{first} {top:.4g}h{end - first}v{height:.4g}h{first - end}z"
                paths.setdefault(name, []).append(area)
            first = end
    return Markup("").join(
        Markup('<path {} d="{}"/>').format(paint(name), "".join(areas)) for name, areas in sorted(paths.items())
    )


def stretched(width: float, height: float, content: str) -> Markup:
    """Returns content with coordinates of its own that fills the area around it."""
    return Markup(f'<svg viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none">{content}</svg>')


def placed(content: str, *, x: float, y: float, width: float, height: float) -> Markup:
    """Returns content in an area of a drawing."""
    area = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return Markup(f'<svg {area} overflow="visible">{content}</svg>')


def standalone(parts: Iterable[str], *, width: float, height: float, text: str) -> Markup:
    """Returns a drawing that needs no style sheet. Its texts have the colour of the text around it."""
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(printable_line(text))}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">{}</svg>'
    ).format(Markup("").join(map(Markup, parts)))


def readout(name: str, texts: Iterable[str], kind: str = "") -> Markup:
    """Returns what the script chart.js shows of a row in each column; nothing for an empty text.

    Args:
        name: What it is.
        texts: One text for each column.
        kind: `shown` for what the drawing shows, `bad` for bad values.
    """
    return Markup('<metadata data-name="{}" data-values="{}"{}/>').format(
        name, "|".join(texts), Markup(kind and f' data-kind="{kind}"')
    )


def percent(place: float) -> str:
    """Returns a place from 0 to 1 as a coordinate."""
    return f"{100 * place:.4g}%"


def number_text(value: float | None, *, digits: int = 3, is_share: bool = False) -> str:
    """Returns a number with few digits; a share as a percentage."""
    if value is None:
        return "\N{EN DASH}"
    if is_share and math.isfinite(value):
        return f"{100 * value:.{digits}g} %"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return mantissa
    return f"{float(f'{mantissa}e{exponent}'):.0f}" if 0 < int(exponent) < _LARGE else f"{mantissa}e{int(exponent)}"
