"""Borders: the points where a tensor passes unchanged between runs of graphs, runs of sessions and eager code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tfdbg_arrow.link.call_chains import join_site
from tfdbg_arrow.query.flow.callsites import CallSites
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.executed_edges import ExecutedEdges
from tfdbg_arrow.query.flow.executed_graphs import ENTERS, EXITS, HANDING_ON, MERGES, NEXT_ITERATIONS
from tfdbg_arrow.query.flow.graphs import BRANCHES, LOOPS, Argument, Call, GraphReader
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import Context, EagerValue, Execution, GraphTensor, Op, Place, SiteVisit
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.op_traits import REFERENCE_WRITER, Trait, types_with

PASSING_OPS = types_with(Trait.EQUAL)
"""Op types whose output equals their first input. An output of IdentityN equals the input of the same index."""
_REFERENCE_VARIABLES = types_with(Trait.HOLDS_REFERENCE)
_FED_OPS = types_with(Trait.FED)
_PLACEHOLDERS = types_with(Trait.FED | Trait.HAS_DEFAULT)
_DIVISIONS = types_with(Trait.DIVIDES)
_RECIPROCAL = re.compile(r"ConstantFolding/.+_recip", re.DOTALL)
"""Matches the name of a node that holds the reciprocal of a constant divisor."""
_FRAME_OPS = ENTERS | EXITS | NEXT_ITERATIONS
_MAX_FUSED = 100
"""One node can compute several of the program's ops. The search for the program's ops behind one node stops after this
many ops."""
_MAX_CROSSED = 64
"""Maximum number of borders that the search for the op behind one input crosses."""
_MAX_KEPT = 4096
"""Maximum number of places whose computed ops are cached. One answer asks for the ops of each place several times."""
_EAGER_PASSING_OPS = PASSING_OPS - {"IdentityN"}


@dataclass(frozen=True, slots=True)
class Crossing:
    """A step back over a border.

    Attributes:
        place: The same tensor on the other side of the border; None if the tensor was not recorded there.
        how: The kind of border: one of the values of `Trace.how`.
        earlier: If the loop iteration on the other side of the border was not recorded, the result of the last recorded
            iteration before it; otherwise None. The tensor was computed from this earlier result.
    """

    place: Place | None
    how: str
    earlier: Place | None = None


class Borders:
    """Steps back over borders within one run.

    Attributes:
        sessions: The runs of sessions.
        executed: The edges of the graphs that TensorFlow ran.
        levels: The method `CallSites.levels_in`.
        outer_context: The method `CallSites.outer_context`.
        visits: The method `CallSites.callee_visits`.
        computed_ops: Returns the ops of the program that the node at a place computes, and the place of each op. Ops of
            outer graphs come first. The result has the op that the node stands for, and the absorbed ops between that
            op and the inputs of the node. Constants and ops that only hand a tensor on are left out. The result is
            empty if the node computes a single op and has the type of this op.
    """

    def __init__(self, graphs: GraphReader, events: EventReader, sites: CallSites) -> None:
        self._graphs = graphs
        self._events = events
        self._sites = sites
        self.sessions = Sessions(graphs, events)
        self.executed = ExecutedEdges(graphs, events, sites)
        self.levels = sites.levels_in
        self.outer_context = sites.outer_context
        self.visits = sites.callee_visits
        self.computed_ops = lru_cache(maxsize=_MAX_KEPT)(self._find_computed_ops)

    def crossing(self, place: Place) -> Crossing | None:
        """Returns the step back from a place, or None if an op at this place computed the tensor."""
        if isinstance(place, EagerValue):
            return self._eager_crossing(place)
        op = self._graphs.op(place.graph_id, place.op_name)
        if op is None:
            return None
        computed_instead = self.executed.replacement(place)
        if computed_instead is not None:
            return Crossing(computed_instead, "graph")
        is_in_session = self.sessions.is_session_graph(place.graph_id)
        if is_in_session:
            crossing = self._session_crossing(place, op)
            if crossing is not None:
                return crossing
        if op.op_type in PASSING_OPS and op.inputs:
            inputs = self.executed.aligned_inputs(place, op)
            source = inputs[place.output_slot if op.op_type == "IdentityN" else 0]
            context = source.context
            if op.op_type in NEXT_ITERATIONS and context.iteration:
                context = replace(context, iteration=context.iteration - 1)
            elif op.op_type in _FRAME_OPS:
                context = replace(context, frame_id=None, iteration=None)
            return Crossing(replace(source, context=context), "graph")
        if op.op_type in MERGES and place.output_slot == 0:
            return self._merge_crossing(place, op)
        # An argument is usually a Placeholder, but TensorFlow keeps a small captured tensor as a Const.
        if (
            not is_in_session
            and not op.inputs
            and self._graphs.argument(place.graph_id, place.op_name, function_name=None) is not None
        ):
            return self._argument_crossing(place)
        if op.op_type in _PLACEHOLDERS and not op.inputs:
            return Crossing(None, "argument")  # an argument of an unrecorded function, for example in an import
        calls = self._graphs.calls(place.graph_id, place.op_name)
        # An op whose functions were not recorded, such as the loop in CTC, computes its outputs like any other op.
        is_recorded = any(call.callee_graph_id is not None for call in calls)
        return self._result_crossing(place, calls) if is_recorded else None

    def _merge_crossing(self, place: GraphTensor, op: Op) -> Crossing | None:
        """Crosses to the input that the Merge took.

        In a loop, the iteration determines this input. Outside of a loop, this input is the only one that was computed.
        """
        sources = [(self._graphs.op(place.graph_id, name), name, slot) for name, slot in op.inputs]
        is_next = [source is not None and source.op_type in NEXT_ITERATIONS for source, _, _ in sources]
        if any(is_next):
            if place.context.iteration is None:
                return None
            wanted = bool(place.context.iteration)
            chosen = [source for source, next_ in zip(op.inputs, is_next, strict=True) if next_ == wanted]
        else:
            chosen = [edge for edge in op.inputs if self._events.graph_tensor(place.of_op(*edge))]
        if len(chosen) != 1:
            return None
        return Crossing(place.of_op(*chosen[0]), "graph")

    def _session_crossing(self, place: GraphTensor, op: Op) -> Crossing | None:
        """Crosses from a fed tensor to the eager tensor that was fed, or from a reference to its last write."""
        index = self.sessions.feed_index(place.context, place.op_name, place.output_slot)
        if index is not None and place.context.execution_index is not None:
            tensor_id = self._events.execution_inputs(place.context.execution_index).get(index)
            return Crossing(None if tensor_id is None else EagerValue(tensor_id), "argument")
        if op.op_type in _REFERENCE_VARIABLES:
            written = self.sessions.last_reference_writer(place.graph_id, place.op_name, place.context)
            if written is None:
                return Crossing(None, "variable")
            writer, context = written
            return Crossing(GraphTensor(context, place.graph_id, writer.op_name, 0, 2**63 - 1), "variable")
        return None

    def _find_computed_ops(self, place: GraphTensor) -> tuple[tuple[GraphTensor, Op], ...]:
        node_type = self.executed.node_type(place)
        op = self._graphs.op(place.graph_id, place.op_name)
        if node_type is None or op is None:
            return ()
        start: Op | None
        division = self.division_by(place)
        if division is not None:
            place, start = division
        else:
            start = op if op.made_for is None else self._graphs.op(place.graph_id, op.made_for)
        if start is None:
            return ()
        first = [(place, start)]
        if self._graphs.calls(place.graph_id, start.op_name):  # the call was computed in advance
            first = list(self._absorbed_behind(replace(place, op_name=start.op_name)))
        ops = {(source.context.call_site, op.op_name): (source, op) for source, op in first}
        unexpanded = list(ops.values())
        while unexpanded and len(ops) < _MAX_FUSED:
            for source, absorbed in self._absorbed_inputs(*unexpanded.pop()):
                key = (source.context.call_site, absorbed.op_name)
                if key not in ops:
                    ops[key] = (source, absorbed)
                    unexpanded.append((source, absorbed))
        computing = [(at, op) for at, op in ops.values() if op is start or (op.inputs and op.op_type not in HANDING_ON)]
        if not computing or (len(computing) == 1 and start.op_type == node_type):
            return ()
        return tuple(sorted(computing, key=lambda computed: self._order(*computed)))

    def division_by(self, place: GraphTensor) -> tuple[GraphTensor, Op] | None:
        """Returns the division for which the optimizer computed the reciprocal of a constant, or None.

        If TensorFlow inlined a call, the reciprocal belongs to the outermost graph, but the division belongs to the
        called graph.
        """
        op = self._graphs.op(place.graph_id, place.op_name)
        if op is None or not _RECIPROCAL.fullmatch(op.op_name):
            return None
        users = [use.user for use in self.executed.users(place)]
        users += [] if op.made_for is None else [place.of_op(op.made_for)]
        ops = ((user, self._graphs.op(user.graph_id, user.op_name)) for user in users)
        divisions = [(user, op) for user, op in ops if op is not None and op.op_type in _DIVISIONS]
        return min(divisions, key=lambda division: self._order(*division), default=None)

    def bad_constant_taken_by(self, place: GraphTensor, op: Op) -> tuple[int, str] | None:
        """If an op takes a constant with an infinity or NaN, returns the constant's graph and name; otherwise None."""
        bad = self._graphs.bad_constants
        constants = (self._constant_behind(place.of_op(*edge)) for edge in op.inputs) if bad else ()
        return next((constant for constant in constants if constant in bad), None)

    def _constant_behind(self, place: GraphTensor) -> tuple[int, str] | None:
        """Follows a tensor back to a constant, across arguments and calls, and returns its graph and name, or None."""
        source: Place | None = place
        for _ in range(_MAX_CROSSED):
            made = self._graphs.op(source.graph_id, source.op_name) if isinstance(source, GraphTensor) else None
            if made is None or not isinstance(source, GraphTensor):
                return None
            if made.op_type == "Const":
                return source.graph_id, made.op_name
            if made.op_type in HANDING_ON and made.inputs:
                source = source.of_op(*made.inputs[0])
            else:
                crossing = self.crossing(source)
                source = None if crossing is None else crossing.place
        return None

    def _absorbed_inputs(self, place: GraphTensor, op: Op) -> Iterator[tuple[GraphTensor, Op]]:
        """Yields the ops that made an op's inputs. Leaves out ops that have a node or that another node computes."""
        for name, slot in op.inputs:
            yield from self._absorbed_behind(place.of_op(name, slot))

    def _absorbed_behind(self, place: GraphTensor) -> Iterator[tuple[GraphTensor, Op]]:
        """Follows a tensor back across arguments and calls to the op that made it. Yields this op if it has no node."""
        source: Place | None = place
        for _ in range(_MAX_CROSSED):
            made = self._graphs.op(source.graph_id, source.op_name) if isinstance(source, GraphTensor) else None
            if made is None or not isinstance(source, GraphTensor):
                return
            if made.inputs and not self._graphs.calls(source.graph_id, source.op_name):
                if self.executed.is_absorbed(source):
                    instead = self.executed.replacement(source)
                    if instead is None or self._is_computed_from(source, made, instead):
                        yield source, made
                return
            crossing = self.crossing(source)  # an argument, or the result of a call
            source = None if crossing is None else crossing.place

    def _is_computed_from(self, place: GraphTensor, op: Op, other: GraphTensor) -> bool:
        """Returns whether an absorbed op takes the output of another op, directly or through other absorbed ops."""
        ops = self._graphs.graph(place.graph_id).ops

        def absorbed_inputs(name: str) -> Iterator[str]:
            names = (source for source, _ in ops[name].inputs if source in ops)
            return (source for source in names if self.executed.is_absorbed(replace(place, op_name=source)))

        absorbed = breadth_first([op.op_name], absorbed_inputs, limit=_MAX_FUSED)
        return any(source == other.op_name for name in absorbed for source, _ in ops[name].inputs)

    def _order(self, place: GraphTensor, op: Op) -> tuple[int, int]:
        levels = self.levels(place.context, place.graph_id) or ()
        return len(levels), op.op_index

    def visit(self, context: Context, call: Call) -> SiteVisit | None:
        """Returns the visit of the graph that an op calls in `context`, or None if that graph left no rows."""
        visits = self.visits(context, call)
        if call.attribute not in LOOPS:
            # A visit can span several iterations, but a branch may not have run in all of these iterations.
            return next((visit for visit in visits if is_in(visit, context)), None)
        if not context.frame_id:
            return visits[0] if len(visits) == 1 else None
        return self._sites.entered_visit(context, call)

    def may_run_unseen(self, context: Context, call: Call) -> bool:
        """Returns whether the graph that an op calls in `context` can run without leaving a row of its own."""
        graph_id = call.callee_graph_id
        if graph_id is None or not self._graphs.executed(graph_id):
            return graph_id not in self._graphs.recorded_graphs
        return not any(
            levels[-1].call == call and context.call_site in (None, levels[-1].site)
            for site in self._graphs.recorded_sites.get(graph_id, ())
            if (levels := self._sites.levels(graph_id, site, root=None))
        )

    def callee_site(self, context: Context, call: Call, visit: SiteVisit | None) -> str | None:
        """Returns the call site of a callee.

        If the callee left no row, the result is the call site that its rows would have had.
        """
        if visit is not None:
            return visit.call_site
        return None if context.call_site is None else join_site(context.call_site, call.op_name)

    def _eager_crossing(self, place: EagerValue) -> Crossing | None:
        tensor = self._events.eager(place.tensor_id)
        if tensor.execution_index is None or tensor.op_type is None or tensor.output_slot is None:
            return None
        if tensor.op_type in _EAGER_PASSING_OPS:
            source = self._events.execution_inputs(tensor.execution_index).get(0)
            return None if source is None else Crossing(EagerValue(source), "eager")
        graph_id = self._graphs.function_graphs.get(tensor.op_type, tensor.graph_id)
        result = self._graphs.result(tensor.op_type, tensor.output_slot)
        if graph_id is None or result is None:
            return None
        context = self._events.root_context(tensor.execution_index, graph_id)
        returned = self.executed.returned(context, graph_id, tensor.output_slot)
        return Crossing(returned or GraphTensor(context, graph_id, result[0], result[1], 2**63 - 1), "call")

    def _argument_crossing(self, place: GraphTensor) -> Crossing | None:
        levels = self.levels(place.context, place.graph_id)
        if levels is None:
            return self._uncertain_argument_crossing(place)
        if not levels:
            return self._outermost_argument_crossing(place)
        level = levels[-1]
        argument = self._graphs.argument(place.graph_id, place.op_name, function_name=level.call.function_name)
        if argument is None:
            return None
        return self._nested_argument_crossing(place, argument, level.call, self.outer_context(place.context, levels))

    def _uncertain_argument_crossing(self, place: GraphTensor) -> Crossing | None:
        """Crosses to the only caller of a graph, if the context does not determine the caller."""
        execution = self._events.execution(place.context.execution_index)
        if execution is not None and execution.graph_id == place.graph_id:
            return self._outermost_argument_crossing(place)
        argument = self._graphs.argument(place.graph_id, place.op_name, function_name=None)
        if argument is None:
            return None
        callers = self._graphs.callers(place.graph_id)
        if len(callers) != 1 or callers[0].attribute in LOOPS:
            return Crossing(None, "argument")
        context = Context(place.context.step_id, place.context.execution_index, None, None, None)
        return self._nested_argument_crossing(place, argument, callers[0], context)

    def _outermost_argument_crossing(self, place: GraphTensor) -> Crossing | None:
        execution = self._events.execution(place.context.execution_index)
        function_name = None if execution is None else execution.op_type
        argument = self._graphs.argument(place.graph_id, place.op_name, function_name=function_name)
        if argument is None:
            return None
        how = "capture" if argument.is_capture else "argument"
        if execution is None:
            return Crossing(None, how)
        tensor_id = self._events.execution_inputs(execution.execution_index).get(argument.input_index)
        return Crossing(None if tensor_id is None else EagerValue(tensor_id), how)

    def _nested_argument_crossing(self, place: GraphTensor, argument: Argument, call: Call, outer: Context) -> Crossing:
        how = "capture" if argument.is_capture else "argument"
        index = argument.input_index
        if call.attribute in LOOPS:
            iteration = place.context.iteration
            body = next((c for c in self._graphs.calls(call.graph_id, call.op_name) if c.attribute == "body"), None)
            if iteration is None:
                return Crossing(None, "loop")
            if iteration > 0 and not self._is_loop_invariant(body, index):
                return self._loop_carried(place, call, body, index)
            how = how if iteration == 0 else "loop"
        elif call.attribute in BRANCHES:
            index += 1  # the first input of If and Case is the predicate
        op = self._graphs.op(call.graph_id, call.op_name)
        if op is None or index >= len(op.inputs):
            return Crossing(None, how)
        source, slot = op.inputs[index]
        return Crossing(GraphTensor(outer, call.graph_id, source, slot, place.near), how)

    def _loop_carried(self, place: GraphTensor, call: Call, body: Call | None, index: int) -> Crossing:
        """Crosses to the body's output in the previous iteration."""
        if body is None or body.callee_graph_id is None or place.context.iteration is None:
            return Crossing(None, "loop")
        result = self._graphs.result(body.function_name, index)
        if result is None:
            return Crossing(None, "loop")
        site = place.context.call_site
        if call.attribute == "cond" and site is not None and place.context.step_id is not None:
            site = self._sites.body_site(place.context, body)
        context = replace(place.context, call_site=site, iteration=place.context.iteration - 1)
        before = GraphTensor(context, body.callee_graph_id, result[0], result[1], place.near)
        recorded = self._sites.last_iteration_until(context, body.callee_graph_id)
        if recorded in (None, context.iteration):
            return Crossing(before, "loop")
        return Crossing(None, "loop", replace(before, context=replace(context, iteration=recorded)))

    def _is_loop_invariant(self, body: Call | None, index: int) -> bool:
        """Returns whether a loop hands on a loop variable unchanged. Every captured tensor is handed on unchanged."""
        if body is None or body.callee_graph_id is None:
            return False
        result = self._graphs.result(body.function_name, index)
        if result is None:
            return False
        name, slot = result
        op = self._graphs.op(body.callee_graph_id, name)
        while op is not None and op.op_type in PASSING_OPS and op.inputs:
            name, slot = op.inputs[slot if op.op_type == "IdentityN" else 0]
            op = self._graphs.op(body.callee_graph_id, name)
        return name == self._graphs.placeholder(body.function_name, index)

    def _result_crossing(self, place: GraphTensor, calls: list[Call]) -> Crossing | None:
        """Crosses from an output of a calling op to the callee's result."""
        body = next((call for call in calls if call.attribute == "body"), None)
        if body is not None:
            return self._loop_result_crossing(place, body)
        chosen = calls if len(calls) == 1 else [call for call in calls if self.visit(place.context, call) is not None]
        if len(chosen) != 1:
            return Crossing(None, "call")
        call = chosen[0]
        result = self._graphs.result(call.function_name, place.output_slot)
        if result is None or call.callee_graph_id is None:
            return None
        visit = self.visit(place.context, call)
        context = replace(place.context, call_site=self.callee_site(place.context, call, visit))
        return Crossing(GraphTensor(context, call.callee_graph_id, result[0], result[1], place.near), "call")

    def _loop_result_crossing(self, place: GraphTensor, body: Call) -> Crossing:
        result = self._graphs.result(body.function_name, place.output_slot)
        op = self._graphs.op(place.graph_id, place.op_name)
        if result is None or body.callee_graph_id is None or op is None:
            return Crossing(None, "loop")
        if self._is_loop_invariant(body, place.output_slot):
            return Crossing(place.of_op(*op.inputs[place.output_slot]), "loop")
        visit = self.visit(place.context, body)
        if visit is None:
            if not self.is_never_entered(place.context, body):
                return Crossing(None, "loop")
            return Crossing(place.of_op(*op.inputs[place.output_slot]), "loop")
        context = replace(
            place.context, call_site=visit.call_site, frame_id=visit.frame_id, iteration=visit.last_iteration
        )
        return Crossing(GraphTensor(context, body.callee_graph_id, result[0], result[1], place.near), "loop")

    def is_never_entered(self, context: Context, body: Call) -> bool:
        """Returns whether a loop whose body left no rows ended before the first iteration."""
        calls = self._graphs.calls(body.graph_id, body.op_name)
        visits = (self.visit(context, call) for call in calls if call.attribute == "cond")
        return any(visit is not None and visit.last_iteration == 0 for visit in visits)


