"""BadSamples: the samples of a batch that hold the bad elements of a tensor, and where they came from.

The first axis of a tensor is taken for that of the batch only if the recording shows it. The tensor must be computed
from an input of the training step, over ops whose output has the first axis of one of their inputs. This is certain if
the graph leaves the size of that axis open, or if no other axis has the same size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.outside_tensors import OutsideTensors
from tfdbg_arrow.query.recorded import (
    EagerValue,
    GraphTensor,
    Place,
    TensorEvent,
    TensorHealth,
    health_facts,
    read_events,
)
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT, SourceArrays, SourceRow
from tfdbg_arrow.query.stacks import StackReader
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.op_traits import READER, Trait, types_with

_ELEMENTWISE, _KEEPS_SLICES = types_with(Trait.ELEMENTWISE), types_with(Trait.KEEPS_SLICES)
_RESHAPING = types_with(Trait.RESHAPED) - {"Transpose"}
_METHODS_OF_KERAS = frozenset({"evaluate", "fit", "predict"})
_ARGUMENTS_OF_KERAS = ("x", "y", "sample_weight")
"""The components of an element that Keras takes from a data set, by its names of them."""
_PHASES_OF_KERAS = ("train", "test", "predict")
"""What a recording marks as the phase in fit, evaluate and predict. Keras takes each element for a batch."""
_REORDERING = frozenset({
    "DynamicPartition", "DynamicStitch", "GatherNd", "ParallelDynamicStitch", "RandomShuffle",
    "Reverse", "ReverseV2", "Roll", "ScatterNd", "TopK", "TopKV2", "Unique", "UniqueV2", "UnsortedSegmentSum",
})  # fmt: skip
"""Types of ops whose output can have the slices of an input in another order."""
_LOOKUPS = frozenset({"Gather", "GatherV2", "ResourceGather"})
"""Types of ops that take slices of a table by number, such as an embedding."""
_MAX_TENSORS = 1_000
"""Number of tensors that are followed back for one answer, because each takes some time."""
_MAX_UNRECORDED = 20
"""Number of tensors without a row that are followed back from one op."""
_ORDINALS = ("first", "second", "third")


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """An input of a training step.

    Attributes:
        name: What it is, such as `the argument x of train_step`.
        health: Its health.
    """

    name: str
    health: TensorHealth


@dataclass(frozen=True, kw_only=True)
class BadSamples:
    """The samples that hold the bad elements of a tensor.

    Attributes:
        first: Index of the first of them, from 0.
        num_bad: Number of them; None if other components of the data have other bad samples.
        num_samples: Number of all samples of the tensor.
        whole: What they are samples of: `the batch`, or `the data` from which batches are taken. In the validation of
            Keras's `fit`, `the batch of the validation` or `the validation data`.
        name: What the tensor is, such as `the argument x of train_step` or `the second component of the data`; None if
            it is computed from these.
        inputs: The other inputs of the step that were recorded and have the samples of the batch.
        row: The first bad sample's number, from 0, among the records that the batches come from. None unless the
            recording shows that the batches were taken in their order.
        is_row_of_arrays: Whether `row` is a row of the program's arrays. Otherwise, the records come from files, a
            generator or a range; without `row`, it is False.
    """

    first: int
    num_bad: int | None
    num_samples: int
    whole: str
    name: str | None
    inputs: tuple[StepInput, ...]
    row: int | None
    is_row_of_arrays: bool


class SampleFinder:
    """Finds the bad samples of the tensors of one run. The caller must hold the lock of the data flow."""

    def __init__(self, logdir: Engine, flow: DataFlow, *, run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._run_id = run_id
        self._stacks = StackReader(logdir, run_id=run_id)
        self._arrays = SourceArrays(logdir, flow, run_id=run_id)
        self._outside = OutsideTensors(flow)
        self._sources: dict[int, frozenset[int]] = {}
        self._rows: dict[int, TensorEvent] = {}
        self._taken_in: dict[int, int] = {}
        """For tensors that were computed from a component of the batch without a row, the execution that took it."""
        self._open_axes = lru_cache(maxsize=100)(self._read_open_axes)
        self._arguments = lru_cache(maxsize=100)(self._read_arguments)
        self._attributes = lru_cache(maxsize=1000)(self._read_attributes)

    def of(self, event: TensorEvent) -> BadSamples | None:
        """Returns the bad samples of a tensor, or None if the recording does not show that its first axis has some."""
        first_bad, num_bad = event.first_bad_place, event.num_bad_slices
        if first_bad is None or num_bad is None or event.shape is None or event.shape[0] < 2:
            return None
        data_name = self._data_name(event)
        sources = [] if data_name is not None else self._batch_sources(event)
        if data_name is None and not sources:
            return None
        rows = {self._row(source, first_bad[0]) for source in sources}
        row = rows.pop() if len(rows) == 1 else None
        inputs = self._inputs_beside(sources[0], event.execution_index) if sources else {}
        own = inputs.get(event.event_index)
        whole = self._whole(event, is_batch=data_name is None)
        if data_name is not None:
            data_name = f"{data_name} of {whole}"
        return BadSamples(
            first=first_bad[0],
            num_bad=num_bad,
            num_samples=event.shape[0],
            whole=whole,
            name=data_name if own is None else own.name,
            inputs=tuple(
                each
                for index, each in inputs.items()
                if index != event.event_index and (each.health.shape or (0,))[0] == event.shape[0]
            ),
            row=None if row is None else row.number,
            is_row_of_arrays=row is not None and row.is_of_arrays,
        )

    def _row(self, source: TensorEvent, sample: int) -> SourceRow | None:
        taken_in = self._taken_in.get(source.event_index)
        if taken_in is None and source.op_type in GETS_ELEMENT:
            taken_in = source.execution_index
        return None if taken_in is None else self._arrays.row(source, sample, taken_in=taken_in)

    def has_calls_in_order(self, element: TensorEvent) -> bool:
        """Returns whether the functions of the data set of an element were called in the order of its records."""
        return self._arrays.calls_in_order(element)

    # From a tensor back to the inputs of the step

    def _batch_sources(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the inputs of the step from which a tensor has the axis of the batch; none if that is not certain."""
        if not self._flow.records_all:
            return []
        num_followed = 0
        carriers: dict[int, list[TensorEvent]] = {}
        to_follow = [event]
        while to_follow:
            row = to_follow[-1]
            index = row.event_index
            if index in self._sources:
                to_follow.pop()
                continue
            if index not in carriers:
                num_followed += 1
                if num_followed > _MAX_TENSORS:
                    return []
                if self._is_batch_input(row) or self._takes_integers(row):
                    self._rows[index] = row
                    self._sources[index] = frozenset([index])
                    continue
                carriers[index] = self._carriers(row)
                to_follow += [each for each in carriers[index] if each.event_index not in carriers]
                continue
            to_follow.pop()
            of_carriers = (self._sources.get(each.event_index, frozenset()) for each in carriers[index])
            self._sources[index] = frozenset().union(*of_carriers)
        return [self._rows[index] for index in sorted(self._sources[event.event_index])]

    def _carriers(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns the inputs of a tensor's op from one of which it has its first axis; none if that is not certain."""
        if row.op_type in _LOOKUPS:
            return self._behind_indices(row)
        if row.op_type in _REORDERING or row.op_type == READER or not row.shape:
            return []
        size = row.shape[0]
        taken = [(index, each) for index, _, each in self._flow.taken_by(row) if each.shape]
        inputs = [each for _, each in taken]
        if row.op_type in _ELEMENTWISE:
            # Axes are matched from the last one on, so the first axes of tensors with as many axes correspond.
            alike = [each for each in inputs if _num_axes(each) == len(row.shape) and (each.shape or ())[0] == size]
            return [*alike, *self._behind_integers(row, row.graph_tensor, num_axes=_num_axes(row))]
        if self._keeps_slices(row):
            return [each for index, each in taken if index == 0 and (each.shape or ())[0] == size]
        others = [(each, axis) for each in inputs for axis, length in enumerate(each.shape or ()) if length == size]
        if row.scope == "graph" and self._is_open(row, 0):
            others = [(each, axis) for each, axis in others if self._is_open(each, axis)]
        elif size in row.shape[1:]:
            return []
        return [] if any(axis != 0 for _, axis in others) else [each for each, _ in others]

    def _keeps_slices(self, row: TensorEvent) -> bool:
        """Returns whether each slice of an output is certainly computed from the same slice of the first input."""
        if row.op_type in _RESHAPING:
            return True  # the elements keep their order, so slice i has the same elements before and after
        if len(row.shape or ()) < 2 or row.op_type not in (*_KEEPS_SLICES, "StridedSlice"):
            return False
        attributes = (
            None if row.graph_id is None or row.op_name is None else self._attributes(row.graph_id, row.op_name)
        )
        if row.op_type == "StridedSlice":
            return attributes is not None and _takes_whole_axis(attributes)
        # A fused product has the name of the addition that follows it, so its own attributes are not known here.
        return row.op_type != "MatMul" or (attributes is not None and not attributes.get("transpose_a", False))

    def _read_attributes(self, graph_id: int, op_name: str) -> dict[str, Any] | None:
        """Returns the attributes of an op of a graph, or None if they were not recorded."""
        rows = self._logdir.rows(
            "SELECT attributes FROM graph_op WHERE run_id = ? AND graph_id = ? AND op_name = ?",
            [self._run_id, graph_id, op_name],
        )
        attributes = parse_json(rows[0][0]) if rows and rows[0][0] is not None else None
        return attributes if isinstance(attributes, dict) else None

    def _behind_indices(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns a recorded component of the batch if an op looks up the rows of a table for another one.

        It is certain that the first axis is that of the indices if the table has another number of rows.
        """
        own = row.graph_tensor
        op = None if own is None else self._flow.graphs.op(own.graph_id, own.op_name)
        if own is None or op is None or len(op.inputs) < 2 or not row.shape:
            return []
        table, indices = (self._static_shape(own.of_op(*edge)) for edge in op.inputs[:2])
        if not table or not indices or table[0] in (-1, row.shape[0]):
            return []
        return self._behind_integers(row, own.of_op(*op.inputs[1]), num_axes=len(indices))

    def _static_shape(self, place: GraphTensor) -> tuple[int, ...] | None:
        """Returns the shape of a tensor as far as its graph knows it, with -1 for open axes; None if it is unknown."""
        rows = self._logdir.rows(
            "SELECT static_shape FROM graph_op_output WHERE run_id = ? AND graph_id = ? AND op_name = ? "
            "AND output_slot = ?",
            [self._run_id, place.graph_id, place.op_name, place.output_slot],
        )
        return None if not rows or rows[0][0] is None else tuple(rows[0][0])

    def _behind_integers(self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int) -> list[TensorEvent]:
        """Returns a recorded component of the batch if an op computes from another one that has no row.

        Args:
            row: The output of the op.
            start: The output or an input, from which ops are followed back.
            num_axes: Number of axes of `start`.
        """
        component = self._component_behind(row, start, num_axes=num_axes)
        siblings = [] if component is None else self._siblings_of(component)
        return [each for each in siblings if each.shape and each.shape[0] == (row.shape or (0,))[0]][:1]

    def _takes_integers(self, row: TensorEvent) -> bool:
        """Returns whether a tensor has the samples of a batch of which no component has a row."""
        own = row.graph_tensor
        if row.op_type not in _ELEMENTWISE | _RESHAPING or own is None or row.execution_index is None:
            return False
        component = self._component_behind(row, own, num_axes=_num_axes(row))
        if component is None or self._siblings_of(component):
            return False
        taken_in: int | None = row.execution_index
        if isinstance(component, EagerValue):
            taken_in = self._flow.events.eager(component.tensor_id).execution_index
        if taken_in is None or not (self._is_of_keras or self._is_batched(taken_in)):
            return False
        self._taken_in[row.event_index] = taken_in
        return True

    def _is_batched(self, execution_index: int | None) -> bool:
        return execution_index is not None and self._arrays.is_batched(execution_index)

    def _siblings_of(self, component: GraphTensor | EagerValue) -> list[TensorEvent]:
        """Returns the recorded components of the element to which another component belongs."""
        if isinstance(component, EagerValue):
            maker = self._flow.events.eager(component.tensor_id).execution_index
            condition = "scope = 'execution' AND execution_index = ?"
            return read_events(self._logdir, f"{condition} ORDER BY output_slot", [self._run_id, maker])
        return read_events(
            self._logdir,
            "graph_id = ? AND op_name = ? AND step_id IS NOT DISTINCT FROM ? AND iteration IS NOT DISTINCT FROM ? "
            "ORDER BY output_slot",
            [
                *(self._run_id, component.graph_id, component.op_name),
                *(component.context.step_id, component.context.iteration),
            ],
        )

    def _component_behind(
        self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int
    ) -> GraphTensor | EagerValue | None:
        """Returns the component of the batch from which an op computes through tensors without rows, or None.

        Tensors of integers and booleans, such as pixels, token numbers and masks, have no rows.

        Args:
            row: The output of the op.
            start: The output or an input, from which ops that keep the first axis are followed back.
            num_axes: Number of axes of `start`.
        """
        to_follow: list[tuple[Place, int]] = [] if start is None else [(start, num_axes)]
        for _ in range(_MAX_UNRECORDED):
            if not to_follow:
                return None
            place, num_axes = to_follow.pop()
            trace = self._flow.trace(place, how="graph", near=row.event_index)
            place = trace.place
            if trace.row is not None and place != start:
                continue
            argument = next((passed for passed in reversed(trace.path) if isinstance(passed, GraphTensor)), None)
            shape = None if argument is None else self._static_shape(argument)
            if isinstance(place, EagerValue):
                if self._flow.events.eager(place.tensor_id).op_type in GETS_ELEMENT:
                    return place if len(shape or ()) == num_axes else None
                continue
            op = self._flow.graphs.op(place.graph_id, place.op_name)
            if op is not None and op.op_type in GETS_ELEMENT:
                # A component that was broadcast has another first axis.
                return place if len(shape or ()) == num_axes else None
            sources = () if op is None else self._flow.borders.executed.inputs(place, op)
            if op is not None and op.op_type in _ELEMENTWISE:
                to_follow += [(source, num_axes) for source in sources]
            elif op is not None and op.op_type in _RESHAPING and sources:
                source_shape = self._static_shape(sources[0])
                if _has_same_slices(source_shape, row.shape if place == start else shape):
                    to_follow.append((sources[0], len(source_shape or ())))
        return None

    def _is_open(self, row: TensorEvent, axis: int) -> bool:
        """Returns whether the graph leaves the size of an axis open until it runs; True for an eager tensor."""
        if row.scope != "graph" or row.graph_id is None or row.op_name is None or row.output_slot is None:
            return True
        return axis in self._open_axes(row.graph_id).get((row.op_name, row.output_slot), ())

    def _read_open_axes(self, graph_id: int) -> dict[tuple[str, int], list[int]]:
        """Returns the axes that a graph leaves open, by op and output slot."""
        rows = self._logdir.rows(
            "SELECT op_name, output_slot, static_shape FROM graph_op_output "
            "WHERE run_id = ? AND graph_id = ? AND array_contains(static_shape, -1)",
            [self._run_id, graph_id],
        )
        return {(name, slot): [axis for axis, size in enumerate(shape) if size < 0] for name, slot, shape in rows}

    # The inputs of a step

    def _is_batch_input(self, row: TensorEvent) -> bool:
        """Returns whether a tensor is an input of the step whose first axis is that of the batch."""
        size = (row.shape or (0,))[0]
        user = row.execution_index
        if row.op_type in GETS_ELEMENT:
            sizes = {each.shape[0] for each in self._siblings(row) if each.shape}
            if sizes != {size} or self._is_of_keras or self._is_batched(row.execution_index):
                return sizes == {size}
            # A distributed data set hands its elements through a function.
            uses = () if row.tensor_id is None else self._flow.events.uses(row.tensor_id)
            user = next((use.execution.execution_index for use in uses if use.execution.graph_id is not None), None)
        inputs = self._arguments(user)
        if row.event_index not in inputs or user is None:
            return False
        with_batch = [each for each in inputs.values() if each.health.shape and each.health.shape[0] == size]
        return len(with_batch) > 1 and self._has_gradient(user)

    def _siblings(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns the recorded outputs of the run of an op that made a tensor."""
        return read_events(
            self._logdir,
            "scope = ? AND op_type = ? AND execution_index IS NOT DISTINCT FROM ? AND step_id IS NOT DISTINCT FROM ? "
            "AND graph_id IS NOT DISTINCT FROM ? AND op_name IS NOT DISTINCT FROM ? "
            "AND frame_id IS NOT DISTINCT FROM ? AND iteration IS NOT DISTINCT FROM ? ORDER BY output_slot",
            [
                *(self._run_id, row.scope, row.op_type, row.execution_index, row.step_id, row.graph_id, row.op_name),
                *(row.frame_id, row.iteration),
            ],
        )

    @cached_property
    def _is_of_keras(self) -> bool:
        """Whether Keras takes the elements of data sets in the run."""
        rows = self._logdir.rows(
            "SELECT 1 FROM mark WHERE run_id = ? AND label = 'phase' AND value IN (?, ?, ?) LIMIT 1",
            [self._run_id, *_PHASES_OF_KERAS],
        )
        return bool(rows) or bool(user_names(self._logdir, run_id=self._run_id))

    def _has_gradient(self, execution_index: int) -> bool:
        """Returns whether an execution ran ops of a gradient, as a training step does."""
        rows = self._logdir.rows(
            "SELECT DISTINCT t.graph_id FROM tensor_health AS t JOIN graph_op AS o ON o.run_id = t.run_id "
            "AND o.graph_id = t.graph_id AND o.op_name = t.op_name "
            "WHERE t.run_id = ? AND t.execution_index = ? AND o.role = 'gradient' LIMIT 1",
            [self._run_id, execution_index],
        )
        return bool(rows)

    def _inputs_beside(self, source: TensorEvent, execution_index: int | None) -> dict[int, StepInput]:
        """Returns the inputs of the step among which a source is, by event_index."""
        arguments = self._arguments(execution_index)
        if source.event_index in arguments or source.op_type not in GETS_ELEMENT:
            return arguments
        is_of_keras = not self._library_functions(source).isdisjoint(_METHODS_OF_KERAS)
        return {
            row.event_index: StepInput(
                name=f"{self._component(row, is_of_keras=is_of_keras)} of the batch", health=_health(row)
            )
            for row in self._siblings(source)
        }

    def _component(self, row: TensorEvent, *, is_of_keras: bool) -> str:
        """Returns what an output of an op that gets an element is in the program."""
        path = self._arrays.element_component(row)
        return _component_name(path or (row.output_slot or 0,), is_of_keras=is_of_keras)

    def _read_arguments(self, execution_index: int | None) -> dict[int, StepInput]:
        """Returns the recorded arguments of a function's call or feeds of a session's run, by event_index."""
        execution = self._flow.events.execution(execution_index)
        if execution is None or execution.graph_id is None:
            return {}
        arguments: dict[int, StepInput] = {}
        for index, tensor_id in self._flow.events.execution_inputs(execution.execution_index).items():
            name = self._outside.argument(execution, index)
            row = self._flow.events.eager(tensor_id).event
            if row is not None and name is not None:
                arguments[row.event_index] = StepInput(name=name, health=_health(row))
        return arguments

    def _data_name(self, event: TensorEvent) -> str | None:
        """Returns which component of a data set has the rows of an array; None for another tensor."""
        if event.scope != "external" or event.tensor_id is None:
            return None
        for op_type, _, index in self._flow.events.ways_of_use(event.tensor_id):
            if self._arrays.is_array(op_type):
                path = self._arrays.array_component(event.tensor_id, index)
                functions = self._library_functions(self._first_element(event))
                return _component_name(path or (index,), is_of_keras=not functions.isdisjoint(_METHODS_OF_KERAS))
        return None

    def _first_element(self, array: TensorEvent) -> TensorEvent:
        """Returns the first bad element after an array was given to a data set, or the array if there is none."""
        types = ", ".join(f"'{op_type}'" for op_type in sorted(GETS_ELEMENT))
        elements = read_events(
            self._logdir,
            f"has_inf_or_nan AND op_type IN ({types}) AND event_index > ? ORDER BY event_index LIMIT 1",
            [self._run_id, array.event_index],
        )
        return elements[0] if elements else array

    def _library_functions(self, event: TensorEvent) -> set[str]:
        """Returns the functions of libraries in which the execution of a tensor was called."""
        execution = self._flow.events.execution(event.execution_index)
        stack = () if execution is None else self._stacks.stack(execution.stack_trace_id)
        return {frame.func.rpartition(".")[2] for frame in stack if not frame.is_user}

    def _whole(self, event: TensorEvent, *, is_batch: bool) -> str:
        """Returns what the samples of a tensor are samples of."""
        if self._library_functions(event if is_batch else self._first_element(event)) >= {"fit", "evaluate"}:
            return "the batch of the validation" if is_batch else "the validation data"
        return "the batch" if is_batch else "the data"


def _has_same_slices(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> bool:
    """Returns whether the slices along the first axis have the same elements after a change of the shape."""
    if not before or not after or -1 in before[1:] or -1 in after[1:]:
        return False
    return math.prod(before[1:]) == math.prod(after[1:])  # then the first axis has the same size, too


def _num_axes(row: TensorEvent) -> int:
    return len(row.shape or ())


def _takes_whole_axis(attributes: dict[str, Any]) -> bool:
    """Returns whether the subscripts of a StridedSlice begin with `:`, by the bits of its first subscript."""
    masks = [attributes.get(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    return [mask & 1 if isinstance(mask, int) else None for mask in masks] == [1, 1, 0, 0, 0]


def _component_name(path: tuple[int | str, ...], *, is_of_keras: bool) -> str:
    """Returns what a tensor is in an element of a data set, such as `the component age` or `the second component`.

    Args:
        path: The indexes and keys that lead to it.
        is_of_keras: Whether Keras takes the elements for (x, y, sample_weight).
    """
    names = [key for key in path if isinstance(key, str)]
    if names:
        return f"the component {names[-1]}"
    index, *inner = path
    if is_of_keras and isinstance(index, int) and index < len(_ARGUMENTS_OF_KERAS) and not inner:
        return _ARGUMENTS_OF_KERAS[index]
    if isinstance(index, int) and index < len(_ORDINALS) and not inner:
        return f"the {_ORDINALS[index]} component"
    return "the component " + "".join(f"[{key}]" for key in path)


def _health(row: TensorEvent) -> TensorHealth:
    return TensorHealth(**health_facts(row))
