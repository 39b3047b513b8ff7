"""NonFinite: the description of a bad tensor, put together from its run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from tfdbg_arrow.query.capture_stats import gap_sentences, read_capture_stats
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow, Input
from tfdbg_arrow.query.flow.events import Label
from tfdbg_arrow.query.flow.origins import Effect, Effects, Origins
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.recorded import FLAT, EagerValue, TensorEvent, TensorHealth, health_facts
from tfdbg_arrow.query.stacks import Frame, StackReader, user_source

_GRADIENT_FUNCS = frozenset({"imperative_grad", "_GradientsHelper"})
"""Functions of TensorFlow that call the code of gradients."""


@dataclass(frozen=True)
class Producer:
    """Where an input came from.

    Attributes:
        op_type: Type of the op that computed it, or the name of an unrecorded function; None for a tensor from outside.
        op_name: That op's name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        output_slot: Index of the op's output; None for a variable's writer and if unknown.
        event_index: Its row in tensor_health; None if it was not recorded.
        execution_index: The execution that made it, or in whose call it was made; None if unknown.
        how: The first border between it and its user: `graph` (none, in one graph), `argument` or `capture`
            (of a function), `loop` (a loop variable), `call` (a function's result), `variable` (read from a variable;
            the op is the one that wrote it last), `eager` (none, between eager ops), `external` (from outside).
    """

    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    event_index: int | None
    execution_index: int | None
    how: str


@dataclass(frozen=True)
class InputTensor:
    """One input of the op that made a bad tensor.

    Attributes:
        index: Index of the input, from 0.
        health: Its health, or for a variable the health of the last assigned value; None if it was not recorded.
        producer: Where it came from; None if that was not recorded.
    """

    index: int
    health: TensorHealth | None
    producer: Producer | None


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The op whose gradient an op computes.

    Attributes:
        op_type: Its type, or the name of the function that it called.
        op_name: Its name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        layer: The Keras layer or module that it belongs to, as the user named it; None outside layers.
        source: The user's innermost frame in the stack that created or executed it, or None.
    """

    op_type: str | None
    op_name: str | None
    graph_name: str | None
    layer: str | None
    source: Frame | None


@dataclass(frozen=True, kw_only=True)
class CallSite:
    """One call on the way from eager code to an op.

    Attributes:
        function: Name of the called graph.
        op_name: The calling op in its graph; None for the call from eager code.
        graph_name: That graph's name; None for the call from eager code.
        layer: The Keras layer or module that called, as the user named it; None outside layers.
        source: The user's innermost frame where the call was written, or None.
    """

    function: str | None
    op_name: str | None
    graph_name: str | None
    layer: str | None
    source: Frame | None


@dataclass(frozen=True, kw_only=True)
class TensorContext:
    """Where and for what purpose a tensor, bad or not, was computed. The attributes are those of NonFinite."""

    inputs: tuple[InputTensor, ...]
    stack: tuple[Frame, ...]
    source: Frame | None
    forward: Forward | None
    called_from: tuple[CallSite, ...]
    layer: str | None
    role: str | None
    program_ops: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class NonFinite(TensorHealth):
    """A tensor that holds an infinity or a NaN. None means not measured in this mode, or not applicable.

    It also has the attributes of TensorHealth.

    Attributes:
        run_id: The run.
        wall_time_ns: When it was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        op_type: Type of the op that made it; None for a tensor from outside.
        op_name: That op's name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        iteration: Iteration of the loop, from 0; None outside graphs.
        output_slot: Which output of the op, from 0; None for a tensor from outside.
        device_name: Where it was computed.
        is_origin: True if it is proven that this op created one of the requested kinds: the tensor holds it, and no
            input of the op does. False if an input holds it, or if an input that could hold it was not recorded.
        inputs: The inputs of the op, in order.
        stack: The Python stack that created the op (in a graph), executed it (eagerly) or first used the tensor
            (from outside), innermost frame first.
        source: The line to look at: the user's innermost frame of the op, or for a gradient that of the forward op. If
            these have none, it is the frame of the innermost call that has one. None if there is none.
        forward: For a gradient, the op whose gradient it computes; None for other ops and if it was not recorded.
        called_from: The calls that led to this execution of the op, innermost first, ending with the call from eager
            code; empty for an eager op.
        step: The training step, as marked.
        layer: The Keras layer or module that the op belongs to, as the user named it. For a gradient, that of its
            forward op. None outside layers.
        role: The purpose of the op: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        program_ops: The types of the program's ops that TensorFlow ran as this one op, in order of creation, such as
            `("Softmax", "Log")` for a LogSoftmax; empty if it ran the program's op itself.
        effect: Where the badness of an origin ends: `variable` (an op wrote it to a variable), `result` (it was
            returned to the program, and nothing computes with it any more), `metric` (only metrics took it),
            `absorbed` (everything computed from it is finite). None if it is unknown or the tensor is not an origin.
        is_expected: True if it is proven that the value did no harm: it was absorbed, or a check found it and an
            update was skipped, as an optimizer with dynamic loss scaling does for a step whose gradients overflow.
        expected_reason: Why the value is expected; None if it is not.
        worker: The cluster task of the run, such as `worker:1`; None outside a cluster.
        left_out: What the run did not record, as requested or by loss. It may contain an earlier bad tensor.
    """

    run_id: str
    wall_time_ns: int
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    iteration: int | None
    output_slot: int | None
    device_name: str | None
    is_origin: bool
    inputs: tuple[InputTensor, ...]
    stack: tuple[Frame, ...]
    source: Frame | None
    forward: Forward | None = field(default=None, metadata={FLAT: True})
    called_from: tuple[CallSite, ...] = ()
    step: int | None = None
    layer: str | None = None
    role: str | None = None
    program_ops: tuple[str, ...] = ()
    effect: str | None = None
    is_expected: bool = False
    expected_reason: str | None = None
    worker: str | None = None
    left_out: tuple[str, ...] = ()


