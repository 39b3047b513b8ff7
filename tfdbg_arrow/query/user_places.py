"""Finds the line of the user's code, the layer and the calls that answers name for a tensor.

All answers use this module, so all answers name the same line for a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.labels import NO_LABEL, ForwardOp, Label
from tfdbg_arrow.query.outside_tensors import users_of
from tfdbg_arrow.query.recorded import GraphTensor, Op, TensorEvent
from tfdbg_arrow.query.stacks import GRADIENT_FUNCS, Frame, user_source


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The forward op of a gradient: the op whose gradient was computed.

    Attributes:
        op_type: The type of the forward op, or the name of the function that it called.
        op_name: Name of the forward op in its graph; None outside graphs.
        graph_name: Name of the graph; None outside graphs.
        layer: The Keras layer or module that the forward op belongs to, as the user named it; None outside layers.
        source: The user's innermost frame in the stack that created or executed the forward op, or None.
        order: 1 if the forward op belongs to the forward pass. 2 for the gradient of a gradient: the forward op then
            belongs to the gradient of the op on the line `source`.
    """

    op_type: str | None
    op_name: str | None
    graph_name: str | None
    layer: str | None
    source: Frame | None
    order: int = 1


@dataclass(frozen=True, kw_only=True)
class CallSite:
    """One call on the way from eager code to an op.

    Attributes:
        function: Name of the called graph.
        op_name: Name of the calling op; None for the call from eager code.
        graph_name: Name of the graph that contains the calling op; None for the call from eager code.
        layer: The Keras layer or module that the calling op belongs to, as the user named it; None outside layers.
        source: The user's innermost frame in the stack of the call, or None.
    """

    function: str | None
    op_name: str | None
    graph_name: str | None
    layer: str | None
    source: Frame | None


@dataclass(frozen=True, kw_only=True)
class UserPlace:
    """Where the user's program computed a tensor. NonFinite describes the attributes."""

    stack: tuple[Frame, ...]
    source: Frame | None
    forward: Forward | None
    called_from: tuple[CallSite, ...]
    layer: str | None
    made_at: Frame | None
    equal_lines: tuple[Frame, ...]


