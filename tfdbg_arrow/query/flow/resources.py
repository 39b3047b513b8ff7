"""Variables and other resources: the writes to a resource, and the last write before a read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

from tfdbg_arrow.query.flow.borders import PASSING_OPS, Borders
from tfdbg_arrow.query.flow.callsites import Level
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import BRANCHES, Call, GraphReader
from tfdbg_arrow.query.flow.loop_bodies import LoopBodies
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import Context, EagerValue, Execution, GraphTensor, Op, Place, TensorEvent, Trace
from tfdbg_arrow.schema.op_traits import READER, REPLACING, WRITER, Trait, types_with

T = TypeVar("T")
_MAX_KEPT = 4096
"""Maximum number of (execution, resource) pairs in the cache of writes."""
_READING = types_with(Trait.READS | Trait.READS_PART | Trait.ASKS_RESOURCE)


@dataclass(frozen=True, slots=True)
class Write:
    """A write to a resource before a read of the resource.

    Attributes:
        op_type: Type of the writing op.
        op_name: The name of the op; None for an eager op.
        graph_id: The graph of the op; None for an eager op.
        execution_index: The execution, or the call in which the op ran; None if unknown.
        values: The tensors that the op took, without the resource itself.
        is_replacing: Whether the new value depends only on `values`, and not on the old value.
        old_value: A recorded read of the old value right before the write, or None.
        is_known: False if the recording does not show which iterations of a loop ran before the read, or which branch
            of a conditional ran. The write then has no values.
        context: The context in which the op ran; None for an eager op, or if the context is not known.
    """

    op_type: str
    op_name: str | None
    graph_id: int | None
    execution_index: int | None
    values: tuple[Place, ...]
    is_replacing: bool
    old_value: TensorEvent | None
    is_known: bool = True
    context: Context | None = None


@dataclass(frozen=True, slots=True)
class WriteSite:
    """A write to resources: the handles of the resources, and the tensors that the writing op took."""

    handles: tuple[Place, ...]
    values: tuple[Place, ...]


class _Repeatable(Generic[T]):
    """Iterates over the items of an iterator several times. Takes an item from the iterator when it is first needed."""

    def __init__(self, items: Iterator[T]) -> None:
        self._rest = items
        self._first: list[T] = []

    def __iter__(self) -> Iterator[T]:
        for number in itertools.count():
            if number == len(self._first):
                try:
                    self._first.append(next(self._rest))
                except StopIteration:
                    return
            yield self._first[number]


class Resources:
    """Finds writes to resources within one run.

    Automatic control dependencies run the ops on one resource in order of creation.
    """

    def __init__(self, graphs: GraphReader, events: EventReader, borders: Borders, loop_bodies: LoopBodies) -> None:
        self._graphs = graphs
        self._events = events
        self._borders = borders
        self._loop_bodies = loop_bodies
        self._writers: dict[tuple[int, str], tuple[Op, ...]] = {}
        self._writers_of: dict[int, list[Op]] = {}
        self._writes_by = lru_cache(maxsize=_MAX_KEPT)(
            lambda execution, tensor_id: _Repeatable(self._by(execution, tensor_id))
        )

    def writes(self, handle: Trace, *, reader: TensorEvent, since: int = 0) -> Iterator[Write]:
        """Yields the recorded writes before a read, last one first.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.
            since: Consider only earlier executions from this execution_index on.
        """
        if reader.scope == "graph" and reader.graph_id is not None and reader.op_name is not None:
            yield from self._in_call(handle, reader)
        if isinstance(handle.place, EagerValue):
            execution = self._events.execution(reader.execution_index)
            before = reader.event_index if execution is None else execution.event_index
            yield from self._before(handle.place.tensor_id, before=before, since=since)

    def read_between(self, handle: Trace, *, after: Write | None, before: Write, since: int = 0) -> TensorEvent | None:
        """Returns the row of the last read in the executions between two writes, or None.

        Reads inside the calls that made the two writes are not considered.

        Args:
            handle: Where the resource came from.
            after: The earlier write; None means the start of the run.
            before: The later write.
            since: Only executions from this execution_index on.
        """
        if not isinstance(handle.place, EagerValue) or before.execution_index is None:
            return None
        tensor_id = handle.place.tensor_id
        earliest = -1 if after is None or after.execution_index is None else after.execution_index
        readers = self._users(tensor_id, is_wanted=self._reads, since=since)
        start = self._events.execution(before.execution_index)
        if start is None:
            return None
        for execution in self._events.uses_before(tensor_id, op_types=readers, before=start.event_index, since=since):
            if execution.execution_index <= earliest:
                return None
            event = self._read_in(execution, tensor_id)
            if event is not None:
                return event
        return None

    def all_writes(self, *, is_wanted: Callable[[Execution], bool]) -> Iterator[WriteSite]:
        """Yields every recorded write to resources by chosen executions."""
        for execution in self._events.executions_of(self._writing_functions()):
            if not is_wanted(execution):
                continue
            graph_id = self._graphs.function_graphs.get(execution.op_type, execution.graph_id)
            if graph_id is not None:
                yield from self._all_writes_in(execution, graph_id)
                continue
            ids = list(self._events.execution_inputs(execution.execution_index).values())
            if ids:
                yield WriteSite((EagerValue(ids[0]),), tuple(map(EagerValue, ids[1:])))

    def eagerly_written(self) -> dict[int, set[int]]:
        """Returns, for each eager tensor, the handles of the resources to which eager ops wrote the tensor."""
        writers = [name for name, graph_id in self._events.op_types() if graph_id is None and WRITER.fullmatch(name)]
        handles_of: dict[int, set[int]] = {}
        for tensor_id, handle in self._events.taken_together(writers):
            handles_of.setdefault(tensor_id, set()).add(handle)
        return handles_of

    def can_write(self, execution: Execution, input_index: int) -> bool:
        """Returns whether an execution may write to the resource that it takes as an input."""
        graph_id = self._graphs.function_graphs.get(execution.op_type, execution.graph_id)
        return self._writes(execution.op_type, graph_id, input_index)

    def _writing_functions(self) -> list[str]:
        """Returns the types of the executions that write to resources: ops, and functions that write at any depth."""
        functions = []
        for op_type, called in self._events.op_types():
            graph_id = self._graphs.function_graphs.get(op_type, called)
            if graph_id is None:
                is_writing = WRITER.fullmatch(op_type) is not None
            else:
                is_writing = any(self._writers_in(part) for part in self._graphs.parts(graph_id))
            if is_writing:
                functions.append(op_type)
        return functions

    def _all_writes_in(self, execution: Execution, graph_id: int) -> Iterator[WriteSite]:
        """Yields the writes in one call."""
        root = self._events.root_context(execution.execution_index, graph_id)
        places: dict[tuple[int, Context], None] = {(graph_id, root): None}
        visits = () if root.step_id is None else self._events.site_visits(root.step_id, root.execution_index)
        for visit in visits:
            at = replace(root, call_site=visit.call_site, frame_id=visit.frame_id)
            for iteration in visit.iterations if self._writers_in(visit.graph_id) else ():
                places[visit.graph_id, replace(at, iteration=iteration)] = None
        for part_id, context in places:
            dtypes = self._graphs.graph(part_id).dtypes
            for op in self._writers_in(part_id):
                writer = GraphTensor(context, part_id, op.op_name, 0, 2**63 - 1)
                taken = self._borders.executed.aligned_inputs(writer, op)
                inputs = [(place, dtypes.get(source)) for place, source in zip(taken, op.inputs, strict=True)]
                handles = tuple(place for place, dtype in inputs if dtype == "resource")
                yield WriteSite(handles, tuple(place for place, dtype in inputs if dtype != "resource"))

    def is_resource(self, tensor_id: int) -> bool:
        """Returns whether executions use a tensor from outside as a handle. The kind of the tensor was not recorded."""
        return any(
            (op_type in _READING or WRITER.fullmatch(op_type))
            if graph_id is None
            else self._dtype_of(graph_id, self._graphs.placeholder(op_type, index)) == "resource"
            for op_type, graph_id, index in self.all_users(tensor_id)
        )

    def _dtype_of(self, graph_id: int, placeholder: str | None) -> str | None:
        return None if placeholder is None else self._graphs.graph(graph_id).dtypes.get((placeholder, 0))

    def _in_call(self, handle: Trace, reader: TensorEvent) -> Iterator[Write]:
        """Yields the writes in the call in which a reading op ran, from the op outwards."""
        assert reader.graph_id is not None
        assert reader.op_name is not None
        levels: tuple[Level, ...] = self._borders.levels(reader.context, reader.graph_id) or ()
        context, graph_id, user = reader.context, reader.graph_id, reader.op_name
        name = name_in(handle, graph_id)
        while True:
            if name is not None and self._borders.sessions.is_session_graph(graph_id):
                write = self._write_in_session(graph_id, name, context, user=user, near=reader.event_index)
                if write is not None:
                    yield write
                return
            if name is not None:
                yield from self._in_graph(graph_id, name, context, user=user, near=reader.event_index)
            if not levels:
                if name is not None and graph_id in self._loop_bodies.by_graph:
                    yield from self._in_earlier_iterations(graph_id, name, context)
                return
            level = levels[-1]
            outer = self._borders.outer_context(context, levels)
            outer_name = self._name_outside(name, level.call) or name_in(handle, level.call.graph_id)
            if level.is_loop:
                op = self._graphs.op(level.call.graph_id, level.call.op_name)
                if outer_name is not None and op is not None and context.iteration:
                    yield from self._in_loop(
                        op, level.call.graph_id, outer_name, outer, frame_id=context.frame_id,
                        last=context.iteration - 1, near=reader.event_index, site=level.callee_site,
                    )  # fmt: skip
                elif outer_name is not None and op is not None and context.iteration is None:
                    yield from self._in_unknown_iterations(op, level.call.graph_id, outer_name, outer)
            context, graph_id, user, name = outer, level.call.graph_id, level.call.op_name, outer_name
            levels = levels[:-1]

    def _in_earlier_iterations(self, graph_id: int, handle_name: str, context: Context) -> Iterator[Write]:
        """Yields the writes in the earlier iterations of a loop over a data set, last iteration first.

        Args:
            graph_id: The body of the loop.
            handle_name: The op that holds the resource in the body.
            context: The context of an iteration.
        """
        step_id = context.step_id if context.execution_index is None else None
        while step_id is not None:
            step_id = self._loop_bodies.previous_iteration(graph_id, step_id)
            if step_id is not None:
                earlier = Context(step_id, None, "", 0, 0)
                yield from self._in_graph(graph_id, handle_name, earlier, user=None, near=2**63 - 1)

    def _name_outside(self, name: str | None, call: Call) -> str | None:
        """Returns the op that holds a resource in the calling graph, or None.

        The path of the handle may not contain this op: the optimizer can replace an argument with the outermost
        argument.

        Args:
            name: The op that holds the resource in the called graph.
            call: The call.
        """
        op = self._graphs.op(call.graph_id, call.op_name)
        if name is None or call.callee_graph_id is None or op is None:
            return None
        argument = self._graphs.argument(call.callee_graph_id, name, function_name=call.function_name)
        index = -1 if argument is None else argument.input_index + (call.attribute in BRANCHES)
        source = self._graphs.op(call.graph_id, op.inputs[index][0]) if 0 <= index < len(op.inputs) else None
        while source is not None and source.op_type in PASSING_OPS and source.inputs:
            source = self._graphs.op(call.graph_id, source.inputs[0][0])
        return None if source is None else source.op_name

    def _write_in_session(
        self, graph_id: int, handle_name: str, context: Context, *, user: str, near: int
    ) -> Write | None:
        """Returns the last write before a read in a session's graph. Such a graph does not run in order of creation."""
        writers = self.writing_ops(graph_id, handle_name)
        written = self._borders.sessions.last_writer(graph_id, writers, context, reader=user)
        if written is None:
            return None
        op, where = written
        near = near if where == context else 2**63 - 1
        if WRITER.fullmatch(op.op_type):
            return self._write(op, graph_id, handle_name, where, near=near)
        return next(self._in_callees(op, graph_id, handle_name, where, near=near), None)

    def _before(self, tensor_id: int, *, before: int, since: int) -> Iterator[Write]:
        """Yields the writes by the executions before an event."""
        writers = self._users(tensor_id, is_wanted=self._writes, since=since)
        for execution in self._events.uses_before(tensor_id, op_types=writers, before=before, since=since):
            yield from self._writes_by(execution, tensor_id)

    def _users(
        self, tensor_id: int, *, is_wanted: Callable[[str, int | None, int], bool], since: int
    ) -> tuple[str, ...]:
        """Returns the op types, including functions, that use a handle in one of the wanted ways."""
        ways = self.all_users(tensor_id, since=since)
        op_types_of_users = (op_type for op_type, graph_id, index in ways if is_wanted(op_type, graph_id, index))
        return tuple(sorted(set(op_types_of_users)))

    def all_users(self, tensor_id: int, *, since: int = 0) -> list[tuple[str, int | None, int]]:
        """Returns (op type, called graph, input index) for each way in which executions use a handle."""
        return [
            (op_type, self._graphs.function_graphs.get(op_type, called), index)
            for op_type, called, index in self._events.ways_of_use(tensor_id, since=since)
        ]

    def _writes(self, op_type: str, graph_id: int | None, index: int) -> bool:
        if graph_id is None:
            return WRITER.fullmatch(op_type) is not None
        placeholder = self._graphs.placeholder(op_type, index)
        return placeholder is not None and bool(self.writing_ops(graph_id, placeholder))

    def _reads(self, op_type: str, graph_id: int | None, index: int) -> bool:
        """Returns whether an op or a function reads a resource in its outermost graph and cannot write to it."""
        if graph_id is None:
            return op_type == READER
        placeholder = self._graphs.placeholder(op_type, index)
        if placeholder is None or self.writing_ops(graph_id, placeholder):
            return False
        return bool(self._reading_ops(graph_id, placeholder))

    def _read_in(self, execution: Execution, tensor_id: int) -> TensorEvent | None:
        """Returns the row of the last read by an execution that reads a resource and does not write to it."""
        graph_id = self._graphs.function_graphs.get(execution.op_type, execution.graph_id)
        if graph_id is None:
            outputs = self._events.execution_outputs(execution.execution_index)
            return self._events.eager(outputs[0][0]).event if 0 in outputs else None
        context = self._events.root_context(execution.execution_index, graph_id)
        for index, other in self._events.execution_inputs(execution.execution_index).items():
            placeholder = self._graphs.placeholder(execution.op_type, index) if other == tensor_id else None
            for op in reversed(self._reading_ops(graph_id, placeholder)) if placeholder is not None else ():
                event = self._events.graph_tensor(GraphTensor(context, graph_id, op.op_name, 0, 2**63 - 1))
                if event is not None:
                    return event
        return None

    def _by(self, execution: Execution, tensor_id: int) -> Iterator[Write]:
        """Yields the writes by one execution."""
        inputs = self._events.execution_inputs(execution.execution_index)
        graph_id = self._graphs.function_graphs.get(execution.op_type, execution.graph_id)
        if graph_id is None:
            values: tuple[Place, ...] = tuple(EagerValue(other) for other in inputs.values() if other != tensor_id)
            is_replacing = execution.op_type in REPLACING
            yield Write(execution.op_type, None, None, execution.execution_index, values, is_replacing, None)
            return
        context = self._events.root_context(execution.execution_index, graph_id)
        for index, other in inputs.items():
            placeholder = self._graphs.placeholder(execution.op_type, index) if other == tensor_id else None
            if placeholder is not None:
                yield from self._in_graph(graph_id, placeholder, context, user=None, near=2**63 - 1)

    def _in_graph(
        self, graph_id: int, handle_name: str, context: Context, *, user: str | None, near: int
    ) -> Iterator[Write]:
        """Yields the writes in one run of a graph. If `user` is given, yields only the writes before this op."""
        end = None if user is None else self._graphs.op(graph_id, user)
        for op in reversed(self.writing_ops(graph_id, handle_name)):
            if end is not None and op.op_index >= end.op_index:
                continue
            if WRITER.fullmatch(op.op_type):
                yield self._write(op, graph_id, handle_name, context, near=near)
            else:
                yield from self._in_callees(op, graph_id, handle_name, context, near=near)

    def _in_callees(self, op: Op, graph_id: int, handle_name: str, context: Context, *, near: int) -> Iterator[Write]:
        """Yields the writes in the functions that an op called: in the branch that ran, or all iterations of a loop."""
        calls = self._graphs.calls(graph_id, op.op_name)
        for call in calls:
            if call.callee_graph_id is None or call.attribute == "cond":
                continue
            visit = self._borders.visit(context, call)
            if call.attribute == "body":
                if visit is not None:
                    yield from self._in_loop(
                        op, graph_id, handle_name, context, frame_id=visit.frame_id, last=visit.last_iteration,
                        near=near,
                    )  # fmt: skip
                elif self._borders.visits(context, call):
                    yield from self._in_unknown_iterations(op, graph_id, handle_name, context)
                continue
            if visit is None and call.attribute in BRANCHES:
                continue
            inner = replace(context, call_site=self._borders.callee_site(context, call, visit))
            for name in self.callee_handles(op, call, handle_name):
                yield from self._in_graph(call.callee_graph_id, name, inner, user=None, near=near)
        if self._may_write_unseen(op, calls, handle_name, context):
            yield Write(op.op_type, op.op_name, graph_id, context.execution_index, (), False, None, is_known=False)

    def _may_write_unseen(self, op: Op, calls: Sequence[Call], handle_name: str, context: Context) -> bool:
        """Returns whether a branch that left no rows can have run and written to a resource."""
        branches = [call for call in calls if call.attribute in BRANCHES]
        if any(self._borders.visit(context, call) is not None for call in branches):
            return False
        return any(
            call.callee_graph_id is not None
            and self.writing_ops(call.callee_graph_id, name)
            and self._borders.may_run_unseen(context, call)
            for call in branches
            for name in self.callee_handles(op, call, handle_name)
        )

    def _in_unknown_iterations(self, op: Op, graph_id: int, handle_name: str, context: Context) -> Iterator[Write]:
        """Yields a write with unknown values if the body of a loop can write to a resource."""
        for call in self._graphs.calls(graph_id, op.op_name):
            names = self.callee_handles(op, call, handle_name) if call.attribute == "body" else []
            if call.callee_graph_id is not None and any(self.writing_ops(call.callee_graph_id, n) for n in names):
                yield Write(op.op_type, op.op_name, graph_id, context.execution_index, (), False, None, is_known=False)

    def _in_loop(
        self,
        op: Op,
        graph_id: int,
        handle_name: str,
        context: Context,
        *,
        frame_id: int | None,
        last: int,
        near: int,
        site: str | None = None,
    ) -> Iterator[Write]:
        """Yields the writes in a loop's body, last iteration first.

        Args:
            op: The loop.
            graph_id: The graph of the loop.
            handle_name: The op that holds the resource in that graph.
            context: The context in which the loop was entered.
            frame_id: The loop's frame.
            last: The last iteration to consider.
            near: The event_index of the reader.
            site: The call site of the body, if the body itself left no rows.
        """
        body = next((call for call in self._graphs.calls(graph_id, op.op_name) if call.attribute == "body"), None)
        if body is None or body.callee_graph_id is None:
            return
        visits = self._borders.visits(context, body)
        site = next((visit.call_site for visit in visits if visit.frame_id == frame_id), site)
        for name in self.callee_handles(op, body, handle_name):
            for iteration in range(last, -1, -1) if self.writing_ops(body.callee_graph_id, name) else ():
                inner = replace(context, call_site=site, frame_id=frame_id, iteration=iteration)
                yield from self._in_graph(body.callee_graph_id, name, inner, user=None, near=near)

    def _write(self, op: Op, graph_id: int, handle_name: str, context: Context, *, near: int) -> Write:
        taken = self._borders.executed.aligned_inputs(GraphTensor(context, graph_id, op.op_name, 0, near), op)
        values = tuple(
            place
            for place, (source, _) in zip(taken, op.inputs, strict=True)
            if source not in self.aliases(graph_id, handle_name)
        )
        old_value = None
        if op.op_type not in REPLACING:
            old_value = self._read_before(op, graph_id, handle_name, context, near=near)
        is_replacing, index = op.op_type in REPLACING, context.execution_index
        return Write(op.op_type, op.op_name, graph_id, index, values, is_replacing, old_value, context=context)

    def _read_before(
        self, writer: Op, graph_id: int, handle_name: str, context: Context, *, near: int
    ) -> TensorEvent | None:
        """Returns the row of the last read of a resource in a graph, after the previous write and before `writer`."""
        start = max(
            (op.op_index for op in self.writing_ops(graph_id, handle_name) if op.op_index < writer.op_index),
            default=-1,
        )
        for op in reversed(self._reading_ops(graph_id, handle_name)):
            if start < op.op_index < writer.op_index:
                event = self._events.graph_tensor(GraphTensor(context, graph_id, op.op_name, 0, near))
                if event is not None:
                    return event
        return None

    # The following methods read the ops of graphs, and no recorded tensors.

    def _writers_in(self, graph_id: int) -> list[Op]:
        """Returns the ops of a graph that write to resources, without the ops of called functions."""
        if graph_id not in self._writers_of:
            ops = self._graphs.graph(graph_id).ops.values()
            self._writers_of[graph_id] = [op for op in ops if WRITER.fullmatch(op.op_type) is not None]
        return self._writers_of[graph_id]

    def _reading_ops(self, graph_id: int, handle_name: str) -> list[Op]:
        """Returns the ops of a graph that read a resource, in order, without the ops of called functions."""
        graph = self._graphs.graph(graph_id)
        names = {name for alias in self.aliases(graph_id, handle_name) for name in graph.users.get(alias, ())}
        ops = (graph.ops[name] for name in names if name in graph.ops)
        return sorted((op for op in ops if op.op_type == READER), key=lambda op: op.op_index)

    def writing_ops(self, graph_id: int, handle_name: str) -> tuple[Op, ...]:
        """Returns the ops of a graph that write to a resource, in order, including callers of writing functions."""
        key = (graph_id, handle_name)
        if key not in self._writers:
            self._writers[key] = ()  # ends the search in a function that calls itself
            self._writers[key] = self._find_writing_ops(graph_id, handle_name)
        return self._writers[key]

    def _find_writing_ops(self, graph_id: int, handle_name: str) -> tuple[Op, ...]:
        graph = self._graphs.graph(graph_id)
        by_name: dict[str, Op] = {}
        for alias in self.aliases(graph_id, handle_name):
            for name in graph.users.get(alias, ()):
                op = graph.ops.get(name)
                if op is not None and (WRITER.fullmatch(op.op_type) or self._calls_writer(op, graph_id, handle_name)):
                    by_name[name] = op
        return tuple(sorted(by_name.values(), key=lambda op: op.op_index))

    def _calls_writer(self, op: Op, graph_id: int, handle_name: str) -> bool:
        return any(
            call.callee_graph_id is not None and self.writing_ops(call.callee_graph_id, name)
            for call in self._graphs.calls(graph_id, op.op_name)
            for name in self.callee_handles(op, call, handle_name)
        )

    def callee_handles(self, op: Op, call: Call, handle_name: str) -> list[str]:
        """Returns the Placeholders of a callee that receive the resource."""
        aliases = self.aliases(call.graph_id, handle_name)
        shift = 1 if call.attribute in BRANCHES else 0
        names = (
            self._graphs.placeholder(call.function_name, index - shift)
            for index, (source, _) in enumerate(op.inputs)
            if source in aliases
        )
        return [name for name in names if name is not None]

    def aliases(self, graph_id: int, handle_name: str) -> Collection[str]:
        """Returns the ops that hand on a resource within a graph, including the op that holds the resource."""
        graph = self._graphs.graph(graph_id)

        def handing_on(name: str) -> Iterator[str]:
            users = (graph.ops[user] for user in graph.users.get(name, ()) if user in graph.ops)
            return (user.op_name for user in users if user.op_type in PASSING_OPS)

        return set(breadth_first([handle_name], handing_on))


def name_in(handle: Trace, graph_id: int) -> str | None:
    """Returns the op that holds a resource in a graph, or None."""
    places = (place for place in reversed(handle.path) if isinstance(place, GraphTensor) and place.graph_id == graph_id)
    return next((place.op_name for place in places), None)
