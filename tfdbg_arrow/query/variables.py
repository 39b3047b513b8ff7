"""Variables and other resources: what was last written to one before it was read."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tfdbg_arrow.query.borders import PASSING_OPS, Borders
from tfdbg_arrow.query.callsites import Level
from tfdbg_arrow.query.events import Context, EventReader, Execution, TensorEvent
from tfdbg_arrow.query.graphs import Call, GraphReader, Op
from tfdbg_arrow.query.places import EagerValue, GraphTensor, Place, Trace

_WRITER = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign|MakeIterator"
)
_REPLACING = frozenset({"AssignVariableOp", "MakeIterator"})
_BRANCHES = frozenset({"then_branch", "else_branch", "branches"})


@dataclass(frozen=True, slots=True)
class Write:
    """The last write to a resource before it was read.

    Attributes:
        op_type: Type of the writing op.
        op_name: Its name; None for an eager op.
        graph_id: Its graph; None for an eager op.
        execution_index: The execution, or the call in which it ran; None where unknown.
        values: The tensors that went in, without the resource itself.
        is_replacing: Whether the new value depends on them alone, and not on the old value too.
        old_value: A recorded read of the old value just before, or None.
    """

    op_type: str
    op_name: str | None
    graph_id: int | None
    execution_index: int | None
    values: tuple[Place, ...]
    is_replacing: bool
    old_value: TensorEvent | None


class Resources:
    """Finds writes to resources within one run.

    Automatic control dependencies run the ops on one resource in the order of their creation.

    Args:
        graphs: The run's graphs.
        events: The run's recorded tensors.
        borders: The run's borders.
    """

    def __init__(self, graphs: GraphReader, events: EventReader, borders: Borders) -> None:
        self._graphs = graphs
        self._events = events
        self._borders = borders
        self._writers: dict[tuple[int, str], tuple[Op, ...]] = {}

    def last_write(self, handle: Trace, *, reader: TensorEvent) -> Write | None:
        """Returns the last write before a read, or None where none was recorded.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.
        """
        if reader.scope == "graph" and reader.graph_id is not None and reader.op_name is not None:
            write = self._write_in_call(handle, reader)
            if write is not None:
                return write
        if not isinstance(handle.place, EagerValue):
            return None
        before = reader.event_index
        if reader.execution_index is not None:
            execution = self._events.execution(reader.execution_index)
            before = before if execution is None else execution.event_index
        return self._write_before(handle.place.tensor_id, before=before)

    def _write_in_call(self, handle: Trace, reader: TensorEvent) -> Write | None:
        assert reader.graph_id is not None
        assert reader.op_name is not None
        levels: tuple[Level, ...] = self._borders.levels(reader.context, reader.graph_id) or ()
        context, graph_id, user = reader.context, reader.graph_id, reader.op_name
        while True:
            name = next(
                (
                    place.op_name
                    for place in reversed(handle.path)
                    if isinstance(place, GraphTensor) and place.graph_id == graph_id
                ),
                None,
            )
            if name is not None and self._borders.sessions.is_session_graph(graph_id):
                return self._write_in_session(graph_id, name, context, user=user, near=reader.event_index)
            if name is not None:
                write = self._write_in_graph(graph_id, name, context, user=user, near=reader.event_index)
                if write is None and levels and levels[-1].call.attribute == "body" and context.iteration:
                    earlier = replace(context, iteration=context.iteration - 1)
                    write = self._write_in_graph(graph_id, name, earlier, user=None, near=reader.event_index)
                if write is not None:
                    return write
            if not levels:
                return None
            context = self._borders.outer_context(context, levels)
            graph_id, user = levels[-1].call.graph_id, levels[-1].call.op_name
            levels = levels[:-1]

    def _write_in_session(
        self, graph_id: int, handle_name: str, context: Context, *, user: str, near: int
    ) -> Write | None:
        """Returns the last write before a read in a graph that sessions run, where creation orders nothing."""
        writers = self._writing_ops(graph_id, handle_name)
        written = self._borders.sessions.last_writer(graph_id, writers, context, reader=user)
        if written is None:
            return None
        op, where = written
        near = near if where == context else 2**63 - 1
        if _WRITER.fullmatch(op.op_type):
            return self._write(op, graph_id, handle_name, where, near=near)
        for call in self._graphs.calls(graph_id, op.op_name):
            write = self._write_in_callee(op, call, handle_name, where, near=near)
            if write is not None:
                return write
        return None

    def _write_before(self, tensor_id: int, *, before: int) -> Write | None:
        writers: list[str] = []
        for op_type, called, index in self._events.users(tensor_id):
            graph_id = self._graphs.function_graphs.get(op_type, called)
            if graph_id is None:
                if _WRITER.fullmatch(op_type):
                    writers.append(op_type)
                continue
            placeholder = self._graphs.placeholder(op_type, index)
            if placeholder is not None and self._writing_ops(graph_id, placeholder):
                writers.append(op_type)
        execution = self._events.last_user(tensor_id, op_types=writers, before=before)
        return None if execution is None else self._write_by(execution, tensor_id)

    def _write_by(self, execution: Execution, tensor_id: int) -> Write | None:
        inputs = self._events.execution_inputs(execution.execution_index)
        graph_id = self._graphs.function_graphs.get(execution.op_type, execution.graph_id)
        if graph_id is None:
            values: tuple[Place, ...] = tuple(EagerValue(other) for other in inputs.values() if other != tensor_id)
            is_replacing = execution.op_type in _REPLACING
            return Write(execution.op_type, None, None, execution.execution_index, values, is_replacing, None)
        context = self._events.root_context(execution.execution_index, graph_id)
        for index, other in inputs.items():
            placeholder = self._graphs.placeholder(execution.op_type, index) if other == tensor_id else None
            if placeholder is not None:
                write = self._write_in_graph(graph_id, placeholder, context, user=None, near=2**63 - 1)
                if write is not None:
                    return write
        return None

    def _write_in_graph(
        self, graph_id: int, handle_name: str, context: Context, *, user: str | None, near: int
    ) -> Write | None:
        """Returns the last write in one run of a graph, before `user` where that is given."""
        end = None if user is None else self._graphs.op(graph_id, user)
        for op in reversed(self._writing_ops(graph_id, handle_name)):
            if end is not None and op.op_index >= end.op_index:
                continue
            if _WRITER.fullmatch(op.op_type):
                return self._write(op, graph_id, handle_name, context, near=near)
            for call in self._graphs.calls(graph_id, op.op_name):
                write = self._write_in_callee(op, call, handle_name, context, near=near)
                if write is not None:
                    return write
        return None

    def _write_in_callee(self, op: Op, call: Call, handle_name: str, context: Context, *, near: int) -> Write | None:
        visit = self._borders.visit(context, call)
        if call.callee_graph_id is None or (visit is None and call.attribute in _BRANCHES | {"body", "cond"}):
            return None
        inner = replace(context, call_site=self._borders.callee_site(context, call, visit))
        if visit is not None:
            inner = replace(context, call_site=visit.call_site, frame_id=visit.frame_id)
            if call.attribute == "body":
                inner = replace(inner, iteration=visit.last_iteration)
        for name in self._callee_handles(op, call, handle_name):
            write = self._write_in_graph(call.callee_graph_id, name, inner, user=None, near=near)
            if write is not None:
                return write
        return None

    def _write(self, op: Op, graph_id: int, handle_name: str, context: Context, *, near: int) -> Write:
        values = tuple(
            GraphTensor(context, graph_id, source, slot, near)
            for source, slot in op.inputs
            if source not in self._aliases(graph_id, handle_name)
        )
        old_value = None
        if op.op_type not in _REPLACING:
            old_value = self._read_before(op, graph_id, handle_name, context, near=near)
        return Write(
            op.op_type, op.op_name, graph_id, context.execution_index, values, op.op_type in _REPLACING, old_value
        )

    def _read_before(
        self, writer: Op, graph_id: int, handle_name: str, context: Context, *, near: int
    ) -> TensorEvent | None:
        """Returns the row of the last read of a resource in a graph between its last two writes."""
        start = max(
            (op.op_index for op in self._writing_ops(graph_id, handle_name) if op.op_index < writer.op_index),
            default=-1,
        )
        graph = self._graphs.graph(graph_id)
        names = {name for alias in self._aliases(graph_id, handle_name) for name in graph.users.get(alias, ())}
        for op in sorted((graph.ops[name] for name in names), key=lambda op: op.op_index, reverse=True):
            if op.op_type == "ReadVariableOp" and start < op.op_index < writer.op_index:
                event = self._events.graph_tensor(
                    context, graph_id=graph_id, op_name=op.op_name, output_slot=0, near=near
                )
                if event is not None:
                    return event
        return None

    def _writing_ops(self, graph_id: int, handle_name: str) -> tuple[Op, ...]:
        """Returns the ops of a graph that write to a resource, callers of writing functions included, in order."""
        key = (graph_id, handle_name)
        if key not in self._writers:
            self._writers[key] = ()  # a function that calls itself ends here
            self._writers[key] = self._find_writing_ops(graph_id, handle_name)
        return self._writers[key]

    def _find_writing_ops(self, graph_id: int, handle_name: str) -> tuple[Op, ...]:
        graph = self._graphs.graph(graph_id)
        found: dict[str, Op] = {}
        for alias in self._aliases(graph_id, handle_name):
            for name in graph.users.get(alias, ()):
                op = graph.ops.get(name)
                if op is not None and (_WRITER.fullmatch(op.op_type) or self._calls_writer(op, graph_id, handle_name)):
                    found[name] = op
        return tuple(sorted(found.values(), key=lambda op: op.op_index))

    def _calls_writer(self, op: Op, graph_id: int, handle_name: str) -> bool:
        return any(
            call.callee_graph_id is not None and self._writing_ops(call.callee_graph_id, name)
            for call in self._graphs.calls(graph_id, op.op_name)
            for name in self._callee_handles(op, call, handle_name)
        )

    def _callee_handles(self, op: Op, call: Call, handle_name: str) -> list[str]:
        """Returns the Placeholders under which a callee knows the resource."""
        aliases = self._aliases(call.graph_id, handle_name)
        shift = 1 if call.attribute in _BRANCHES else 0
        names = (
            self._graphs.placeholder(call.function_name, index - shift)
            for index, (source, _) in enumerate(op.inputs)
            if source in aliases
        )
        return [name for name in names if name is not None]

    def _aliases(self, graph_id: int, handle_name: str) -> set[str]:
        """Returns the ops that hand on a resource within a graph, its own among them."""
        graph = self._graphs.graph(graph_id)
        found, waiting = {handle_name}, [handle_name]
        while waiting:
            for name in graph.users.get(waiting.pop(), ()):
                if name not in found and name in graph.ops and graph.ops[name].op_type in PASSING_OPS:
                    found.add(name)
                    waiting.append(name)
        return found