class UserPlaces:
    """Finds the `UserPlace` of tensors of one run."""

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._run_id = run_id
        self._stacks = flow.stacks

    def read_stacks(self, events: Iterable[TensorEvent]) -> None:
        """Reads the stacks of several tensors in one query, so that `place` does not read them one by one."""
        stack_ids: list[int | None] = []
        for event in events:
            label = self._flow.label_of_maker(event)
            forward = self._flow.labels.forward_op(label)
            stack_ids += [self._flow.stack_trace_id(event), label.part_stack_trace_id]
            if forward is not None:
                stack_ids += [forward.stack_trace_id, forward.part_stack_trace_id]
        self._stacks.read(stack_id for stack_id in stack_ids if stack_id is not None)

    def place(self, event: TensorEvent) -> UserPlace:
        """Returns the line to look at, the layer and the calls of the op that made a tensor."""
        event = self._flow.as_written(event)
        used_at = self.use_of_captured(event)
        stack = used_at or self._stacks.stack(self._flow.stack_trace_id(event))
        label, maker = self._flow.label_of_maker(event), self._flow.program_ops.maker(event)
        forward_op = None if _is_users_gradient(stack) else self._flow.labels.forward_op(label)
        forward = None if forward_op is None else self._forward(forward_op)
        own = event.graph_tensor if maker is None else maker.place
        graph_id = None if own is None else own.graph_id
        calls = self._calls(own, event.execution_index)
        called_from = tuple(call for call, _, _ in calls)
        call_lines = (next(iter(frames), None) for _, frames, _ in calls)
        lines = [
            forward.source if forward else None,
            self._own_line(stack, graph_id),
            user_source(stack) if self._is_in_unknown_call(event) else None,
            *call_lines,
            user_source(stack),
        ]
        source = next((line for line in lines if line is not None), None)
        return UserPlace(
            stack=stack,
            source=source,
            equal_lines=() if forward else self._equal_lines(event, graph_id, source),
            forward=forward,
            called_from=called_from,
            layer=self._layer(label, forward, called_from),
            made_at=self._made_at([forward_op, label, *(label for _, _, label in calls)], source),
        )

    def callers(self, event: TensorEvent) -> tuple[Frame, ...]:
        """Returns the user's lines that called the function with the line of `place`, innermost first.

        The lines are callers in Python, and calls of traced functions. If a function is called more than once, these
        are the lines of the call that made the tensor. For a gradient, the lines are the callers of the forward op, as
        far as the recording shows which of its calls the gradient belongs to.
        """
        event = self._flow.as_written(event)
        source = self.place(event).source
        if source is None or self.use_of_captured(event) is not None:
            return ()
        maker = self._flow.program_ops.maker(event)
        own = event.graph_tensor if maker is None else maker.place
        graph_id, stack = None if own is None else own.graph_id, self._stacks.stack(self._flow.stack_trace_id(event))
        calls = self._calls(own, event.execution_index)
        forward = None if _is_users_gradient(stack) else self._flow.labels.forward_op(self._flow.label_of_maker(event))
        if forward is not None:
            is_known = forward.graph_id == graph_id or any(self._flow.labels.forward_op(call[2]) for call in calls[:1])
            graph_id, stack = forward.graph_id, self._stacks.stack(forward.stack_trace_id)
            calls = calls if is_known else []
        frames = list(self._own_frames(stack, graph_id))
        for _, of_call, label in calls:
            # The call of a gradient stands for the call of the function whose gradient it computes.
            forward_call = None if forward is None else self._flow.labels.forward_op(label)
            if forward_call is not None:
                of_call = self._own_frames(self._stacks.stack(forward_call.stack_trace_id), forward_call.graph_id)
            # A loop or branch is no call: its line is in the same function of the program.
            is_inside = frames and of_call and _function_of(frames[-1]) == _function_of(of_call[0])
            frames += of_call[1:] if is_inside else of_call
        lines = [frame.line for frame in frames]
        return tuple(frames[lines.index(source.line) + 1 :]) if source.line in lines else ()

    def use_of_captured(self, event: TensorEvent) -> tuple[Frame, ...] | None:
        """Returns the stack of the first op that takes a captured tensor in the user's code; None for other tensors."""
        captured = self._flow.captured_as(event)
        users = () if captured is None else users_of(self._flow, *captured)
        stacks = ((self._stacks.stack(op.stack_trace_id), graph_id) for graph_id, op in users)
        return next((stack for stack, graph_id in stacks if self._own_line(stack, graph_id) is not None), None)

    def _made_at(self, ops: Iterable[ForwardOp | Label | None], source: Frame | None) -> Frame | None:
        """Returns the line that made a Keras layer, loss, metric or optimizer.

        The result is None if this line is `source`.

        Args:
            ops: The first of these ops that belongs to such a Keras object determines the object.
            source: The line that the answer already names.
        """
        of_parts = (op for op in ops if op is not None and (op.layer or op.part_stack_trace_id) is not None)
        part = next(of_parts, None)
        line = None if part is None else user_source(self._stacks.stack(part.part_stack_trace_id))
        return None if line is None or (source is not None and line.line == source.line) else line

    def _equal_lines(self, event: TensorEvent, graph_id: int | None, source: Frame | None) -> tuple[Frame, ...]:
        """Returns the lines of the ops that are equal to the op of a tensor. The op's own line is left out.

        Ops in the gradient of this op are left out, because they have no line of their own.
        """
        ops = [op for op in self._flow.equal_ops(event) if not self._is_in_gradient_of(source, op, graph_id)]
        own_lines = [self._own_line(self._stacks.stack(op.stack_trace_id), graph_id) for op in ops]
        lines = {line.line: line for line in own_lines if line is not None}
        if source is not None:
            lines.pop(source.line, None)
        return tuple(lines.values())

    def _is_in_gradient_of(self, source: Frame | None, op: Op, graph_id: int | None) -> bool:
        """Returns whether an op belongs to the gradient of an op that is on the line of `source`."""
        label = NO_LABEL if graph_id is None else self._flow.labels.op(graph_id, op.op_name)
        forward = self._flow.labels.forward_op(label)
        line = None if forward is None else user_source(self._stacks.stack(forward.stack_trace_id))
        return line is not None and source is not None and line.line == source.line

    def _layer(self, label: Label, forward: Forward | None, called_from: Iterable[CallSite]) -> str | None:
        layers = [label.layer, forward.layer if forward else None, *(call.layer for call in called_from)]
        return next((layer for layer in layers if layer is not None), None)

    def _forward(self, forward: ForwardOp) -> Forward:
        return Forward(
            op_type=forward.op_type,
            op_name=forward.op_name,
            graph_name=self.graph_name(forward.graph_id),
            layer=forward.layer,
            source=user_source(self._stacks.stack(forward.stack_trace_id)),
            order=forward.order,
        )

    def _calls(self, place: GraphTensor | None, index: int | None) -> list[tuple[CallSite, Sequence[Frame], Label]]:
        """Returns the calls that led to the op of a graph tensor, innermost call first.

        Each item is (call, the user's frames that led to the call, label of the calling op). The frames do not reach
        beyond the function that contains the calling op.

        Args:
            place: The tensor; None for a tensor that is not in a graph. The result is then empty.
            index: The execution.
        """
        if place is None:
            return []
        calls: list[tuple[CallSite, Sequence[Frame], Label]] = []
        for level in reversed(self._flow.borders.levels(place.context, place.graph_id) or ()):
            call = level.call
            op = self._flow.graphs.op(call.graph_id, call.op_name)
            stack = () if op is None else self._stacks.stack(op.stack_trace_id)
            label = self._flow.labels.op(call.graph_id, call.op_name)
            site = CallSite(
                function=self.graph_name(call.callee_graph_id),
                op_name=call.op_name,
                graph_name=self.graph_name(call.graph_id),
                layer=label.layer,
                source=user_source(stack),
            )
            calls.append((site, self._own_frames(stack, call.graph_id), label))
        execution = None if index is None else self._flow.events.execution(index)
        if index is not None and execution is not None:
            label = self._flow.labels.execution(index)
            stack = self._stacks.stack(execution.stack_trace_id)
            site = CallSite(
                function=self.graph_name(self._flow.graphs.function_graphs.get(execution.op_type)),
                op_name=None,
                graph_name=None,
                layer=label.layer,
                source=user_source(stack),
            )
            calls.append((site, self._own_frames(stack, None), label))
        return calls

    def _is_in_unknown_call(self, event: TensorEvent) -> bool:
        """Returns whether it is unknown which op called the function of a tensor.

        The calling op is unknown if TensorFlow ran the function with a step ID of its own.
        """
        execution = self._flow.events.execution(event.execution_index)
        is_outermost = event.scope == "graph" and event.call_site == ""
        return is_outermost and execution is not None and execution.graph_id not in (None, event.graph_id)

    def _own_line(self, stack: tuple[Frame, ...], graph_id: int | None) -> Frame | None:
        """Returns the user's innermost frame in the stack of an op, or None if that frame is outside the op's function.

        If TensorFlow or Keras created the op without code of the user, as for a SavedModel, the user's frames in its
        stack are those of the call that traced the function. Another call may have run the op.
        """
        return next(iter(self._own_frames(stack, graph_id)), None)

    def _own_frames(self, stack: tuple[Frame, ...], graph_id: int | None) -> Sequence[Frame]:
        """Returns the user's frames in the stack of an op, without those of the call that traced the op's function.

        If it is not known where the function was traced, only the innermost frame is returned. Outside functions, all
        of the user's frames are returned.
        """
        own = [frame for frame in stack if frame.is_user]
        if graph_id is None:
            return own
        traced_at = [frame.line for frame in self._stacks.stack(self._graph_stack_ids.get(graph_id)) if frame.is_user]
        if [frame.line for frame in own] == traced_at:
            return []
        num_own = len(own) - len(traced_at)
        is_known = graph_id in self._graph_stack_ids and [frame.line for frame in own[num_own:]] == traced_at
        return own[:num_own] if is_known and num_own > 0 else own[:1]

    @cached_property
    def _graph_stack_ids(self) -> dict[int | None, int]:
        query = "SELECT graph_id, stack_trace_id FROM graph WHERE run_id = ? AND stack_trace_id IS NOT NULL"
        return dict(self._logdir.rows(query, [self._run_id]))

    def graph_name(self, graph_id: int | None) -> str | None:
        """Returns the name of a graph; None if the graph has no name."""
        return None if graph_id is None else self._flow.graphs.names.get(graph_id)


def _function_of(frame: Frame) -> tuple[str, str]:
    """Returns the file and the name of the function of a frame."""
    return frame.file_path, frame.func


def _is_users_gradient(stack: tuple[Frame, ...]) -> bool:
    """Returns whether the user wrote the gradient function that made an op, as with `tf.custom_gradient`."""
    user = next((depth for depth, frame in enumerate(stack) if frame.is_user), len(stack))
    return any(frame.func in GRADIENT_FUNCS and frame.owner == "framework" for frame in stack[user:])
