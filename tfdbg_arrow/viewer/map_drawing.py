"""Maps of layers over the training: each row is a layer, and each column is a step or a range of steps.

A row has a strip for its forward side and a strip for its gradient side. `map_drawing` returns the strips with their
axis, legend and texts, and the template charts.html arranges these parts. `map_svg` arranges the parts for notebooks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from tfdbg_arrow.query.model_health.answers import LayerDifferences, LayerHealth, LayerMap, Measure
from tfdbg_arrow.safe_text import number_of, printable_line, shortened
from tfdbg_arrow.viewer.colours import BAD, HARMLESS, ZERO, colour_class, paint
from tfdbg_arrow.viewer.map_rows import MapRow, map_rows, mark_numbers
from tfdbg_arrow.viewer.map_scale import ColourScale, colour_scale, shown_measure
from tfdbg_arrow.viewer.svg import (
    Columns,
    axis_labels,
    cells,
    label,
    number_text,
    percent,
    placed,
    readout,
    standalone,
    stretched,
)

_MAX_NUMBERS = 600_000
"""If a map has more numbers than this, the page contains only the numbers of the chosen measure."""
_MAX_COLUMNS = 100
"""Maximum number of columns of a map in a notebook."""
_NUM_STRIPES = 80
"""Maximum number of stripes across a strip whose cells are all bad."""
_NARROW = 40
"""If a map has more columns than this, the outline of a cell is wider than the cell, so that the outline is visible."""
_LABEL = 74
"""Width in pixels of the words beside the outlined cell."""
_ROW, _NAME, _PANEL, _GAP, _HEAD, _FOOT = 14, 210, 360, 26, 34, 32
_MAX_NAME = 32
"""Maximum number of characters of a name, which has a column of 210 pixels."""
_DIGITS = 4
"""Number of significant digits of a value in the box with the numbers."""


@dataclass(frozen=True, kw_only=True)
class MapWords:
    """The words of a map: beside the outlined cell, in the legend of the outline, and in the legend of bad cells."""

    origin: str
    outline: str
    bad: str


MAP_WORDS = {
    "LayerHealth": MapWords(
        origin="began here", outline="where it began; then it reached 2, 3 …", bad="bad (Inf, NaN)"
    ),
    "LayerDifferences": MapWords(origin="parted here", outline="where the runs parted", bad="bad in one run only"),
}
"""The words of maps, by the name of the map's class."""
_HARMLESS = "Inf or NaN that did no known harm"
"""The legend of bad cells if no bad value of the run is known to have done harm."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One side of a row of a drawn map.

    Attributes:
        side: `forward` or `gradient`.
        note: A description: the side, the role, and the number of op outputs.
        cells: The cells of the strip, and the marks in them.
        marks_inside: The marks of the rows inside this row, to show while those rows are folded.
        readouts: The numbers of the cells.
        start: The column of the outlined cell; None if this cell is not in the strip.
    """

    side: str
    note: str
    cells: Markup
    marks_inside: Markup
    readouts: Markup
    start: int | None


@dataclass(frozen=True, kw_only=True)
class DrawnRow:
    """One row of a drawn map, with its strips and the rows inside it. The strip of a missing side is None."""

    row: MapRow
    strips: tuple[Strip | None, ...]
    inside: tuple[DrawnRow, ...]

    @property
    def is_origin(self) -> bool:
        """Whether the row has the outlined cell."""
        return any(strip is not None and strip.start is not None for strip in self.strips)


@dataclass(frozen=True, kw_only=True)
class MapDrawing:
    """A drawn map.

    Attributes:
        columns: The columns.
        sides: The sides of the map: `forward`, and `gradient` if any row has a gradient side.
        rows: The rows that are not inside another row.
        axis: The axis for the columns of one side.
        scale: The legend of the colours, 28 px high; without words if `is_zero`.
        is_zero: Whether the measure is 0 in all cells that are not bad, so that the legend has one colour.
        words: The words of the map.
        bad_paint: The attributes with the colour of bad cells.
        has_bad: Whether a cell is bad.
        has_origin: Whether a cell is outlined.
        is_part: Whether only the numbers of the shown measure are included, because the map is large.
    """

    columns: Columns
    sides: tuple[str, ...]
    rows: tuple[DrawnRow, ...]
    axis: Markup
    scale: Markup
    is_zero: bool
    words: MapWords
    bad_paint: Markup
    has_bad: bool
    has_origin: bool
    is_part: bool


