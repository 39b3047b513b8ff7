"""BadSamples: the samples of a batch that have bad elements in a tensor, and the records that they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tfdbg_arrow.query.bad_slices import BadSlices
from tfdbg_arrow.query.batch_axis import OUTSIDE, BatchAxis, BatchSource
from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.input_names import InputNames, Names, component_name, short_name
from tfdbg_arrow.query.ragged_batches import RaggedBatch, RaggedBatches
from tfdbg_arrow.query.recorded import (
    EagerValue,
    Execution,
    GraphTensor,
    TensorEvent,
    TensorHealth,
    health_of,
    read_events,
)
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT, SourceArrays, SourceRow
from tfdbg_arrow.query.step_inputs import KeptInput, SampleInput, StepInputs

VALIDATION_DATA = "the validation data"
"""The name of the data with which Keras's `fit` validates the model."""
_REPLICA = re.compile(r"(?:^|/)replica_([1-9]\d{0,3})/")
"""The name scope of the ops of a replica. The ops of the first replica have no such scope."""


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """An input of a training step.

    Attributes:
        name: What the input is in the program, such as "the argument `x` of `train_step`".
        health: The health of the input.
    """

    name: str
    health: TensorHealth


@dataclass(frozen=True, kw_only=True)
class BadSamples:
    """The samples of a batch, or the rows of an argument, from which the bad elements of a tensor were computed.

    Attributes:
        first: Index of the first bad sample, from 0.
        num_bad: Number of bad samples; None if the number is not known.
        numbers: Indexes of all bad samples; empty if the recording did not keep the elements that show which samples
            are bad. With `on_nonfinite='keep'`, the recording keeps these elements.
        num_samples: Number of all samples of the tensor.
        whole: The name of the data that the samples belong to. The name is usually `the batch`, or `the data` for the
            data that batches are taken from. If a graph has several replicas, an example is `the batch of replica 1`.
            In the validation of Keras's `fit`, the name is `the batch of the validation` or `the validation data`. For
            rows of an argument, an example is "the argument `x` of `step`".
        unit: The word for one sample: `sample`. If nothing shows that an argument is a batch, the word is `row`, or
            `element` if the argument is a vector.
        name: What the tensor is in the program, such as "the argument `x` of `train_step`" or "the second component of
            the data"; None if the tensor is computed from arguments or components.
        inputs: The other recorded inputs of the step that have as many rows along their first axis as the tensor.
        row: The number of the record that the first bad sample comes from, counted from 0. None if the recording does
            not show that the batches were taken in the order of the records.
        is_row_of_arrays: Whether `row` is a row of the program's arrays. Otherwise, the records come from files, a
            generator or a range, or follow skipped records. False if `row` is None.
        follows_skipped: Whether the data set left out records with `skip`. `row` then counts only the records after
            the skipped records.
        first_sample: The elements that the inputs of the step have for the first bad sample. Empty if all samples are
            bad, or if the recording did not keep the inputs of the step. With `on_nonfinite='keep'`, the recording
            keeps the inputs.
    """

    first: int
    num_bad: int | None
    num_samples: int
    whole: str
    unit: str
    name: str | None = None
    inputs: tuple[StepInput, ...] = ()
    row: int | None = None
    is_row_of_arrays: bool = False
    follows_skipped: bool = False
    first_sample: tuple[SampleInput, ...] = ()
    numbers: tuple[int, ...] = ()


