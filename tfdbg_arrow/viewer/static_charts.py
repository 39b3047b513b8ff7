"""Maps and curves of a model's health as small static SVG, and what the drawing script shares with them.

The drawings need no script and no style sheet: a report and a notebook can contain them. Text takes the colour of the
text around the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from tfdbg_arrow.query.model_health import Curve, LayerMap, Measure, TrainingCurves
from tfdbg_arrow.safe_text import printable_line

if TYPE_CHECKING:
    from tfdbg_arrow.query.model_health import Column


@dataclass(frozen=True, kw_only=True)
class Colours:
    """The colours of a map on one ground.

    Attributes:
        sequential: From the lowest to the greatest value, with evenly changing lightness.
        diverging: From negative values over 0 to positive values.
        bad: Bad cells. No colour of a scale is similar to it.
    """

    sequential: tuple[str, ...]
    diverging: tuple[str, ...]
    bad: str


# Source of the sequential colours: seaborn's colour map mako.
LIGHT = Colours(
    sequential=("#def5e5", "#a9e1bd", "#60ceac", "#3eb4ad", "#348fa7", "#366da0", "#3b4a8a", "#403a72"),
    diverging=("#1f4e9c", "#5b8fd0", "#a9c6ea", "#f1f1ee", "#f0c48c", "#d98a2b", "#9c5a00"),
    bad="#b3173f",
)
DARK = Colours(
    sequential=LIGHT.sequential[::-1],
    diverging=("#8fc1ff", "#4d86cf", "#2c4f80", "#2a2f37", "#7d5216", "#c27f22", "#ffc66e"),
    bad="#e04060",
)
MAX_SHOWN = 40
"""Number of rows from which on deep rows are folded."""
_MEASURES = ("difference", "max_abs", "norm", "bad_share")
"""The measures to show first, if the recording has them."""
_NUM_LEVELS = 24
_LINEAR_SHARE = 1e-3
_LINEAR = {"relative": 1e-6, "share_difference": 1e-3}
"""The difference below which the scale of differences is linear, by `Measure.scale`. Rounding errors are below it."""
_SAME = 1e-7
"""The difference below which two runs have the same colour."""
_NOTICEABLE = 1e-3
"""A difference with a tick of its own."""
_MAX_COLUMNS = 100
_ROW, _NAME, _PANEL, _GAP, _HEAD, _FOOT = 14, 210, 360, 26, 34, 20
_STRIPE = 4.0
_MAX_NAME = 32
_FONT = 'font-family="system-ui, sans-serif" font-size="11" fill="currentColor"'


@dataclass(frozen=True, kw_only=True)
class MapWords:
    """The words of a map: for the outlined cell, in the legend for it, and in the legend for bad cells."""

    origin: str
    outline: str
    bad: str


MAP_WORDS = {
    "LayerHealth": MapWords(origin="began here", outline="where it began; 2, 3 … its way", bad="bad (Inf, NaN)"),
    "LayerDifferences": MapWords(origin="parted here", outline="where the runs parted", bad="bad in one run only"),
}
"""By the name of the class of the map."""


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """One row of a drawn map: a layer with its forward side and its gradient side.

    Attributes:
        layer: As in LayerRow.
        kind: As in LayerRow.
        name: As in LayerRow.
        role: The role of its forward side.
        depth: As in LayerRow.
        parent: Index of the row around it; None if there is none.
        has_children: Whether other rows are inside.
        is_open: Whether the rows inside are shown at first.
        forward: Index in `LayerMap.rows`; None if the layer has no forward side.
        gradient: Index in `LayerMap.rows`; None if the layer has no gradient side.
    """

    layer: str
    kind: str
    name: str
    role: str
    depth: int
    parent: int | None
    has_children: bool
    is_open: bool
    forward: int | None
    gradient: int | None


def map_rows(health: LayerMap) -> tuple[MapRow, ...]:
    """Returns the rows of a drawn map. Deep rows are folded if there are many, but never those of the origin's way."""
    sides: dict[tuple[str, str], dict[str, int]] = {}
    for index, row in enumerate(health.rows):
        sides.setdefault((row.kind, row.layer), {})[row.side] = index
    places = {key: number for number, key in enumerate(sides)}
    parents: list[int | None] = []
    for kind, layer in sides:
        around = None
        while kind == "layer" and around is None and "/" in layer:
            layer = layer.rpartition("/")[0]
            around = places.get((kind, layer))
        parents.append(around)
    depths = [health.rows[min(found.values())].depth for found in sides.values()]
    most = max(depths, default=0)
    while most and sum(depth <= most for depth in depths) > MAX_SHOWN:
        most -= 1
    is_open = [depth < most or len(sides) <= MAX_SHOWN for depth in depths]
    for index in health.path if health.origin is None else (health.origin.row, *health.path):
        at = parents[places[health.rows[index].kind, health.rows[index].layer]]
        while at is not None:
            is_open[at] = True
            at = parents[at]
    rows = []
    for number, ((kind, layer), found) in enumerate(sides.items()):
        first = health.rows[min(found.values())]
        rows.append(
            MapRow(
                layer=layer,
                kind=kind,
                name=first.name,
                role=first.role,
                depth=first.depth,
                parent=parents[number],
                has_children=number in parents,
                is_open=is_open[number],
                forward=found.get("forward"),
                gradient=found.get("gradient"),
            )
        )
    return tuple(rows)


