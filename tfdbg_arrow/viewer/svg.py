"""The parts of the drawings of charts.

Coordinates are percentages, so a drawing fits an area of any size. On a page, the style sheet sets the size of the
area. A notebook has no style sheet. There, `placed` sets the size of the area in a drawing of fixed size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from tfdbg_arrow.safe_text import printable_line
from tfdbg_arrow.viewer.colours import paint

_LEAST_TICKS_APART = 0.16
"""Minimum distance between two labels of an axis, as a share of the width of a small chart. The distance keeps texts
from overlapping."""
_LARGE = 6
"""Numbers of at least 10 to this power are written with an exponent."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a chart.

    Attributes:
        axis: What the positions are: `step`, `execution` or `event`.
        ranges: The first and the last position of each column.
        is_cells: Whether the columns are cells of equal width. Otherwise, the columns are points at their first
            positions.
        queries: The part of an address that selects each column; empty for a column without tensors.
        calls: The first and the last call of each column, as in ColumnCalls, if calls name the columns.
    """

    axis: str
    ranges: tuple[tuple[int, int], ...]
    is_cells: bool
    queries: tuple[str, ...] = ()
    calls: tuple[tuple[int, int], ...] | None = None

    @property
    def places(self) -> tuple[float, ...]:
        """The positions of the columns, from 0 to 1. The position of a cell is its middle."""
        if self.is_cells:
            return tuple((index + 0.5) / len(self.ranges) for index in range(len(self.ranges)))
        (start, _), (end, _) = self.ranges[0], self.ranges[-1]
        return tuple((first - start) / (end - start) if end > start else 0.5 for first, _ in self.ranges)

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the columns, as readers see them."""
        return tuple(
            self._start(first) if first == last else f"{self._unit}s {first:,} to {last:,}"
            for first, last in self._numbers
        )

    @property
    def starts(self) -> tuple[str, ...]:
        """The first position of each column, as readers see it."""
        return tuple(self._start(first) for first, _ in self._numbers)

    def _start(self, number: int) -> str:
        return f"{self._unit} {number:,}" if number or self.calls is None else "before call 1"

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """The positions and texts of the labels: the first column, and round numbers far enough apart."""
        places, numbers = self.places, self._numbers
        ticks = [
            (
                0.0 if self.is_cells else places[0],
                f"{self._unit} {numbers[0][0]:,}" if self.calls is None or numbers[0][0] else "start",
            )
        ]
        by = max(1.0, round_step(_LEAST_TICKS_APART * (numbers[-1][1] - numbers[0][0] + 1)))
        for place, (first, last) in zip(places, numbers, strict=True):
            number = int(last // by * by)
            # The first text is longer, because it names the axis.
            least = (1.4 if len(ticks) == 1 else 0.9) * _LEAST_TICKS_APART
            if number >= max(first, numbers[0][0] + 1) and place - ticks[-1][0] >= least:
                ticks.append((place, f"{number:,}"))
        return tuple(ticks)

    @property
    def _unit(self) -> str:
        return self.axis if self.calls is None else "call"

    @property
    def _numbers(self) -> tuple[tuple[int, int], ...]:
        return self.ranges if self.calls is None else self.calls

    @property
    def attributes(self) -> Markup:
        """The HTML attributes that the script chart.js reads the columns from."""
        lists = {
            "columns": self.texts,
            "places": () if self.is_cells else [f"{place:.4f}" for place in self.places],
            "queries": self.queries,
            "ranges": [f"{first}-{last}" for first, last in self.ranges],
        }
        return Markup(" ").join(Markup(f'data-{name}="{{}}"').format("|".join(of)) for name, of in lists.items() if of)


def round_step(least: float) -> float:
    """Returns the smallest number that is 1, 2 or 5 times a power of ten, and not below the positive number `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next((times * power for times in (1, 2, 5) if times * power >= least), 10 * power)


def axis_labels(columns: Columns) -> Markup:
    """Returns the labels of an axis, with a small line above each. The labels need a height of 16 px."""
    return Markup("").join(
        Markup('<line x1="{0}" x2="{0}" y2="4" stroke="currentColor" stroke-opacity="0.5"/>').format(percent(place))
        + label(text, x=percent(place), y=14, anchor="start" if place < 0.02 else "end" if place > 0.95 else "middle")
        for place, text in columns.ticks
    )


def label(text: str, *, x: str | float, y: str | float, anchor: str = "start", more: str = "") -> Markup:
    """Returns an SVG element with a text."""
    return Markup('<text x="{}" y="{}" text-anchor="{}"{}>{}</text>').format(
        x, y, anchor, Markup(more and f" {more}"), printable_line(text)
    )


def cells(rows: Iterable[tuple[float, float, Sequence[str | None]]]) -> Markup:
    """Returns the cells of rows, with one path for each colour. Each column has the width 1.

    Args:
        rows: For each row: its top, its height, and the colour class of each column. None means that a column has no
            cell.
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
    """Returns content with its own coordinates, stretched to fill the area around it."""
    return Markup(f'<svg viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none">{content}</svg>')


def placed(content: str, *, x: float, y: float, width: float, height: float) -> Markup:
    """Returns content in an area of a drawing."""
    area = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return Markup(f'<svg {area} overflow="visible">{content}</svg>')


def standalone(parts: Iterable[str], *, width: float, height: float, text: str) -> Markup:
    """Returns a drawing that needs no style sheet. Its texts have the colour of the text around the drawing."""
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(printable_line(text))}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">{}</svg>'
    ).format(Markup("").join(map(Markup, parts)))


def readout(name: str, texts: Iterable[str], kind: str = "") -> Markup:
    """Returns the texts that the script chart.js shows for a row, one for each column. Empty texts are not shown.

    Args:
        name: The name that is shown beside each text.
        texts: One text for each column.
        kind: `shown` for the values that the drawing shows, `bad` for bad values, or empty for other values.
    """
    return Markup('<metadata data-name="{}" data-values="{}"{}/>').format(
        name, "|".join(texts), Markup(kind and f' data-kind="{kind}"')
    )


def percent(place: float) -> str:
    """Returns a position from 0 to 1 as a coordinate in percent."""
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
