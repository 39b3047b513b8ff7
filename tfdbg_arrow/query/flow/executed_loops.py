"""Where the values of a loop come from in the graphs that TensorFlow ran.

TensorFlow runs a loop as Enter, Merge, Switch, NextIteration and Exit nodes, which stand for no op of the program. The
context of a recorded tensor says in which iteration of which loop it was computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tfdbg_arrow.query.flow.callsites import CallSites, Level
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.executed_graphs import MERGES, ExecutedGraph, ExecutedNode, passed_on
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.flow.places import GraphTensor
from tfdbg_arrow.query.recorded import Context

_MAX_KEPT_LOOPS = 1_000
"""Maximum number of loops whose last iterations are cached."""


class ExecutedLoops:
    """Follows edges into and out of loops, within one run.

    Args:
        graphs: The run's graphs.
        events: The run's recorded tensors.
        sites: The run's call sites.
    """

    def __init__(self, graphs: GraphReader, events: EventReader, sites: CallSites) -> None:
        self._graphs = graphs
        self._events = events
        self._sites = sites
        self._last_inside: dict[
            tuple[int, str, int, int | None], dict[tuple[int | None, int | None] | None, GraphTensor]
        ] = {}

    def last_iteration(
        self, at: GraphTensor, graph: ExecutedGraph, exit_: ExecutedNode
    ) -> tuple[GraphTensor, str, int] | None:
        """Returns where a loop's result comes from: a place in the last iteration, a node and its slot.

        Args:
            at: A place behind the loop.
            graph: The optimized graph.
            exit_: The Exit that returns the result.
        """
        switch = graph.nodes.get(exit_.inputs[0][0]) if exit_.inputs else None
        merge = graph.nodes.get(switch.inputs[0][0]) if switch is not None and switch.inputs else None
        if merge is None or merge.op_type not in MERGES:
            return None
        steps = graph.steps(merge)
        if len(steps) != 1 or len(merge.inputs) != 2 or at.context.step_id is None:
            return None
        step = graph.nodes[merge.inputs[steps[0]][0]]
        if not step.inputs:
            return None
        key = (id(graph), merge.node_name, at.context.step_id, at.context.execution_index)
        if key not in self._last_inside:
            if len(self._last_inside) > _MAX_KEPT_LOOPS:
                self._last_inside.clear()
            self._last_inside[key] = self._find_last_inside(at, graph, merge, step)
        by_entry = self._last_inside[key]
        entry = (at.context.frame_id, at.context.iteration)
        entries = [entry] if entry in by_entry else [each for each in by_entry if _may_be_same(each, entry)]
        if len(entries) == 1:
            return replace(by_entry[entries[0]], near=at.near), *step.inputs[0]
        if entries or None in by_entry:  # the iteration of the outer loop that entered it is unknown
            return None
        enter = graph.nodes.get(merge.inputs[1 - steps[0]][0])
        if not self._leaves_rows(at, graph, merge, step) or enter is None or not enter.inputs:
            return None
        return at, *enter.inputs[0]  # the loop ended before its first iteration

    def _find_last_inside(
        self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, step: ExecutedNode
    ) -> dict[tuple[int | None, int | None] | None, GraphTensor]:
        """Returns the last iteration of a loop by the frame and iteration that entered it (None if unknown).

        The arguments are those of `_inside_loop`.
        """
        found: dict[tuple[int | None, int | None] | None, GraphTensor] = {}
        for inside in self._inside_loop(at, graph, merge, step):
            outside = self.outside(inside)
            is_known = outside is not None and inside.context.iteration is not None
            entry = (outside.context.frame_id, outside.context.iteration) if outside is not None and is_known else None
            last = found.get(entry)
            if last is None or (inside.context.iteration or 0) > (last.context.iteration or 0):
                found[entry] = inside
        return found

    def _inside_loop(
        self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, step: ExecutedNode
    ) -> Iterator[GraphTensor]:
        """Yields places in the body of a loop, in the last iteration of each frame in which anything left rows.

        Args:
            at: A place behind the loop.
            graph: The optimized graph.
            merge: The Merge of a tensor of the loop.
            step: The NextIteration of the tensor.
        """
        index = at.context.execution_index
        assert at.context.step_id is not None
        for visit in self._events.site_visits(at.context.step_id, index):
            depth = self._depth_of_body(at, graph, merge, step, visit.graph_id, visit.call_site)
            levels = self.levels(at, visit.graph_id, visit.call_site)
            if depth is None or levels is None:
                continue
            context = Context(at.context.step_id, index, visit.call_site, visit.frame_id, visit.last_iteration)
            for number in range(len(levels) - 1, depth, -1):
                loops_above = any(level.is_loop for level in levels[:number])
                context = self._sites.outer_context(context, levels[number], loops_above=loops_above)
            yield GraphTensor(context, levels[depth].call.callee_graph_id or 0, "", 0, at.near)

    def _leaves_rows(self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, step: ExecutedNode) -> bool:
        """Returns whether an iteration of a loop would leave rows. The arguments are those of `_inside_loop`."""
        return any(
            self._depth_of_body(at, graph, merge, step, graph_id, call_site) is not None
            for graph_id, call_site in graph.sites
            if graph_id in self._graphs.recorded_graphs
        )

    def _depth_of_body(
        self,
        at: GraphTensor,
        graph: ExecutedGraph,
        merge: ExecutedNode,
        step: ExecutedNode,
        graph_id: int,
        call_site: str,
    ) -> int | None:
        """Returns the level of a call site at which the body of a loop is called, or None if it is not inside."""
        levels = self.levels(at, graph_id, call_site) or ()
        for depth, level in enumerate(levels):
            call = level.call
            if call.attribute == "body" and (call.graph_id, call.op_name, level.site) == (
                merge.graph_id, merge.made_for, merge.call_site,
            ):  # fmt: skip
                return depth
        if merge.graph_id is not None and self._graphs.calls(merge.graph_id, merge.made_for or ""):
            return None
        # A renamed loop: the last op of its body identifies it.
        made = passed_on(graph, *step.inputs[0])
        is_body = made is not None and (made.node.graph_id, made.node.call_site) == (graph_id, call_site)
        return next((d for d in range(len(levels) - 1, -1, -1) if levels[d].is_loop), None) if is_body else None

    def levels(self, at: GraphTensor, graph_id: int, call_site: str) -> tuple[Level, ...] | None:
        """Returns the calls from the outermost graph to a graph at a call site, in the execution of a place."""
        index = at.context.execution_index
        execution = None if index is None else self._events.execution(index)
        root = None if execution is None else execution.graph_id
        return self._sites.levels(graph_id, call_site, root_graph_id=root)

    def outside(self, at: GraphTensor) -> GraphTensor | None:
        """Returns a place where the innermost loop around a place was entered, or None if that is not known."""
        context, graph_id = at.context, at.graph_id
        levels = self.levels(at, graph_id, context.call_site or "")
        while levels:
            level = levels[-1]
            loops_above = any(above.is_loop for above in levels[:-1])
            context = self._sites.outer_context(context, level, loops_above=loops_above)
            graph_id, levels = level.call.graph_id, levels[:-1]
            if level.is_loop:
                return replace(at, context=context, graph_id=graph_id)
        return None


def _may_be_same(one: tuple[int | None, int | None] | None, other: tuple[int | None, int | None]) -> bool:
    """Returns whether two pairs of frame and iteration are the same, as far as these are known."""
    return one is not None and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
