"""Edges of the graphs that ran: the inputs and users of each op after TensorFlow's optimizer changed the graph.

The optimizer fuses ops, computes constants in advance, computes equal ops once, and removes unused ops. A recording
with `graphs='executed'` has the remaining nodes and edges. An op without a node is *absorbed*: its value is not
recorded, and only its inputs show something about the value.

A node stands for an op at a call site. At the borders of loops and branches, TensorFlow adds nodes that stand for no
op. An edge is followed through such a node if the context determines which input of the node was used.

TensorFlow runs a loop as Enter, Merge, Switch, NextIteration and Exit nodes, which stand for no op of the program. The
context of a recorded tensor says in which loop and in which iteration the tensor was computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tfdbg_arrow.link.call_chains import join_site
from tfdbg_arrow.query.flow.callsites import CallSites
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.executed_graphs import (
    ENTERS,
    EXITS,
    HANDING_ON,
    MAX_PASSED,
    MERGES,
    NEXT_ITERATIONS,
    RESULTS,
    SWITCHES,
    ExecutedGraph,
    ExecutedNode,
    all_passed_on,
    handed_on,
    is_border,
    passed_on,
)
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import Context, GraphTensor, Op

_Entry = tuple[int | None, int | None]
"""The frame and the iteration in which a loop was entered; None if unknown."""
_LOWERED_MERGE = re.compile(r"(.*/)(?:output|merge)/_[0-9]+", re.DOTALL)
_MAX_BRANCHES = 16
"""One edge is followed through at most this many nested branches."""
_MAX_KEPT = 50_000
"""Maximum number of cached answers of each kind."""
_MAX_KEPT_LOOPS = 1_000
"""Maximum number of loops whose last iterations are cached."""
_MAX_EQUAL = 4
"""In the search for an op whose user has a node, chains of at most this many equal ops are followed."""
_MAX_WITNESSES = 8
"""In the search for the replacement of a tensor, at most this many users of the tensor are examined."""
_MAX_USERS = 10_000
"""In the search for the users of a tensor, at most this many outputs of nodes are examined."""


@dataclass(frozen=True, slots=True)
class ExecutedUse:
    """A node that takes a tensor: the place of the node's first output, and the index of the input."""

    user: GraphTensor
    input_index: int


@dataclass(frozen=True, slots=True)
class TakenTensor:
    """A tensor that a node can take.

    Attributes:
        site: The graph, op and output slot of the tensor.
        call_site: The call site of the op; None for any call site.
        user_site: The call site of the node that takes the tensor; None if that node is in the same run of the graph.
        is_of_loop: Whether the node takes only the tensor of the last iteration of a loop.
        is_carried: Whether the node takes the tensor in the next iteration of a loop. The node then does not take the
            tensor of the last iteration.
    """

    site: tuple[int, str, int]
    call_site: str | None = None
    user_site: str | None = None
    is_of_loop: bool = False
    is_carried: bool = False


