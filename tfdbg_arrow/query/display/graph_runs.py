"""The graphs of a run, nested as they were traced, and single runs of a graph: one iteration in one call."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.display.graph_ops import context_condition
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.recorded import Context
from tfdbg_arrow.query.stacks import Frame, StackReader


@dataclass(frozen=True)
class InnerRun:
    """A run of a graph that an op called: the attribute that names the graph, and a tensor (a bad tensor if any)."""

    attribute: str
    branch_index: int
    event_index: int


@dataclass(frozen=True, kw_only=True)
class GraphRun:
    """One run of a graph.

    Attributes:
        event_index: The tensor that identifies the run.
        graph_id: The graph.
        op_name: The tensor's op.
        step: The marked training step.
        context: The call and iteration; None if the recording does not distinguish calls.
        outer_graph_id: The graph that called this graph in the same step; None for an outermost graph, or if unknown.
        outer_op_name: The calling op in the outer graph.
        outer_event_index: A tensor of the run of the outer graph.
        previous_event_index: A tensor of the previous iteration; None if there is none, or if the run is not in a loop.
        next_event_index: A tensor of the next iteration; None if there is none, or if the run is not in a loop.
    """

    event_index: int
    graph_id: int
    op_name: str
    step: int | None
    context: Context | None
    outer_graph_id: int | None
    outer_op_name: str | None
    outer_event_index: int | None
    previous_event_index: int | None
    next_event_index: int | None


def graph_run(logdir: Engine, event_index: int, *, run_id: str) -> GraphRun:
    """Returns the run of a graph in which a tensor was computed.

    Args:
        logdir: The logdir.
        event_index: The tensor's row in tensor_health.
        run_id: The run.

    Raises:
        QueryError: The event is not a tensor of a graph.
    """
    flow = DataFlow.of(logdir, run_id=run_id)
    with flow.lock:
        event = flow.events.event(event_index)
        if event is None or event.graph_id is None or event.op_name is None:
            raise QueryError(f"event {event_index} of run {run_id} is not a recorded tensor of a graph.")
        context = event.context
        outer_graph_id = outer_op_name = outer_event_index = previous = following = None
        if context.step_id is not None and context.call_site is not None:
            levels = flow.borders.levels(context, event.graph_id)
            if levels:
                outer_graph_id, outer_op_name = levels[-1].call.graph_id, levels[-1].call.op_name
                outer = flow.borders.outer_context(context, levels)
                if outer.iteration is not None:
                    outer_event_index = _some_event(logdir, outer, run_id=run_id, graph_id=outer_graph_id)
            if context.frame_id and context.iteration is not None:
                neighbours = [replace(context, iteration=context.iteration + by) for by in (-1, 1)]
                previous, following = (
                    _some_event(logdir, neighbour, run_id=run_id, graph_id=event.graph_id) for neighbour in neighbours
                )
    return GraphRun(
        event_index=event_index,
        graph_id=event.graph_id,
        op_name=event.op_name,
        step=event.step,
        context=None if context.step_id is None and context.execution_index is None else context,
        outer_graph_id=outer_graph_id,
        outer_op_name=outer_op_name,
        outer_event_index=outer_event_index,
        previous_event_index=previous,
        next_event_index=following,
    )


def inner_runs(logdir: Engine, run: GraphRun, op_name: str, *, run_id: str) -> tuple[InnerRun, ...]:
    """Returns the runs of graphs that an op called during a run of its own graph, if they have a recorded tensor.

    For a loop, the result is the iteration with the first bad tensor, or the first iteration if no tensor is bad.
    """
    context = run.context
    if context is None or context.step_id is None:
        return ()
    inner_events = []
    flow = DataFlow.of(logdir, run_id=run_id)
    with flow.lock:
        for call in flow.graphs.calls(run.graph_id, op_name):
            visit = flow.borders.visit(context, call)
            if visit is None:
                continue
            # The body and the condition of a loop run in another frame than the op that calls them. Accept any
            # iteration in that frame.
            is_loop = call.attribute in ("body", "cond")
            iteration = None if is_loop else context.iteration
            inner = replace(context, call_site=visit.call_site, frame_id=visit.frame_id, iteration=iteration)
            event_index = _some_event(logdir, inner, run_id=run_id, graph_id=visit.graph_id, is_any_iteration=is_loop)
            if event_index is not None:
                inner_events.append(InnerRun(call.attribute, call.branch_index, event_index))
    return tuple(inner_events)


def _some_event(
    logdir: Engine, context: Context, *, run_id: str, graph_id: int, is_any_iteration: bool = False
) -> int | None:
    """Returns the first bad tensor of a graph's run, or the first tensor if no tensor is bad; None without tensors."""
    where, parameters = context_condition(context)
    if is_any_iteration:
        where, parameters = where.removesuffix(" AND iteration IS NOT DISTINCT FROM ?"), parameters[:-1]
    ((event_index,),) = logdir.rows(
        "SELECT coalesce(min(CASE WHEN has_inf_or_nan THEN event_index END), min(event_index)) FROM tensor_health "
        f"WHERE run_id = ? AND graph_id = ?{where}",
        [run_id, graph_id, *parameters],
    )
    return None if event_index is None else int(event_index)


_MAX_DEPTH = 64
"""Maximum length of a path. It bounds the queries: each graph of a path needs one."""