def shown_measure(health: LayerMap, name: str | None = None) -> Measure | None:
    """Returns the measure with a name, or else the one to show first; None if the recording has none."""
    known = {measure.name: measure for measure in health.measures}
    wanted = (name, *_MEASURES, *known)
    return next((known[each] for each in wanted if each in known), None)


@dataclass(frozen=True, kw_only=True)
class ColourScale:
    """How values of a measure become places from 0 to 1 on a colour scale.

    Attributes:
        kind: As in Measure.
        low: The value at 0. For the scale `log` it is positive, and zeros are at 0 too.
        high: The value at 1.
        linear: For the scale `signed`, the magnitude below which the scale is linear.
        is_difference: Whether the values are differences of two runs.
    """

    kind: str
    low: float
    high: float
    linear: float = 1.0
    is_difference: bool = False

    def place(self, value: float) -> float:
        """Returns the place of a value."""
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
        """The places and texts of the scale's labels."""
        if self.kind == "share":
            return tuple((share / 4, f"{25 * share} %") for share in range(5))
        if self.is_difference and self.kind == "log":
            return ((0.0, "same"), *((self.place(share), f"{100 * share:g} %") for share in (1e-4, 1e-2, 1.0)))
        if self.is_difference:
            middle = self.place(_NOTICEABLE)
            text = f"{100 * _NOTICEABLE:g} %"
            return ((0.0, "B smaller"), (1 - middle, text), (0.5, "same"), (middle, text), (1.0, "B larger"))
        if self.kind == "signed":
            return ((0.0, _short(-self.high)), (0.5, "0"), (1.0, _short(self.high)))
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if last - first < 1:
            return ((0.0, _short(self.low)), (1.0, _short(self.high)))
        by = -(-(last - first) // 4)
        return tuple((self.place(10.0**power), _short(10.0**power)) for power in range(first, last + 1, by))


def colour_scale(health: LayerMap, measure: Measure) -> ColourScale:
    """Returns the scale of a measure over all rows of a map.

    Of a run that went bad, it covers the columns until then: later values can be so large that they would hide what led
    to it. They have the colours of the ends.
    """
    if measure.scale == "difference":
        return ColourScale(kind="log", low=_SAME, high=1.0, is_difference=True)
    if measure.scale in _LINEAR:
        return ColourScale(kind="signed", low=-1.0, high=1.0, linear=_LINEAR[measure.scale], is_difference=True)
    end = len(health.columns) if not health.origin else health.origin.column + 1
    values = [value for row in health.values[measure.name] for value in row[:end] if value is not None]
    sizes = sorted(abs(value) for value in values if math.isfinite(value) and value)
    if measure.scale == "share":
        return ColourScale(kind="share", low=0.0, high=1.0)
    high = sizes[-1] if sizes else 1.0
    if measure.scale == "signed":
        return ColourScale(kind="signed", low=-high, high=high, linear=max(high * _LINEAR_SHARE, 1e-300))
    # The lowest fiftieth shares a colour, so that single tiny numbers do not use up the scale.
    low = sizes[len(sizes) // 50] if sizes else 0.1
    return ColourScale(kind="log", low=low if low < high else high / 10, high=high)


def colour_at(stops: Sequence[str], place: float) -> str:
    """Returns the colour at a place from 0 to 1 between evenly spaced colours."""
    at = place * (len(stops) - 1)
    index = min(int(at), len(stops) - 2)
    pairs = [(int(stops[index][c : c + 2], 16), int(stops[index + 1][c : c + 2], 16)) for c in (1, 3, 5)]
    return "#" + "".join(f"{round(one + (other - one) * (at - index)):02x}" for one, other in pairs)


def map_svg(health: LayerMap, measure: str | None = None) -> Markup:
    """Returns a map of layers over steps as a static SVG element of at most about 200 kB.

    It has the rows that are not folded, and at most 100 columns.

    Args:
        health: The map.
        measure: Name of the measure; None, or one that the recording lacks, means the one to show first.
    """
    shown = shown_measure(health, measure)
    if not health.columns or not health.rows or shown is None:
        return Markup("")
    scale = colour_scale(health, shown)
    small = _merged(health, shown)
    rows = map_rows(small)
    visible = [row for row in rows if _is_visible(row, rows)]
    has_gradient = any(row.gradient is not None for row in visible)
    panel = _PANEL if has_gradient else 2 * _PANEL + _GAP
    lefts = {"forward": float(_NAME), "gradient": float(_NAME + _PANEL + _GAP)}
    width = _NAME + panel + (_GAP + _PANEL if has_gradient else 0) + 8
    height = _HEAD + _ROW * len(visible) + _FOOT
    cell = panel / len(small.columns)
    stops = LIGHT.diverging if scale.kind == "signed" else LIGHT.sequential
    paths: dict[str, list[str]] = {}
    marks: list[str] = []
    tops: dict[int, float] = {}
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{_text(health.sentence)}" {_FONT}><title>{_text(shown.title)}</title>'
        )
    ]
    for side in ("forward", "gradient") if has_gradient else ("forward",):
        parts.append(f'<text x="{lefts[side]:g}" y="12" font-weight="600">{side}</text>')
        parts.append(_axis(small.columns, lefts[side], panel, health.axis, _HEAD - 6))
    by = max(1, math.ceil(_STRIPE / cell))
    for number, row in enumerate(visible):
        top = _HEAD + _ROW * number
        name = row.name if len(row.name) <= _MAX_NAME else row.name[: _MAX_NAME - 1] + "…"
        sign = "+ " if row.has_children and not row.is_open else ""
        parts.append(
            f'<text x="{4 + 10 * min(row.depth, 8)}" y="{top + 11}"><title>{_text(row.layer)}</title>'
            f"{sign}{_text(name)}</text>"
        )
        for side, index in (("forward", row.forward), ("gradient", row.gradient)):
            if index is None:
                continue
            tops[index] = top
            runs = _runs(small, shown, scale, stops, index)
            for first, end, colour in runs:
                x = lefts[side] + first * cell
                area = f"M{x:.1f} {top}h{(end - first) * cell:.1f}v{_ROW - 1}h{(first - end) * cell:.1f}z"
                paths.setdefault(colour, []).append(area)
                if colour == LIGHT.bad:
                    marks += [
                        f"M{lefts[side] + column * cell:.1f} {top + _ROW - 1}l{by * cell:.1f} {1 - _ROW}"
                        for column in range(first, end - by + 1, by)
                    ]
    parts += [f'<path d="{"".join(areas)}" fill="{colour}"/>' for colour, areas in paths.items()]
    if marks:
        parts.append(f'<path d="{"".join(marks)}" stroke="#fff" stroke-width="0.8" stroke-opacity="0.75" fill="none"/>')
    parts.append(_way(small, rows, tops, lefts, cell, panel))
    bad = MAP_WORDS[type(small).__name__].bad if marks or LIGHT.bad in paths else None
    parts.append(_legend(scale, stops, shown, height - 4, width, bad=bad))
    parts.append("</svg>")
    return Markup("".join(parts))


