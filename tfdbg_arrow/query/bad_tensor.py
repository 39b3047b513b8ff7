"""NonFinite: the description of a bad tensor, put together from its run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.asked_runs import one_asked_run
from tfdbg_arrow.query.bad_samples import BadSamples, SampleFinder
from tfdbg_arrow.query.capture_stats import gap_sentences, read_capture_stats
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.culprits import Culprits
from tfdbg_arrow.query.flow.data_flow import DataFlow, Input
from tfdbg_arrow.query.flow.origins import Effect, Effects, Gradients, Origins
from tfdbg_arrow.query.flow.program_ops import ProgramOp
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.recorded import FLAT, EagerValue, TensorEvent, TensorHealth, health_facts, read_events
from tfdbg_arrow.query.stacks import Frame, source_text
from tfdbg_arrow.query.user_places import CallSite, Forward, UserPlaces
from tfdbg_arrow.query.wording import headline_of


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
        health: Its health, or for a variable the health of the last assigned value; None if it was not recorded. If
            TensorFlow did not compute the tensor, the counts are those that follow from another one, whose event_index
            it has.
        producer: Where it came from; None if that was not recorded.
    """

    index: int
    health: TensorHealth | None
    producer: Producer | None


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function from eager code.

    Attributes:
        function: The name of the function.
        number: Which of the calls in the run it is, from 1, in the order in which they began.
    """

    function: str
    number: int


@dataclass(frozen=True, kw_only=True)
class TensorContext:
    """Where and for what purpose a tensor, bad or not, was computed. The attributes are those of NonFinite."""

    inputs: tuple[InputTensor, ...]
    stack: tuple[Frame, ...]
    source: Frame | None
    forward: Forward | None
    called_from: tuple[CallSite, ...]
    layer: str | None
    made_at: Frame | None
    role: str | None
    ran_as: str | None
    equal_lines: tuple[Frame, ...]
    samples: BadSamples | None


@dataclass(frozen=True, kw_only=True, repr=False)
class NonFinite(TensorHealth):
    """A tensor that holds an infinity or a NaN. None means not measured in this mode, or not applicable.

    It also has the attributes of TensorHealth. If TensorFlow ran something in place of the program's op, they are
    those of the op's output if they follow from what was recorded, or else those of the row.

    Attributes:
        run_id: The run.
        wall_time_ns: When it was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        op_type: Type of the op of the program that made it; None for a tensor from outside.
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
        call: Without a step, the call from eager code in which the op ran. None if the op did not run in a function,
            and if the run does not have all executions.
        layer: The Keras layer or module that the op belongs to, as the user named it. For a gradient, that of its
            forward op. None outside layers.
        made_at: The line where the user made the Keras layer, loss, metric or optimizer that the op belongs to. For a
            gradient, that of its forward op. None outside of these, if the part was made before the recording began,
            and if `source` is this line.
        role: The purpose of the op: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        ran_as: What TensorFlow ran in place of the program's op, such as `LogSoftmax, run for Softmax and Log`; None if
            it ran the op as it is.
        equal_lines: The user's lines of other ops of the program that equal this one: TensorFlow's optimizer computed
            them all as one op. Each of these lines may be the one to change.
        effect: Where the badness of an origin ends: `variable` (an op wrote it to a variable), `result` (it was
            returned to the program, and nothing computes with it any more; or an integer or a boolean was made of a
            NaN and used; or the program got an error instead), `metric` (only metrics took it), `absorbed` (everything
            computed from it is finite). This includes what the gradient of its op made bad. None if it is unknown or
            the tensor is not an origin.
        is_expected: True if it is proven that the value did no harm: it was absorbed, or a check found it and an
            update was skipped, as an optimizer with dynamic loss scaling does for a step whose gradients overflow.
        expected_reason: Why the value is expected; None if it is not.
        samples: The samples that hold the bad elements, if the recording shows that the first axis is that of the batch
            or of the whole data; None if it does not.
        worker: The cluster task of the run, such as `worker:1`; None outside a cluster.
        left_out: What the run did not record, as requested or by loss. It may contain an earlier bad tensor.
        headline: The answer in one sentence: the user's line, the bad values, the step and the sample, such as
            "`log(1 - p)` at layers.py:12 made -Inf in step 211: sample 17 of the batch." What is not known is left out.
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
    call: FunctionCall | None = None
    layer: str | None = None
    made_at: Frame | None = None
    role: str | None = None
    ran_as: str | None = None
    equal_lines: tuple[Frame, ...] = ()
    effect: str | None = None
    is_expected: bool = False
    expected_reason: str | None = None
    samples: BadSamples | None = None
    worker: str | None = None
    left_out: tuple[str, ...] = ()
    headline: str = ""


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
        self._kinds = kinds
        self.flow = DataFlow.of(logdir, run_id=run_id)
        self.places = UserPlaces(logdir, self.flow, run_id=run_id)
        self.origins = Origins(self.flow, kinds=kinds, is_allowed=is_allowed)
        self.sinks = Sinks(logdir, self.flow, run_id=run_id, kinds=kinds)
        self._samples = SampleFinder(logdir, self.flow, run_id=run_id)
        self._calls_of = lru_cache(maxsize=64)(self._read_calls)
        self._texts = lru_cache(maxsize=16)(self._read_text)
        self.gradients = Gradients(logdir, self.flow, self.origins, run_id=run_id)

    @property
    def effects(self) -> Effects:
        """Determines where bad values end."""
        return self.culprits.effects

    @cached_property
    def culprits(self) -> Culprits:
        """Finds the op that caused the bad values of the run."""
        return Culprits(
            self._logdir,
            self.flow,
            self.origins,
            self.sinks,
            self.gradients,
            run_id=self._run_id,
            kinds=self._kinds,
        )

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
        maker = self.flow.program_ops.maker(event)
        output = None if maker is None else self.flow.program_ops.output(maker, event)
        health = event if output is None or not output.bad_kinds(self._kinds) else output
        context = self.context(event)
        found = NonFinite(
            run_id=self._run_id,
            **health_facts(health),
            wall_time_ns=event.wall_time_ns,
            op_type=event.op_type if maker is None else maker.op.op_type,
            op_name=event.op_name if maker is None else maker.op.op_name,
            graph_name=self.places.graph_name(event.graph_id if maker is None else maker.place.graph_id),
            iteration=event.iteration,
            output_slot=event.output_slot,
            device_name=None if event.device_id is None else self._devices.get(event.device_id),
            is_origin=self.origins.verdict(event).is_origin,
            **vars(context if health.first_bad_place is not None else replace(context, samples=None)),
            step=event.step,
            call=self._call(event) if event.step is None else None,
            effect=effect.name,
            is_expected=effect.expected_reason is not None,
            expected_reason=effect.expected_reason,
            worker=self._worker,
            left_out=self._left_out,
        )
        return replace(found, headline=headline_of(found, line=self._line(found.source)))

    def _line(self, source: Frame | None) -> str | None:
        """Returns the text of a line with its indentation, if the part of it that ran is known."""
        if source is None or source.colno is None:
            return None
        lines = self._texts(source.file_path) or ()
        return lines[source.lineno - 1] if 1 <= source.lineno <= len(lines) else None

    def _read_text(self, file_path: str) -> tuple[str, ...] | None:
        return source_text(self._logdir, file_path, run_id=self._run_id)

    def context(self, event: TensorEvent) -> TensorContext:
        """Returns the inputs of the op of a tensor, the stack that made or ran the op, and the op's purpose."""
        place = self.places.place(event)
        maker = self.flow.program_ops.maker(event)
        return TensorContext(
            inputs=self._inputs(event) if maker is None or maker.ran_as is None else self._program_inputs(maker, event),
            stack=place.stack,
            source=place.source,
            forward=place.forward,
            called_from=place.called_from,
            layer=place.layer,
            made_at=place.made_at,
            role=self.flow.labels.of(event).role,
            ran_as=None if maker is None else maker.ran_as,
            equal_lines=place.equal_lines,
            samples=self._samples.of(event),
        )

    def origin_of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin of a bad tensor."""
        with self.flow.lock:
            return self.origins.of(event)

    def own_effect(self, event: TensorEvent) -> Effect:
        """Returns where the badness of a tensor ends. All answers about single tensors take it from here.

        A tensor that only passed a bad value on has no effect of its own. It is expected if all of its origins are.
        """
        with self.flow.lock:
            roots = self.origins.roots([event], set())
            effects = [self.effects.of(root) for root in roots]
        reasons = [effect.expected_reason for effect in effects]
        return effects[0] if roots == [event] else Effect(None, None if None in reasons else reasons[0])

    def tensors_of_op(self, event: TensorEvent, *, limit: int) -> list[TensorEvent]:
        """Returns the first bad outputs of the op that made a tensor; of eager ops, those of the same type."""
        return read_events(
            self._logdir,
            "has_inf_or_nan AND graph_id IS NOT DISTINCT FROM ? AND op_name IS NOT DISTINCT FROM ? AND op_type IS NOT "
            f"DISTINCT FROM ? AND output_slot IS NOT DISTINCT FROM ? ORDER BY event_index LIMIT {limit}",
            [self._run_id, event.graph_id, event.op_name, event.op_type, event.output_slot],
        )

    def _call(self, event: TensorEvent) -> FunctionCall | None:
        """Returns the call from eager code in which the op of a tensor ran; None if its number is not known."""
        index = event.execution_index
        execution = self.flow.events.execution(index) if event.scope == "graph" else None
        if execution is None or execution.graph_id is None or index is None:
            return None
        name = self.places.graph_name(execution.graph_id)
        calls = () if name is None or not self._has_all_executions else self._calls_of(execution.graph_id)
        number = bisect_right(calls, index)
        return None if name is None or number == 0 else FunctionCall(name, number)

    @cached_property
    def _has_all_executions(self) -> bool:
        query = "SELECT count(*) = coalesce(max(execution_index) + 1, 0) FROM execution WHERE run_id = ?"
        ((has_all,),) = self._logdir.rows(query, [self._run_id])
        return bool(has_all)

    def _read_calls(self, graph_id: int) -> tuple[int, ...]:
        """Returns the executions that call the Python function of a graph, in order; none for runs of sessions."""
        names = self.flow.graphs.names
        graph_ids = [other for other, name in names.items() if name == names.get(graph_id)]
        if len(graph_ids) > 1:
            # A function has a graph for each signature. Another function of the same name has no op on the same line.
            rows = self._logdir.rows(
                "SELECT DISTINCT s.graph_id FROM op_source AS own JOIN op_source AS s ON s.run_id = own.run_id "
                "AND s.file_path = own.file_path AND s.lineno = own.lineno WHERE own.run_id = ? AND own.graph_id = ? "
                f"AND s.graph_id IN ({', '.join('?' * len(graph_ids))})",
                [self._run_id, graph_id, *graph_ids],
            )
            graph_ids = [graph_id, *(other for (other,) in rows if other != graph_id)]
        rows = self._logdir.rows(
            "SELECT e.execution_index FROM execution AS e JOIN graph_function AS f ON f.run_id = e.run_id "
            "AND f.function_name = e.op_type AND f.session_index IS NULL "
            f"WHERE e.run_id = ? AND e.graph_id IN ({', '.join('?' * len(graph_ids))}) ORDER BY e.execution_index",
            [self._run_id, *graph_ids],
        )
        return tuple(index for (index,) in rows)

    def _inputs(self, event: TensorEvent) -> tuple[InputTensor, ...]:
        return tuple(self._input(input_) for input_ in self.flow.inputs_of(event))

    def _program_inputs(self, maker: ProgramOp, event: TensorEvent) -> tuple[InputTensor, ...]:
        """Returns the inputs that an op has in the program, where TensorFlow ran another op in its place."""
        healths = self.flow.program_ops.inputs(maker, event)
        inputs = []
        for index, edge in enumerate(maker.op.inputs):
            trace = self.flow.trace(maker.place.of_op(*edge), how="graph", near=event.event_index)
            health, producer = healths.get(index), self._producer(Input(index, trace, None))
            if producer is not None and health != trace.health:
                producer = replace(producer, event_index=None)
            inputs.append(InputTensor(index, None if health is None else _health(health), producer))
        return tuple(inputs)

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
            graph_name=self.places.graph_name(write.graph_id),
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
            graph_name=self.places.graph_name(trace.place.graph_id),
            output_slot=trace.place.output_slot,
            event_index=event_index,
            execution_index=trace.place.context.execution_index,
            how=trace.how,
        )


def _health(event: TensorEvent) -> TensorHealth:
    return TensorHealth(**health_facts(event))


def run_and_row(logdir: Engine, tensor: NonFinite | int, run_id: str | None) -> tuple[str, int]:
    """Returns the run and the event_index of the tensor that a question is about.

    Args:
        logdir: The logdir.
        tensor: The tensor, or its event_index.
        run_id: The run. None means that of the tensor, or for an event_index the newest run.

    Raises:
        QueryError: The run is unknown, not that of the tensor, or not the only one to choose from.
    """
    if not isinstance(tensor, NonFinite):
        return one_asked_run(logdir, run_id), tensor
    if run_id not in (None, tensor.run_id):
        raise QueryError(f"run_id is {run_id!r}, but the tensor is of the run {tensor.run_id}; leave out run_id.")
    return tensor.run_id, tensor.event_index
