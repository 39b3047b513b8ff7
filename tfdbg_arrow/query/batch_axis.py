"""BatchAxis: finds the inputs of a training step from which a tensor takes the batch axis.

The first axis of a tensor counts as the batch axis only if the recording shows this. The tensor must be computed from
an input of the training step through ops that keep the first axis of one of their inputs. An op certainly keeps the
first axis if the graph leaves the size of that axis open, or if no other axis has the same size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.keras_graphs import user_names
from tfdbg_arrow.query.outside_tensors import OutsideTensors
from tfdbg_arrow.query.recorded import EagerValue, GraphTensor, Op, Place, TensorEvent, read_events
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT, SourceArrays
from tfdbg_arrow.query.stacks import StackReader
from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.schema.op_traits import READER, Trait, types_with
from tfdbg_arrow.schema.tables import INTEGERS

_ELEMENTWISE, _KEEPS_SLICES = types_with(Trait.ELEMENTWISE), types_with(Trait.KEEPS_SLICES)
_MATRIX_PRODUCTS = types_with(Trait.MULTIPLIES_MATRICES)
_RESHAPING = types_with(Trait.RESHAPED) - {"Transpose"}
METHODS_OF_KERAS = frozenset({"evaluate", "fit", "predict"})
"""The methods in which Keras takes elements from data sets."""
_PHASES_OF_KERAS = ("train", "test", "predict")
"""The phases that a recording marks in fit, evaluate and predict.