def map_drawing(layers: LayerMap, measure: Measure, *, max_numbers: int = _MAX_NUMBERS) -> MapDrawing:
    """Returns the drawing of a map.

    Args:
        layers: The map.
        measure: The measure that the colours show.
        max_numbers: If the map has more numbers than this, the drawing contains only the numbers of `measure`.
    """
    num_numbers = len(layers.rows) * len(layers.columns) * len(layers.measures)
    num_numbers *= 3 if isinstance(layers, LayerDifferences) else 1
    measures = layers.measures if num_numbers <= max_numbers else (measure,)
    scale, is_zero = colour_scale(layers, measure), _is_zero(layers, measure)
    rows = map_rows(layers)
    by_parent: dict[int | None, list[int]] = {}
    for number, row in enumerate(rows):
        by_parent.setdefault(row.parent, []).append(number)
    sides = ("forward", "gradient") if any(row.gradient is not None for row in rows) else ("forward",)
    numbers, inside = _marks(layers, rows)

    def strip(index: int | None) -> Strip | None:
        if index is None:
            return None
        row = layers.rows[index]
        role = "" if row.role == row.side else f", {row.role}"
        is_origin = layers.origin is not None and layers.origin.row == index
        return Strip(
            side=row.side,
            note=f"{row.side}{role}, {number_of(row.num_outputs, 'op output')}",
            cells=_cells(layers, measure, None if is_zero else scale, index) + _mark(layers, numbers.get(index)),
            marks_inside=_mark(layers, inside.get(index)),
            readouts=_readouts(layers, measure, measures, index),
            start=layers.origin.column if layers.origin is not None and is_origin else None,
        )

    def drawn(number: int) -> DrawnRow:
        row = rows[number]
        return DrawnRow(
            row=row,
            strips=tuple(strip(row.forward if side == "forward" else row.gradient) for side in sides),
            inside=tuple(drawn(inner) for inner in by_parent.get(number, ())),
        )

    columns = map_columns(layers)
    words = MAP_WORDS[type(layers).__name__]
    return MapDrawing(
        columns=columns,
        sides=sides,
        rows=tuple(drawn(number) for number in by_parent.get(None, ())),
        axis=axis_labels(columns),
        scale=Markup(f'<rect width="18" height="12" {paint(ZERO)}/>') if is_zero else _scale_bar(scale),
        is_zero=is_zero,
        words=replace(words, bad=_HARMLESS) if _is_harmless(layers) else words,
        bad_paint=paint(_bad_class(layers)),
        has_bad=any(map(any, layers.bad)),
        has_origin=layers.origin is not None,
        is_part=len(measures) < len(layers.measures),
    )


def map_svg(health: LayerMap) -> Markup:
    """Returns a map of layers over steps as an SVG element of up to about 200 kB that needs no style sheet.

    The element has the rows that are not folded, and at most 100 columns.
    """
    shown = shown_measure(health)
    if not health.columns or not health.rows or shown is None:
        return Markup("")
    drawing = map_drawing(_merged(health, shown), shown, max_numbers=0)
    panel = _PANEL if len(drawing.sides) == 2 else 2 * _PANEL + _GAP
    lefts = [_NAME + number * (_PANEL + _GAP) for number in range(len(drawing.sides))]
    rows = list(_unfolded(drawing.rows))
    width, height = _NAME + 2 * _PANEL + _GAP + 8, _HEAD + _ROW * len(rows) + _FOOT
    parts: list[str] = []
    for side, left in zip(drawing.sides, lefts, strict=True):
        parts.append(label(side, x=left, y=12, more='font-weight="600"'))
        parts.append(placed(drawing.axis, x=left, y=16, width=panel, height=16))
    for number, drawn in enumerate(rows):
        top, row = _HEAD + _ROW * number, drawn.row
        name = ("+ " if drawn.inside and not row.is_open else "") + shortened(row.name, _MAX_NAME)
        title = Markup("<title>{}</title>").format(printable_line(row.layer))
        parts.append(f"<g>{title}{label(name, x=4 + 10 * min(row.depth, 8), y=top + 11)}</g>")
        parts += [
            placed(strip.cells, x=left, y=top, width=panel, height=_ROW - 1)
            for strip, left in zip(drawn.strips, lefts, strict=True)
            if strip is not None
        ]
    foot = height - _FOOT + 6
    parts.append(label(shown.title, x=width - 350, y=foot + 10, anchor="end"))
    parts.append(placed(drawing.scale, x=width - 340, y=foot, width=160, height=28))
    if drawing.is_zero:
        parts.append(label("0", x=width - 316, y=foot + 10))
    if drawing.has_bad:
        parts.append(f'<rect x="{width - 150}" y="{foot}" width="12" height="12" {drawing.bad_paint}/>')
        parts.append(label(drawing.words.bad, x=width - 132, y=foot + 10))
    return standalone(parts, width=width, height=height, text=health.sentence)


