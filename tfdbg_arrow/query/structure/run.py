"""One run of a graph: the call and iteration in which a tensor was computed, and the runs around and inside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import Context
from tfdbg_arrow.query.structure.output_health import context_condition


@dataclass(frozen=True, kw_only=True)
class InnerRun:
    """A run of a graph that an op called: the attribute that names the graph, and a tensor (a bad one if any)."""

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
        step: The training step, as marked.
        context: The call and iteration; None if the recording does not distinguish calls.
        outer_graph_id: The graph that called it in that step; None for an outermost graph, or if unknown.
        outer_op_name: The calling op in that graph.
        outer_event_index: A tensor of that run of the calling graph.
        previous_event_index: A tensor of the previous iteration; None if there is none, or if the run is not in a loop.
        next_event_index: A tensor of the next iteration; None as above.
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
                previous, following = (
                    _some_event(
                        logdir,
                        replace(context, iteration=context.iteration + by),
                        run_id=run_id,
                        graph_id=event.graph_id,
                    )
                    for by in (-1, 1)
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
    """Returns the runs of the graphs that an op called in a run of its graph, if they recorded a tensor.

    For a loop, it returns the iteration with the first bad tensor, or the first iteration if no tensor is bad.
    """
    context = run.context
    if context is None or context.step_id is None:
        return ()
    found = []
    flow = DataFlow.of(logdir, run_id=run_id)
    with flow.lock:
        for call in flow.graphs.calls(run.graph_id, op_name):
            visit = flow.borders.visit(context, call)
            if visit is None:
                continue
            # The body and condition of a loop have their own frame; all iterations in it count.
            is_loop = call.attribute in ("body", "cond")
            inner = replace(
                context,
                call_site=visit.call_site,
                frame_id=visit.frame_id,
                iteration=None if is_loop else context.iteration,
            )
            event_index = _some_event(logdir, inner, run_id=run_id, graph_id=visit.graph_id, is_any_iteration=is_loop)
            if event_index is not None:
                found.append(
                    InnerRun(attribute=call.attribute, branch_index=call.branch_index, event_index=event_index)
                )
    return tuple(found)


def _some_event(
    logdir: Engine, context: Context, *, run_id: str, graph_id: int, is_any_iteration: bool = False
) -> int | None:
    """Returns the first bad tensor of a run of a graph, or its first tensor if none is bad; None without tensors."""
    where, parameters = context_condition(context)
    if is_any_iteration:
        where, parameters = where.removesuffix(" AND iteration IS NOT DISTINCT FROM ?"), parameters[:-1]
    ((found,),) = logdir.rows(
        "SELECT coalesce(min(CASE WHEN has_inf_or_nan THEN event_index END), min(event_index)) FROM tensor_health "
        f"WHERE run_id = ? AND graph_id = ?{where}",
        [run_id, graph_id, *parameters],
    )
    return None if found is None else int(found)
