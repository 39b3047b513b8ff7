"""Recorded: the sums over the tensors of a run, for layer_health, training_curves and layer_differences."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.model_health.answers import Column, ColumnCalls
from tfdbg_arrow.query.model_health.cells import Group, Labels, read_groups, read_labels
from tfdbg_arrow.query.model_health.columns import Axis, of_run, read_axis, read_columns, read_position
from tfdbg_arrow.query.model_health.layer_rows import Node, make_nodes
from tfdbg_arrow.query.model_health.origin import choose_run
from tfdbg_arrow.query.model_health.series import UpdateRatio, read_update_ratios
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import KINDS

MAX_COLUMNS = 200
"""Default of the maximum number of columns."""


@dataclass(frozen=True)
class Recorded:
    """The tensors of a run in columns.

    Attributes:
        logdir: The engine of the run.
        run_id: The run.
        axis: The axis, of steps or executions.
        columns: The columns.
        labels: The rows that ops belong to.
        groups: The tensors by row and role.
        ratios: The update ratios.
        bad_tensor: The first bad tensor that did harm.
        first_bad: The column of that tensor; None if it is in no column.
        calls: As in LayerMap.
    """

    logdir: Engine
    run_id: str
    axis: Axis
    columns: tuple[Column, ...]
    labels: Labels
    groups: list[Group]
    ratios: list[UpdateRatio]
    bad_tensor: NonFinite | None
    first_bad: int | None
    calls: ColumnCalls | None


def read_recorded(
    logdir: Engine, *, run_id: str | None, positions: tuple[int | None, int | None], max_columns: int
) -> Recorded | None:
    """Returns the tensors of a run; None if the run has no tensors. See layer_health for the arguments and errors."""
    check_max_columns(max_columns)
    run, bad_tensor = choose_run(logdir, run_id)
    if run is None:
        return None
    scope = logdir.of_run(run)
    axis = read_axis(scope, of_run(run), positions=positions)
    return None if axis is None else read_on_axis(scope, axis.divided(max_columns), run_id=run, bad_tensor=bad_tensor)


def read_on_axis(logdir: Engine, axis: Axis, *, run_id: str, bad_tensor: NonFinite | None = None) -> Recorded:
    """Returns the tensors of a run on a given axis.

    Args:
        logdir: The engine of the run.
        axis: The axis. Any of its columns may be without tensors.
        run_id: The run.
        bad_tensor: The first bad tensor that did harm.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    labels = read_labels(logdir, run_id=run_id)
    columns = read_columns(logdir, axis, of_run(run_id))
    position = (
        None if bad_tensor is None else read_position(logdir, bad_tensor.event_index, axis=axis.name, run_id=run_id)
    )
    return Recorded(
        logdir=logdir,
        run_id=run_id,
        axis=axis,
        columns=columns,
        labels=labels,
        groups=read_groups(logdir, axis, labels),
        ratios=read_update_ratios(logdir, axis, labels),
        bad_tensor=bad_tensor,
        first_bad=axis.column_of(position),
        calls=None if axis.name == "step" or bad_tensor is None else _read_calls(logdir, bad_tensor, columns),
    )


def _read_calls(scope: Engine, bad_tensor: NonFinite, columns: Sequence[Column]) -> ColumnCalls | None:
    if bad_tensor.call is None:
        return None
    executions = BadTensorReader(scope, run_id=bad_tensor.run_id, kinds=KINDS).executions_of(bad_tensor.call)
    ranges = []
    for column in columns:
        last = bisect_right(executions, column.last)
        ranges.append((min(bisect_left(executions, column.first) + 1, last), last))
    return ColumnCalls(function=bad_tensor.call.function, ranges=tuple(ranges))


def read_nodes(logdir: Engine, axis: Axis, labels: Labels) -> list[Node]:
    """Returns the rows of a run in order."""
    ratios = read_update_ratios(logdir, axis, labels)
    return make_nodes(read_groups(logdir, axis, labels), ratios, axis.num_columns)


def check_max_columns(max_columns: int) -> None:
    """Raises a QueryError if a number of columns is below 1."""
    if max_columns < 1:
        raise QueryError(f"max_columns is {max_columns}; expected 1 or more.")