def _merged(health: LayerMap, measure: Measure) -> LayerMap:
    """Returns the map with at most _MAX_COLUMNS columns: the value of the greatest magnitude of each, and all bad."""
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
    origin = health.origin
    return replace(
        health,
        columns=columns,
        values={**health.values, measure.name: values},
        bad=tuple(tuple(sum(row[at : at + by]) for at in starts) for row in health.bad),
        origin=None if origin is None else replace(origin, column=origin.column // by),
    )


def _is_visible(row: MapRow, rows: Sequence[MapRow]) -> bool:
    at = row.parent
    while at is not None:
        if not rows[at].is_open:
            return False
        at = rows[at].parent
    return True


def _runs(
    health: LayerMap, measure: Measure, scale: ColourScale, stops: Sequence[str], row: int
) -> list[tuple[int, int, str]]:
    """Returns (first column, column after the last, colour) of neighbouring cells with one colour."""
    found: list[tuple[int, int, str]] = []
    for column, value in enumerate(health.values[measure.name][row]):
        if health.bad[row][column]:
            colour = LIGHT.bad
        elif value is None or not math.isfinite(value):
            continue
        else:
            colour = colour_at(stops, round(scale.place(value) * _NUM_LEVELS) / _NUM_LEVELS)
        if found and found[-1][1:] == (column, colour):
            found[-1] = (found[-1][0], column + 1, colour)
        else:
            found.append((column, column + 1, colour))
    return found


def _axis(columns: Sequence[Column], left: float, width: float, axis: str, y: float) -> str:
    marks = sorted({0, len(columns) // 2, len(columns) - 1})
    texts = []
    for index in marks:
        anchor = "start" if index == 0 else "end" if index == marks[-1] else "middle"
        x = left + width * (0 if index == 0 else 1 if index == marks[-1] else (index + 0.5) / len(columns))
        column = columns[index]
        number = column.last if index == marks[-1] else column.first
        text = f"{axis} {number:,}" if index == 0 else f"{number:,}"
        texts.append(f'<text x="{x:.1f}" y="{y:g}" font-size="10" opacity="0.75" text-anchor="{anchor}">{text}</text>')
    return "".join(texts)


_LABEL = 74
"""The width of the words beside the outlined cell."""


def _way(
    health: LayerMap, rows: Sequence[MapRow], tops: dict[int, float], lefts: dict[str, float], cell: float, panel: float
) -> str:
    """Returns the outline of the origin and the numbered cells of its way."""
    if health.origin is None:
        return ""
    row_of = {index: row for row in rows for index in (row.forward, row.gradient) if index is not None}
    points: list[tuple[float, float]] = []
    for index in (health.origin.row, *health.path):
        row: MapRow | None = row_of[index]
        side = health.rows[index].side
        while row is not None and (getattr(row, side) is None or getattr(row, side) not in tops):
            row = None if row.parent is None else rows[row.parent]
        if row is None:
            continue
        x = lefts[side] + (health.origin.column + 0.5) * cell
        point = (x, tops[getattr(row, side)] + _ROW / 2)
        if point not in points:
            points.append(point)
    if not points:
        return ""
    drawn = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_ROW / 2:g}" fill="#111" stroke="#fff"/>'
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}" font-size="9" text-anchor="middle" fill="#fff">{number}</text>'
        for number, (x, y) in enumerate(points[1:], start=2)
    )
    x, y = points[0]
    size = max(cell, 6.0)
    label = MAP_WORDS[type(health).__name__].origin
    # In the cell, or else beside it within the panel.
    start = lefts[health.rows[health.origin.row].side]
    right = x + size / 2 + 5
    is_right = right + _LABEL <= start + panel
    left = x - _LABEL / 2 if size > _LABEL else right if is_right else max(start, x - size / 2 - 5 - _LABEL)
    return (
        f'{drawn}<rect x="{x - size / 2 - 1:.1f}" y="{y - _ROW / 2 - 1:.1f}" width="{size + 2:.1f}" '
        f'height="{_ROW + 1}" fill="none" stroke="#fff" stroke-width="4"/>'
        f'<rect x="{x - size / 2 - 1:.1f}" y="{y - _ROW / 2 - 1:.1f}" width="{size + 2:.1f}" '
        f'height="{_ROW + 1}" fill="none" stroke="#111" stroke-width="2"/>'
        f'<rect x="{left:.1f}" y="{y - 7:.1f}" width="{_LABEL}" height="14" rx="3" fill="#fff"/>'
        f'<text x="{left + _LABEL / 2:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="#111" font-weight="650">'
        f"{label}</text>"
    )


