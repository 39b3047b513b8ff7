"""Recorded tensors: windows of the tensors that match a filter, and series of their values over time."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.display.row_window import Rows, given_conditions
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.model_health.cells import row_condition
from tfdbg_arrow.query.recorded import HEALTH_COLUMNS, TensorHealth

SCOPES = ("graph", "execution", "external")
SIDES = ("forward", "gradient")
AXES = ("event", "step")
"""The possible axes of a series: events in their order, or training steps."""
MAX_BUCKETS = 1000
"""Maximum number of buckets in a series.

A bucket has a least and a greatest value, so there are twice as many points.
"""
_SHARE = "CASE WHEN h.size > 0 THEN CAST(h.{} AS DOUBLE) / h.size END"
_MEASURES = {
    "nan": _SHARE.format("num_nan"),
    "neg_inf": _SHARE.format("num_neg_inf"),
    "pos_inf": _SHARE.format("num_pos_inf"),
    "zero": _SHARE.format("num_zero"),
    "max_abs": "h.max_abs_finite",
    "mean_abs": "abs(h.mean_finite)",
    "stddev": "h.stddev_finite",
}
_FACTS = (
    "run_id", "wall_time_ns", "scope", "step", "execution_index", "iteration", "graph_id", "op_name", "op_type",
    "output_slot", "tensor_id",
)  # fmt: skip
_IN_RANGE = "h.event_index >= ? AND h.event_index < ?"


@dataclass(frozen=True, kw_only=True)
class TensorFilter:
    """A filter for recorded tensors. None means any.

    Attributes:
        op_type: Type of the op, or the called function's name.
        name: Text that the op name, op type or graph name contains, ignoring case.
        op_name: The full name of the op in its graph.
        output_slot: Index of the op's output.
        graph_id: The graph.
        dtype: TensorFlow's name of the dtype.
        scope: One of SCOPES: from a graph, from an eager execution, or created by no recorded op.
        execution_index: The execution that created the tensors, or the call during which they were created.
        first_step: Least training step.
        last_step: Greatest training step.
        first_event: Least event_index.
        last_event: Greatest event_index.
        layer: The layer that the op of the tensor belongs to, or a layer that contains this layer. For ops outside all
            layers, this is the role of the ops. As in LayerRow, a gradient belongs to the layer of its forward op.
        side: One of SIDES: from the ops of the layer, or from the gradients of these ops. It requires `layer`.
        is_bad: Only tensors with an infinity or a NaN.
    """

    op_type: str | None = None
    name: str | None = None
    op_name: str | None = None
    output_slot: int | None = None
    graph_id: int | None = None
    dtype: str | None = None
    scope: str | None = None
    execution_index: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    first_event: int | None = None
    last_event: int | None = None
    layer: str | None = None
    side: str | None = None
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorRow(TensorHealth):
    """One recorded tensor. An attribute is None if it is unknown, was not measured, or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        wall_time_ns: When the tensor was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        scope: One of SCOPES.
        step: The marked training step.
        execution_index: The execution that created the tensor, or the call during which the tensor was created.
        iteration: The loop iteration, from 0.
        graph_id: The graph of the tensor; None for an eager tensor.
        graph_name: The name of this graph.
        op_name: The op in the graph.
        op_type: Type of the op; None for a tensor of scope `external`.
        output_slot: Index of the op's output.
        tensor_id: Identifies an eager tensor; None for a graph tensor.
    """

    run_id: str
    wall_time_ns: int
    scope: str
    step: int | None
    execution_index: int | None
    iteration: int | None
    graph_id: int | None
    graph_name: str | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    tensor_id: int | None


def tensors(logdir: Engine, filter_: TensorFilter, *, run_id: str) -> Rows[TensorRow]:
    """Returns the tensors of a run that match a filter, by event_index."""
    condition, parameters = filter_condition(filter_, run_id=run_id)
    return Rows(
        logdir=logdir,
        table="tensor_health AS h",
        index="h.event_index",
        condition=lambda low, end: (f"{condition} AND {_IN_RANGE}", [*parameters, low, end]),
        read=functools.partial(_read_rows, logdir),
    )


def read_tensor(logdir: Engine, event_index: int, *, run_id: str) -> TensorRow | None:
    """Returns one recorded tensor of a run, or None if no tensor has this event_index."""
    rows = _read_rows(logdir, "h.run_id = ? AND h.event_index = ?", [run_id, event_index], 1, 0)
    return rows[0] if rows else None


def _read_rows(
    logdir: Engine, condition: str, parameters: list[object], limit: int, offset: int
) -> tuple[TensorRow, ...]:
    columns = ", ".join(f"h.{column}" for column in (*_FACTS, *HEALTH_COLUMNS))
    rows = logdir.rows(
        f"SELECT {columns}, g.graph_name FROM tensor_health AS h "
        "LEFT JOIN graph AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id "
        f"WHERE {condition} ORDER BY h.event_index LIMIT {limit} OFFSET {offset}",
        parameters,
    )
    return tuple(map(_row, rows))


def filter_condition(filter_: TensorFilter, *, run_id: str) -> tuple[str, list[object]]:
    """Returns a filter as an SQL condition on `tensor_health AS h`, and its parameters."""
    conditions, parameters = given_conditions(
        [
            ("h.run_id = ?", run_id),
            ("h.op_type = ?", filter_.op_type),
            ("h.op_name = ?", filter_.op_name),
            ("h.output_slot = ?", filter_.output_slot),
            ("h.graph_id = ?", filter_.graph_id),
            ("h.dtype = ?", filter_.dtype),
            ("h.scope = ?", filter_.scope),
            ("h.execution_index = ?", filter_.execution_index),
            ("h.step >= ?", filter_.first_step),
            ("h.step <= ?", filter_.last_step),
            ("h.event_index >= ?", filter_.first_event),
            ("h.event_index <= ?", filter_.last_event),
        ]
    )
    if filter_.name:
        text = filter_.name.lower()
        conditions.append(
            "(contains(lower(h.op_name), ?) OR contains(lower(h.op_type), ?) OR h.graph_id IN "
            "(SELECT graph_id FROM graph WHERE run_id = ? AND contains(lower(graph_name), ?)))"
        )
        parameters += [text, text, run_id, text]
    if filter_.layer is not None:
        condition, of_row = row_condition(filter_.layer, filter_.side, run_id=run_id)
        conditions.append(condition)
        parameters += of_row
    if filter_.is_bad:
        conditions.append("h.has_inf_or_nan")
    return " AND ".join(conditions), parameters


def _row(row: tuple[object, ...]) -> TensorRow:
    facts = dict(zip((*_FACTS, *HEALTH_COLUMNS), row, strict=False))
    shape = facts["shape"]
    facts["shape"] = tuple(shape) if isinstance(shape, list) else None
    return TensorRow(graph_name=row[-1], **facts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SeriesBucket:
    """One bucket of a series, with one or more tensors.

    Attributes:
        first_event_index: The first tensor of the bucket.
        last_event_index: The last tensor of the bucket.
        first_step: The least marked training step of the bucket; None if no step was marked.
        last_step: The greatest marked training step of the bucket.
        num_tensors: Number of recorded tensors.
        num_bad: Number of these tensors that hold an infinity or a NaN.
        first_bad_event_index: The first bad tensor; None if no tensor is bad.
    """

    first_event_index: int
    last_event_index: int
    first_step: int | None
    last_step: int | None
    num_tensors: int
    num_bad: int
    first_bad_event_index: int | None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One measured quantity over the buckets of a series. A value is None if it was not measured or does not apply.

    Attributes:
        least: The least value in each bucket.
        greatest: The greatest value in each bucket.
    """

    least: tuple[float | None, ...]
    greatest: tuple[float | None, ...]

    @property
    def is_known(self) -> bool:
        """Whether the quantity was measured in at least one bucket."""
        return any(value is not None for value in self.least)

    @property
    def peak(self) -> float | None:
        """The greatest value of all buckets; None without values."""
        return max((value for value in self.greatest if value is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class TensorSeries:
    """The values of the tensors of one op over time.

    Attributes:
        axis: One of AXES.
        is_exact: Whether every bucket is one tensor (or, with the axis `step`, one step).
        num_tensors: Number of tensors in the series.
        num_bad: Number of these tensors that hold an infinity or a NaN.
        num_unmeasured: Number of tensors for which the recording does not say whether they are bad.
        num_without_step: Number of tensors left out because their step was not marked; 0 with the axis `event`.
        buckets: The buckets that have a tensor, in order.
        nan: Share of the elements that are NaN, from 0 to 1.
        neg_inf: Share of the elements that are -infinity.
        pos_inf: Share of the elements that are +infinity.
        zero: Share of the elements that are zero.
        max_abs: Largest magnitude of a finite element.
        mean_abs: Magnitude of the mean of the finite elements.
        stddev: Standard deviation of the finite elements.
    """

    axis: str
    is_exact: bool
    num_tensors: int
    num_bad: int
    num_unmeasured: int
    num_without_step: int
    buckets: tuple[SeriesBucket, ...]
    nan: Measure
    neg_inf: Measure
    pos_inf: Measure
    zero: Measure
    max_abs: Measure
    mean_abs: Measure
    stddev: Measure


def tensor_series(
    logdir: Engine, filter_: TensorFilter, *, run_id: str, axis: str = "event", max_buckets: int = MAX_BUCKETS
) -> TensorSeries:
    """Returns the values over time of the tensors that match a filter.

    `num_bad` of a bucket counts every bad tensor in the bucket, no matter how many tensors the bucket has.

    Args:
        logdir: The logdir.
        filter_: Selects the tensors.
        run_id: The run.
        axis: One of AXES.
        max_buckets: Maximum number of buckets.

    Raises:
        QueryError: The axis is unknown, or `max_buckets` is below 1.
        BrokenPartError: A part cannot be read.
    """
    if axis not in AXES:
        raise QueryError(f"axis is {axis!r}, expected one of {', '.join(AXES)}.")
    if max_buckets < 1:
        raise QueryError(f"max_buckets is {max_buckets}, expected 1 or more.")
    position = "h.event_index" if axis == "event" else "h.step"
    condition, parameters = filter_condition(filter_, run_id=run_id)
    source = f"FROM tensor_health AS h WHERE {condition} AND {position}"
    positions = position if axis == "event" else f"DISTINCT {position}"
    ((num_tensors, num_bad, num_measured, num_positions, low, high),) = logdir.rows(
        "SELECT count(*), count(CASE WHEN h.has_inf_or_nan THEN 1 END), count(h.has_inf_or_nan), "
        f"count({positions}), min({position}), max({position}) {source} IS NOT NULL",
        parameters,
    )
    num_without_step = 0
    if axis == "step":
        ((num_without_step,),) = logdir.rows(f"SELECT count(*) {source} IS NULL", parameters)
    is_exact = num_positions <= max_buckets
    rows = []
    if num_tensors:
        bucket, given = position, []
        if not is_exact:
            bucket = f"CAST(floor(({position} - ?) * CAST(? AS DOUBLE) / ?) AS BIGINT)"
            given = [low, max_buckets, high - low + 1]
        measures = ", ".join(f"min({text}), max({text})" for text in _MEASURES.values())
        rows = logdir.rows(
            f"SELECT {bucket} AS bucket, min(h.event_index), max(h.event_index), min(h.step), max(h.step), count(*), "
            "count(CASE WHEN h.has_inf_or_nan THEN 1 END), min(CASE WHEN h.has_inf_or_nan THEN h.event_index END), "
            f"{measures} {source} IS NOT NULL GROUP BY 1 ORDER BY 1",
            [*given, *parameters],
        )
    return TensorSeries(
        axis=axis,
        is_exact=is_exact,
        num_tensors=num_tensors,
        num_bad=num_bad,
        num_unmeasured=num_tensors - num_measured,
        num_without_step=num_without_step,
        buckets=tuple(SeriesBucket(*row[1:8]) for row in rows),
        **{
            name: Measure(
                least=tuple(row[8 + 2 * number] for row in rows), greatest=tuple(row[9 + 2 * number] for row in rows)
            )
            for number, name in enumerate(_MEASURES)
        },
    )
