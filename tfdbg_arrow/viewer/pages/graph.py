"""The graph page: an op with its inputs and consumers, the ops of a graph, or the list of graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Frame, InputTensor, Logdir, user_source
from tfdbg_arrow.query.display.graph_borders import Caller, callers
from tfdbg_arrow.query.display.graph_ops import OpFacts, OpFilter, OpWindow, op_facts, op_window
from tfdbg_arrow.query.display.graph_runs import (
    GraphList,
    GraphName,
    GraphRun,
    InnerRun,
    graph_list,
    graph_path,
    graph_run,
    inner_runs,
)
from tfdbg_arrow.query.display.graph_scopes import ScopeGraph, scope_graph
from tfdbg_arrow.query.display.neighbourhood import MAX_DEPTH, Neighbourhood, neighbourhood
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.nonfinite_search import tensor_context
from tfdbg_arrow.query.recorded import Context
from tfdbg_arrow.query.stacks import StackReader
from tfdbg_arrow.viewer.page import NoSuchPageError, PageKind, Parameters, one_run
from tfdbg_arrow.viewer.source_text import Excerpt, read_excerpt

DEFAULT_DEPTH = 2
"""Default distance from the op, in ops, so that the picture fits on a screen."""


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """The part of a graph that a request asks for.

    Attributes:
        graph_id: The graph; None means all graphs.
        op_name: The op in the graph; None means all ops.
        up: Depth towards the inputs, at most MAX_DEPTH ops.
        down: Depth towards the consumers, at most MAX_DEPTH ops.
        has_control: Whether to include control edges.
        event_index: A tensor, which determines the graph and the op. The page shows the health in the call and
            iteration of this tensor. None means the health over the whole run.
        open_ids: The scopes that are unfolded in the model graph, as in `scope_graph`.
    """

    graph_id: int | None = None
    op_name: str | None = None
    up: int = DEFAULT_DEPTH
    down: int = DEFAULT_DEPTH
    has_control: bool = True
    event_index: int | None = None
    open_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """A graph.

    Attributes:
        graph_id: The ID of the graph.
        graph_name: The name of the graph.
        user_name: The user's name of the graph, as in `GraphRow`.
        path: The graphs in which this graph was traced, outermost first, then the graph itself.
        callers: The first ops that call the graph.
        num_callers: Total number of ops that call the graph.
        num_executions: Number of calls from eager code.
        num_ops: Number of ops.
        source: The line of the user's code that created the graph; None if it is not known.
    """

    graph_id: int
    graph_name: str
    user_name: str | None
    path: tuple[GraphName, ...]
    callers: tuple[Caller, ...]
    num_callers: int
    num_executions: int
    num_ops: int
    source: Frame | None


@dataclass(frozen=True, kw_only=True)
class FocusedOp:
    """The op that the page shows.

    Attributes:
        facts: The facts about the op.
        neighbourhood: The neighbourhood of the op.
        inner_runs: If one call is shown, the runs of the graphs that the op called.
        origins: If one call is shown and the op has no inputs in its graph, the tensors that reached it from other
            graphs.
        stack: The Python stack that created the op, innermost frame first.
        source: The lines around the user's innermost frame.
    """

    facts: OpFacts
    neighbourhood: Neighbourhood
    inner_runs: tuple[InnerRun, ...]
    origins: tuple[InputTensor, ...]
    stack: tuple[Frame, ...]
    source: Excerpt | None


@dataclass(frozen=True, kw_only=True)
class GraphPage:
    """The data of the graph page.

    Attributes:
        run_id: The run; None if the logdir has no run.
        view: The requested view, with graph and op filled in from the event.
        filter: The filter for the list of ops; its name also filters the list of graphs.
        graphs: The graphs of the run, if the request names no graph.
        graph: The graph.
        ops: The graph's ops, if the request names no op.
        model: The graph with its ops grouped by scope, if the request names no op.
        focus: The op.
        run: The single run of the graph whose health is shown; None means all runs.
    """

    run_id: str | None
    view: GraphView
    filter: OpFilter
    graphs: GraphList | None
    graph: GraphFacts | None
    ops: OpWindow | None
    model: ScopeGraph | None
    focus: FocusedOp | None
    run: GraphRun | None


def read_graph(logdir: Logdir, parameters: Parameters) -> GraphPage:
    """Returns the structure of a graph, or the list of graphs.

    Raises:
        NoSuchPageError: The run has no such graph, or the graph has no such op.
        QueryError: The event is not a tensor of a graph, or it belongs to another graph.
    """
    depth = parameters.integer("depth")
    up, down = (
        min(next(value for value in (parameters.integer(name), depth, DEFAULT_DEPTH) if value is not None), MAX_DEPTH)
        for name in ("up", "down")
    )
    view = GraphView(
        graph_id=parameters.integer("graph"),
        op_name=parameters.text("op"),
        up=up,
        down=down,
        has_control=parameters.choice("control", ("0", "1")) != "0",
        event_index=parameters.integer("event"),
        open_ids=parameters.integers("open") or None,
    )
    filter_ = OpFilter(name=parameters.text("name"), op_type=parameters.text("op_type"), is_bad=parameters.flag("bad"))
    run_id = one_run(logdir, parameters)
    graphs = graph = ops = model = focus = run = None
    if run_id is not None:
        one = logdir.of_run(run_id)
        if view.event_index is not None:
            run = graph_run(one, view.event_index, run_id=run_id)
            view = _completed(view, run)
        if view.graph_id is None:
            graphs = graph_list(one, run_id=run_id, name=filter_.name)
        else:
            graph = _graph_facts(one, view.graph_id, run_id=run_id)
            if view.op_name is None:
                model = scope_graph(one, run_id=run_id, graph_id=view.graph_id, open_ids=view.open_ids)
                ops = op_window(
                    one,
                    filter_,
                    run_id=run_id,
                    graph_id=view.graph_id,
                    first=parameters.integer("at") or 0,
                    before=parameters.integer("before"),
                )
            else:
                focus = _focused(one, view, graph, run, run_id=run_id)
    return GraphPage(
        run_id=run_id, view=view, filter=filter_, graphs=graphs, graph=graph, ops=ops, model=model, focus=focus, run=run
    )


def _completed(view: GraphView, run: GraphRun) -> GraphView:
    if view.graph_id not in (None, run.graph_id):
        raise QueryError(
            f"event {run.event_index} is a tensor of graph {run.graph_id}, not of graph {view.graph_id}; "
            "give only one of event and graph."
        )
    return replace(view, graph_id=run.graph_id, op_name=view.op_name or run.op_name)


def _graph_facts(logdir: Engine, graph_id: int, *, run_id: str) -> GraphFacts:
    path = graph_path(logdir, graph_id, run_id=run_id)
    if not path:
        raise NoSuchPageError(f"run {run_id} has no graph {graph_id}; open the page without a graph to list them.")
    ((num_executions, num_ops, stack_trace_id),) = logdir.rows(
        "SELECT (SELECT count(*) FROM execution WHERE run_id = ? AND graph_id = ?), "
        "(SELECT count(*) FROM graph_op WHERE run_id = ? AND graph_id = ?), "
        "(SELECT max(stack_trace_id) FROM graph WHERE run_id = ? AND graph_id = ?)",
        [run_id, graph_id] * 3,
    )
    first_callers, num_callers = callers(logdir, graph_id, run_id=run_id)
    return GraphFacts(
        graph_id=graph_id,
        graph_name=path[-1].graph_name,
        user_name=user_names(logdir, run_id=run_id).get(graph_id),
        path=path,
        callers=first_callers,
        num_callers=num_callers,
        num_executions=num_executions,
        num_ops=num_ops,
        source=user_source(StackReader(logdir, run_id=run_id).stack(stack_trace_id)),
    )


def _focused(logdir: Logdir, view: GraphView, graph: GraphFacts, run: GraphRun | None, *, run_id: str) -> FocusedOp:
    op_name = view.op_name or ""
    context: Context | None = None if run is None else run.context
    around = neighbourhood(
        logdir,
        op_name,
        run_id=run_id,
        graph_id=graph.graph_id,
        up=view.up,
        down=view.down,
        has_control=view.has_control,
        context=context,
    )
    facts = None
    if around is not None:
        outputs_of_op = {node.op_name: node.outputs for node in around.nodes}
        facts = op_facts(logdir, op_name, run_id=run_id, graph_id=graph.graph_id, context=context, known=outputs_of_op)
    if facts is None or around is None:
        raise NoSuchPageError(f"graph {graph.graph_id} ({graph.graph_name}) of run {run_id} has no op {op_name!r}.")
    stack = StackReader(logdir, run_id=run_id).stack(facts.stack_trace_id)
    events = [output.health.first_event_index for output in facts.outputs if output.health is not None]
    origins: tuple[InputTensor, ...] = ()
    if context is not None and events and not facts.num_inputs:
        origins = tensor_context(logdir, events[0], run_id=run_id).inputs
    return FocusedOp(
        facts=facts,
        neighbourhood=around,
        origins=origins,
        inner_runs=() if run is None else inner_runs(logdir, run, op_name, run_id=run_id),
        stack=stack,
        source=read_excerpt(logdir, user_source(stack), run_id=run_id),
    )


PAGE = PageKind(
    name="graph",
    title="Graph",
    key="h",
    read=read_graph,
    assets=("graph.css", "graph.js"),
)