class BadTensorReader:
    """Describes the bad tensors of one run.

    Args:
        logdir: The logdir.
        run_id: The run.
        kinds: The kinds that count: `nan`, `inf` or both.
        is_allowed: Returns whether an origin is allowed to be bad.
    """

    def __init__(
        self,
        logdir: Engine,
        *,
        run_id: str,
        kinds: tuple[str, ...],
        is_allowed: Callable[[TensorEvent], bool] = lambda event: False,
    ) -> None:
        logdir = logdir.of_run(run_id)
        self._logdir = logdir
        self._run_id = run_id
        self._stacks = StackReader(logdir, run_id=run_id)
        self.flow = DataFlow.of(logdir, run_id=run_id)
        self.origins = Origins(self.flow, kinds=kinds, is_allowed=is_allowed)
        self.sinks = Sinks(logdir, self.flow, run_id=run_id, kinds=kinds)

    @cached_property
    def effects(self) -> Effects:
        """Determines where bad values end."""
        return Effects(self._logdir, self.flow, self.origins, self.sinks, run_id=self._run_id)

    @cached_property
    def _devices(self) -> dict[int, str]:
        return dict(self._logdir.rows("SELECT device_id, device_name FROM device WHERE run_id = ?", [self._run_id]))

    @cached_property
    def _worker(self) -> str | None:
        ((worker,),) = self._logdir.rows("SELECT max(worker) FROM run WHERE run_id = ?", [self._run_id])
        return None if worker is None else str(worker)

    @cached_property
    def _left_out(self) -> tuple[str, ...]:
        stats = read_capture_stats(self._logdir, run_id=self._run_id)
        return gap_sentences(stats).get(self._run_id, ())

    def describe(self, event: TensorEvent, *, effect: Effect | None) -> NonFinite:
        """Returns the description of a bad tensor.

        Args:
            event: The tensor.
            effect: Where its badness ends; None if this was not determined.
        """
        with self.flow.lock:
            return self._describe(event, effect or Effect(None, None))

    def _describe(self, event: TensorEvent, effect: Effect) -> NonFinite:
        return NonFinite(
            run_id=self._run_id,
            **health_facts(event),
            wall_time_ns=event.wall_time_ns,
            op_type=event.op_type,
            op_name=event.op_name,
            graph_name=self._graph_name(event.graph_id),
            iteration=event.iteration,
            output_slot=event.output_slot,
            device_name=None if event.device_id is None else self._devices.get(event.device_id),
            is_origin=self.origins.verdict(event).is_origin,
            **vars(self.context(event)),
            step=event.step,
            effect=effect.name,
            is_expected=effect.expected_reason is not None,
            expected_reason=effect.expected_reason,
            worker=self._worker,
            left_out=self._left_out,
        )

    def context(self, event: TensorEvent) -> TensorContext:
        """Returns the inputs of the op of a tensor, the stack that made or ran the op, and the op's purpose."""
        inputs = tuple(self._input(input_) for input_ in self.flow.inputs_of(event))
        stack = self._stacks.stack(self.flow.stack_trace_id(event))
        label = self.flow.labels.of(event)
        forward = None if _is_users_gradient(stack) else self._forward(self.flow.label_of_maker(event))
        calls = self._calls(event)
        called_from = tuple(call for call, _ in calls)
        lines = [
            forward.source if forward else None,
            self._own_line(stack, event.graph_id),
            *(line for _, line in calls),
            user_source(stack),
        ]
        return TensorContext(
            inputs=inputs,
            stack=stack,
            source=next((line for line in lines if line is not None), None),
            forward=forward,
            called_from=called_from,
            layer=self._layer(label, forward, called_from),
            role=label.role,
            program_ops=self.flow.program_ops(event),
        )

    def _layer(self, label: Label, forward: Forward | None, called_from: Iterable[CallSite]) -> str | None:
        layers = [label.layer, forward.layer if forward else None, *(call.layer for call in called_from)]
        return next((layer for layer in layers if layer is not None), None)

    def _forward(self, label: Label) -> Forward | None:
        """Returns the op whose gradient an op computes, or None."""
        forward = self.flow.labels.forward_op(label)
        if forward is None:
            return None
        return Forward(
            op_type=forward.op_type,
            op_name=forward.op_name,
            graph_name=self._graph_name(forward.graph_id),
            layer=forward.layer,
            source=user_source(self._stacks.stack(forward.stack_trace_id)),
        )

    def _calls(self, event: TensorEvent) -> list[tuple[CallSite, Frame | None]]:
        """Returns the calls that led to the op of a graph's tensor, innermost first, each with its own line."""
        if event.scope != "graph" or event.graph_id is None:
            return []
        found = []
        for level in reversed(self.flow.borders.levels(event.context, event.graph_id) or ()):
            call = level.call
            op = self.flow.graphs.op(call.graph_id, call.op_name)
            stack = () if op is None else self._stacks.stack(op.stack_trace_id)
            site = CallSite(
                function=self._graph_name(call.callee_graph_id),
                op_name=call.op_name,
                graph_name=self._graph_name(call.graph_id),
                layer=self.flow.labels.op(call.graph_id, call.op_name).layer,
                source=user_source(stack),
            )
            found.append((site, self._own_line(stack, call.graph_id)))
        index = event.execution_index
        execution = None if index is None else self.flow.events.execution(index)
        if index is not None and execution is not None:
            site = CallSite(
                function=self._graph_name(self.flow.graphs.function_graphs.get(execution.op_type)),
                op_name=None,
                graph_name=None,
                layer=self.flow.labels.execution(index).layer,
                source=user_source(self._stacks.stack(execution.stack_trace_id)),
            )
            found.append((site, site.source))
        return found

    def _own_line(self, stack: tuple[Frame, ...], graph_id: int | None) -> Frame | None:
        """Returns the user's innermost frame in the stack of an op, or None if that frame is outside the op's function.

        The stack of an op that TensorFlow or Keras created itself, as in a SavedModel, has the user's frames of the
        call for which its function was traced. A different call may have led to its execution.
        """
        traced_at = [frame for frame in self._stacks.stack(self._graph_stack_ids.get(graph_id)) if frame.is_user]
        own = [frame for frame in stack if frame.is_user]
        return None if own == traced_at else user_source(stack)

    @cached_property
    def _graph_stack_ids(self) -> dict[int | None, int]:
        query = "SELECT graph_id, stack_trace_id FROM graph WHERE run_id = ? AND stack_trace_id IS NOT NULL"
        return dict(self._logdir.rows(query, [self._run_id]))

    def origin_of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin of a bad tensor."""
        with self.flow.lock:
            return self.origins.of(event)

    def _input(self, input_: Input) -> InputTensor:
        trace = input_.trace
        if trace.dtype == "resource":
            return self._resource_input(input_)
        health = trace.health
        return InputTensor(input_.index, None if health is None else _health(health), self._producer(input_))

    def _resource_input(self, input_: Input) -> InputTensor:
        write = input_.write
        if write is None:
            producer = None if input_.trace.is_lost else Producer(None, None, None, None, None, None, "external")
            return InputTensor(input_.index, None, producer)
        health = None
        if write.is_replacing and len(write.values) == 1:
            health = self.flow.trace(write.values[0], how="graph", near=2**63 - 1).health
        producer = Producer(
            op_type=write.op_type,
            op_name=write.op_name,
            graph_name=self._graph_name(write.graph_id),
            output_slot=None,
            event_index=None,
            execution_index=write.execution_index,
            how="variable",
        )
        return InputTensor(input_.index, None if health is None else _health(health), producer)

    def _producer(self, input_: Input) -> Producer | None:
        trace = input_.trace
        event_index = None if trace.event is None else trace.event.event_index
        if isinstance(trace.place, EagerValue):
            tensor = self.flow.events.eager(trace.place.tensor_id)
            return Producer(
                op_type=tensor.op_type,
                op_name=None,
                graph_name=None,
                output_slot=tensor.output_slot,
                event_index=event_index,
                execution_index=tensor.execution_index,
                how=trace.how,
            )
        op = self.flow.graphs.op(trace.place.graph_id, trace.place.op_name)
        return Producer(
            op_type=None if op is None else op.op_type,
            op_name=trace.place.op_name,
            graph_name=self._graph_name(trace.place.graph_id),
            output_slot=trace.place.output_slot,
            event_index=event_index,
            execution_index=trace.place.context.execution_index,
            how=trace.how,
        )

    def _graph_name(self, graph_id: int | None) -> str | None:
        return None if graph_id is None else self.flow.graphs.names.get(graph_id)


def _health(event: TensorEvent) -> TensorHealth:
    return TensorHealth(**health_facts(event))


def _is_users_gradient(stack: tuple[Frame, ...]) -> bool:
    """Returns whether the user wrote a gradient (`tf.custom_gradient`), so that TensorFlow called the user's code."""
    user = next((depth for depth, frame in enumerate(stack) if frame.is_user), len(stack))
    return any(frame.func in _GRADIENT_FUNCS and frame.owner == "framework" for frame in stack[user:])