def _legend(
    scale: ColourScale, stops: Sequence[str], measure: Measure, y: float, width: float, *, bad: str | None
) -> str:
    length, start = 160.0, width - 340
    steps = 32
    parts = [f'<text x="{start - 8:g}" y="{y:g}" text-anchor="end">{_text(measure.title)}</text>']
    parts += [
        f'<rect x="{start + length * step / steps:.1f}" y="{y - 12:g}" width="{length / steps:g}" height="6" '
        f'fill="{colour_at(stops, (step + 0.5) / steps)}"/>'
        for step in range(steps)
    ]
    for place, text in scale.ticks:
        parts.append(
            f'<text x="{start + length * place:.1f}" y="{y + 3:g}" font-size="9" text-anchor="middle">{text}</text>'
        )
    if bad is not None:
        x = start + length + 30
        parts.append(
            f'<rect x="{x:g}" y="{y - 11:g}" width="12" height="12" fill="{LIGHT.bad}"/>'
            f'<path d="M{x:g} {y + 1:g}l12 -12" stroke="#fff"/><text x="{x + 17:g}" y="{y:g}">{bad}</text>'
        )
    return "".join(parts)


_WIDE, _TALL, _LEFT = 300, 84, 46


def curves_svg(curves: TrainingCurves) -> Markup:
    """Returns curves over the training as one static SVG element, three beside each other."""
    if not curves.columns or not curves.curves:
        return Markup("")
    per_row = min(3, len(curves.curves))
    cell_width, cell_height = _LEFT + _WIDE + 14, _TALL + 46
    width, height = per_row * cell_width, -(-len(curves.curves) // per_row) * cell_height
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="Curves over the training" {_FONT}>'
        )
    ]
    for number, curve in enumerate(curves.curves):
        x, y = number % per_row * cell_width, number // per_row * cell_height
        parts.append(f'<g transform="translate({x} {y})">{_curve(curve, curves)}</g>')
    parts.append("</svg>")
    return Markup("".join(parts))