def is_in(visit: SiteVisit, context: Context) -> bool:
    """Returns whether a visit has rows in the frame and iteration of a context. Unknown values match any visit."""
    return context.frame_id in (None, visit.frame_id) and (
        context.iteration is None or context.iteration in visit.iterations
    )


class Sessions:
    """Reads the runs of sessions: the fed tensors, the ops that ran, and the order of the ops.

    A run computes the ops that its fetches and targets need, and takes its feeds as given. Only the edges of the graph,
    including control edges, determine the order of the ops.
    """

    def __init__(self, graphs: GraphReader, events: EventReader) -> None:
        self._graphs = graphs
        self._events = events
        self._ops_of = lru_cache(maxsize=256)(self._find_ops)
        self._executions_of = lru_cache(maxsize=64)(self._read_executions)

    def is_session_graph(self, graph_id: int) -> bool:
        """Returns whether a graph is run by sessions."""
        return graph_id in self._graphs.session_graphs

    def is_run(self, context: Context, graph_id: int, op_name: str) -> bool:
        """Returns whether an op ran in a context in which other ops of its graph ran.

        A function runs all of its ops. A session's run executes only the ops that its fetches and targets need.
        """
        execution = self._execution(context) if self.is_session_graph(graph_id) else None
        return execution is None or op_name in self._ops_of(execution.op_type, None)

    def feed_index(self, context: Context, op_name: str, output_slot: int) -> int | None:
        """Returns the index of the execution's input that fed a tensor in a run, or None if the tensor was not fed."""
        execution = self._execution(context)
        if execution is None:
            return None
        return self._graphs.feeds.get(execution.op_type, {}).get((op_name, output_slot))

    def last_writer(
        self, graph_id: int, writers: Iterable[Op], context: Context, *, reader: str
    ) -> tuple[Op, Context] | None:
        """Returns the last op that wrote to a variable before a read, and the context in which this op ran.

        Within the run of the read, a write counts only if the reader depends on it. Any other write in that run, such
        as the write of an optimizer, comes after the read. If the reader depends on no write, the search goes back to
        the last earlier run of the session that wrote to the variable. The result is then the last write in this
        earlier run.

        Args:
            graph_id: The graph of the variable.
            writers: The ops of the graph that write to the variable.
            context: The context in which the variable is read.
            reader: The name of the op that reads the variable.
        """
        execution = self._execution(context)
        if execution is None:
            return None
        by_name = {op.op_name: op for op in writers}
        before = self._ops_of(execution.op_type, reader) - {reader}
        writer = _last([by_name[name] for name in before & by_name.keys()])
        if writer is not None:
            return writer, context
        session = self._graphs.sessions.get(execution.op_type)
        for earlier in reversed(self._executions_of(graph_id)):
            if earlier.event_index >= execution.event_index or self._graphs.sessions[earlier.op_type] != session:
                continue
            writer = _last([by_name[name] for name in self._ops_of(earlier.op_type, None) & by_name.keys()])
            if writer is not None:
                return writer, self._events.root_context(earlier.execution_index, graph_id)
        return None

    def last_reference_writer(self, graph_id: int, variable: str, context: Context) -> tuple[Op, Context] | None:
        """Returns the last op that wrote to a reference variable before a run, and the context of that op."""
        graph = self._graphs.graph(graph_id)

        def writers(name: str) -> Iterator[str]:  # a writer passes the reference on
            users = (graph.ops[user] for user in graph.users.get(name, ()))
            return (op.op_name for op in users if REFERENCE_WRITER.fullmatch(op.op_type) and op.inputs)

        writing_ops = [graph.ops[name] for name in breadth_first([variable], writers) if name != variable]
        return self.last_writer(graph_id, writing_ops, context, reader=variable)

    def _execution(self, context: Context) -> Execution | None:
        execution = self._events.execution(context.execution_index)
        return execution if execution is not None and execution.op_type in self._graphs.sessions else None

    def _read_executions(self, graph_id: int) -> list[Execution]:
        names = [name for name in self._graphs.sessions if self._graphs.function_graphs.get(name) == graph_id]
        return self._events.executions_of(names)

    def _find_ops(self, function_name: str, start: str | None) -> frozenset[str]:
        """Returns the ops that a session's run executes to compute an op, including this op.

        If `start` is None, returns all ops that the run executes.
        """
        graph_id = self._graphs.function_graphs[function_name]
        graph = self._graphs.graph(graph_id)
        control = self._graphs.control_sources(graph_id)
        feeds = self._graphs.feeds.get(function_name, {})
        fed_ops = {name for name, _ in feeds}

        def needed(name: str) -> Iterator[str]:
            if name in graph.ops:
                yield from (source for source, slot in graph.ops[name].inputs if (source, slot) not in feeds)
                for source in control.get(name, ()):
                    if not (source in fed_ops and source in graph.ops and graph.ops[source].op_type in _FED_OPS):
                        yield source

        names = breadth_first([start] if start is not None else self.fetches_of(function_name), needed)
        return frozenset(graph.ops.keys() & set(names))

    def fetches_of(self, function_name: str) -> list[str]:
        """Returns the names of the ops that are fetches or targets of the session runs with this function name."""
        try:
            targets = parse_json(self._graphs.session_targets[function_name])
        except ValueError:
            targets = []
        names = [target for target in targets if isinstance(target, str)] if isinstance(targets, list) else []
        return [op_name for op_name, _ in self._graphs.results_of(function_name)] + names


def _last(ops: list[Op]) -> Op | None:
    return max(ops, key=lambda op: op.op_index, default=None)
