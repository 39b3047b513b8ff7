"""A picture of distributions, with a cell for each magnitude and column. Colours show the shares of the elements.

The rows from top to bottom are: NaN, +Inf, positive magnitudes from large to small, zero, negative magnitudes from
small to large, -Inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from tfdbg_arrow.query.model_health.histograms import Distributions
from tfdbg_arrow.safe_text import number_of
from tfdbg_arrow.viewer.colours import BAD, colour_class, paint
from tfdbg_arrow.viewer.svg import (
    Columns,
    axis_labels,
    cells,
    label,
    number_text,
    placed,
    readout,
    standalone,
    stretched,
)

NUM_LEVELS = 10
"""Number of levels. A level is the colour of a cell."""
_EXPONENT = 0.4
"""Exponent that makes small shares visible: level 1 ends at 0.3 %, and level 4 ends at 10 %."""
_PALEST = 0.12
"""Position of level 1 on the colour scale. The position is above 0, so that level 1 differs from the background."""
_TAIL_SHARE = 0.005
"""The smallest magnitudes are combined in one row if they are at most this share of the elements of each column."""
_MAX_ROWS = 28
"""Maximum number of rows for the magnitudes of one sign."""
_HEIGHT, _LEAST_ROW, _GREATEST_ROW = 340, 6, 18
"""Height of all rows of magnitudes, and the minimum and maximum height of one such row, in pixels."""
_NAMED_ROW = 14
"""Height in pixels of a row for zeros, NaN or an infinity. Such a row has its own label."""
_LABELS, _CELLS, _FOOT = 54, 560, 30
_LABEL_DISTANCE = 11
"""Minimum vertical distance between two labels, in pixels."""
_MAX_DECADES = 5
"""Maximum number of powers of ten with a label, so that the labels are easy to read."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DistributionRow:
    """One row of the picture.

    Attributes:
        kind: `nan`, `pos_inf`, `positive`, `zero`, `negative` or `neg_inf`.
        text: The elements of the row in words, such as `from 0.25 to 0.5`.
        top: The distance of the row from the top of the picture, in pixels.
        height: The height of the row in pixels.
        counts: The number of elements in each column.
    """

    kind: str
    text: str
    top: float
    height: float
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class DistributionPicture:
    """The content of a picture of distributions.

    Attributes:
        axis: As in Distributions.
        columns: First and last position, and first event, of each column.
        rows: The rows, from the top.
        totals: Number of elements of each column.
        num_tensors: Number of tensors of each column.
        labels: The labels beside the rows. A label has a distance from the top in pixels, and a text.
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
        """Whether any element is infinite or NaN."""
        return any(row.kind in _BAD for row in self.rows)


_BAD = ("nan", "pos_inf", "neg_inf")
_NAMES = {"nan": "NaN", "pos_inf": "+Inf", "zero": "0", "neg_inf": "-Inf"}


def distribution_picture(distributions: Distributions) -> DistributionPicture | None:
    """Returns the content of a picture of distributions; None if nothing was measured."""
    if not distributions.is_known:
        return None
    sides = _Sides.of(distributions)
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

    for kind, of_kind in (("nan", distributions.num_nan), ("pos_inf", distributions.num_pos_inf)):
        if any(of_kind):
            add(kind, _NAMES[kind], of_kind)
    if "positive" in signs:
        ticks += [(top + row_px * (sides.high - at), text) for at, text in sides.ticks()]
        for row in reversed(range(sides.num_rows)):
            add("positive", sides.text(row, ""), sides.positive[:, row].tolist())
    add("zero", "zero", distributions.num_zero)
    if "negative" in signs:
        ticks += [(top + row_px * (at - sides.low), f"-{text}") for at, text in sides.ticks()]
        for row in range(sides.num_rows):
            add("negative", sides.text(row, "-"), sides.negative[:, row].tolist())
    if any(distributions.num_neg_inf):
        add("neg_inf", "-Inf", distributions.num_neg_inf)
    for at, text in ticks:
        if all(abs(at - other) >= _LABEL_DISTANCE for other, _ in labels):
            labels.append((at, text))
    return DistributionPicture(
        axis=distributions.axis,
        columns=tuple((column.first, column.last, column.first_event_index) for column in distributions.columns),
        rows=tuple(rows),
        totals=tuple(distributions.num_elements(column) for column in range(len(distributions.columns))),
        num_tensors=distributions.num_tensors,
        labels=tuple(sorted(labels)),
        height=top,
        sentence=distributions.sentence,
        num_without=distributions.num_without,
    )


@dataclass(frozen=True)
class _Sides:
    """The counts of negative and positive elements, in the same rows of magnitudes. Row 0 has the smallest magnitudes.

    Attributes:
        first: The exponent of the power of two where row 0 begins or, with `has_tail`, where row 1 begins.
        width: Number of powers of two that a row covers. With `has_tail`, this number does not apply to row 0.
        has_tail: Whether row 0 has all magnitudes below `first`.
        negative: The counts of negative elements, with shape (columns, rows).
        positive: The counts of positive elements, with the same shape.
    """

    first: int
    width: int
    has_tail: bool
    negative: Counts
    positive: Counts

    @staticmethod
    def of(distributions: Distributions) -> _Sides:
        shape = (len(distributions.columns), len(distributions.exponents))
        negative, positive = (
            np.array(side, np.int64).reshape(shape) for side in (distributions.negative, distributions.positive)
        )
        if not distributions.exponents:
            return _Sides(0, 1, False, negative, positive)
        totals = np.array([max(1, distributions.num_elements(column)) for column in range(shape[0])])
        shares = ((negative + positive).cumsum(axis=1) / totals[:, None]).max(axis=0)
        tail = int(np.searchsorted(shares, _TAIL_SHARE, side="right"))
        tail = tail if tail > 1 else 0
        by = max(1, -(-(shape[1] - tail) // _MAX_ROWS))
        starts = [*([0] if tail else []), *range(tail, shape[1], by)]
        return _Sides(
            distributions.exponents[tail],
            by * distributions.bucket_width,
            tail > 0,
            np.add.reduceat(negative, starts, axis=1),
            np.add.reduceat(positive, starts, axis=1),
        )

    @property
    def num_rows(self) -> int:
        return int(self.negative.shape[1])

    @property
    def low(self) -> float:
        """The position of the smallest magnitude. Positions are counted in rows, and `first` is at position 0."""
        return -1.0 if self.has_tail else 0.0

    @property
    def high(self) -> float:
        """The position of the end of the last row."""
        return self.num_rows + self.low

    def text(self, row: int, sign: str) -> str:
        """Returns the elements of a row in words."""
        bucket = row - self.has_tail
        low, high = (_power(self.first + at * self.width) for at in (bucket, bucket + 1))
        ends = ("0" if bucket < 0 else f"{sign}{number_text(low)}", f"{sign}{number_text(high)}")
        return "from {} to {}".format(*(ends[::-1] if sign else ends))

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yields the position and text of each label for magnitudes: the powers of ten, or the two ends."""
        end = self.first + self.high * self.width
        least, greatest = math.ceil(self.first * math.log10(2)), math.floor(end * math.log10(2))
        if greatest <= least:
            for at in (0.0, self.high):
                yield at, number_text(_power(self.first + at * self.width))
            return
        by = -(-(greatest - least + 1) // _MAX_DECADES)
        for power in range(-(-least // by) * by, greatest + 1, by):
            yield (power / math.log10(2) - self.first) / self.width, number_text(10.0**power)


def level(count: int, total: int) -> int:
    """Returns the level of a cell, from 1 to NUM_LEVELS; 0 if the cell has no elements."""
    return 0 if not count else min(NUM_LEVELS, max(1, math.ceil((count / total) ** _EXPONENT * NUM_LEVELS)))


def level_shares() -> tuple[tuple[str, Markup], ...]:
    """For each level, returns its largest share as text, and the attributes of its colour."""
    shares = (100 * (index / NUM_LEVELS) ** (1 / _EXPONENT) for index in range(1, NUM_LEVELS + 1))
    return tuple(
        (f"{float(f'{share:.2g}'):g} %", paint(_level_class(index))) for index, share in enumerate(shares, start=1)
    )


def _level_class(index: int) -> str:
    return colour_class(_PALEST + (1 - _PALEST) * (index - 1) / (NUM_LEVELS - 1))


@dataclass(frozen=True, kw_only=True)
class DistributionDrawing:
    """The drawing of a picture.

    Attributes:
        columns: The columns.
        labels: The labels beside the rows, 54 px wide.
        cells: The cells.
        axis: The axis below the cells.
        readouts: The texts that chart.js shows for each row.
        text: A description for readers who cannot see the drawing.
    """

    columns: Columns
    labels: Markup
    cells: Markup
    axis: Markup
    readouts: tuple[Markup, ...]
    text: str


def distribution_drawing(picture: DistributionPicture) -> DistributionDrawing:
    """Returns the drawing of a picture."""
    num_columns = len(picture.columns)
    drawn = cells(
        (
            row.top,
            row.height,
            [
                None if not count else BAD if row.kind in _BAD else _level_class(level(count, total))
                for count, total in zip(row.counts, picture.totals, strict=True)
            ],
        )
        for row in picture.rows
    )
    zero = next(row for row in picture.rows if row.kind == "zero")
    lines = "".join(
        f'<line x2="100%" y1="{y:g}" y2="{y:g}" stroke="currentColor" stroke-opacity="0.35"/>'
        for y in (zero.top, zero.top + zero.height)
    )
    columns = Columns(
        axis=picture.axis,
        ranges=tuple((first, last) for first, last, _ in picture.columns),
        is_cells=True,
        queries=tuple("" if event is None else f"event={event}" for _, _, event in picture.columns),
    )
    tensors = number_of(sum(picture.num_tensors), "tensor")
    return DistributionDrawing(
        columns=columns,
        labels=Markup("").join(
            label(text, x="100%", y=f"{at:.1f}", anchor="end", more='dx="-6" dy="3.5"') for at, text in picture.labels
        ),
        cells=stretched(num_columns, picture.height, f'<g shape-rendering="crispEdges">{drawn}</g>') + Markup(lines),
        axis=axis_labels(columns),
        readouts=tuple(
            readout(
                "of the elements",
                (
                    f"{number_text(count / total, is_share=True)} ({count:,} of {total:,})" if count else "none"
                    for count, total in zip(row.counts, picture.totals, strict=True)
                ),
                "bad" if row.kind in _BAD else "shown",
            )
            for row in picture.rows
        ),
        text=f"Distribution of the elements of {tensors} over magnitudes, by {picture.axis}. {picture.sentence}",
    )


def distribution_svg(distributions: Distributions) -> Markup:
    """Returns the picture as an SVG element that needs no style sheet; empty if nothing was measured."""
    picture = distribution_picture(distributions)
    if picture is None:
        return Markup("")
    drawing, height = distribution_drawing(picture), picture.height
    parts = [
        f'<rect x="{_LABELS}" y="8" width="{_CELLS}" height="{height:.1f}" fill="none" stroke="currentColor"/>',
        placed(drawing.labels, x=0, y=8, width=_LABELS, height=height),
        placed(drawing.cells, x=_LABELS, y=8, width=_CELLS, height=height),
        placed(drawing.axis, x=_LABELS, y=height + 10, width=_CELLS, height=16),
    ]
    return standalone(parts, width=_LABELS + _CELLS + 8, height=round(height) + _FOOT, text=picture.sentence)


def _power(exponent: float) -> float:
    return math.inf if exponent > 1023 else 2.0**exponent
