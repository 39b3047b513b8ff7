"""BadTensorReader: makes the description of a bad tensor from the rows of its run."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.asked_runs import one_asked_run
from tfdbg_arrow.query.bad_samples import BadSamples, SampleFinder
from tfdbg_arrow.query.capture_stats import gap_sentences, read_capture_stats
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.culprits import Culprits
from tfdbg_arrow.query.flow.data_flow import DataFlow, Input
from tfdbg_arrow.query.flow.effects import LITERAL, Effect, Effects
from tfdbg_arrow.query.flow.gradients import Gradients
from tfdbg_arrow.query.flow.loop_bodies import LoopRun
from tfdbg_arrow.query.flow.origins import Origins, TooManyTensorsError
from tfdbg_arrow.query.flow.program_ops import ProgramOp
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.headline import headline_of
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.nonfinite_tensor import FunctionCall, InputTensor, NonFinite, Producer, TensorContext
from tfdbg_arrow.query.outside_tensors import CAPTURED, WRITTEN, OutsideTensors
from tfdbg_arrow.query.recorded import (
    EagerValue,
    Execution,
    GraphTensor,
    Op,
    TensorEvent,
    health_facts,
    health_of,
    read_events,
)
from tfdbg_arrow.query.stacks import Frame, executed_span, source_text
from tfdbg_arrow.query.user_places import UserPlaces
from tfdbg_arrow.schema.op_traits import OPTIMIZERS, PIPELINE_ENDS, WITH_WEIGHTS, Trait, types_with

_MAX_FETCHES = 3
"""Maximum number of a session's fetches that a text names."""
_MAX_FOLLOWED = 20_000
"""Maximum number of bad tensors that are followed back from one tensor to find its effect. They take some 5 s."""
_MAX_RIVALS = 20
"""Maximum number of other origins whose lines are read. A longer list would not help the user."""
_SINGULAR = types_with(Trait.IS_SINGULAR)
_BACKWARD = re.compile(r"__backward_(.+)_\d+", re.DOTALL)
"""Matches the name of a TensorFlow function that computes the gradient of another function.

Source: tensorflow/python/eager/polymorphic_function/concrete_function.py.
"""
_SEVERAL_STEPS_OF_KERAS = "multi_step_on_iterator"
"""The name of the Keras function that trains on several batches in one call."""


