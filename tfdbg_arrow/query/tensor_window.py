"""Windows of the recorded tensors of a run: what a filter leaves, a page at a time, however many there are."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.health import HEALTH_COLUMNS, TensorHealth

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


@dataclass(frozen=True, kw_only=True)
class TensorFilter:
    """Which recorded tensors are meant; None: any.

    Attributes:
        op_type: Type of the op, or the called function's name.
        name: Text that op name, op type or graph name holds; case does not count.
        graph_id: The graph.
        dtype: Dtype by TensorFlow's name.
        scope: One of SCOPES: of a graph, of an eager execution, from outside.
        first_step: Least training step.
        last_step: Greatest training step.
        is_bad: Only tensors with an infinity or a NaN.
    """

    op_type: str | None = None
    name: str | None = None
    graph_id: int | None = None
    dtype: str | None = None
    scope: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorRow(TensorHealth):
    """One recorded tensor; None is "not measured in this mode", unknown, or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        wall_time_ns: When it was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        scope: One of SCOPES.
        step: The training step, as marked.
        execution_index: The execution that made it, or in whose call it was made.
        iteration: Iteration of the loop, from 0.
        graph_id: Its graph; None for an eager tensor.
        graph_name: That graph's name.
        op_name: The op in it.
        op_type: Type of the op; None for a tensor from outside.
        output_slot: Which output of the op.
        tensor_id: Identifies an eager tensor; None in graphs.
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
    """A window of the tensors that a filter leaves.

    Attributes:
        rows: The tensors, by event_index.
        num_matching: How many the filter leaves in all.
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
    limit: int = 100,
) -> TensorWindow:
    """Returns a window of a run's tensors; reads no more rows than it returns.

    Args:
        logdir: The logdir.
        filter_: Which tensors.
        run_id: The run.
        first: The window starts at the first tensor whose event_index is not less.
        before: The window ends just before this event_index instead; None: it starts at `first`.
        limit: At most so many tensors.

    Raises:
        QueryError: The limit is below 1.
        BrokenPartError: A part cannot be read.
    """
    if limit < 1:
        raise QueryError(f"limit is {limit}, expected a number of tensors from 1 on.")
    condition, parameters = _condition(filter_, run_id=run_id)
    if before is None:
        bound, order, at = "h.event_index >= ?", "h.event_index", first
    else:
        bound, order, at = "h.event_index < ?", "h.event_index DESC", before
    # First where the window lies, then its rows: a sort over one column, not over all.
    found = logdir.rows(
        f"SELECT min(event_index), max(event_index) FROM (SELECT h.event_index FROM tensor_health AS h "
        f"{_JOIN_GRAPH} WHERE {condition} AND {bound} ORDER BY {order} LIMIT {int(limit)}) AS w",
        [*parameters, at],
    )
    low, high = found[0]
    columns = ", ".join(f"h.{column}" for column in (*_FACTS, *HEALTH_COLUMNS))
    rows = (
        []
        if low is None
        else logdir.rows(
            f"SELECT {columns}, g.graph_name FROM tensor_health AS h {_JOIN_GRAPH} "
            f"WHERE {condition} AND h.event_index >= ? AND h.event_index <= ? ORDER BY h.event_index",
            [*parameters, low, high],
        )
    )
    ((num_matching, num_before),) = logdir.rows(
        f"SELECT count(*), count(CASE WHEN h.event_index < ? THEN 1 END) FROM tensor_health AS h {_JOIN_GRAPH} "
        f"WHERE {condition}",
        [at if low is None else low, *parameters],
    )
    return TensorWindow(rows=tuple(map(_row, rows)), num_matching=num_matching, num_before=num_before)


def read_tensor(logdir: Engine, event_index: int, *, run_id: str) -> TensorRow | None:
    """Returns one recorded tensor of a run, or None where there is none of that event_index."""
    window = tensor_window(logdir, TensorFilter(), run_id=run_id, first=event_index, limit=1)
    return next((row for row in window.rows if row.event_index == event_index), None)


def next_bad(
    logdir: Engine, filter_: TensorFilter, event_index: int, *, run_id: str, is_backwards: bool = False
) -> int | None:
    """Returns the event_index of the bad tensor next to an event, among those that a filter leaves; None: no more.

    Args:
        logdir: The logdir.
        filter_: Which tensors.
        event_index: The event; it is not itself meant.
        run_id: The run.
        is_backwards: Whether the one before, not the one after.
    """
    condition, parameters = _condition(filter_, run_id=run_id)
    least, bound = ("max", "<") if is_backwards else ("min", ">")
    ((found,),) = logdir.rows(
        f"SELECT {least}(h.event_index) FROM tensor_health AS h {_JOIN_GRAPH} "
        f"WHERE {condition} AND h.has_inf_or_nan AND h.event_index {bound} ?",
        [*parameters, event_index],
    )
    return None if found is None else int(found)


def first_of_step(logdir: Engine, step: int, *, run_id: str) -> int | None:
    """Returns the least event_index of a tensor of a training step, or of the first recorded one after it."""
    ((found,),) = logdir.rows(
        "SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND step >= ?",
        [run_id, step],
    )
    return None if found is None else int(found)


_JOIN_GRAPH = "LEFT JOIN graph AS g ON g.run_id = h.run_id AND g.graph_id = h.graph_id"


def _condition(filter_: TensorFilter, *, run_id: str) -> tuple[str, list[object]]:
    """Returns the condition on tensor_health AS h and graph AS g, and its parameters."""
    conditions: list[str] = ["h.run_id = ?"]
    parameters: list[object] = [run_id]
    for text, value in (
        ("h.op_type = ?", filter_.op_type),
        ("h.graph_id = ?", filter_.graph_id),
        ("h.dtype = ?", filter_.dtype),
        ("h.scope = ?", filter_.scope),
        ("h.step >= ?", filter_.first_step),
        ("h.step <= ?", filter_.last_step),
    ):
        if value is not None:
            conditions.append(text)
            parameters.append(value)
    if filter_.name:
        places = ("h.op_name", "h.op_type", "g.graph_name")
        conditions.append("(" + " OR ".join(f"contains(lower({place}), ?)" for place in places) + ")")
        parameters += [filter_.name.lower()] * len(places)
    if filter_.is_bad:
        conditions.append("h.has_inf_or_nan")
    return " AND ".join(conditions), parameters


def _row(row: tuple[object, ...]) -> TensorRow:
    facts = dict(zip((*_FACTS, *HEALTH_COLUMNS), row, strict=False))
    shape = facts["shape"]
    facts["shape"] = tuple(shape) if isinstance(shape, list) else None
    return TensorRow(graph_name=row[-1], **facts)  # type: ignore[arg-type]
