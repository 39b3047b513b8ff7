"""layer_differences: compares the layers of two runs, step by step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.info import choose_runs
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.model_health.answers import MEASURES, Cell, LayerDifferences, Measure, Parting
from tfdbg_arrow.query.model_health.cells import Labels, RowKey, read_keys, read_labels
from tfdbg_arrow.query.model_health.columns import Axis, of_run, read_axis, read_columns, read_position
from tfdbg_arrow.query.model_health.layer_rows import Node, bad_numbers, measured
from tfdbg_arrow.query.model_health.moved_lines import lines_in_a
from tfdbg_arrow.query.model_health.reading import MAX_COLUMNS, check_max_columns, read_nodes
from tfdbg_arrow.query.model_health.sentences import MIN_FACTOR, MIN_ZERO_CHANGE, parting_notes, parting_sentence
from tfdbg_arrow.query.model_health.sums import LARGEST, Numbers, numbers
from tfdbg_arrow.query.nonfinite_search import first_nonfinite
from tfdbg_arrow.query.run_diff.comparing import MAX_RTOL, UNITS
from tfdbg_arrow.schema.dtypes import DTYPES

Mask = npt.NDArray[np.bool_]

LARGEST_DIFFERENCE = Measure(name="difference", title="Largest difference", scale="difference")
MIN_RTOL = 1e-12
"""Differences below this number can be rounding errors: threads add up the tensors of a cell in any order."""
BAD = "bad"
"""Value of Parting.measure if only one run has a bad tensor."""
_PREFERRED = ("max_abs", "norm", "mean", "stddev", "update_ratio", "zero_share", "bad_share")
"""The measures, the most telling measure first."""
_SPREADS = ("mean", "stddev")
"""Measures whose scale is the root mean square, because a mean near 0 can be a rounding error."""
_UPDATE = "update_ratio"
_MAGNITUDES = ("max_abs", "norm", _UPDATE)
_ROLES = ("input", "forward", "loss", "gradient", "optimizer", "metric")
"""The roles, in the order in which their ops run in a step."""


def layer_differences(
    a: Engine | str | Path,
    b: Engine | str | Path | None = None,
    *,
    run_a: str | None = None,
    run_b: str | None = None,
    positions: tuple[int | None, int | None] = (None, None),
    max_columns: int = MAX_COLUMNS,
    rtol: float | None = None,
) -> LayerDifferences | None:
    """Compares the layers of two runs, step by step; returns None if one of the runs has no tensors.

    Layers and lines are aligned by name, and steps by number. A line of a file that the other run has in another
    directory is aligned with the line there, and the answer names it as in A. If a run has no steps, executions are
    aligned by number.
    The measures are the same as in `layer_health`. `LayerDifferences.values` has their differences, B - A:

    * for shares, the difference, from -1 to 1;
    * for `mean` and `stddev`, the difference as a share of the larger root mean square of the finite elements, from -2
      to 2;
    * for other measures, the difference as a share of the larger magnitude, from -1 to 1;
    * for `difference`, the largest of these differences, without its sign.

    In a cell, the runs are apart if one of the differences is greater than `rtol`, or if only one run has a bad tensor
    in the cell.

    Args:
        a: An open logdir or its path.
        b: The other logdir or its path; None means the same logdir, with two runs.
        run_a: The run of A, chosen as in `diff`.
        run_b: The run of B, chosen as in `diff`.
        positions: The range to compare: the first position, and the position after the last. If the first is None, the
            range begins at the first position that both runs have. If the second is None, the range goes to the last
            such position.
        max_columns: Maximum number of columns, see `layer_health`. A column of several steps compares all tensors that
            each run recorded in these steps.
        rtol: The tolerance. None means 16 units in the last place of the coarsest dtype of floating numbers in the runs
            (float32 1.9e-6, float16 1.6e-2, bfloat16 0.13). A number below 1e-12 means 1e-12, because sums over tensors
            can differ by that much through rounding.

    Raises:
        LogdirError: A path is not a readable logdir.
        QueryError: A run cannot be used, or a number is not allowed.
        BrokenPartError: A part cannot be read.
    """
    check_max_columns(max_columns)
    if rtol is not None and not (math.isfinite(rtol) and rtol >= 0):
        raise QueryError(f"rtol is {rtol!r}; expected 0 or more, or None for the default of the dtypes.")
    with contextlib.ExitStack() as stack:
        open_a = stack.enter_context(opened(a))
        open_b = open_a if b is None or b is a else stack.enter_context(opened(b))
        chosen = choose_runs(open_a, open_b, run_a=run_a, run_b=run_b)
        runs = tuple(run.run_id for run in chosen)
        scopes = (open_a.of_run(runs[0]), open_b.of_run(runs[1]))
        axes = _read_axes(scopes, runs, positions)
        if axes is None:
            return None
        sides = tuple(_Side(scope, read_labels(scope, run_id=run)) for scope, run in zip(scopes, runs, strict=True))
        tolerance = max(MIN_RTOL, _default_rtol(sides) if rtol is None else rtol)
        return _compare(sides, axes, max_columns, tolerance)


@dataclass(frozen=True)
class _Side:
    """One run: its engine, and the rows of its ops."""

    logdir: Engine
    labels: Labels


@dataclass(frozen=True)
class _Row:
    """A row that both runs have."""

    index: int
    a: Node
    b: Node

    @property
    def key(self) -> RowKey:
        """The key that identifies the row in both runs."""
        return self.a.key

    def difference(self, measure: Measure) -> Numbers:
        """Returns the differences of a measure, B - A, with NaN where a value is not known."""
        a, b = (np.clip(measured(node, measure.name), -LARGEST, LARGEST) for node in (self.a, self.b))
        if measure.scale == "share":
            return b - a
        scale = np.fmax(abs(a), abs(b))
        if measure.name in _SPREADS:
            scale = np.fmax(*(np.hypot(measured(node, "mean"), measured(node, "stddev")) for node in (self.a, self.b)))
        with np.errstate(all="ignore"):
            return np.where(a == b, 0.0, b / scale - a / scale)

    def largest_difference(self) -> Numbers:
        """Returns the largest difference of all measures, without its sign, with NaN where no difference is known."""
        largest: Numbers = np.fmax.reduce([abs(self.difference(measure)) for measure in MEASURES])
        return largest

    @property
    def is_bad_in_one(self) -> Mask:
        """The columns in which only one run has a bad tensor."""
        is_known = (self.a.sums["num_measured"] > 0) & (self.b.sums["num_measured"] > 0)
        mask: Mask = is_known & ((self.a.sums["num_bad"] > 0) != (self.b.sums["num_bad"] > 0))
        return mask

    def apart(self, rtol: float) -> dict[str, Mask]:
        """Returns the columns in which the runs are apart, by measure; `bad`: only one run has a bad tensor."""
        masks = {measure.name: abs(self.difference(measure)) > rtol for measure in MEASURES}
        return {BAD: self.is_bad_in_one, **masks}

    def far_apart(self) -> dict[str, Mask]:
        """Returns the columns in which the runs are far apart, by measure."""
        masks = {BAD: self.is_bad_in_one}
        with np.errstate(all="ignore"):
            for name in _MAGNITUDES:
                a, b = measured(self.a, name), measured(self.b, name)
                masks[name] = (np.fmin(a, b) > 0) & (np.fmax(a, b) / MIN_FACTOR >= np.fmin(a, b))
            zeros = measured(self.b, "zero_share") - measured(self.a, "zero_share")
        return {**masks, "zero_share": abs(zeros) >= MIN_ZERO_CHANGE}

    def contains(self, other: _Row) -> bool:
        """Returns whether another row is inside this one."""
        own, its = self.key, other.key
        return (own.kind, own.is_gradient) == (its.kind, its.is_gradient) and its.path.startswith(f"{own.path}/")


@dataclass(frozen=True)
class _Place:
    """A cell in which the runs are apart.

    Attributes:
        row: The row.
        axis: The axis of the column.
        column: Index of the column.
        measures: The measures that are apart.
    """

    row: _Row
    axis: Axis
    column: int
    measures: tuple[str, ...]

    @property
    def order(self) -> tuple[int, int, int]:
        """A sort key: places whose ops run earlier come first."""
        key = self.row.key
        role = "gradient" if key.is_gradient else self.row.a.role
        if self.measures == (_UPDATE,):  # the row reads the variable, but the update comes at the end of the step
            role = "optimizer"
        return self.column, _ROLES.index(role), -self.row.index if key.is_gradient else self.row.index

    def parting(self, index: int, column: int) -> Parting:
        """Returns the place as a Parting, with the given row and column of the map."""
        name = self._measure()
        nodes = (self.row.a, self.row.b)
        a, b = (None if name == BAD else numbers(measured(node, name))[self.column] for node in nodes)
        num_bad_a, num_bad_b = (bad_numbers(node)[self.column] for node in nodes)
        first, last = self.axis.bounds(self.column)
        return Parting(
            row=index,
            column=column,
            first=first,
            last=last,
            measure=name,
            a=a,
            b=b,
            num_bad_a=num_bad_a,
            num_bad_b=num_bad_b,
        )

    def _measure(self) -> str:
        """Returns the most telling measure."""
        if BAD in self.measures:
            return BAD
        among = [name for name in self.measures if name != _UPDATE] or self.measures
        sizes = {
            measure.name: abs(self.row.difference(measure)[self.column])
            for measure in MEASURES
            if measure.name in among
        }
        return next(name for name in _PREFERRED if name in sizes and sizes[name] >= max(sizes.values()) / 2)


def _compare(sides: Sequence[_Side], axes: tuple[Axis, Axis], max_columns: int, rtol: float) -> LayerDifferences:
    """Compares two runs at the positions that both have."""
    axis = Axis(axes[0].name, max(axis.first for axis in axes), min(axis.last for axis in axes)).divided(max_columns)
    run_a, run_b = (side.labels.run_id for side in sides)
    nodes_a, nodes_b = (read_nodes(side.logdir, axis, side.labels) for side in sides)
    in_a = lines_in_a(*({node.key for node in nodes} for nodes in (nodes_a, nodes_b)))
    nodes_b = _renamed(nodes_b, in_a)
    rows = _aligned(nodes_a, nodes_b)
    keys_a, keys_b = ({node.key for node in nodes} for nodes in (nodes_a, nodes_b))
    differences = {measure.name: tuple(numbers(row.difference(measure)) for row in rows) for measure in MEASURES}
    given = tuple(
        Measure(
            name=measure.name,
            title=measure.title,
            scale="share_difference" if measure.scale == "share" else "relative",
        )
        for measure in MEASURES
        if any(value is not None for row in differences[measure.name] for value in row)
    )
    if given:
        differences[LARGEST_DIFFERENCE.name] = tuple(numbers(row.largest_difference()) for row in rows)
    finder = _Finder(sides, axis, rows, rtol, in_a)
    first, large = finder.first(is_far=False), finder.first(is_far=True)
    partings = finder.partings(first)
    is_at_start = first is not None and first.first == axis.first
    outlined = large or first if is_at_start else first
    nodes = [row.a for row in rows]
    earlier = [parting for parting in partings if first is not None and parting.first < first.first]
    text = parting_sentence(nodes, first, axis=axis.name, range_=axis.ends, rtol=rtol, is_known=bool(given))
    return LayerDifferences(
        axis=axis.name,
        columns=read_columns(sides[0].logdir, axis, of_run(run_a)),
        calls=None,
        rows=tuple(row.a.row() for row in rows),
        measures=(LARGEST_DIFFERENCE, *given) if given else (),
        values={name: differences[name] for name in (LARGEST_DIFFERENCE.name, *(measure.name for measure in given))}
        if given
        else {},
        bad=tuple(
            tuple(
                a + b if is_marked else 0
                for is_marked, a, b in zip(row.is_bad_in_one, bad_numbers(row.a), bad_numbers(row.b), strict=True)
            )
            for row in rows
        ),
        origin=None if outlined is None else Cell(row=outlined.row, column=outlined.column),
        path=(),
        sentence=text,
        run_a=run_a,
        run_b=run_b,
        range_a=axes[0].ends,
        range_b=axes[1].ends,
        values_a={measure.name: tuple(numbers(measured(row.a, measure.name)) for row in rows) for measure in given},
        values_b={measure.name: tuple(numbers(measured(row.b, measure.name)) for row in rows) for measure in given},
        bad_a=tuple(bad_numbers(row.a) for row in rows),
        bad_b=tuple(bad_numbers(row.b) for row in rows),
        only_a=tuple(node.row() for node in nodes_a if node.key not in keys_b),
        only_b=tuple(node.row() for node in nodes_b if node.key not in keys_a),
        rtol=rtol,
        notes=parting_notes(nodes, first, large, earlier, axis=axis.name, origin=finder.lone_origin),
        first_parting=first,
        large_parting=large,
        outlined_parting=outlined,
        partings=partings,
    )


class _Finder:
    """Finds the places where two runs parted.

    A column can contain several steps. The search is then repeated within the column of the first place. The order of
    the layers shows which layer parted first, but only within a single step.

    Args:
        sides: The runs A and B.
        axis: The columns.
        rows: The rows that both runs have.
        rtol: The tolerance.
        in_a: The rows of A by the rows of B that stand for the same lines.

    Attributes:
        lone_origin: The origin of the bad value that made the runs differ: the run (A or B) and the row, if only one
            run has the row.
    """

    def __init__(
        self,
        sides: Sequence[_Side],
        axis: Axis,
        rows: Sequence[_Row],
        rtol: float,
        in_a: Mapping[RowKey, RowKey],
    ) -> None:
        self._sides = sides
        self._axis = axis
        self._rows = rows
        self._rtol = rtol
        self._in_a = in_a
        self._index_of = {row.key: row.index for row in rows}
        self._finer: dict[tuple[int, int], tuple[Axis, list[_Row]]] = {}
        self.lone_origin: tuple[str, RowKey] | None = None

    def first(self, *, is_far: bool) -> Parting | None:
        """Returns the first place where the runs are apart, or far apart. Prefers places in a layer or line."""
        places = self._places(self._axis, self._rows, is_far=is_far)
        place = _first(places)
        if place is None:
            return None
        column = place.column
        while place.axis.width > 1:
            axis, rows = self._read_finer(place)
            finer_places = self._places(axis, rows, is_far=is_far)
            finer = _first(finer_places)
            if finer is None:  # the runs recorded different steps of the column
                break
            place, places = finer, finer_places
        place = self._at_origin(place, places)
        return place.parting(self._index_of[place.row.key], column)

    def _at_origin(self, place: _Place, places: Sequence[_Place]) -> _Place:
        """Returns the place where the bad value in a given place began; without a bad value, the given place.

        Rows are in the order in which the program made them. The line that calls a function comes before the lines of
        the ops in the function, but gets its bad result from these ops.
        """
        if BAD not in place.measures:
            return place
        is_a = bool(bad_numbers(place.row.a)[place.column])
        side = self._sides[0 if is_a else 1]
        bad_tensor = first_nonfinite(side.logdir, run_id=side.labels.run_id)
        if bad_tensor is None:
            return place
        event = bad_tensor.event_index
        position = read_position(side.logdir, event, axis=place.axis.name, run_id=side.labels.run_id)
        if place.axis.column_of(position) != place.column:
            return place
        key = read_keys(side.logdir, side.labels, [event]).get(event)
        if key is not None and not is_a:
            key = self._in_a.get(key, key)
        if key is not None and key not in self._index_of:
            self.lone_origin = ("A" if is_a else "B", key)
        return next(
            (candidate for candidate in places if candidate.row.key == key and candidate.column == place.column), place
        )

    def partings(self, first: Parting | None) -> tuple[Parting, ...]:
        """Returns the first place of each row. For the row of `first`, the more exact `first` is returned."""
        places = self._places(self._axis, self._rows, is_far=False)
        partings = [place.parting(place.row.index, place.column) for place in places]
        if first is not None:
            partings = [first, *(parting for parting in partings if parting.row != first.row)]
        return tuple(sorted(partings, key=lambda parting: parting.column))

    def _places(self, axis: Axis, rows: Sequence[_Row], *, is_far: bool) -> list[_Place]:
        """Returns the first place of each row, without rows that contain a row that is apart equally early."""
        places = []
        for row in rows:
            masks = row.far_apart() if is_far else row.apart(self._rtol)
            is_apart = np.logical_or.reduce(list(masks.values()))
            if is_apart.any():
                column = int(is_apart.argmax())
                places.append(_Place(row, axis, column, tuple(name for name, mask in masks.items() if mask[column])))
        inner = [
            place
            for place in places
            if not any(place.row.contains(other.row) and other.column <= place.column for other in places)
        ]
        return sorted(inner, key=lambda place: place.order)

    def _read_finer(self, place: _Place) -> tuple[Axis, list[_Row]]:
        ends = place.axis.bounds(place.column)
        if ends not in self._finer:
            axis = Axis(place.axis.name, *ends).divided(MAX_COLUMNS)
            a, b = (read_nodes(side.logdir, axis, side.labels) for side in self._sides)
            self._finer[ends] = axis, _aligned(a, _renamed(b, self._in_a))
        return self._finer[ends]


def _first(places: Sequence[_Place]) -> _Place | None:
    """Returns the first place in a layer or line; if there is no such place, the first place.

    Ops outside all layers can be apart before this affects any layer. Examples are a learning rate for later steps, and
    the order in which threads prepare the data.
    """
    of_layers = [place for place in places if place.row.key.kind != "role"]
    return next(iter(of_layers or places), None)


def _renamed(nodes: Sequence[Node], in_a: Mapping[RowKey, RowKey]) -> list[Node]:
    """Returns the rows of B, with the keys of A for lines that A has in another directory."""
    return [replace(node, key=in_a.get(node.key, node.key)) for node in nodes]


def _aligned(a: Sequence[Node], b: Sequence[Node]) -> list[_Row]:
    """Returns the rows that both runs have, in the order of A."""
    of_b = {node.key: node for node in b}
    return [_Row(index, node, of_b[node.key]) for index, node in enumerate(node for node in a if node.key in of_b)]


def _read_axes(
    scopes: Sequence[Engine], runs: Sequence[str], positions: tuple[int | None, int | None]
) -> tuple[Axis, Axis] | None:
    """Returns the positions of both runs on the same kind of axis; None if one of the runs has no tensors."""

    def read(name: str | None) -> Iterator[Axis | None]:
        for scope, run in zip(scopes, runs, strict=True):
            yield read_axis(scope, of_run(run), positions=positions, name=name)

    a, b = read(None)
    if a is not None and b is not None and a.name != b.name:
        a, b = read("execution")
    return None if a is None or b is None else (a, b)


def _default_rtol(sides: Sequence[_Side]) -> float:
    """Returns 16 units in the last place of the coarsest dtype, but at most MAX_RTOL."""
    names = {
        name
        for side in sides
        for (name,) in side.logdir.rows(
            "SELECT DISTINCT dtype FROM tensor_health WHERE run_id = ?", [side.labels.run_id]
        )
    }
    return min(MAX_RTOL, UNITS * max((dtype.eps for dtype in DTYPES if dtype.name in names), default=0.0))
