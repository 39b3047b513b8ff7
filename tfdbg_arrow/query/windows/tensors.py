"""Windows of the recorded tensors of a run: the tensors that match a filter, one page at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.health import HEALTH_COLUMNS, TensorHealth
from tfdbg_arrow.query.windows.rows import find_window

SCOPES = ("graph", "execution", "external")
_FACTS = (
    "run_id",
    "wall_time_ns",
    "scope",
    "step",
    "execution_index",
    "iteration",
    "graph_id",
    "op_name",
    "op_type",
    "output_slot",
    "tensor_id",
)

_IN_RANGE = "h.event_index >= ? AND h.event_index < ?"


@dataclass(frozen=True, kw_only=True)
class TensorFilter:
    """A filter for recorded tensors. None means any.

    Attributes:
        op_type: Type of the op, or the called function's name.
        name: Text that the op name, op type or graph name contains, ignoring case.
        op_name: The full name of the op in its graph.
        output_slot: Which output of the op.
        graph_id: The graph.
        dtype: TensorFlow's name of the dtype.
        scope: One of SCOPES: from a graph, from an eager execution, or created by no recorded op.
        execution_index: The execution that created them, or in whose call they were created.
        first_step: Least training step.
        last_step: Greatest training step.
        first_event: Least event_index.
        last_event: Greatest event_index.
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
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorRow(TensorHealth):
    """One recorded tensor. An attribute is None if it is not measured in this mode, unknown, or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        wall_time_ns: When it was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        scope: One of SCOPES.
        step: The training step, as marked.
        execution_index: The execution that created it, or in whose call it was created.
        iteration: The loop iteration, from 0.
        graph_id: Its graph; None for an eager tensor.
        graph_name: That graph's name.
        op_name: The op in the graph.
        op_type: Type of the op; None for a tensor of scope `external`.
        output_slot: Which output of the op.
        tensor_id: Identifies an eager tensor; None for a tensor of a graph.
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


@dataclass(frozen=True, kw_only=True)
class TensorWindow:
    """A window of the tensors that match a filter.

    Attributes:
        rows: The tensors, by event_index.
        num_matching: Total number of matching tensors.
        num_before: How many of them come before the first of `rows`.
    """

    rows: tuple[TensorRow, ...]
    num_matching: int
    num_before: int


def tensor_window(
    logdir: Engine,
    filter_: TensorFilter,
    *,
    run_id: str,
    first: int = 0,
    before: int | None = None,
    place: int | None = None,
    limit: int = 100,
) -> TensorWindow:
    """Returns a window of a run's tensors.

    Args:
        logdir: The logdir.
        filter_: Selects the tensors.
        run_id: The run.
        first: The window starts at the first tensor with at least this event_index.
        before: The window ends just before this event_index instead; None makes it start at `first`.
        place: The window starts after this many matching tensors instead.
        limit: Maximum number of tensors.

    Raises:
        QueryError: The limit is below 1.
        BrokenPartError: A part cannot be read.
    """
    condition, parameters = filter_condition(filter_, run_id=run_id)

    def matching(low: int, end: int) -> tuple[str, list[object]]:
        return f"tensor_health AS h WHERE {condition} AND {_IN_RANGE}", [*parameters, low, end]

    window = find_window(
        logdir,
        matching,
        index="h.event_index",
        first=first,
        before=before,
        place=place,
        limit=limit,
    )
    rows = (
        _read_rows(
            logdir,
            f"{condition} AND {_IN_RANGE}",
            [*parameters, window.low, window.end],
            limit=window.num_rows,
            offset=window.offset,
        )
        if window.num_rows
        else ()
    )
    return TensorWindow(rows=rows, num_matching=window.num_matching, num_before=window.num_before)


def read_tensor(logdir: Engine, event_index: int, *, run_id: str) -> TensorRow | None:
    """Returns one recorded tensor of a run, or None if no tensor has that event_index."""
    rows = _read_rows(logdir, "h.run_id = ? AND h.event_index = ?", [run_id, event_index], limit=1)
    return rows[0] if rows else None


def neighbours(logdir: Engine, event_index: int, *, run_id: str) -> tuple[int | None, int | None]:
    """Returns the event_index of the recorded tensors before and after an event; None if there is none."""
    ((before,),) = logdir.rows(
        "SELECT max(event_index) FROM tensor_health WHERE run_id = ? AND event_index < ?", [run_id, event_index]
    )
    ((after,),) = logdir.rows(
        "SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND event_index > ?", [run_id, event_index]
    )
    return before, after


def next_bad(
    logdir: Engine, filter_: TensorFilter, event_index: int, *, run_id: str, is_backwards: bool = False
) -> int | None:
    """Returns the event_index of the next bad tensor that matches a filter; None if there is none.

    Args:
        logdir: The logdir.
        filter_: Selects the tensors.
        event_index: The event to start from; it is not returned itself.
        run_id: The run.
        is_backwards: Whether to search for the previous bad tensor instead.
    """
    condition, parameters = filter_condition(filter_, run_id=run_id)
    least, bound = ("max", "<") if is_backwards else ("min", ">")
    ((found,),) = logdir.rows(
        f"SELECT {least}(h.event_index) FROM tensor_health AS h "
        f"WHERE {condition} AND h.has_inf_or_nan AND h.event_index {bound} ?",
        [*parameters, event_index],
    )
    return None if found is None else int(found)


def first_of_step(logdir: Engine, step: int, *, run_id: str) -> int | None:
    """Returns the least event_index of a tensor in a training step or a later one; None if there is none."""
    ((found,),) = logdir.rows(
        "SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND step >= ?",
        [run_id, step],
    )
    return None if found is None else int(found)


def _read_rows(
    logdir: Engine, condition: str, parameters: list[object], *, limit: int, offset: int = 0
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
    """Returns a filter as an SQL condition on tensor_health AS h, and its parameters."""
    conditions: list[str] = ["h.run_id = ?"]
    parameters: list[object] = [run_id]
    for text, value in (
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
    ):
        if value is not None:
            conditions.append(text)
            parameters.append(value)
    if filter_.name:
        text = filter_.name.lower()
        conditions.append(
            "(contains(lower(h.op_name), ?) OR contains(lower(h.op_type), ?) OR h.graph_id IN "
            "(SELECT graph_id FROM graph WHERE run_id = ? AND contains(lower(graph_name), ?)))"
        )
        parameters += [text, text, run_id, text]
    if filter_.is_bad:
        conditions.append("h.has_inf_or_nan")
    return " AND ".join(conditions), parameters


def _row(row: tuple[object, ...]) -> TensorRow:
    facts = dict(zip((*_FACTS, *HEALTH_COLUMNS), row, strict=False))
    shape = facts["shape"]
    facts["shape"] = tuple(shape) if isinstance(shape, list) else None
    return TensorRow(graph_name=row[-1], **facts)  # type: ignore[arg-type]