class ExecutedEdges:
    """Follows the edges of the graphs that TensorFlow ran, within one run."""

    def __init__(self, graphs: GraphReader, events: EventReader, sites: CallSites) -> None:
        self._graphs = graphs
        self._events = events
        self._sites = sites
        self._branch_results: dict[tuple[int, str, Context], GraphTensor | None] = {}
        self._graph_of_site = lru_cache(maxsize=_MAX_KEPT)(self._find_graph_of_site)
        self._last_inside: dict[tuple[int, str, int, int | None], dict[_Entry | None, GraphTensor]] = {}

    def is_absorbed(self, place: GraphTensor) -> bool:
        """Returns whether the optimizer changed a graph and left no node for an op of this graph.

        An op that calls functions is not absorbed: TensorFlow replaces it with the functions' ops. If the result of the
        call was computed in advance, all these ops are absorbed.
        """
        if self._graphs.op(place.graph_id, place.op_name) is None:
            return False
        if self._graphs.calls(place.graph_id, place.op_name):
            return False
        graphs = self._graphs.executed(place.graph_id)
        if not graphs:
            return any(node.op_type == "Const" for node in self._calling_nodes(place))
        if place.context.call_site is None:
            return not any(graph.has_op(place.graph_id, place.op_name) for graph in graphs)
        graph = self._graph(place)
        if graph is None:
            return not self._is_called(place)
        return graph.node(place.graph_id, place.context.call_site, place.op_name) is None

    def _is_called(self, place: GraphTensor) -> bool:
        """Returns whether TensorFlow left one of the calls on the way to a place as a call, instead of inlining it."""
        return any(node.op_name is not None for node in self._calling_nodes(place))

    def _calling_nodes(self, place: GraphTensor) -> list[ExecutedNode]:
        """Returns the nodes that ran for the calling ops on the way to a place."""
        levels = self._sites.levels_in(place.context, place.graph_id) or ()
        callers = (
            replace(place, context=replace(place.context, call_site=level.site), graph_id=level.call.graph_id)
            for level in levels
        )
        nodes = (
            self._node(replace(caller, op_name=level.call.op_name))
            for caller, level in zip(callers, levels, strict=True)
        )
        return [node for node in nodes if node is not None]

    def replacement(self, place: GraphTensor) -> GraphTensor | None:
        """Returns the tensor that TensorFlow computed instead of an absorbed tensor, or None if it is not known.

        The optimizer computes equal ops once, and replaces some ops with nodes of its own.
        """
        if not self.is_absorbed(place):
            return None
        graph = self._graphs.graph(place.graph_id)
        for name in graph.replacements.get((place.op_name, place.output_slot), ()):
            made = place.of_op(name)
            if self._node(made) is not None:
                return made
        edge = (place.op_name, place.output_slot)
        for name in graph.users.get(place.op_name, ())[:_MAX_WITNESSES]:
            instead = self._taken_instead(place.of_op(name), edge)
            if instead is not None:
                return instead
        return None

    def _taken_instead(self, user: GraphTensor, edge: tuple[str, int]) -> GraphTensor | None:
        """Returns the tensor that an op took instead of an input, or None if that is ambiguous."""
        op, node = self._graphs.op(user.graph_id, user.op_name), self._node(user)
        if op is None or node is None or node.op_type != op.op_type or len(node.inputs) != len(op.inputs):
            return None
        others = {
            (as_traced, source)
            for as_traced, source in zip(op.inputs, self._sources(user, node), strict=True)
            if source != user.of_op(*as_traced)
        }
        return next((source for _, source in others), None) if {traced for traced, _ in others} == {edge} else None

    def equal_ops(self, place: GraphTensor) -> list[Op]:
        """Returns the other ops of a graph that equal the op at a place. TensorFlow ran only the op at this place.

        If the optimizer made the node at the place, the node counts as the op whose output it computes.
        """
        op = self._graphs.op(place.graph_id, place.op_name)
        if op is not None and op.made_for is not None and op.replaced_slot is not None:
            op = self._graphs.op(place.graph_id, op.made_for)
        if op is None or op.made_for is not None or not self._graphs.executed(place.graph_id):
            return []
        graph = self._graphs.graph(place.graph_id)
        alike = (other for other in graph.ops.values() if other.op_type == op.op_type and other is not op)
        return [
            other
            for other in alike
            if len(other.inputs) == len(op.inputs)
            and other.made_for is None
            and self._stands_for(place, place.of_op(other.op_name, place.output_slot), depth=_MAX_EQUAL)
        ]

    def _stands_for(self, place: GraphTensor, other: GraphTensor, *, depth: int) -> bool:
        """Returns whether TensorFlow computed one tensor (`place`) to replace another tensor (`other`) without a node.

        TensorFlow replaced `other` if an op that takes `other` in the program took `place` when the op ran. TensorFlow
        also replaced `other` if it replaced an op that takes `other` with an equal op that takes `place`.
        """
        if not self.is_absorbed(other):
            return False
        graph = self._graphs.graph(place.graph_id)
        other_edge, edge = (other.op_name, other.output_slot), (place.op_name, place.output_slot)
        for name in graph.users.get(other.op_name, ())[:_MAX_WITNESSES]:
            user, node = graph.ops[name], self._node(place.of_op(name))
            if node is not None and len(node.inputs) == len(user.inputs):
                sources = self._sources(place.of_op(name), node)
                if (other_edge, place) in zip(user.inputs, sources, strict=True):
                    return True
            elif node is None and depth:
                equal_users = (
                    graph.ops[equal]
                    for equal in graph.users.get(place.op_name, ())[:_MAX_WITNESSES]
                    if graph.ops[equal].op_type == user.op_type
                    and (edge, other_edge) in zip(graph.ops[equal].inputs, user.inputs, strict=False)
                )
                if any(
                    self._stands_for(place.of_op(equal.op_name), place.of_op(name), depth=depth - 1)
                    for equal in equal_users
                ):
                    return True
        return False

    def returned(self, context: Context, graph_id: int, output_index: int) -> GraphTensor | None:
        """Returns the tensor that the outermost graph of a call returned as a result, or None if it is not known."""
        if context.call_site != "":
            return None
        place = GraphTensor(context, graph_id, "", 0, 2**63 - 1)
        graph = self._graph(place)
        result = None if graph is None else graph.results.get(output_index)
        if graph is None or result is None or not result.inputs:
            return None
        return self._source(place, graph, *result.inputs[0])

    def result_indexes(self, place: GraphTensor) -> list[int]:
        """Returns the result indexes at which the outermost graph of a call returned a tensor."""
        return [
            node.interface_index
            for node, _ in self._takers(place)
            if node.op_type in RESULTS and node.interface_index is not None
        ]

    def inputs(self, place: GraphTensor, op: Op) -> tuple[GraphTensor, ...]:
        """Returns the places from which the data inputs of an op came, in order.

        If the recording has no node for the op, the result is the op's inputs in the program's graph. If the recording
        does not show where an input came from, the result also contains the inputs in the program's graph.

        Args:
            place: An output of the op.
            op: The op.
        """
        # For a node that the optimizer made, use the edges of the op for which the node was made.
        edges = op if op.made_for is None else self._graphs.op(place.graph_id, op.made_for) or op
        as_traced = tuple(place.of_op(*edge) for edge in edges.inputs)
        node = self._node(place)
        if node is None:
            return as_traced
        sources = self._sources(place, node)
        computed = [source for source in sources if source is not None]
        if len(computed) < len(sources):
            # The optimizer may have changed the order of the inputs.
            return tuple(dict.fromkeys([*as_traced, *computed]))
        if op.made_for is None and node.op_type == op.op_type and len(computed) == len(op.inputs):
            # The traced name of a resource is needed to find the ops that write to it.
            dtypes = self._graphs.graph(place.graph_id).dtypes
            return tuple(
                traced if dtypes.get(edge) == "resource" else source
                for source, traced, edge in zip(computed, as_traced, op.inputs, strict=True)
            )
        return tuple(computed)

    def aligned_inputs(self, place: GraphTensor, op: Op) -> tuple[GraphTensor, ...]:
        """Returns, for each input of an op in the program, the place from which the input came."""
        inputs = self.inputs(place, op)
        if len(inputs) == len(op.inputs):
            return inputs
        return tuple(place.of_op(*edge) for edge in op.inputs)

    def passed_on_at(self, place: GraphTensor) -> GraphTensor | None:
        """Returns the tensor that a node without an op passes across a border; None for any other node."""
        graph, node = self._graph(place), self._node(place)
        if graph is None or node is None or not is_border(node):
            return None
        return self._source(place, graph, node.node_name, place.output_slot)

    def replaces_inputs(self, place: GraphTensor) -> bool:
        """Returns whether the recording shows the source of each data input of an op that ran."""
        node = self._node(place)
        return node is not None and None not in self._sources(place, node)

    def users(self, place: GraphTensor) -> Iterator[ExecutedUse]:
        """Yields the nodes that took a tensor, except nodes on the other side of a loop's border."""
        for node, index in self._takers(place):
            if not is_border(node) and node.graph_id is not None and node.call_site is not None:
                context = replace(place.context, call_site=node.call_site)
                yield ExecutedUse(GraphTensor(context, node.graph_id, node.name, 0, place.near), index)

    def decides(self, place: GraphTensor) -> bool:
        """Returns whether a tensor decides which branch runs."""
        return any(node.op_type in SWITCHES and index == 1 for node, index in self._takers(place))

    def _takers(self, place: GraphTensor) -> Iterator[tuple[ExecutedNode, int]]:
        """Yields (node, input index) for each node that took a tensor, directly or through nodes that hand it on."""
        site = place.context.call_site
        graph = None if site is None else self._graph(place)
        node = None if graph is None or site is None else graph.node(place.graph_id, site, place.op_name)
        if graph is None or node is None:
            return
        users = graph.users

        def handed_on_from(tensor: tuple[str, int]) -> Iterator[tuple[str, int]]:
            return (output for user, index, slot in users(*tensor) for output in handed_on(user, index, slot))

        start = (node.node_name, place.output_slot)
        for tensor in breadth_first([start], handed_on_from, limit=_MAX_USERS):
            yield from ((user, index) for user, index, _ in users(*tensor))

    def node_type(self, place: GraphTensor) -> str | None:
        """Returns the type of the node at a place, or None if the place has no node."""
        node = self._node(place)
        return None if node is None else node.op_type

    def taken_from(self, graph_id: int, op_name: str) -> Iterator[TakenTensor]:
        """Yields the tensors that the nodes of an op can take, at any call site."""
        for graph in self._graphs.executed(graph_id):
            for node in graph.nodes_of(graph_id, op_name):
                for name, slot in node.inputs:
                    for source in all_passed_on(graph, name, slot):
                        if source.node.graph_id is not None:
                            yield TakenTensor(
                                (source.node.graph_id, source.node.name, source.slot),
                                source.node.call_site,
                                node.call_site,
                                source.is_of_loop,
                                source.is_carried,
                            )

    def _node(self, place: GraphTensor) -> ExecutedNode | None:
        """Returns the node that computed the op at a place.

        TensorFlow leaves a NoOp with the name of a call that it inlined. The NoOp has only the control edges of the
        call.
        """
        site = place.context.call_site
        graph = None if site is None else self._graph(place)
        node = None if graph is None or site is None else graph.node(place.graph_id, site, place.op_name)
        return None if node is None or node.op_type == "NoOp" else node

    def _graph(self, place: GraphTensor) -> ExecutedGraph | None:
        """Returns the optimized graph that ran at a place, or None if the recording does not show it.

        A graph can be optimized more than once, for example for calls with and without a gradient.
        """
        context = place.context
        if context.step_id is None or context.call_site is None:
            return None
        return self._graph_of_site(context.step_id, context.execution_index, place.graph_id, context.call_site)

    def _find_graph_of_site(
        self, step_id: int, execution_index: int | None, graph_id: int, call_site: str
    ) -> ExecutedGraph | None:
        ran = self._events.executed_graph_ids(step_id, execution_index)
        graphs = (self._graphs.executed_graph(executed_graph_id) for executed_graph_id in sorted(ran))
        return next((graph for graph in graphs if graph.has_site(graph_id, call_site)), None)

    def _sources(self, place: GraphTensor, node: ExecutedNode) -> list[GraphTensor | None]:
        graph = self._graph(place)
        assert graph is not None
        return [self._source(place, graph, name, slot) for name, slot in node.inputs]

    def _source(
        self, place: GraphTensor, graph: ExecutedGraph, name: str, slot: int, *, depth: int = 0
    ) -> GraphTensor | None:
        """Returns the place of the op from which an edge comes, or None if the recording does not show the place."""
        at = place  # the place at which the current node runs
        for _ in range(MAX_PASSED):
            node = graph.nodes.get(name)
            if node is None:
                return None
            if not is_border(node):
                if node.graph_id is None or node.call_site is None:
                    return None
                context = replace(at.context, call_site=node.call_site)
                return GraphTensor(context, node.graph_id, node.name, slot, place.near)
            if node.op_type in HANDING_ON or node.op_type in SWITCHES:
                index = slot if node.op_type == "IdentityN" else 0
            elif node.op_type in ENTERS:
                outer = self._outside(at)
                if outer is None:
                    return None
                at, index = outer, 0
            elif node.op_type in MERGES and slot == 0 and at.context.iteration is not None:
                steps = graph.steps(node)
                if not steps:
                    return self._branch_result(at, graph, node, depth=depth)
                if len(steps) != 1 or len(node.inputs) != 2:
                    return None
                if at.context.iteration and node.node_name in graph.unchanged:
                    at = replace(at, context=replace(at.context, iteration=0))  # where the value entered the loop
                index = steps[0] if at.context.iteration else 1 - steps[0]
            elif node.op_type in EXITS:
                last = self._last_iteration(at, graph, node)
                if last is None:
                    return None
                at, name, slot = last
                continue
            elif node.op_type in NEXT_ITERATIONS and at.context.iteration:
                at, index = replace(at, context=replace(at.context, iteration=at.context.iteration - 1)), 0
            else:
                return None
            if index >= len(node.inputs):
                return None
            name, slot = node.inputs[index]
        return None

    def _branch_result(
        self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, *, depth: int
    ) -> GraphTensor | None:
        """Returns the tensor of the branch that ran, or None if the recording does not show which branch ran."""
        key = (id(graph), merge.node_name, at.context)
        if key not in self._branch_results:
            if len(self._branch_results) > _MAX_KEPT:
                self._branch_results.clear()
            self._branch_results[key] = None  # ends a cycle
            self._branch_results[key] = self._find_branch_result(at, graph, merge, depth=depth)
        return self._branch_results[key]

    def _find_branch_result(
        self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, *, depth: int
    ) -> GraphTensor | None:
        if depth >= _MAX_BRANCHES:
            return None
        site = _site_of_branches(merge)
        inside, outside = [], []
        is_unknown = False
        for name, slot in merge.inputs:
            source = self._source(at, graph, name, slot, depth=depth + 1)
            if source is None:
                is_unknown = True
                continue
            call_site = source.context.call_site
            if call_site == at.context.call_site or not (site is None or (call_site or "").startswith(site)):
                outside.append(source)  # a branch that returns its argument, perhaps from an earlier conditional
            elif self._events.graph_tensor(source) is not None:
                inside.append(source)
            elif source.graph_id not in self._graphs.recorded_graphs:
                is_unknown = True
        # A row inside a branch shows that this branch ran, whatever the other branches return.
        chosen = inside or ([] if is_unknown else outside)
        return chosen[0] if len(chosen) == 1 else None

    def _last_iteration(
        self, at: GraphTensor, graph: ExecutedGraph, exit_: ExecutedNode
    ) -> tuple[GraphTensor, str, int] | None:
        """Returns the source of a loop's result: a place in the last iteration, a node, and the slot of the node.

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
        entries = [entry] if entry in by_entry else [possible for possible in by_entry if _may_be_same(possible, entry)]
        if len(entries) == 1:
            return replace(by_entry[entries[0]], near=at.near), *step.inputs[0]
        if entries or None in by_entry:  # it is unknown which iteration of the outer loop entered this loop
            return None
        enter = graph.nodes.get(merge.inputs[1 - steps[0]][0])
        if not self._leaves_rows(at, graph, merge, step) or enter is None or not enter.inputs:
            return None
        return at, *enter.inputs[0]  # the loop ended before its first iteration

    def _find_last_inside(
        self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, step: ExecutedNode
    ) -> dict[_Entry | None, GraphTensor]:
        """Returns the last iteration of a loop, by the frame and iteration that entered the loop (None if unknown).

        The arguments are those of `_inside_loop`.
        """
        last_by_entry: dict[_Entry | None, GraphTensor] = {}
        for inside in self._inside_loop(at, graph, merge, step):
            outside = self._outside(inside)
            is_known = outside is not None and inside.context.iteration is not None
            entry = (outside.context.frame_id, outside.context.iteration) if outside is not None and is_known else None
            last = last_by_entry.get(entry)
            if last is None or (inside.context.iteration or 0) > (last.context.iteration or 0):
                last_by_entry[entry] = inside
        return last_by_entry

    def _inside_loop(
        self, at: GraphTensor, graph: ExecutedGraph, merge: ExecutedNode, step: ExecutedNode
    ) -> Iterator[GraphTensor]:
        """Yields, for each visit that left rows in a loop, a place in the last iteration of the loop's body.

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
            context = Context(at.context.step_id, index, visit.call_site, visit.frame_id, visit.last_iteration)
            levels = self._sites.levels_in(context, visit.graph_id)
            if depth is None or levels is None:
                continue
            for number in range(len(levels), depth + 1, -1):
                context = self._sites.outer_context(context, levels[:number])
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
        """Returns the level at which a call site enters the body of a loop, or None if it is outside the loop."""
        levels = self._sites.levels_in(replace(at.context, call_site=call_site), graph_id) or ()
        for depth, level in enumerate(levels):
            call = level.call
            if call.attribute == "body" and (call.graph_id, call.op_name, level.site) == (
                merge.graph_id, merge.made_for, merge.call_site,
            ):  # fmt: skip
                return depth
        if merge.graph_id is not None and self._graphs.calls(merge.graph_id, merge.made_for or ""):
            return None
        # The loop was renamed. The last op of its body identifies it.
        made = passed_on(graph, *step.inputs[0])
        is_body = made is not None and (made.node.graph_id, made.node.call_site) == (graph_id, call_site)
        return next((d for d in range(len(levels) - 1, -1, -1) if levels[d].is_loop), None) if is_body else None

    def _outside(self, at: GraphTensor) -> GraphTensor | None:
        """Returns a place in the frame and iteration that entered the innermost loop around `at`; None if unknown."""
        context = at.context
        levels = self._sites.levels_in(context, at.graph_id)
        while levels:
            context = self._sites.outer_context(context, levels)
            level, levels = levels[-1], levels[:-1]
            if level.is_loop:
                return replace(at, context=context, graph_id=level.call.graph_id)
        return None


def _site_of_branches(merge: ExecutedNode) -> str | None:
    """Returns the prefix of the call sites of a conditional's branches, or None if it is not known.

    Source for the names of nodes: tensorflow/core/common_runtime/lower_if_op.cc and lower_case_op.cc.
    """
    if merge.call_site is not None and merge.made_for is not None:
        return join_site(merge.call_site, merge.made_for) + "/"
    match = _LOWERED_MERGE.fullmatch(merge.node_name)
    return None if match is None else match[1]


def _may_be_same(one: _Entry | None, other: _Entry) -> bool:
    """Returns whether two pairs of frame and iteration may be the same. An unknown value matches any value."""
    return one is not None and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