class SampleFinder:
    """Finds the bad samples of the tensors of one run. The caller must hold the lock of the data flow."""

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._run_id = run_id
        self._arrays = SourceArrays(logdir, flow, run_id=run_id)
        self._batches = StepBatches(logdir, flow, self._arrays, run_id=run_id)
        self._step_inputs = StepInputs(logdir, run_id=run_id)
        self._slices = BadSlices(logdir, run_id=run_id)
        self._ragged = RaggedBatches(flow, self._batches, self._step_inputs)
        self._axis = BatchAxis(logdir, flow, self._batches, self._step_inputs, run_id=run_id)
        self._names = InputNames(flow)

    def of(self, event: TensorEvent) -> BadSamples | None:
        """Returns the bad samples of a tensor, or None if the recording shows no samples along its first axis."""
        first_bad, num_bad = event.first_bad_place, event.num_bad_slices
        if first_bad is None or num_bad is None or event.shape is None or event.shape[0] < 2:
            return None
        data_name = self._data_name(event)
        sources = [] if data_name is not None else self._axis.sources(event)
        arguments = {source.argument for source in sources}
        if data_name is None and len(arguments) != 1:  # no argument, or rows of several arguments
            return None
        ragged = self._ragged.find(sources[0], num_slices=event.shape[0]) if len(sources) == 1 else None
        if ragged is not None:
            return self._of_ragged(event, ragged, first_bad[0], num_bad)
        (argument,) = arguments or {None}
        if argument is not None and num_bad == event.shape[0]:
            return None  # All rows are bad, so no row of this argument explains the bad values. Another argument may.
        rows = {self._row_of(source, first_bad[0]) for source in sources}
        row = rows.pop() if len(rows) == 1 else None
        call = sources[0].call if sources and sources[0].call is not None else event.execution_index
        inputs = self._inputs_beside(sources[0].row, call) if sources else {}
        own = inputs.get(event.event_index)
        whole = argument or self._whole(event, is_batch=data_name is None)
        if data_name is not None:
            data_name = f"{data_name} of {whole}"
        return BadSamples(
            first=first_bad[0],
            num_bad=num_bad,
            num_samples=event.shape[0],
            whole=whole,
            unit="sample" if argument is None else "row" if len(sources[0].row.shape or ()) > 1 else "element",
            name=data_name if own is None else own.name,
            inputs=tuple(
                beside
                for index, beside in inputs.items()
                if index != event.event_index and (beside.health.shape or (0,))[0] == event.shape[0]
            ),
            row=None if row is None else row.number,
            is_row_of_arrays=row is not None and row.is_of_arrays,
            follows_skipped=row is not None and row.follows_skipped,
            first_sample=self._first_sample(sources[0], event, call) if sources else self._first_sample_taken(event),
            numbers=self._slices.of(event, self._row_of_inputs(event)) if num_bad > 1 else (),
        )

    def _of_ragged(self, event: TensorEvent, batch: RaggedBatch, first_bad: int, num_bad: int) -> BadSamples:
        """Returns the bad samples of a tensor whose first axis holds the values of all samples of a ragged batch."""
        bad_values = self._slices.of(event, self._row_of_inputs(event)) if num_bad > 1 else (first_bad,)
        numbers = tuple(dict.fromkeys(map(batch.sample_of, bad_values)))
        first, num_samples = batch.sample_of(first_bad), len(batch.limits) - 1
        start, end = batch.limits[first : first + 2]
        names = self._names_of(event)
        path = self._arrays.element_component(batch.source.taken_in, batch.slot) or (batch.slot,)
        argument = self._arguments_of_step(event.execution_index).get(batch.first_id)
        has_key = any(isinstance(key, str) for key in path)
        name = short_name(path, names) if argument is None or has_key else argument
        others = (
            self._step_inputs.sample(kept, first, name=name)
            for name, kept in self._kept_inputs(batch.source, None, step=event.execution_index)
            if kept.shape[:1] == (num_samples,)
        )
        return BadSamples(
            first=first,
            num_bad=len(numbers) or None,
            num_samples=num_samples,
            whole=self._whole(event, is_batch=True),
            unit="sample",
            first_sample=(self._step_inputs.sample(batch.values, start, name=name, num_values=end - start), *others)
            if len(numbers) < num_samples
            else (),  # if all samples are bad, the first one does not explain the bad values
            numbers=numbers if len(numbers) > 1 else (),
        )

    def _row_of_inputs(self, event: TensorEvent) -> int | None:
        """Returns the `event_index` of a tensor's row in `step_input`; None if the tensor is not a kept step input."""
        input_by_number: Mapping[int, KeptInput] = {}
        number = event.output_slot or 0
        if event.tensor_id is not None:
            number, input_by_number = event.tensor_id, self._step_inputs.of_tensors([event.tensor_id])
        elif event.graph_tensor is not None and event.op_type in GETS_ELEMENT:
            input_by_number = self._step_inputs.of_element(event.graph_tensor)
        elif event.graph_tensor is not None and self._flow.loop_bodies.is_component(event.graph_tensor):
            components = self._flow.loop_bodies.components(event.graph_id)
            number, input_by_number = (
                components[event.graph_tensor.op_name],
                self._step_inputs.of_arguments(event.graph_tensor, components),
            )
        return input_by_number[number].event_index if number in input_by_number else None

    def _first_sample(self, source: BatchSource, bad: TensorEvent, call: int | None) -> tuple[SampleInput, ...]:
        """Returns the elements that the kept inputs of a step have for the first bad sample of a tensor.

        The result is empty if all samples are bad, because the first one does not explain the bad values then.

        Args:
            source: The step's input whose rows are the samples.
            bad: The tensor. The first axis of the tensor is the axis of the batch.
            call: The execution that took the source as an argument.
        """
        if bad.first_bad_place is None or not bad.shape or bad.first_bad_place[0] >= bad.shape[0]:
            return ()
        if bad.num_bad_slices == bad.shape[0]:
            return ()
        return tuple(
            self._step_inputs.sample(kept, bad.first_bad_place[0], name=name)
            for name, kept in self._kept_inputs(source, call, step=bad.execution_index)
            if kept.shape[:1] == bad.shape[:1]
        )

    def _first_sample_taken(self, array: TensorEvent) -> tuple[SampleInput, ...]:
        """Returns the elements that a step's inputs have for the only bad row of an array.

        The step is the one that took this row. The result is empty if the step is not known.
        """
        element = self._first_element(array)
        component = EagerValue(element.tensor_id) if element.tensor_id is not None else element.graph_tensor
        if array.tensor_id is None or array.num_bad_slices != 1 or element is array or component is None:
            return ()
        slot = element.output_slot or 0
        paths = [
            self._arrays.array_component(array.tensor_id, index) or (index,)
            for op_type, _, index in self._flow.events.ways_of_use(array.tensor_id)
            if self._arrays.is_array(op_type)
        ]
        if (self._arrays.element_component(element.execution_index, slot) or (slot,)) not in paths:
            return ()
        return self._first_sample(BatchSource(element, element.execution_index, component=component), element, None)

    def _kept_inputs(
        self, source: BatchSource, call: int | None, *, step: int | None
    ) -> Iterator[tuple[str, KeptInput]]:
        """Yields the name and the elements of each kept input of the step that took a source.

        Args:
            source: The source.
            call: The execution that took the source as an argument. Not used for a component of a data set's element.
            step: The execution of the step. Components that are arguments of this execution have the arguments' names.
        """
        events = self._flow.events
        component = source.component
        if source.argument == OUTSIDE and source.row.tensor_id is not None:
            yield from (("tensor", kept) for kept in self._step_inputs.of_tensors([source.row.tensor_id]).values())
            return
        if component is None:
            execution = events.execution(call)
            arguments = {} if execution is None else events.execution_inputs(execution.execution_index)
            input_of_tensor = self._step_inputs.of_tensors(arguments.values())
            names = {} if execution is None else self._argument_names(execution)
            for index, tensor_id in arguments.items():
                if index in names and tensor_id in input_of_tensor:
                    yield names[index], input_of_tensor[tensor_id]
            return
        if isinstance(component, GraphTensor) and self._flow.loop_bodies.is_component(component):
            components = self._flow.loop_bodies.components(component.graph_id)
            for number, input_ in sorted(self._step_inputs.of_arguments(component, components).items()):
                yield short_name(self._batches.loops.path(component.graph_id, number) or (number,), {}), input_
            return
        if isinstance(component, GraphTensor):
            taken_in, by_slot = source.row.execution_index, self._step_inputs.of_element(component)
            outputs, argument_of_tensor = {}, {}
        else:
            taken_in = events.eager(component.tensor_id).execution_index
            outputs = {} if taken_in is None else events.execution_outputs(taken_in)
            argument_of_tensor = self._arguments_of_step(step)
            input_of_tensor = self._step_inputs.of_tensors(tensor_id for tensor_id, _ in outputs.values())
            by_slot = {
                slot: input_of_tensor[tensor_id]
                for slot, (tensor_id, _) in outputs.items()
                if tensor_id in input_of_tensor
            }
        component_names = self._names_of(source.row)
        for slot, input_ in sorted(by_slot.items()):
            path = self._arrays.element_component(taken_in, slot) or (slot,)
            argument = argument_of_tensor.get(outputs[slot][0]) if slot in outputs else None
            has_key = any(isinstance(key, str) for key in path)
            yield short_name(path, component_names) if argument is None or has_key else argument, input_

    def _arguments_of_step(self, step: int | None) -> dict[int, str]:
        """Returns the name of each argument of a call of a function, by the tensor ID of the argument."""
        execution = self._flow.events.execution(step)
        if execution is None:
            return {}
        names = self._argument_names(execution)
        inputs = self._flow.events.execution_inputs(execution.execution_index)
        return {tensor_id: names[index] for index, tensor_id in inputs.items() if index in names}

    def _argument_names(self, execution: Execution) -> dict[int, str]:
        """Returns the name of each argument of a call, by input_index.

        If the function has several replicas, the names are `input 0`, `input 1` and so on.
        """
        names = self._names.arguments(execution)
        if not self._has_replicas(execution.graph_id):
            return names
        # With several replicas, the number in a name counts the tensors of all replicas: batch_1 is not batch[1].
        return {index: f"input {number}" for number, index in enumerate(sorted(names))}

    def _row_of(self, source: BatchSource, sample: int) -> SourceRow | None:
        if self._flow.loop_bodies.is_component(source.row.graph_tensor):
            return self._batches.loops.row(source.row, sample)
        return None if source.taken_in is None else self._arrays.row(source.row, sample, taken_in=source.taken_in)

    def has_calls_in_order(self, element: TensorEvent) -> bool:
        """Returns whether the data set of an element called its functions in the order of its records."""
        return self._arrays.calls_in_order(element)

    def _inputs_beside(self, source: TensorEvent, execution_index: int | None) -> dict[int, StepInput]:
        """Returns all recorded inputs of the step that takes a source, by event_index."""
        arguments = {
            index: StepInput(name=name, health=health_of(row))
            for index, (name, row) in self._batches.arguments(execution_index).items()
        }
        execution = self._flow.events.execution(execution_index)
        on_batch = {} if execution is None else self._names.on_batch(execution)
        for index, name in on_batch.items():
            row = self._flow.events.eager(self._flow.events.execution_inputs(execution_index or 0)[index]).event
            if row is not None and row.event_index in arguments:
                arguments[row.event_index] = replace(arguments[row.event_index], name=f"{name} of the batch")
        if self._flow.loop_bodies.is_component(source.graph_tensor):
            components = self._flow.loop_bodies.components(source.graph_id)
            return {
                row.event_index: StepInput(
                    name=f"{self._component_of_loop(row, components)} of the batch", health=health_of(row)
                )
                for row in self._batches.siblings(source)
            }
        if source.event_index in arguments or source.op_type not in GETS_ELEMENT:
            return arguments
        names = self._names_of(source)
        return {
            row.event_index: StepInput(
                name=f"{self._component(row.execution_index, row.output_slot, names)} of the batch",
                health=health_of(row),
            )
            for row in self._batches.siblings(source)
        }

    def _names_of(self, element: TensorEvent) -> Names:
        """Returns the program's names for the components of an element."""
        return self._names.of_components(element, self._num_components(element))

    def _num_components(self, element: TensorEvent) -> int:
        """Returns the number of components of an element. Components that are tuples or dicts count once."""
        taken_in = element.execution_index
        slots = [] if taken_in is None else [*self._flow.events.execution_outputs(taken_in)]
        if element.graph_tensor is not None:
            dtypes = self._flow.graphs.graph(element.graph_tensor.graph_id).dtypes
            slots = [slot for op_name, slot in dtypes if op_name == element.op_name]
        return len({(self._arrays.element_component(taken_in, slot) or (slot,))[0] for slot in slots})

    def _component(self, taken_in: int | None, output_slot: int | None, names: Names) -> str:
        """Returns what a component of a data set's element is in the program, such as `the component age`."""
        path = self._arrays.element_component(taken_in, output_slot)
        return component_name(path or (output_slot or 0,), names)

    def _component_of_loop(self, row: TensorEvent, components: Mapping[str, int]) -> str:
        number = components[row.op_name or ""]
        path = None if row.graph_id is None else self._batches.loops.path(row.graph_id, number)
        return component_name(path or (number,), {})

    def _data_name(self, event: TensorEvent) -> str | None:
        """Returns the name of the data set component that consists of the rows of an array; None for other tensors."""
        if event.scope != "external" or event.tensor_id is None:
            return None
        for op_type, _, index in self._flow.events.ways_of_use(event.tensor_id):
            if self._arrays.is_array(op_type):
                path, element = self._arrays.array_component(event.tensor_id, index), self._first_element(event)
                if path == () and self._num_components(element) > 1:  # a function split the rows into components
                    return "the elements"
                names = self._names_of(element)
                name = component_name(path or (index,), names)
                return "class_weight" if name == "sample_weight" and self._names.has_class_weight(event) else name
        return None

    def _first_element(self, array: TensorEvent) -> TensorEvent:
        """Returns the first bad element that was taken from a data set after the data set got an array.

        If there is no bad element, returns the array.
        """
        types = ", ".join(f"'{op_type}'" for op_type in sorted(GETS_ELEMENT))
        elements = read_events(
            self._logdir,
            f"has_inf_or_nan AND op_type IN ({types}) AND event_index > ? ORDER BY event_index LIMIT 1",
            [self._run_id, array.event_index],
        )
        return elements[0] if elements else array

    def _whole(self, event: TensorEvent, *, is_batch: bool) -> str:
        """Returns the name of the data that the samples of a tensor belong to, such as `the batch`."""
        replica = self._replica(event) if is_batch else None
        of_replica = "" if replica is None else f" of replica {replica}"
        if self._names.library_functions(event if is_batch else self._first_element(event)) >= {"fit", "evaluate"}:
            return f"the batch{of_replica} of the validation" if is_batch else VALIDATION_DATA
        return f"the batch{of_replica}" if is_batch else "the data"

    def _replica(self, event: TensorEvent) -> int | None:
        """Returns the replica that computed a tensor of a graph; None if the graph does not have several replicas."""
        if event.graph_id is None or event.op_name is None:
            return None
        own = _REPLICA.search(event.op_name)
        if own is not None:
            return int(own[1])
        return 0 if self._has_replicas(event.graph_id) else None

    def _has_replicas(self, graph_id: int | None) -> bool:
        return graph_id is not None and any(map(_REPLICA.search, self._flow.graphs.graph(graph_id).ops))
