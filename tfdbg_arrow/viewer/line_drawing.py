"""Plots of lines over the training: the curves of the overview, and the measures of an op on the page History."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from tfdbg_arrow.query.model_health.answers import Curve, TrainingCurves
from tfdbg_arrow.viewer.colours import DARK
from tfdbg_arrow.viewer.svg import (
    Columns,
    axis_labels,
    label,
    number_text,
    percent,
    placed,
    readout,
    round_step,
    standalone,
    stretched,
)

_MAX_DECADES = 5
"""Number of decades from which on not every power of ten has a label. A plot is 84 pixels high."""
_NOTES = {
    "loss": "of one batch: {}",
    "logs/loss": "as Keras prints it: the mean since the start of the epoch",
    "bad_share": "with a NaN or an infinity, of {}",
}
"""What each curve shows, by the name of the curve. The source of the numbers is inserted into the text."""
_ROOM = 0.004
"""Minimum distance between the edges of a logarithmic scale and the nearest values, in decades."""
_LEAST_SHARE = 1e-12
"""If no share is greater than this, the scale of shares ends at 1."""
_UNITS = 1000
"""Width and height of the plotted area in its own coordinates."""
_MAX_DOTS = 60
"""If a plot has at most this number of columns, each point of a line has a dot."""
_PER_ROW, _WIDE, _TALL, _LEFT, _TOP, _BELOW = 3, 300, 84, 46, 26, 24
_COLOUR = "#2f6fb0"
"""The colour of lines without a style sheet; visible on light and dark backgrounds."""
_BAD = f'fill="{DARK.bad}"'
"""The attributes of the text elements about bad values."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line.

    Attributes:
        name: The name of the line.
        greatest: The greatest value of each column; None where the value is unknown or not finite.
        least: The least value of each column.
        texts: The value of each column as text, for the box that shows numbers and for screen readers.
    """

    name: str
    greatest: tuple[float | None, ...]
    least: tuple[float | None, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Lines with one scale.

    Attributes:
        title: The title.
        source: What the lines were computed from.
        scale: `share`, `log`, or anything else for a linear scale.
        columns: The columns.
        lines: The lines.
        bad: Indices of the columns with bad values. Crosses mark these columns.
        bad_from: Index of the column where the training went bad; None if it did not.
        chosen: Index of a column to mark; None means no column.
    """

    title: str
    source: str = ""
    scale: str
    columns: Columns
    lines: tuple[Line, ...]
    bad: tuple[int, ...]
    bad_from: int | None = None
    chosen: int | None = None

    @property
    def extent(self) -> Extent:
        """The range of values that the plot covers."""
        sides = (side for line in self.lines for side in (line.greatest, line.least))
        values = [value for side in sides for value in side if value is not None]
        positive = [value for value in values if value > 0]
        low, high = min(values, default=0.0), max(values, default=1.0)
        if self.scale == "log" and positive:
            # A logarithmic scale has no 0, so zeros are drawn at the lower edge, at least a decade below the lowest
            # value. A constant must not lie on an edge, because its line would not be visible there.
            least, most = math.log10(min(positive)), math.log10(high)
            first = math.floor(least - _ROOM if most < least + _ROOM else least) - (low <= 0)
            return Extent(low=first, high=max(first + 1, math.ceil(most + _ROOM)), scale="log")
        if self.scale == "share":
            return Extent(low=0.0, high=min(1.0, 1.15 * high) if high > _LEAST_SHARE else 1.0, scale="share")
        most = sys.float_info.max
        # Subtract halves, because the difference of two large numbers can be infinite.
        room = 0.16 * (high / 2 - low / 2) or 0.08 * abs(high) or 0.08
        return Extent(low=max(-most, low - room), high=min(most, high + room), scale="linear")

    @property
    def text(self) -> str:
        """A description for readers who cannot see the plot."""
        parts = []
        for line in self.lines:
            finite_texts = [text for text, value in zip(line.texts, line.greatest, strict=True) if value is not None]
            name = "" if len(self.lines) == 1 else f"{line.name} "
            parts.append(
                f"{name}from {finite_texts[0]} to {finite_texts[-1]}" if finite_texts else f"{name}no finite value"
            )
        if self.bad:
            parts.append(_bad_text(self.columns, self.bad[0]))
        return f"{self.title}: {', '.join(parts)}" if parts else self.title


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The range of values that a plot covers. For the scale `log`, `low` and `high` are decimal logarithms."""

    low: float
    high: float
    scale: str

    def place(self, value: float) -> float:
        """Returns the height of a value, from 0 to 1."""
        if self.scale == "log":
            value = math.log10(value) if value > 0 else self.low
        return min(1.0, max(0.0, (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)))

    @property
    def ticks(self) -> Iterator[tuple[float, str]]:
        """The heights and texts of the labels, which are round numbers."""
        if self.scale == "log":
            by = -(-int(self.high - self.low) // _MAX_DECADES)
            for power in range(int(self.low), int(self.high) + 1, by):
                yield (
                    (power - self.low) / (self.high - self.low),
                    f"1e{power}" if not -5 < power < 6 else f"{10.0**power:g}",
                )
            return
        step = round_step(max(sys.float_info.min, self.high / 4 - self.low / 4))
        for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            value = number * step
            yield self.place(value), number_text(value, digits=6, is_share=self.scale == "share")


@dataclass(frozen=True, kw_only=True)
class PlotDrawing:
    """A drawn plot: the labels at its left (46 px wide), the lines, the labels below, and texts for chart.js."""

    plot: Plot
    values: Markup
    area: Markup
    axis: Markup
    readouts: Markup


def plot_drawing(plot: Plot) -> PlotDrawing:
    """Returns the drawing of a plot."""
    ticks = [(percent(1 - place), text) for place, text in plot.extent.ticks] if plot.lines else []
    return PlotDrawing(
        plot=plot,
        values=Markup("").join(label(text, x="100%", y=y, anchor="end", more='dx="-6" dy="4"') for y, text in ticks),
        area=_area(plot, [y for y, _ in ticks]),
        axis=axis_labels(plot.columns),
        readouts=Markup("").join(readout(line.name, line.texts) for line in plot.lines),
    )


def curve_plots(curves: TrainingCurves) -> tuple[PlotDrawing, ...]:
    """Returns the drawings of curves over the training."""
    columns = Columns(
        axis=curves.axis,
        ranges=tuple((column.first, column.last) for column in curves.columns),
        is_cells=False,
        calls=None if curves.calls is None else curves.calls.ranges,
    )
    return tuple(plot_drawing(curve_plot(curve, columns, bad_from=curves.first_bad)) for curve in curves.curves)


def curves_svg(curves: TrainingCurves) -> Markup:
    """Returns curves over the training as an SVG element that needs no style sheet, with three curves per row."""
    if not curves.columns or not curves.curves:
        return Markup("")
    per_row = min(_PER_ROW, len(curves.curves))
    wide, tall = _LEFT + _WIDE + 14, _TOP + _TALL + _BELOW
    parts: list[str] = []
    for number, drawing in enumerate(curve_plots(curves)):
        x, y = number % per_row * wide, number // per_row * tall
        title = Markup("<title>{}</title>").format(drawing.plot.source)
        heading = label(drawing.plot.title, x=x + _LEFT, y=y + 12, more='font-weight="600"')
        parts.append(f"<g>{title}{heading}</g>")
        parts.append(placed(drawing.values, x=x, y=y + _TOP, width=_LEFT, height=_TALL))
        parts.append(placed(drawing.area, x=x + _LEFT, y=y + _TOP, width=_WIDE, height=_TALL))
        parts.append(placed(drawing.axis, x=x + _LEFT, y=y + _TOP + _TALL, width=_WIDE, height=16))
    height = -(-len(curves.curves) // per_row) * tall
    return standalone(parts, width=per_row * wide, height=height, text="Curves over the training")


def curve_plot(curve: Curve, columns: Columns, *, bad_from: int | None) -> Plot:
    """Returns the plot of a curve. `bad_from` is as in Plot."""
    finite = tuple(value if value is not None and math.isfinite(value) else None for value in curve.values)
    texts = tuple(number_text(value, is_share=curve.scale == "share") for value in curve.values)
    return Plot(
        title=curve.title,
        source=_NOTES.get(curve.name, "{}").format(curve.source),
        scale=curve.scale,
        columns=columns,
        lines=(Line(name=curve.title, greatest=finite, least=finite, texts=texts),),
        bad=tuple(index for index, value in enumerate(curve.values) if value is not None and not math.isfinite(value)),
        bad_from=bad_from,
    )


def _area(plot: Plot, ticks: list[str]) -> Markup:
    """Returns the lines on a grid, with the marks of bad columns and of the chosen column."""
    places = plot.columns.places
    grid = [f'<line x2="100%" y1="{y}" y2="{y}"/>' for y in ticks]
    grid += [f'<line x1="{x}" x2="{x}" y2="100%"/>' for x in (percent(place) for place, _ in plot.columns.ticks)]
    parts = [
        f'<g stroke="currentColor" stroke-opacity="0.12">{"".join(grid)}</g>',
        '<rect width="100%" height="100%" fill="none" stroke="currentColor" stroke-opacity="0.25"/>',
        stretched(_UNITS, _UNITS, "".join(_line(plot, number) for number in range(len(plot.lines)))),
    ]
    if plot.bad:
        xs = " ".join(percent(places[index]) for index in plot.bad)
        parts.append(
            label(
                "\N{MULTIPLICATION SIGN}" * len(plot.bad),
                x=xs,
                y=-2,
                anchor="middle",
                more=f'font-size="13" class="crosses" {_BAD}',
            )
        )
    if plot.chosen is not None:
        x = percent(places[plot.chosen])
        parts.append(f'<line x1="{x}" x2="{x}" y2="100%" class="chosen" stroke="#d39b00" stroke-width="2"/>')
    if plot.bad_from is not None:
        x, is_left = percent(places[plot.bad_from]), places[plot.bad_from] > 0.5
        parts.append(f'<line x1="{x}" x2="{x}" y2="100%" stroke="{DARK.bad}" stroke-dasharray="4 3"/>')
        text = _bad_text(plot.columns, plot.bad_from)
        anchor, away = ("end", -4) if is_left else ("start", 4)
        parts.append(label(text, x=x, y=12, anchor=anchor, more=f'dx="{away}" class="bad-from" {_BAD}'))
    return Markup("").join(map(Markup, parts))


def _bad_text(columns: Columns, first: int) -> str:
    """Returns words for the first column with a bad value, which can stand for several steps."""
    text = columns.texts[first]
    return f"bad from {text} on" if text == columns.starts[first] else f"bad in {text} and later"


def _line(plot: Plot, number: int) -> str:
    """Returns a line with gaps where values are missing, and the band between its greatest and least values."""
    line, extent, xs = plot.lines[number], plot.extent, plot.columns.places
    pieces: list[list[tuple[str, str, str]]] = [[]]
    for place, greatest, least in zip(xs, line.greatest, line.least, strict=True):
        if greatest is None or least is None:
            pieces.append([])
            continue
        top, foot = (f"{_UNITS * (1 - extent.place(value)):.0f}" for value in (greatest, least))
        pieces[-1].append((f"{_UNITS * place:.1f}", top, foot))
    lines, band, dots = [], [], []
    for piece in filter(None, pieces):
        # A single point becomes a line from the point to itself, so that it is visible.
        lines.append("M" + "L".join(f"{x} {top}" for x, top, _ in (piece if len(piece) > 1 else piece * 2)))
        if any(top != foot for _, top, foot in piece):
            band.append("M" + "L".join([*(f"{x} {y}" for x, y, _ in piece), *(f"{x} {y}" for x, _, y in piece[::-1])]))
        if len(xs) <= _MAX_DOTS:
            dots += [f"M{x} {top}h0" for x, top, _ in piece]
    fixed = 'vector-effect="non-scaling-stroke" stroke-linecap="round" fill="none"'
    return "".join(
        '<path {} d="{}"/>'.format(attributes, "".join(data))
        for attributes, data in (
            (f'class="line-{number} band" fill="{_COLOUR}" fill-opacity="0.2"', band),
            (f'class="line-{number}" stroke="{_COLOUR}" stroke-width="1.6" {fixed}', lines),
            (f'class="line-{number} dots" stroke="{_COLOUR}" stroke-width="4.5" {fixed}', dots),
        )
        if data
    )