def _is_harmless(layers: LayerMap) -> bool:
    return isinstance(layers, LayerHealth) and layers.is_harmless


def _bad_class(layers: LayerMap) -> str:
    return HARMLESS if _is_harmless(layers) else BAD


def _unfolded(rows: Sequence[DrawnRow]) -> Iterator[DrawnRow]:
    for drawn in rows:
        yield drawn
        if drawn.row.is_open:
            yield from _unfolded(drawn.inside)


def map_columns(layers: LayerMap) -> Columns:
    """Returns the columns of a map."""
    return Columns(
        axis=layers.axis,
        ranges=tuple((column.first, column.last) for column in layers.columns),
        is_cells=True,
        calls=None if layers.calls is None else layers.calls.ranges,
        queries=tuple(
            f"first_step={column.first}&last_step={column.last}"
            if layers.axis == "step"
            else ""
            if column.first_event_index is None
            else f"at={column.first_event_index}"
            for column in layers.columns
        ),
    )


def _cells(layers: LayerMap, measure: Measure, scale: ColourScale | None, row: int) -> Markup:
    """Returns the cells of a row. Bad cells have stripes; a dotted line marks cells without a known value.

    Args:
        layers: The map.
        measure: The measure that the colours show.
        scale: The scale of the colours; None if the measure is 0 in all cells that are not bad.
        row: Index of the row.
    """
    num_columns, bad_class = len(layers.columns), _bad_class(layers)
    classes = [
        bad_class
        if num_bad
        else None
        if value is None or not math.isfinite(value)
        else ZERO
        if scale is None
        else colour_class(scale.place(value), is_diverging=scale.kind == "signed")
        for value, num_bad in zip(layers.values[measure.name][row], layers.bad[row], strict=True)
    ]
    by = -(-num_columns // _NUM_STRIPES)
    stripes = "".join(
        f"M{column} 1L{min(column + by, num_columns)} 0"
        for column in range(0, num_columns, by)
        if layers.bad[row][column]
    )
    hatch = (
        f'<path d="{stripes}" stroke="#fff" stroke-opacity="0.75" vector-effect="non-scaling-stroke"/>'
        if stripes
        else ""
    )
    dots = '<line x2="100%" y1="50%" y2="50%" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="1.5 4.5"/>'
    drawn = f'<g shape-rendering="crispEdges">{cells([(0, 1, classes)])}</g>{hatch}'
    return Markup(dots if None in classes else "") + stretched(num_columns, 1, drawn)


def _marks(layers: LayerMap, rows: Sequence[MapRow]) -> tuple[dict[int, int], dict[int, int]]:
    """Returns the numbers of the marks by row, and the smallest number inside each row. The outlined cell is 1."""
    numbers = mark_numbers(layers)
    inside: dict[int, int] = {}
    for row in rows:
        for side in ("forward", "gradient"):
            number, at = numbers.get(getattr(row, side)), row.parent
            while number is not None and at is not None:
                around = getattr(rows[at], side)
                if around is not None and around not in numbers:
                    inside[around] = min(number, inside.get(around, number))
                at = rows[at].parent
    return numbers, inside


def _mark(layers: LayerMap, number: int | None) -> Markup:
    """Returns the mark with a number: the outline for number 1, a circle with the number for any other."""
    if number is None or layers.origin is None:
        return Markup("")
    num_columns = len(layers.columns)
    middle = (layers.origin.column + 0.5) / num_columns
    if number > 1:
        circle = Markup('<circle cx="{}" cy="50%" r="7.5" fill="#111" stroke="#fff"/>').format(percent(middle))
        return circle + label(
            str(number), x=percent(middle), y="50%", anchor="middle", more='dy="3.5" font-size="10" fill="#fff"'
        )
    half = 0.5 / num_columns
    is_narrow = num_columns > _NARROW
    left, width = ("-4.5", "9") if is_narrow else (percent(-half), percent(2 * half))
    outline = "".join(
        f'<rect x="{left}" y="-1" width="{width}" height="100%" fill="none" stroke="{colour}" stroke-width="{px}"/>'
        for colour, px in (("#fff", 4), ("#111", 2))
    )
    # The words are inside the cell if it is wide. Otherwise the words are at the right of the cell, or at its left if
    # there is no room at the right.
    is_inside, is_left = half > 0.15, middle > 0.65
    words_at = middle if is_inside else middle - half if is_left else middle + half
    x = -_LABEL / 2 if is_inside else -_LABEL - 7 if is_left else 7
    words = MAP_WORDS[type(layers).__name__].origin
    return Markup(
        f'<svg x="{percent(middle)}" overflow="visible">{outline}</svg><svg x="{percent(words_at)}" overflow="visible">'
        f'<rect x="{x:g}" y="0" width="{_LABEL}" height="100%" rx="3" fill="#111"/>'
    ) + Markup("{}</svg>").format(
        label(words, x=x + _LABEL / 2, y="50%", anchor="middle", more='dy="4" fill="#fff" font-weight="650"')
    )


def _readouts(layers: LayerMap, shown: Measure, measures: Sequence[Measure], row: int) -> Markup:
    """Returns the texts of a row: its numbers of bad tensors, and the values of its measures."""
    compared = layers if isinstance(layers, LayerDifferences) else None
    if compared is not None:
        bad = [
            f"{in_a:,} in A, {in_b:,} in B" if in_a or in_b else ""
            for in_a, in_b in zip(compared.bad_a[row], compared.bad_b[row], strict=True)
        ]
    else:
        bad = [f"{number:,}" if number else "" for number in layers.bad[row]]
    name, kind = ("bad tensors, no known harm", "") if _is_harmless(layers) else ("✕ bad tensors", "bad")
    readouts = [readout(name, bad, kind)] if any(bad) else []
    for measure in measures:
        kind = "shown" if measure.name == shown.name else ""
        readouts.append(readout(measure.title, _texts(layers, compared, measure, row), kind))
    return Markup("").join(readouts)


def _texts(layers: LayerMap, compared: LayerDifferences | None, measure: Measure, row: int) -> Iterator[str]:
    values = layers.values[measure.name][row]
    is_share = measure.scale in ("share", "share_difference")
    if compared is None:
        return (number_text(value, digits=_DIGITS, is_share=is_share) for value in values)
    if measure.scale == "difference":
        return (number_text(value, is_share=True) for value in values)

    def text(value: float | None) -> str:
        return number_text(value, digits=_DIGITS, is_share=is_share)

    return (
        f"{text(in_a)} in A, {text(in_b)} in B, {'+' if value is not None and value > 0 else ''}"
        f"{number_text(value, is_share=True)}"
        for in_a, in_b, value in zip(
            compared.values_a[measure.name][row], compared.values_b[measure.name][row], values, strict=True
        )
    )


def _is_zero(layers: LayerMap, measure: Measure) -> bool:
    """Returns whether a measure is 0 in all cells without bad tensors. The share of bad tensors is such a measure."""
    rows = zip(layers.values[measure.name], layers.bad, strict=True)
    return all(num_bad or not value for row in rows for value, num_bad in zip(*row, strict=True))


def _scale_bar(scale: ColourScale) -> Markup:
    """Returns the colours of a scale, with numbers below them."""
    num_steps = 25
    bar = Markup("").join(
        Markup('<rect x="{}" width="{}" height="10" {}/>').format(
            percent(step / num_steps),
            percent(1.02 / num_steps),
            paint(colour_class(step / (num_steps - 1), is_diverging=scale.kind == "signed")),
        )
        for step in range(num_steps)
    )
    return bar + Markup("").join(
        label(text, x=percent(place), y=24, anchor="middle", more='font-size="10"') for place, text in scale.ticks
    )


def _merged(health: LayerMap, measure: Measure) -> LayerMap:
    """Returns the map with at most _MAX_COLUMNS columns.

    A merged column has the value with the greatest magnitude, and the total number of bad tensors.
    """
    by = -(-len(health.columns) // _MAX_COLUMNS)
    if by <= 1:
        return health
    starts = range(0, len(health.columns), by)

    def greatest(values: Sequence[float | None]) -> float | None:
        return max((value for value in values if value is not None), key=abs, default=None)

    columns = tuple(
        replace(health.columns[start], last=health.columns[min(start + by, len(health.columns)) - 1].last)
        for start in starts
    )
    values = tuple(tuple(greatest(row[at : at + by]) for at in starts) for row in health.values[measure.name])
    calls = health.calls
    if calls is not None:
        ends = (min(start + by, len(calls.ranges)) - 1 for start in starts)
        ranges = tuple((calls.ranges[start][0], calls.ranges[end][1]) for start, end in zip(starts, ends, strict=True))
        calls = replace(calls, ranges=ranges)
    origin = health.origin
    return replace(
        health,
        columns=columns,
        calls=calls,
        values={**health.values, measure.name: values},
        bad=tuple(tuple(sum(row[at : at + by]) for at in starts) for row in health.bad),
        origin=None if origin is None else replace(origin, column=origin.column // by),
    )