In these methods, Keras treats each element as a batch.
"""
_REORDERING = frozenset({
    "DynamicPartition", "DynamicStitch", "GatherNd", "ParallelDynamicStitch", "RandomShuffle",
    "Reverse", "ReverseV2", "Roll", "ScatterNd", "TopK", "TopKV2", "Unique", "UniqueV2", "UnsortedSegmentSum",
})  # fmt: skip
"""Types of ops whose output can contain the slices of an input in a different order."""
_REDUCTIONS = frozenset({"All", "Any", "ArgMax", "ArgMin", "Max", "Min", "Prod", "Sum"})
"""Types of ops that reduce masks and numbers, along some axes."""
_AXES, _PERMUTATION, _MULTIPLES = range(3)
_AXES_OF: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("All", "Any", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"), (1, _AXES)),
    **dict.fromkeys(("Cumprod", "Cumsum", "CumulativeLogsumexp"), (1, _AXES)),
    "ConcatV2": (-1, _AXES),
    "GatherV2": (2, _AXES),
    "Tile": (1, _MULTIPLES),
    "Transpose": (1, _PERMUTATION),
}
"""By type of op: the input that says along which axes the op combines or picks elements, and what it holds."""
_STACKS = frozenset({"Pack", "Unpack"})
"""Types of ops that add an axis or remove one. Their attribute `axis` says which."""
_SPLITS = frozenset({"Split", "SplitV"})
_LOOKUPS = frozenset({"Gather", "GatherV2", "ResourceGather"})
"""Types of ops that take slices of a table by number, such as the table of an embedding."""
_MAX_TENSORS = 1_000
"""Maximum number of tensors that are followed back for one answer. Each tensor takes some time."""
_MAX_UNRECORDED = 20
"""Maximum number of tensors without a row that are followed back from one op."""


class BatchSource(NamedTuple):
    """A tensor whose slices along the first axis are the samples of a batch, or an argument that may be a batch.

    Attributes:
        row: An input of the step, or the first recorded tensor that was computed from an input.
        taken_in: The execution that took the batch from a data set; None for an argument of a function.
        argument: What the tensor is in the program, such as `the argument x of step`; None if it is known to be a
            batch.
        call: The execution that took this argument; None if it is an input of the batch's own execution.
        component: The component of the data set's element that the samples come from; None for an argument.
    """

    row: TensorEvent
    taken_in: int | None
    argument: str | None = None
    call: int | None = None
    component: GraphTensor | EagerValue | None = None


class _Carrier(NamedTuple):
    """A tensor whose first axis another tensor keeps.

    Attributes:
        row: The tensor.
        is_certain: Whether slice i of the other tensor is certainly computed from slice i of this tensor. If False,
            only the equal sizes of the axes suggest this, which is enough for a batch.
    """

    row: TensorEvent
    is_certain: bool


class _Unrecorded(NamedTuple):
    """A tensor that may have no row: its place and the number of its axes."""

    place: GraphTensor
    num_axes: int


class BatchAxis:
    """Follows tensors of one run back to the batch. The caller must hold the lock of the data flow."""

    def __init__(
        self, logdir: Engine, flow: DataFlow, arrays: SourceArrays, stacks: StackReader, *, run_id: str
    ) -> None:
        self._logdir = logdir
        self._stacks = stacks
        self._flow = flow
        self._arrays = arrays
        self._run_id = run_id
        self._outside = OutsideTensors(flow)
        self._sources: dict[int, frozenset[int]] = {}
        self._source_of: dict[int, BatchSource] = {}
        self._static_shapes = lru_cache(maxsize=100)(self._read_static_shapes)
        self._cached_arguments = lru_cache(maxsize=100)(self._read_arguments)
        self._attributes = lru_cache(maxsize=1000)(self._read_attributes)
        self._constants = lru_cache(maxsize=20)(self._read_constants)

    def sources(self, event: TensorEvent) -> list[BatchSource]:
        """Returns the tensors from which a tensor takes the batch axis; an empty list if that is not certain.

        If the first axis does not come from a batch, the result is the arguments of calls from which it comes.
        """
        if not self._flow.records_all:
            return []
        num_followed = 0
        carriers: dict[int, list[_Carrier]] = {}
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
                source = self._source(row)
                if source is not None:
                    self._source_of[index] = source
                    self._sources[index] = frozenset([index])
                    continue
                carriers[index] = self._carriers(row)
                to_follow += [carrier.row for carrier in carriers[index] if carrier.row.event_index not in carriers]
                continue
            to_follow.pop()
            self._sources[index] = self._sources_behind(row, carriers[index])
        sources = [self._source_of[index] for index in sorted(self._sources[event.event_index])]
        of_batch = [source for source in sources if source.argument is None]
        if of_batch or event.scope == "external":
            return of_batch or sources
        return [source for source in sources if source.row.event_index != event.event_index]  # a call took it later

    def _sources_behind(self, row: TensorEvent, carriers: list[_Carrier]) -> frozenset[int]:
        """Returns the sources of a tensor's carriers; without any, the tensor itself if it is an argument."""
        behind: set[int] = set()
        for carrier in carriers:
            of_carrier = self._sources.get(carrier.row.event_index, frozenset())
            behind.update(
                source for source in of_carrier if carrier.is_certain or self._source_of[source].argument is None
            )
        if not behind and (argument := self._as_argument(row)) is not None:
            self._source_of[row.event_index] = argument
            behind.add(row.event_index)
        return frozenset(behind)

    def _as_argument(self, row: TensorEvent) -> BatchSource | None:
        """Returns an eager tensor as an argument of the first call that took it, or None if no call did.

        If the call is a step of Keras, or a training step with several such arguments, they are the batch.
        """
        uses = () if row.scope == "graph" or row.tensor_id is None else self._flow.events.uses(row.tensor_id)
        for use in uses:
            name = self._outside.argument(use.execution, use.input_index)
            if name is not None:
                call = use.execution.execution_index
                is_of_keras = use.execution.graph_id in self._functions_of_keras  # as in train_on_batch
                is_batch = is_of_keras or self._has_batch(call, (row.shape or (0,))[0])
                return BatchSource(row, None, None if is_batch else name, call)
        return None

    def _carriers(self, row: TensorEvent) -> list[_Carrier]:
        """Returns the inputs of a tensor's op that its first axis may come from; empty if that is not certain."""
        axes = self._axes(row)
        if row.op_type in _LOOKUPS and (axes is None or 0 in axes):
            indices = self._indices(row)
            if indices is None:
                return []
            return _certain(self._behind_integers(row, indices.place, num_axes=indices.num_axes))
        if row.op_type in _REORDERING or row.op_type == READER or not row.shape:
            return []
        size = row.shape[0]
        taken = [(index, source) for index, _, source in self._flow.taken_by(row) if source.shape]
        inputs = [source for _, source in taken]
        alike = [source for source in inputs if (source.shape or ())[0] == size]
        if row.op_type in _ELEMENTWISE:
            # Broadcasting matches axes from the last one on, so the first axes of tensors with equally many axes
            # correspond.
            alike = [source for source in alike if _num_axes(source) == len(row.shape)]
            return _certain([*alike, *self._behind_integers(row, row.graph_tensor, num_axes=_num_axes(row))])
        if row.op_type in _MATRIX_PRODUCTS and len(row.shape) > 2:
            # An input with fewer axes is multiplied by each slice of the other input.
            return _certain(source for source in alike if _num_axes(source) == len(row.shape))
        if row.op_type == "Einsum" and (labelled := self._labelled_inputs(row)):
            return _certain(source for index, source in taken if index in labelled and source in alike)
        if axes is not None:
            # The op reduces, joins, gathers or repeats along other axes than the first one of its tensors.
            return _certain(() if 0 in axes else alike)
        if row.op_type in _SPLITS:  # along the axis whose size changes
            return _certain(source for source in alike if (source.shape or ())[1:] != row.shape[1:])
        if row.op_type in _RESHAPING and (carrier := self._behind_product(row)) is not None:
            return _certain([carrier])
        if self._keeps_slices(row):
            return _certain(source for index, source in taken if index == 0 and source in alike)
        others = [
            (source, axis) for source in inputs for axis, length in enumerate(source.shape or ()) if length == size
        ]
        if row.scope == "graph" and self._is_open(row, 0):
            others = [(source, axis) for source, axis in others if self._is_open(source, axis)]
        elif size in row.shape[1:]:
            return []
        if any(axis != 0 for _, axis in others):
            return []
        return [_Carrier(source, is_certain=len(inputs) == 1) for source, _ in others]

    def _axes(self, row: TensorEvent) -> set[int] | None:
        """Returns the axes along which an op combines or picks elements, or None if the recording does not show them.

        Along the other axes, each slice of the output is computed from the same slice of the inputs.
        """
        own = row.graph_tensor
        op = None if own is None else self._flow.graphs.op(own.graph_id, own.op_name)
        if own is None or op is None or op.op_type != row.op_type:
            return None
        if op.op_type in _STACKS:
            axis = (self._attributes_of(row) or {}).get("axis")
            rank = len(row.shape or ()) + (op.op_type == "Unpack")
            return {axis % max(rank, 1)} if isinstance(axis, int) else None
        rule = _AXES_OF.get(op.op_type)
        if rule is None:
            return None
        index, meaning = rule
        if index >= len(op.inputs) or (
            row.op_type == "GatherV2" and (self._attributes_of(row) or {}).get("batch_dims")
        ):
            return None
        numbers = self._integers(own.of_op(*op.inputs[index]))
        shape = self._static_shape(own.of_op(*op.inputs[0]))
        if numbers is None or shape is None:
            return None
        if meaning == _PERMUTATION:
            return {axis for axis, source in enumerate(numbers) if axis != source}
        if meaning == _MULTIPLES:
            return {axis for axis, number in enumerate(numbers) if number != 1}
        return {axis % max(len(shape), 1) for axis in numbers}

    def _integers(self, place: GraphTensor) -> list[int] | None:
        """Returns the elements of a constant of a few integers, or None for another tensor."""
        value = self._constants(place.graph_id).get(place.op_name)
        attributes = None if value is None else parse_json(value)
        tensor = attributes.get("value") if isinstance(attributes, dict) else None
        numbers = tensor.get(INTEGERS) if isinstance(tensor, dict) else None
        are_integers = isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)
        return numbers if are_integers else None

    def _read_constants(self, graph_id: int) -> dict[str, str]:
        """Returns the attributes of the constants of a graph that have a few integers, by op."""
        return dict(
            self._logdir.rows(
                "SELECT op_name, attributes FROM graph_op WHERE run_id = ? AND graph_id = ? AND op_type = 'Const' "
                f"AND contains(attributes, '\"{INTEGERS}\"')",
                [self._run_id, graph_id],
            )
        )

    def _behind_product(self, row: TensorEvent) -> TensorEvent | None:
        """Returns the first input of a matrix product that a Dense layer computes for tensors with three axes or more.

        A Dense layer merges all axes except the last into one axis, multiplies the resulting matrix by the weights, and
        splits the merged axis again.

        Args:
            row: The output of the last Reshape.
        """
        axes, num_rows = row.shape or (), math.prod((row.shape or ())[:-1])
        carrier = row
        for _ in range(_MAX_UNRECORDED):
            taken = [source for index, _, source in self._flow.taken_by(carrier) if index == 0]
            if len(taken) != 1:
                return None
            (carrier,) = taken
            shape = carrier.shape or ()
            if shape[:1] == axes[:1] and math.prod(shape[:-1]) == num_rows:
                return carrier
            if len(shape) != 2 or shape[0] != num_rows or not self._keeps_slices(carrier):
                return None
        return None

    def _keeps_slices(self, row: TensorEvent) -> bool:
        """Returns whether each slice of an output is certainly computed from the same slice of the first input."""
        if row.op_type in _RESHAPING:
            return True  # the elements keep their order, so slice i has the same elements before and after
        if len(row.shape or ()) < 2 or row.op_type not in (*_KEEPS_SLICES, "StridedSlice"):
            return False
        attributes = self._attributes_of(row)
        if row.op_type == "StridedSlice":
            return attributes is not None and _takes_whole_axis(attributes)
        # A fused product has the name of the addition that follows the product, so the product's attributes are not
        # known here.
        return row.op_type != "MatMul" or (attributes is not None and not attributes.get("transpose_a", False))

    def _labelled_inputs(self, row: TensorEvent) -> list[int]:
        """Returns the inputs of an Einsum that have the label of the output's first axis, on their first axis only."""
        equation = (self._attributes_of(row) or {}).get("equation")
        terms, _, made = equation.partition("->") if isinstance(equation, str) else ("", "", "")
        first = made[:1]
        if not first.isalpha():
            return []
        return [index for index, term in enumerate(terms.split(",")) if term[:1] == first and term.count(first) == 1]

    def _attributes_of(self, row: TensorEvent) -> dict[str, Any] | None:
        return None if row.graph_id is None or row.op_name is None else self._attributes(row.graph_id, row.op_name)

    def _read_attributes(self, graph_id: int, op_name: str) -> dict[str, Any] | None:
        """Returns the attributes of an op of a graph, or None if they were not recorded."""
        rows = self._logdir.rows(
            "SELECT attributes FROM graph_op WHERE run_id = ? AND graph_id = ? AND op_name = ?",
            [self._run_id, graph_id, op_name],
        )
        attributes = parse_json(rows[0][0]) if rows and rows[0][0] is not None else None
        return attributes if isinstance(attributes, dict) else None

    def _indices(self, row: TensorEvent) -> _Unrecorded | None:
        """Returns the indices for which an op looks up rows of a table; None if its output may lack their first axis.

        The first axis certainly comes from the indices if the table has a different number of rows.
        """
        own = row.graph_tensor
        op = None if own is None else self._flow.graphs.op(own.graph_id, own.op_name)
        if own is None or op is None or len(op.inputs) < 2 or not row.shape:
            return None
        table, indices = (self._static_shape(own.of_op(*edge)) for edge in op.inputs[:2])
        if not table:  # the handle of a variable
            table = next((taken.shape for index, _, taken in self._flow.taken_by(row) if index == 0), None)
        if not table or not indices or table[0] in (-1, row.shape[0]):
            return None
        return _Unrecorded(own.of_op(*op.inputs[1]), len(indices))

    def _static_shape(self, place: GraphTensor) -> tuple[int, ...] | None:
        """Returns a tensor's shape in its graph, with -1 for axes of unknown size; None if the shape is unknown."""
        return self._static_shapes(place.graph_id).get((place.op_name, place.output_slot))

    def _behind_integers(self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int) -> list[TensorEvent]:
        """Returns the nearest recorded tensors that reach an op through tensors without rows, such as masks.

        Such a path can end in a component of the batch that has no row. In this case, another component is returned.

        Args:
            row: The output of the op.
            start: The output or an input of the op. The search starts there.
            num_axes: Number of axes of `start`.
        """
        size = (row.shape or (0,))[0]
        rows: list[TensorEvent] = []
        for source in self._behind_unrecorded(row, start, num_axes=num_axes):
            if isinstance(source, TensorEvent):
                rows += [source] if source.shape and source.shape[0] == size else []
            elif siblings := [one for one in self._siblings_of(source) if one.shape and one.shape[0] == size]:
                return siblings[:1]
        return rows

    def _source(self, row: TensorEvent) -> BatchSource | None:
        """Returns a tensor as a source if it is an input of the step, or is computed from an input that has no row."""
        if self._is_batch_input(row):
            if row.op_type not in GETS_ELEMENT:
                return BatchSource(row, None)
            eager = None if row.tensor_id is None else EagerValue(row.tensor_id)
            return BatchSource(row, row.execution_index, component=row.graph_tensor or eager)
        own = row.graph_tensor
        if row.op_type in _LOOKUPS:
            start = self._indices(row)
        else:
            is_of_slices = row.op_type in _ELEMENTWISE | _RESHAPING
            start = None if own is None or not is_of_slices else _Unrecorded(own, _num_axes(row))
        if start is None:
            return None
        component = self._component_behind(row, start.place, num_axes=start.num_axes)
        if component is None or self._siblings_of(component):
            return None
        taken_in = row.execution_index
        if isinstance(component, EagerValue):
            taken_in = self._flow.events.eager(component.tensor_id).execution_index
        has_batches = taken_in is not None and self._has_batches(taken_in)
        return BatchSource(row, taken_in, component=component) if has_batches else None

    def _has_batches(self, execution_index: int | None) -> bool:
        """Returns whether the elements that an execution took from a data set are batches."""
        if execution_index is None:
            return self._is_of_keras
        return (self._is_of_keras and self._is_in_keras(execution_index)) or self._arrays.is_batched(execution_index)

    def _is_in_keras(self, execution_index: int) -> bool:
        """Returns whether Keras called an execution. Also True if the stack of the execution is not known."""
        execution = self._flow.events.execution(execution_index)
        stack = () if execution is None else self._stacks.stack(execution.stack_trace_id)
        functions = {frame.func.rpartition(".")[2] for frame in stack if not frame.is_user}
        return not stack or not functions.isdisjoint(METHODS_OF_KERAS)

    def siblings(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns the recorded outputs of the op that made a tensor, from the same run of this op."""
        own = row.graph_tensor
        return self._outputs_of(row.execution_index) if own is None else self._siblings_of(own)

    def _siblings_of(self, place: GraphTensor | EagerValue) -> list[TensorEvent]:
        """Returns the same as `siblings`, for a tensor that may have no row."""
        if isinstance(place, EagerValue):
            return self._outputs_of(self._flow.events.eager(place.tensor_id).execution_index)
        return read_events(
            self._logdir,
            "graph_id = ? AND op_name = ? AND step_id IS NOT DISTINCT FROM ? AND iteration IS NOT DISTINCT FROM ? "
            "ORDER BY output_slot",
            [self._run_id, place.graph_id, place.op_name, place.context.step_id, place.context.iteration],
        )

    def _outputs_of(self, execution_index: int | None) -> list[TensorEvent]:
        """Returns the recorded outputs of an eager op."""
        condition = "scope = 'execution' AND execution_index = ? ORDER BY output_slot"
        return read_events(self._logdir, condition, [self._run_id, execution_index])

    def _component_behind(
        self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int
    ) -> GraphTensor | EagerValue | None:
        """Returns the component of the batch that reaches an op through tensors without rows, or None."""
        sources = self._behind_unrecorded(row, start, num_axes=num_axes)
        return next((source for source in sources if not isinstance(source, TensorEvent)), None)

    def _behind_unrecorded(
        self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int
    ) -> Iterator[GraphTensor | EagerValue | TensorEvent]:
        """Yields the components of the batch and the recorded tensors from which the inputs without rows are computed.

        Tensors of integers and booleans, such as pixels, token numbers and masks, have no rows.

        Args:
            row: The output of the op.
            start: The output or an input of the op. From it, the search goes back through ops that keep the first axis.
            num_axes: Number of axes of `start`.
        """
        own_shape = row.shape if start == row.graph_tensor else None
        to_follow: list[tuple[Place, int, tuple[int, ...] | None]] = (
            [] if start is None else [(start, num_axes, own_shape)]
        )
        for _ in range(_MAX_UNRECORDED):
            if not to_follow:
                return
            place, num_axes, shape = to_follow.pop()
            trace = self._flow.trace(place, how="graph", near=row.event_index)
            op = self._op_as_written(place) if trace.row is None else None
            path = trace.path if op is None else (place,)
            place = path[-1]
            if trace.row is not None and place != start:
                if _num_axes(trace.row) == num_axes:
                    yield trace.row
                continue
            argument = next((passed for passed in reversed(path) if isinstance(passed, GraphTensor)), None)
            if shape is None and argument is not None:
                shape = self._static_shape(argument)
            if isinstance(place, EagerValue):
                if self._flow.events.eager(place.tensor_id).op_type in GETS_ELEMENT and len(shape or ()) == num_axes:
                    yield place
                continue
            sources = () if op is None else tuple(place.of_op(*edge) for edge in op.inputs)
            op = op or self._flow.graphs.op(place.graph_id, place.op_name)
            if op is not None and op.op_type in GETS_ELEMENT:
                if len(shape or ()) == num_axes:  # a component that was broadcast has a different first axis
                    yield place
                continue
            if op is not None and not sources:
                sources = self._flow.borders.executed.inputs(place, op)
            if op is not None and op.op_type in _ELEMENTWISE:
                same_shape = shape if len(sources) == 1 else None  # a node that the optimizer made has no static shape
                to_follow += [(source, num_axes, same_shape) for source in sources]
            elif op is not None and op.op_type in _RESHAPING and sources:
                source_shape = self._static_shape(sources[0])
                if _has_same_slices(source_shape, shape):
                    to_follow.append((sources[0], len(source_shape or ()), source_shape))
            elif op is not None and op.op_type in _REDUCTIONS and sources:
                source_shape = self._static_shape(sources[0])
                axes = self._integers(place.of_op(*op.inputs[1])) if len(op.inputs) > 1 else None
                is_kept = bool(source_shape and axes) and all(axis % len(source_shape or (0,)) for axis in axes or ())
                if source_shape and (is_kept or _shows_first_axis(source_shape, self._static_shape(place))):
                    to_follow.append((sources[0], len(source_shape), source_shape))

    def _op_as_written(self, place: Place) -> Op | None:
        """Returns the program's op at a place if it computes a tensor, whether or not TensorFlow ran it; else None.

        The op's inputs in the program have static shapes. Nodes that the optimizer put in their place have none.
        """
        if not isinstance(place, GraphTensor):
            return None
        op = self._flow.graphs.op(place.graph_id, place.op_name)
        is_computed = op is not None and op.made_for is None and op.op_type in _ELEMENTWISE | _RESHAPING | _REDUCTIONS
        return op if op is not None and is_computed and op.inputs else None

    def _is_open(self, row: TensorEvent, axis: int) -> bool:
        """Returns whether the size of an axis is unknown until the graph runs; True for an eager tensor."""
        if row.scope != "graph" or row.graph_id is None or row.op_name is None or row.output_slot is None:
            return True
        shape = self._static_shapes(row.graph_id).get((row.op_name, row.output_slot), ())
        return axis < len(shape) and shape[axis] < 0

    def _read_static_shapes(self, graph_id: int) -> dict[tuple[str, int], tuple[int, ...]]:
        """Returns the static shapes in a graph, by op and output slot."""
        rows = self._logdir.rows(
            "SELECT op_name, output_slot, static_shape FROM graph_op_output "
            "WHERE run_id = ? AND graph_id = ? AND static_shape IS NOT NULL",
            [self._run_id, graph_id],
        )
        return {(name, slot): tuple(shape) for name, slot, shape in rows}

    # The inputs of a step

    def arguments(self, execution_index: int | None) -> dict[int, tuple[str, TensorEvent]]:
        """Returns (name, row) of each recorded argument of a call, or feed of a session's run, by event_index."""
        return self._cached_arguments(execution_index)

    def _read_arguments(self, execution_index: int | None) -> dict[int, tuple[str, TensorEvent]]:
        execution = self._flow.events.execution(execution_index)
        if execution is None or execution.graph_id is None:
            return {}
        arguments: dict[int, tuple[str, TensorEvent]] = {}
        for index, tensor_id in self._flow.events.execution_inputs(execution.execution_index).items():
            name = self._outside.argument(execution, index)
            row = self._flow.events.eager(tensor_id).event
            if row is not None and name is not None:
                arguments[row.event_index] = (name, row)
        return arguments

    def _is_batch_input(self, row: TensorEvent) -> bool:
        """Returns whether a tensor is an input of the step whose first axis is the batch axis."""
        size = (row.shape or (0,))[0]
        user = row.execution_index
        if row.op_type in GETS_ELEMENT:
            sizes = {sibling.shape[0] for sibling in self.siblings(row) if sibling.shape}
            if sizes != {size} or self._has_batches(row.execution_index):
                return sizes == {size}
            # A distributed data set passes its elements through a function.
            uses = () if row.tensor_id is None else self._flow.events.uses(row.tensor_id)
            user = next((use.execution.execution_index for use in uses if use.execution.graph_id is not None), None)
        return user is not None and row.event_index in self.arguments(user) and self._has_batch(user, size)

    def _has_batch(self, call: int, size: int) -> bool:
        """Returns whether a call is a training step that takes several arguments with a first axis of this size."""
        arguments = (argument for _, argument in self.arguments(call).values())
        with_batch = [argument for argument in arguments if argument.shape and argument.shape[0] == size]
        return len(with_batch) > 1 and self._has_gradient(call)

    @cached_property
    def _is_of_keras(self) -> bool:
        """Whether Keras takes the elements of data sets in the run."""
        rows = self._logdir.rows(
            "SELECT 1 FROM mark WHERE run_id = ? AND label = 'phase' AND value IN (?, ?, ?) LIMIT 1",
            [self._run_id, *_PHASES_OF_KERAS],
        )
        return bool(rows) or bool(self._functions_of_keras)

    @cached_property
    def _functions_of_keras(self) -> Collection[int]:
        """The graphs that Keras made from the steps of models."""
        return user_names(self._logdir, run_id=self._run_id).keys()

    def _has_gradient(self, execution_index: int) -> bool:
        """Returns whether an execution ran gradient ops, as a training step does."""
        rows = self._logdir.rows(
            "SELECT DISTINCT t.graph_id FROM tensor_health AS t JOIN graph_op AS o ON o.run_id = t.run_id "
            "AND o.graph_id = t.graph_id AND o.op_name = t.op_name "
            "WHERE t.run_id = ? AND t.execution_index = ? AND o.role = 'gradient' LIMIT 1",
            [self._run_id, execution_index],
        )
        return bool(rows)


def _certain(rows: Iterable[TensorEvent]) -> list[_Carrier]:
    return [_Carrier(row, is_certain=True) for row in rows]


def _has_same_slices(before: tuple[int, ...] | None, after: tuple[int, ...] | None) -> bool:
    """Returns whether a reshape keeps the elements of each slice along the first axis."""
    if not before or not after or -1 in before[1:] or -1 in after[1:]:
        return False
    return math.prod(before[1:]) == math.prod(after[1:])  # then the first axis has the same size, too


def _shows_first_axis(before: tuple[int, ...], after: tuple[int, ...] | None) -> bool:
    """Returns whether a reduction certainly keeps the first axis, because no other axis has the same size.

    Args:
        before: The static shape of the input. Axes whose size a graph leaves open have the size -1.
        after: The static shape of the output.
    """
    return after is not None and _axes_of_size(before, before[0]) == _axes_of_size(after, before[0]) == [0]


def _axes_of_size(shape: tuple[int, ...], size: int) -> list[int]:
    return [axis for axis, length in enumerate(shape) if length == size]


def _num_axes(row: TensorEvent) -> int:
    return len(row.shape or ())


def _takes_whole_axis(attributes: dict[str, Any]) -> bool:
    """Returns whether the subscripts of a StridedSlice begin with `:`, according to the lowest bits of its masks."""
    masks = [attributes.get(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")]
    return [mask & 1 if isinstance(mask, int) else None for mask in masks] == [1, 1, 0, 0, 0]