def _curve(curve: Curve, curves: TrainingCurves) -> str:
    columns = curves.columns
    place, low, high = curve_range(curve)
    step = _WIDE / max(1, len(columns) - 1)
    top = 20
    parts = [
        f'<text x="{_LEFT}" y="12" font-weight="600">{_text(curve.title)}<title>{_text(curve.source)}</title></text>',
        (
            f'<rect x="{_LEFT}" y="{top}" width="{_WIDE}" height="{_TALL}" fill="none" stroke="currentColor" '
            'stroke-opacity="0.25"/>'
        ),
        f'<text x="{_LEFT - 4}" y="{top + 9}" font-size="9" text-anchor="end">{_value(curve, high)}</text>',
        f'<text x="{_LEFT - 4}" y="{top + _TALL}" font-size="9" text-anchor="end">{_value(curve, low)}</text>',
        _axis(columns, _LEFT, _WIDE, curves.axis, top + _TALL + 12),
    ]
    lines: list[list[str]] = [[]]
    crosses = []
    for index, value in enumerate(curve.values):
        x = _LEFT + index * step
        if value is None or not math.isfinite(value):
            lines.append([])
            if value is not None:
                crosses.append(f"M{x - 2:.1f} {top - 4}l4 4m-4 0l4 -4")
            continue
        lines[-1].append(f"{x:.1f},{top + _TALL * (1 - place(value)):.1f}")
    parts += [
        f'<polyline points="{" ".join(line if len(line) > 1 else line * 2)}" fill="none" stroke="#2f6fb0" '
        'stroke-width="1.5" stroke-linecap="round"/>'
        for line in lines
        if line
    ]
    if crosses:
        parts.append(f'<path d="{"".join(crosses)}" stroke="{DARK.bad}" stroke-width="1.2" fill="none"/>')
    if curves.first_bad is not None:
        x = _LEFT + curves.first_bad * step
        anchor, away = ("end", -3) if x > _LEFT + _WIDE * 0.6 else ("start", 3)
        text = f"bad from {curves.axis} {columns[curves.first_bad].first:,} on"
        parts.append(
            f'<path d="M{x:.1f} {top}v{_TALL}" stroke="{DARK.bad}" stroke-dasharray="3 2"/>'
            f'<text x="{x + away:.1f}" y="{top + 10}" font-size="9" fill="{DARK.bad}" text-anchor="{anchor}">'
            f"{text}</text>"
        )
    return "".join(parts)


def curve_range(curve: Curve) -> tuple[Callable[[float], float], float, float]:
    """Returns how values of a curve become heights from 0 to 1, and the values at 0 and at 1."""
    known = [value for value in curve.values if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    positive = [value for value in known if value > 0]
    if curve.scale == "log" and positive:
        low = min(positive) if high > min(positive) else high / 10
        span = math.log(high / low)
        return (lambda value: math.log(value / low) / span if value > low else 0.0), low, high
    if curve.scale == "share":
        low = 0.0
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1.0) * (curve.scale != "share"), low + 0.5 * (abs(low) or 1.0)
    return (lambda value: (value / 2 - low / 2) / (high / 2 - low / 2)), low, high


def _value(curve: Curve, value: float) -> str:
    return f"{_short(100 * value)} %" if curve.scale == "share" else _short(value)


def _short(value: float) -> str:
    return f"{value:.3g}"


def _text(text: str) -> str:
    return str(escape(printable_line(text)))