@dataclass(frozen=True)
class GraphRow:
    """One graph.

    Attributes:
        graph_id: The ID of the graph.
        graph_name: The name of the graph.
        user_name: The user's name for the graph; None if it is not known. See `user_name`.
        outer_graph_id: The graph in which this graph was traced; None if it was traced in eager code.
        outer_name: The user's name for the outer graph. If there is no such name, the outer graph's own name.
        num_ops: Number of ops of the graph.
        num_tensors: Number of recorded tensors of the graph.
        num_bad: Number of these tensors that hold an infinity or a NaN.
        has_run: Whether the recording shows that the graph ran, because it has a tensor, a call, or an executed form.
        source: The line of the user's code that created the graph, or None.
    """

    graph_id: int
    graph_name: str
    user_name: str | None
    outer_graph_id: int | None
    outer_name: str | None
    num_ops: int
    num_tensors: int
    num_bad: int
    has_run: bool
    source: Frame | None


@dataclass(frozen=True)
class GraphList:
    """The graphs of a run.

    Attributes:
        rows: The graphs, ordered by number of bad tensors, number of tensors and number of ops (each with the greatest
            first), then by graph_id. Graphs that never ran come last.
        num_graphs: Total number of graphs. This number is larger than the number of `rows` if a limit cut the rows.
        num_never_run: Number of graphs that never ran, including graphs that the limit cut.
    """

    rows: tuple[GraphRow, ...]
    num_graphs: int
    num_never_run: int


@dataclass(frozen=True)
class GraphName:
    """A graph's id and name."""

    graph_id: int
    graph_name: str


def graph_list(logdir: Engine, *, run_id: str, name: str | None = None, limit: int = 1000) -> GraphList:
    """Returns the graphs of a run.

    Args:
        logdir: The logdir.
        run_id: The run.
        name: Only graphs whose name or `user_name` contains this text, ignoring case; None means all.
        limit: Maximum number of graphs.
    """
    names = user_names(logdir, run_id=run_id)
    where, parameters = "", []
    if name is not None:
        called = [graph_id for graph_id, text in names.items() if name.lower() in text.lower()]
        where = " AND (contains(lower(g.graph_name), ?) OR list_contains(CAST(? AS BIGINT[]), g.graph_id))"
        parameters = [name.lower(), called]
    rows = logdir.rows(
        "SELECT g.graph_id, g.graph_name, g.outer_graph_id, u.graph_name, g.stack_trace_id, coalesce(o.num_ops, 0), "
        "coalesce(h.num_tensors, 0), coalesce(h.num_bad, 0), r.graph_id IS NOT NULL AS has_run, "
        "count(*) OVER (), count(CASE WHEN r.graph_id IS NULL THEN 1 END) OVER () "
        "FROM graph AS g "
        "LEFT JOIN graph AS u ON u.run_id = g.run_id AND u.graph_id = g.outer_graph_id "
        "LEFT JOIN (SELECT graph_id, count(*) AS num_ops FROM graph_op WHERE run_id = ? GROUP BY graph_id) AS o "
        "ON o.graph_id = g.graph_id "
        "LEFT JOIN (SELECT graph_id, count(*) AS num_tensors, count(CASE WHEN has_inf_or_nan THEN 1 END) AS num_bad "
        "FROM tensor_health WHERE run_id = ? AND graph_id IS NOT NULL GROUP BY graph_id) AS h "
        "ON h.graph_id = g.graph_id "
        "LEFT JOIN (SELECT graph_id FROM tensor_health WHERE run_id = ? AND graph_id IS NOT NULL "
        "UNION SELECT graph_id FROM execution WHERE run_id = ? AND graph_id IS NOT NULL "
        "UNION SELECT graph_id FROM executed_op WHERE run_id = ? AND graph_id IS NOT NULL) AS r "
        "ON r.graph_id = g.graph_id "
        f"WHERE g.run_id = ?{where} "
        "ORDER BY has_run DESC, coalesce(h.num_bad, 0) DESC, coalesce(h.num_tensors, 0) DESC, "
        f"coalesce(o.num_ops, 0) DESC, g.graph_id LIMIT {int(limit)}",
        [*[run_id] * 6, *parameters],
    )
    sources = StackReader(logdir, run_id=run_id).user_sources(row[4] for row in rows if row[4] is not None)
    return GraphList(
        rows=tuple(
            GraphRow(
                graph_id=graph_id,
                graph_name=graph_name,
                user_name=names.get(graph_id),
                outer_graph_id=outer_id,
                outer_name=names.get(outer_id, outer_name),
                num_ops=num_ops,
                num_tensors=num_tensors,
                num_bad=num_bad,
                has_run=has_run,
                source=sources.get(stack),
            )
            for graph_id, graph_name, outer_id, outer_name, stack, num_ops, num_tensors, num_bad, has_run, _, _ in rows
        ),
        num_graphs=rows[0][-2] if rows else 0,
        num_never_run=rows[0][-1] if rows else 0,
    )


def graph_path(logdir: Engine, graph_id: int, *, run_id: str) -> tuple[GraphName, ...]:
    """Returns the graphs in which a graph was traced, the outermost first, and the graph itself at the end.

    Empty if the graph is unknown.
    """
    path: dict[int, GraphName] = {}
    at: int | None = graph_id
    while at is not None and at not in path and len(path) < _MAX_DEPTH:
        rows = logdir.rows(
            "SELECT graph_name, outer_graph_id FROM graph WHERE run_id = ? AND graph_id = ? LIMIT 1", [run_id, at]
        )
        if not rows:
            break
        path[at] = GraphName(at, rows[0][0])
        at = rows[0][1]
    return tuple(reversed(path.values()))