class BadTensorReader:
    """Describes the bad tensors of one run.

    Args:
        logdir: The logdir.
        run_id: The run.
        kinds: The kinds of bad values to look for: `nan`, `inf` or both.
        is_allowed: Returns whether an origin is allowed to be bad. None means that no origin is allowed to be bad.
    """

    def __init__(
        self,
        logdir: Engine,
        *,
        run_id: str,
        kinds: tuple[str, ...],
        is_allowed: Callable[[TensorEvent], bool] | None = None,
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
        self._outside = OutsideTensors(self.flow)
        self._calls_of = lru_cache(maxsize=64)(self._read_calls)
        self._texts = lru_cache(maxsize=16)(self._read_text)
        self.gradients = Gradients(logdir, self.flow, self.origins, run_id=run_id)

    @property
    def effects(self) -> Effects:
        """The object that determines where bad values end up."""
        return self.culprits.effects

    @cached_property
    def culprits(self) -> Culprits:
        """The object that finds the op that caused the bad values of the run."""
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

    def describe(self, event: TensorEvent, *, effect: Effect | None, rivals: Sequence[TensorEvent] = ()) -> NonFinite:
        """Returns the description of a bad tensor.

        Args:
            event: The tensor.
            effect: Where the bad values of the tensor end up; None if this was not determined.
            rivals: Other origins that are equally responsible.
        """
        with self.flow.lock:
            described = self._describe(event, effect or Effect(None, None))
            return replace(described, also_bad=self._lines_of(rivals, beside=described))

    def _lines_of(self, rivals: Sequence[TensorEvent], *, beside: NonFinite) -> tuple[Frame, ...]:
        """Returns the source lines of other origins, except lines that the answer already names.

        `code` of each frame is the part of the line that made the origin, if that part is known. Two kinds of overflows
        are left out, because they need no separate fix: an overflow inside the expression of another overflow, and, if
        the answer is an overflow of a layer, overflows of other layers.
        """
        named = [line for line in (beside.source, *beside.equal_lines) if line is not None]
        parts = {(line.line, line.colno, line.end_colno) for line in named}
        lines: dict[object, Frame] = {}
        for rival in islice(rivals, _MAX_RIVALS):
            source = self.places.place(rival).source
            if source is None or (part := (source.line, source.colno, source.end_colno)) in parts:
                continue
            if {rival.op_type, beside.op_type} <= WITH_WEIGHTS:  # growing weights make many layers overflow in one call
                continue
            are_overflows = not _SINGULAR & {rival.op_type, beside.op_type}
            if are_overflows and any(self._is_inside(source, line) for line in named):
                continue
            if (text := self._line(source)) is not None and (span := executed_span(source, text)) is not None:
                lines.setdefault(part, replace(source, code=text[slice(*span)]))
            elif source.line not in {line.line for line in named}:
                lines.setdefault(source.line, source)
        return tuple(lines.values())

    def _is_inside(self, inner: Frame, outer: Frame) -> bool:
        """Returns whether the part of a line that `inner` executes lies inside the part that `outer` executes."""
        text = self._line(inner)
        if text is None or inner.line != outer.line:
            return False
        inner_span, outer_span = executed_span(inner, text), executed_span(outer, text)
        if inner_span is None or outer_span is None:
            return False
        return outer_span[0] <= inner_span[0] and inner_span[1] <= outer_span[1]

    def _describe(self, event: TensorEvent, effect: Effect) -> NonFinite:
        event = self.flow.as_written(event)
        maker = self.flow.program_ops.maker(event)
        health = self.flow.program_ops.as_output(event, kinds=self._kinds)
        context = self.context(event)
        in_graph = self.flow.output_of_python_function(event) or event
        # A data set reads ahead: one of its functions makes a record in one step, and a later step uses this record.
        is_record = self.flow.labels.is_in_data_set(in_graph)
        row_with_step = self._element_of(in_graph) if is_record else event
        step = None if row_with_step is None else row_with_step.step
        has_samples = health.first_bad_place is not None or is_record
        run_of_loop = self.flow.loop_bodies.run_of(event)
        iteration = None if run_of_loop is None else run_of_loop.num_iterations - 1
        described = NonFinite(
            run_id=self._run_id,
            **health_facts(health),
            wall_time_ns=event.wall_time_ns,
            op_type=event.op_type if maker is None else maker.op.op_type,
            op_name=event.op_name if maker is None else maker.op.op_name,
            graph_name=self.places.graph_name(event.graph_id if maker is None else maker.place.graph_id),
            iteration=iteration if event.loop_iteration is None else event.loop_iteration,
            output_slot=None if (event.op_type or "").startswith(OPTIMIZERS) else event.output_slot,
            device_name=None if event.device_id is None else self._devices.get(event.device_id),
            is_origin=self.origins.verdict(event).is_origin,
            **vars(context if has_samples else replace(context, samples=None)),
            step=step,
            step_in_call=None if row_with_step is None or step is None else self._step_in_call(row_with_step),
            call=self._call(in_graph, context.stack, run_of_loop, record_in=row_with_step if is_record else None)
            if step is None
            else None,
            effect=effect.name,
            is_expected=effect.expected_reason is not None,
            expected_reason=effect.expected_reason,
            ended_in_error=self.ended_in_error(event, effect),
            worker=self._worker,
            left_out=self._left_out,
        )
        name = self._outside.name(event) if described.samples is None else described.samples.name
        name = CAPTURED if name is None and self.places.use_of_captured(event) is not None else name
        name = WRITTEN if effect.expected_reason == LITERAL and self.effects.is_in_code(event) else name
        described = replace(described, outside_name=name)
        later = () if maker is None else maker.later
        headline = headline_of(
            described,
            line=self._line(described.source),
            later=later,
            outer_iterations=self._outer_iterations(in_graph),
        )
        return replace(described, headline=headline)

    def _outer_iterations(self, event: TensorEvent) -> list[int | None]:
        """Returns the iteration of each loop around a tensor's innermost loop, beginning with the outermost loop."""
        own = event.graph_tensor
        if own is None or event.loop_iteration is None:
            return []
        return [iteration for _, iteration in self.flow.sites.loops_around(own.context, own.graph_id)][:-1]

    def _line(self, source: Frame | None) -> str | None:
        """Returns the text of a line with its indentation; None if it is not known which part of the line ran."""
        if source is None or source.colno is None:
            return None
        lines = self._texts(source.file_path) or ()
        return lines[source.lineno - 1] if 1 <= source.lineno <= len(lines) else None

    def _read_text(self, file_path: str) -> tuple[str, ...] | None:
        return source_text(self._logdir, file_path, run_id=self._run_id)

    def context(self, event: TensorEvent) -> TensorContext:
        """Returns what surrounds the op of a tensor: its source line, inputs, role and samples."""
        maker = self.flow.program_ops.maker(event)
        return TensorContext(
            **vars(self.places.place(event)),
            inputs=self._inputs(event) if maker is None or maker.ran_as is None else self._program_inputs(maker, event),
            role=self.flow.label_of_maker(event).role,
            ran_as=None if maker is None else maker.ran_as,
            samples=self._samples_of(event),
        )

    def origin_of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin of a bad tensor."""
        with self.flow.lock:
            return self.origins.of(event)

    def ended_in_error(self, event: TensorEvent, effect: Effect) -> bool:
        """Returns whether a bad value counts as a result because its call raised an error."""
        return effect.name == "result" and event.execution_index in self.sinks.failed_calls.executions

    def own_effect(self, event: TensorEvent) -> Effect:
        """Returns where the bad values of a tensor end up. All answers about single tensors call this method.

        A tensor that only passed a bad value on has no effect of its own. Such a tensor is expected if all of its
        origins are expected. If too many bad tensors lie between the tensor and its origins, the effect is not known.
        """
        with self.flow.lock:
            try:
                roots = self.origins.roots([event], set(), limit=_MAX_FOLLOWED)
            except TooManyTensorsError:
                return Effect(None, None)
            effects = [self.effects.of(root) for root in roots]
        reasons = [effect.expected_reason for effect in effects]
        return effects[0] if roots == [event] else Effect(None, None if None in reasons else reasons[0])

    def tensors_of_op(self, event: TensorEvent, *, limit: int) -> list[TensorEvent]:
        """Returns the first bad tensors of the output that a tensor was recorded at, over all runs of the tensor's op.

        For an eager op, all eager ops of the same type count.
        """
        return read_events(
            self._logdir,
            "has_inf_or_nan AND graph_id IS NOT DISTINCT FROM ? AND op_name IS NOT DISTINCT FROM ? AND op_type IS NOT "
            f"DISTINCT FROM ? AND output_slot IS NOT DISTINCT FROM ? ORDER BY event_index LIMIT {limit}",
            [self._run_id, event.graph_id, event.op_name, event.op_type, event.output_slot],
        )

    def _call(
        self,
        event: TensorEvent,
        stack: tuple[Frame, ...],
        run_of_loop: LoopRun | None,
        *,
        record_in: TensorEvent | None,
    ) -> FunctionCall | None:
        """Returns the call from eager code that ran the op of a tensor.

        For a tensor from outside, returns the call that first took the tensor. For a record that a data set made,
        returns the call that first took the batch of the record (`record_in`).

        The result is None if the number of the call is not known. The result is also None for a function that
        TensorFlow or Keras defines internally, such as one that `jacobian` creates: users do not know the names of such
        functions.
        """
        index = event.execution_index if run_of_loop is None else run_of_loop.execution_index
        if record_in is not None and record_in.tensor_id is not None:
            uses = (use.execution for use in self.flow.events.uses(record_in.tensor_id))
            index = next((use.execution_index for use in uses if use.graph_id is not None), None)
        execution = self.flow.events.execution(index) if event.scope != "execution" else None
        if execution is None or execution.graph_id is None or index is None:
            return None
        if execution.op_type in self.flow.graphs.sessions:
            return self._run_of_session(execution)
        name = self._user_name(execution.graph_id)
        calls = () if name is None or not self._has_all_executions else self._calls_of(execution.graph_id)
        number = bisect_right(calls, index)
        owners = {frame.owner for frame in stack if frame.func.rpartition(".")[2] == name}
        return None if name is None or number == 0 or owners == {"framework"} else FunctionCall(name, number, index)

    def executions_of(self, call: FunctionCall) -> Sequence[int]:
        """Returns the executions that are counted in the number of a call, in order."""
        execution = self.flow.events.execution(call.execution_index)
        if execution is None or execution.graph_id is None:
            return ()
        if execution.op_type in self.flow.graphs.sessions:
            return [run.execution_index for run in self.flow.events.executions_of([execution.op_type])]
        return self._calls_of(execution.graph_id)

    def _run_of_session(self, execution: Execution) -> FunctionCall | None:
        """Returns a session's run, with its number among the runs that have the same fetches.

        The result is None if the recording does not have all executions.
        """
        if not self._has_all_executions:
            return None
        runs = self.flow.events.executions_of([execution.op_type])
        number = sum(run.execution_index <= execution.execution_index for run in runs)
        fetches = self.flow.borders.sessions.fetches_of(execution.op_type)
        more = ["..."] if len(fetches) > _MAX_FETCHES else []
        fetched = ", ".join(fetches[:_MAX_FETCHES] + more)
        return FunctionCall(f"Session.run([{fetched}])", number, execution.execution_index)

    def _element_of(self, event: TensorEvent) -> TensorEvent | None:
        """Returns the batch that contains the record of a bad tensor, or None if the batch is not certain.

        The batch is certain if the number of its bad samples equals the number of bad records that the functions of the
        data set had made before the batch. The batch is also certain if the data set keeps the order of the records,
        because the first bad records then belong to the first bad batch.
        """
        ends = " OR ".join("starts_with(op_type, ?)" for _ in PIPELINE_ENDS)
        rows = read_events(
            self._logdir,
            "event_index IN (SELECT min(event_index) FROM tensor_health WHERE run_id = ? AND has_inf_or_nan "
            f"AND event_index > ? AND ({ends}) GROUP BY output_slot) ORDER BY event_index",
            [self._run_id, self._run_id, event.event_index, *PIPELINE_ENDS],
        )
        for row in rows:
            records = list(dict.fromkeys(source.step_id for source in self.flow.sources_of(row).events))
            if event.step_id not in records[: row.num_bad_slices or 0]:
                continue
            if row.num_bad_slices == len(records) or self._samples.has_calls_in_order(row):
                return row
        return None

    def _samples_of(self, event: TensorEvent) -> BadSamples | None:
        in_graph = self.flow.output_of_python_function(event) or event
        if not self.flow.labels.is_in_data_set(in_graph):
            return self._samples.of(event)
        batch = self._element_of(in_graph)
        samples = None if batch is None else self._samples.of(batch)
        if samples is None:
            return None
        # The bad samples of one component say nothing about the other components.
        is_alike = all(
            (beside.health.first_bad_place or (None,))[0] == samples.first
            and beside.health.num_bad_slices == samples.num_bad
            for beside in samples.inputs
            if beside.health.has_inf_or_nan
        )
        facts = (samples.num_bad, samples.numbers) if is_alike else (None, ())
        return replace(samples, name=None, inputs=(), num_bad=facts[0], numbers=facts[1])

    def _step_in_call(self, event: TensorEvent) -> int | None:
        """Returns the number of a tensor's training step in a Keras call that runs several steps; otherwise None."""
        own = event.graph_tensor
        execution = None if own is None else self.flow.events.execution(own.context.execution_index)
        if own is None or execution is None or execution.graph_id is None:
            return None
        if self.places.graph_name(execution.graph_id) != _SEVERAL_STEPS_OF_KERAS:
            return None
        loops = self.flow.sites.loops_around(own.context, own.graph_id)
        if not loops or loops[0][0].call.attribute != "body":
            return None
        loop, iteration = loops[0]
        body_id = loop.call.callee_graph_id
        if body_id is None:
            return None
        # Before each step, the loop checks whether there is another batch. An iteration of an unrolled loop has several
        # steps.
        num_steps = sum(op.op_type == "OptionalHasValue" for op in self.flow.graphs.graph(body_id).ops.values())
        return iteration if num_steps == 1 else None

    def _user_name(self, graph_id: int | None) -> str | None:
        """Returns the user's name for the function of a graph, such as `test_function` for a function of Keras.

        The name is `the gradient of f` if TensorFlow made the function to compute the gradient of `f`.
        """
        names = user_names(self._logdir, run_id=self._run_id)
        name = names.get(graph_id) if graph_id in names else self.places.graph_name(graph_id)
        backward = _BACKWARD.fullmatch(name or "")
        return name if backward is None else f"the gradient of {backward[1]}"

    @cached_property
    def _has_all_executions(self) -> bool:
        query = "SELECT count(*) = coalesce(max(execution_index) + 1, 0) FROM execution WHERE run_id = ?"
        ((has_all,),) = self._logdir.rows(query, [self._run_id])
        return bool(has_all)

    def _read_calls(self, graph_id: int) -> tuple[int, ...]:
        """Returns the executions that call the Python function of a graph, in order.

        Runs of sessions are not included.
        """
        own_name = self._user_name(graph_id)
        graph_ids = [other for other in self.flow.graphs.names if self._user_name(other) == own_name]
        if len(graph_ids) > 1:
            # A Python function has one graph for each signature. The graphs of one function share source lines. Graphs
            # of different functions with the same name do not share source lines.
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
        inputs = tuple(self._input(input_) for input_ in self.flow.inputs_of(event))
        own = event.graph_tensor
        op = None if own is None else self.flow.graphs.op(own.graph_id, own.op_name)
        return inputs if own is None or op is None else tuple(self._with_own_constant(one, own, op) for one in inputs)

    def _with_own_constant(self, input_: InputTensor, own: GraphTensor, op: Op) -> InputTensor:
        """Returns an input whose producer is the constant that the program's op takes.

        TensorFlow merges equal constants, so the recorded producer may be a constant of another op.
        """
        producer, edges = input_.producer, op.inputs[input_.index : input_.index + 1]
        source = self.flow.graphs.op(own.graph_id, edges[0][0]) if edges else None
        if producer is None or source is None or (producer.op_type, source.op_type) != ("Const", "Const"):
            return input_
        graph_name = self.places.graph_name(own.graph_id)
        return replace(input_, producer=replace(producer, op_name=source.op_name, graph_name=graph_name))

    def _program_inputs(self, maker: ProgramOp, event: TensorEvent) -> tuple[InputTensor, ...]:
        """Returns the inputs of an op of the program that TensorFlow replaced by another op."""
        healths = self.flow.program_ops.inputs(maker, event)
        inputs = []
        for index, edge in enumerate(maker.op.inputs):
            trace = self.flow.trace(maker.place.of_op(*edge), how="graph", near=event.event_index)
            health, producer = healths.get(index), self._producer(Input(index, trace, None))
            if producer is not None and health != trace.health:
                producer = replace(producer, event_index=None)
            inputs.append(InputTensor(index, None if health is None else health_of(health), producer))
        return tuple(inputs)

    def _input(self, input_: Input) -> InputTensor:
        trace = input_.trace
        if trace.dtype == "resource":
            return self._resource_input(input_)
        health = None if trace.health is None else health_of(trace.health)
        return InputTensor(input_.index, health, self._producer(input_))

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
        return InputTensor(input_.index, None if health is None else health_of(health), producer)

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
        maker = None if trace.event is None else self.flow.program_ops.maker(trace.event)
        if maker is not None and maker.is_output and maker.place.graph_id == trace.place.graph_id:
            op = maker.op
        return Producer(
            op_type=None if op is None else op.op_type,
            op_name=trace.place.op_name if op is None else op.op_name,
            graph_name=self.places.graph_name(trace.place.graph_id),
            output_slot=trace.place.output_slot,
            event_index=event_index,
            execution_index=trace.place.context.execution_index,
            how=trace.how,
        )


def run_and_row(logdir: Engine, tensor: NonFinite | int, run_id: str | None) -> tuple[str, int]:
    """Returns the run and the event_index of the tensor that a question is about.

    Args:
        logdir: The logdir.
        tensor: The tensor, or the event_index of the tensor.
        run_id: The run. None means the run of the tensor, or the newest run if `tensor` is an event_index.

    Raises:
        QueryError: The run is unknown, the run is not the tensor's run, or there are several runs to choose from.
    """
    if not isinstance(tensor, NonFinite):
        return one_asked_run(logdir, run_id), tensor
    if run_id not in (None, tensor.run_id):
        raise QueryError(f"run_id is {run_id!r}, but the tensor is of the run {tensor.run_id}; leave out run_id.")
    return tensor.run_id, tensor.event_index
