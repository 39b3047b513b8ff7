"""A picture of distributions: a cell for each magnitude and column, darker the more elements it has.

From the top: NaN, +Inf, positive magnitudes from large to small, zero, negative magnitudes from small to large, -Inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from tfdbg_arrow.query.model_health import Distributions
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.viewer.static_charts import DARK, LIGHT, colour_at

NUM_LEVELS = 10
"""Number of colours."""
_EXPONENT = 0.4
"""Makes small shares visible: level 1 ends at 0.3 %, level 4 at 10 %."""
_PALEST = 0.12
"""Where on the colour scale level 1 is, so that it is not the colour of the ground."""
_TAIL_SHARE = 0.005
"""The smallest magnitudes share a row if they have at most this share of the elements of each column."""
_MAX_ROWS = 28
"""Maximum number of rows for the magnitudes of one sign."""
_HEIGHT, _LEAST_ROW, _GREATEST_ROW = 340, 6, 18
"""Pixels: of all rows of magnitudes, and of one of them."""
_NAMED_ROW = 14
"""Pixels of a row for zeros, NaN or an infinity, which has a label of its own."""
_LABELS, _CELLS, _FOOT = 54, 560, 40
_LABEL_DISTANCE = 11
"""Pixels that two labels need."""
_MAX_DECADES = 5

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DistributionRow:
    """One row of the picture.

    Attributes:
        kind: `nan`, `pos_inf`, `positive`, `zero`, `negative` or `neg_inf`.
        text: The elements of the row, such as `from 0.25 to 0.5`.
        top: Its distance from the top of the picture in pixels.
        height: Its height in pixels.
        counts: The number of elements in each column.
    """

    kind: str
    text: str
    top: float
    height: float
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DistributionPicture:
    """What is drawn of distributions.

    Attributes:
        axis: As in Distributions.
        columns: First and last position, and first event, of each column.
        rows: The rows, from the top.
        totals: Number of elements of each column.
        num_tensors: Number of tensors of each column.
        labels: Distances from the top in pixels, and texts, of the labels beside the rows.
        height: The height of all rows in pixels.
        sentence: As in Distributions.
        num_without: As in Distributions.
    """

    axis: str
    columns: tuple[tuple[int, int, int | None], ...]
    rows: tuple[DistributionRow, ...]
    totals: tuple[int, ...]
    num_tensors: tuple[int, ...]
    labels: tuple[tuple[float, str], ...]
    height: float
    sentence: str
    num_without: int

    @property
    def has_bad(self) -> bool:
        """Whether an element is infinite or NaN."""
        return any(row.kind in _BAD for row in self.rows)

    @property
    def ends(self) -> tuple[str, ...]:
        """Texts for the first, the middle and the last column; fewer if there are fewer columns."""
        marks = sorted({0, len(self.columns) // 2, len(self.columns) - 1})
        return tuple(f"{self.columns[at][1 if at == marks[-1] else 0]:,}" for at in marks)


_BAD = ("nan", "pos_inf", "neg_inf")
_NAMES = {"nan": "NaN", "pos_inf": "+Inf", "zero": "0", "neg_inf": "-Inf"}


def distribution_picture(found: Distributions) -> DistributionPicture | None:
    """Returns what is drawn of distributions; None if nothing was measured."""
    if not found.is_known:
        return None
    sides = _Sides.of(found)
    signs = [sign for sign, counts in (("positive", sides.positive), ("negative", sides.negative)) if counts.any()]
    row_px = min(_GREATEST_ROW, max(_LEAST_ROW, _HEIGHT / max(1, len(signs) * sides.num_rows)))
    rows: list[DistributionRow] = []
    labels: list[tuple[float, str]] = []
    ticks: list[tuple[float, str]] = []
    top = 0.0

    def add(kind: str, text: str, counts: Sequence[int]) -> None:
        nonlocal top
        height = _NAMED_ROW if kind in _NAMES else row_px
        if kind in _NAMES:
            labels.append((top + height / 2, _NAMES[kind]))
        rows.append(DistributionRow(kind=kind, text=text, top=top, height=height, counts=tuple(counts)))
        top += height

    for kind, of_kind in (("nan", found.num_nan), ("pos_inf", found.num_pos_inf)):
        if any(of_kind):
            add(kind, _NAMES[kind], of_kind)
    if "positive" in signs:
        ticks += [(top + row_px * (sides.high - at), text) for at, text in sides.ticks()]
        for row in reversed(range(sides.num_rows)):
            add("positive", sides.text(row, ""), sides.positive[:, row].tolist())
    add("zero", "zero", found.num_zero)
    if "negative" in signs:
        ticks += [(top + row_px * (at - sides.low), f"-{text}") for at, text in sides.ticks()]
        for row in range(sides.num_rows):
            add("negative", sides.text(row, "-"), sides.negative[:, row].tolist())
    if any(found.num_neg_inf):
        add("neg_inf", "-Inf", found.num_neg_inf)
    for at, text in ticks:
        if all(abs(at - other) >= _LABEL_DISTANCE for other, _ in labels):
            labels.append((at, text))
    return DistributionPicture(
        axis=found.axis,
        columns=tuple((column.first, column.last, column.first_event_index) for column in found.columns),
        rows=tuple(rows),
        totals=tuple(found.num_elements(column) for column in range(len(found.columns))),
        num_tensors=found.num_tensors,
        labels=tuple(sorted(labels)),
        height=top,
        sentence=found.sentence,
        num_without=found.num_without,
    )


@dataclass(frozen=True)
class _Sides:
    """The magnitudes of both signs in the same rows. Row 0 has the smallest ones.

    Attributes:
        first: The power of two at which row 0 begins, or 1 if it has all smaller magnitudes too.
        width: How many powers of two a row covers, except for such a row 0.
        has_tail: Whether row 0 has all magnitudes below `first`.
        negative: The counts of negative elements, of shape (columns, rows).
        positive: The same of positive elements.
    """

    first: int
    width: int
    has_tail: bool
    negative: Counts
    positive: Counts

    @staticmethod
    def of(found: Distributions) -> _Sides:
        shape = (len(found.columns), len(found.exponents))
        negative, positive = (np.array(side, np.int64).reshape(shape) for side in (found.negative, found.positive))
        if not found.exponents:
            return _Sides(0, 1, False, negative, positive)
        totals = np.array([max(1, found.num_elements(column)) for column in range(shape[0])])
        shares = ((negative + positive).cumsum(axis=1) / totals[:, None]).max(axis=0)
        tail = int(np.searchsorted(shares, _TAIL_SHARE, side="right"))
        tail = tail if tail > 1 else 0
        by = max(1, -(-(shape[1] - tail) // _MAX_ROWS))
        starts = [*([0] if tail else []), *range(tail, shape[1], by)]
        return _Sides(
            found.exponents[tail],
            by * found.bucket_width,
            tail > 0,
            np.add.reduceat(negative, starts, axis=1),
            np.add.reduceat(positive, starts, axis=1),
        )

    @property
    def num_rows(self) -> int:
        return int(self.negative.shape[1])

    @property
    def low(self) -> float:
        """The place of the smallest magnitude: places count rows, and `first` is at 0."""
        return -1.0 if self.has_tail else 0.0

    @property
    def high(self) -> float:
        """The place at which the last row ends."""
        return self.num_rows + self.low

    def text(self, row: int, sign: str) -> str:
        """Returns the elements of a row in words."""
        place = row - self.has_tail
        low, high = (_power(self.first + at * self.width) for at in (place, place + 1))
        ends = ("0" if place < 0 else f"{sign}{_short(low)}", f"{sign}{_short(high)}")
        return "from {} to {}".format(*(ends[::-1] if sign else ends))

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yields places and magnitudes to write beside the rows: powers of ten, or else the ends."""
        end = self.first + self.high * self.width
        least, greatest = math.ceil(self.first * math.log10(2)), math.floor(end * math.log10(2))
        if greatest <= least:
            for at in (0.0, self.high):
                yield at, _short(_power(self.first + at * self.width))
            return
        by = -(-(greatest - least + 1) // _MAX_DECADES)
        for power in range(-(-least // by) * by, greatest + 1, by):
            yield (power / math.log10(2) - self.first) / self.width, _short(10.0**power)


def level(count: int, total: int) -> int:
    """Returns the colour of a cell, from 1 to NUM_LEVELS; 0 if it has no elements."""
    return 0 if not count else min(NUM_LEVELS, max(1, math.ceil((count / total) ** _EXPONENT * NUM_LEVELS)))


def level_colours(*, is_dark: bool) -> tuple[str, ...]:
    """Returns the colours of the levels, from 1 on."""
    stops = (DARK if is_dark else LIGHT).sequential
    places = (_PALEST + (1 - _PALEST) * index / (NUM_LEVELS - 1) for index in range(NUM_LEVELS))
    return tuple(colour_at(stops, place) for place in places)


def level_shares() -> tuple[str, ...]:
    """Returns the greatest share of each level as text."""
    shares = (100 * (index / NUM_LEVELS) ** (1 / _EXPONENT) for index in range(1, NUM_LEVELS + 1))
    return tuple(f"{float(f'{share:.2g}'):g} %" for share in shares)


def cell_paths(picture: DistributionPicture) -> dict[str, Markup]:
    """Returns the outlines of the cells by name of the colour, `bad` or `level-N`; a column is 1 wide."""
    paths: dict[str, list[str]] = {}
    for row in picture.rows:
        found: list[tuple[int, int, str]] = []
        for x, (count, total) in enumerate(zip(row.counts, picture.totals, strict=True)):
            if not count:
                continue
            name = "bad" if row.kind in _BAD else f"level-{level(count, total)}"
            if found and found[-1][1:] == (x, name):
                found[-1] = (found[-1][0], x + 1, name)
            else:
                found.append((x, x + 1, name))
        for first, end, name in found:
            paths.setdefault(name, []).append(f"M{first} {row.top:.4g}h{end - first}v{row.height:.4g}h{first - end}z")
    return {name: Markup("".join(areas)) for name, areas in sorted(paths.items())}


def distribution_svg(found: Distributions) -> Markup:
    """Returns the picture as a static SVG element; empty if nothing was measured."""
    picture = distribution_picture(found)
    if picture is None:
        return Markup("")
    colours = {f"level-{index}": colour for index, colour in enumerate(level_colours(is_dark=False), start=1)}
    colours["bad"] = LIGHT.bad
    width, height = _LABELS + _CELLS + 8, picture.height + _FOOT
    scale = f"translate({_LABELS} 8) scale({_CELLS / len(picture.columns):.4f} 1)"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
            f'height="{height:.0f}" role="img" aria-label="{escape(picture.sentence)}" fill="currentColor" '
            'font-family="system-ui, sans-serif" font-size="11">'
        ),
        (
            f'<rect x="{_LABELS}" y="8" width="{_CELLS}" height="{picture.height:.1f}" fill="none" '
            'stroke="currentColor" stroke-opacity="0.25"/>'
        ),
        f'<g transform="{scale}" shape-rendering="crispEdges">',
        *(f'<path d="{area}" fill="{colours[name]}"/>' for name, area in cell_paths(picture).items()),
        "</g>",
    ]
    for at, text in picture.labels:
        y = 8 + at
        parts.append(f'<text x="{_LABELS - 6}" y="{y + 3.5:.1f}" font-size="10" text-anchor="end">{text}</text>')
    for index, text in enumerate(picture.ends):
        share = index / max(1, len(picture.ends) - 1)
        anchor = ("start", "middle", "end")[round(2 * share)]
        label = f"{picture.axis} {text}" if not index else text
        y = picture.height + 22
        parts.append(f'<text x="{_LABELS + _CELLS * share:.1f}" y="{y:.1f}" text-anchor="{anchor}">{label}</text>')
    return Markup("".join([*parts, "</svg>"]))


def picture_text(picture: DistributionPicture) -> str:
    """Returns what a picture shows, for readers who do not see it."""
    tensors = number_of(sum(picture.num_tensors), "tensor")
    return f"Distribution of the elements of {tensors} over magnitudes, by {picture.axis}. {picture.sentence}"


def _power(exponent: float) -> float:
    return math.inf if exponent > 1023 else 2.0**exponent


def _short(value: float) -> str:
    if math.isinf(value):
        return "Inf"
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
