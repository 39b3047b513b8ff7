"""FirstAxis: finds those inputs of an op whose first axis is kept in the output."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tfdbg_arrow.query.batch_axis.op_facts import OpFacts, slice_masks
from tfdbg_arrow.query.batch_axis.unrecorded_inputs import ELEMENTWISE, RESHAPING, UnrecordedInputs, num_axes_of
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.op_traits import READER, Trait, types_with

_KEEPS_SLICES, _MATRIX_PRODUCTS = types_with(Trait.KEEPS_SLICES), types_with(Trait.MULTIPLIES_MATRICES)
_REORDERING = frozenset({
    "CropAndResize", "DynamicStitch", "EagerPyFunc", "GatherNd", "ParallelDynamicStitch", "PyFunc", "PyFuncStateless",
    "RaggedGather", "RandomShuffle", "Reverse", "ReverseSequence", "ScatterNd", "TensorScatterAdd", "TensorScatterMax",
    "TensorScatterMin", "TensorScatterSub", "TensorScatterUpdate",
})  # fmt: skip
"""Types of ops whose output can contain the slices of an input in a different order."""
_SELECTING = frozenset({"DynamicPartition", "Unique", "UniqueV2", "UnsortedSegmentSum"})
"""Types of ops whose slices along the first axis are not those of an input."""
_REORDERING_ALONG_AXES = frozenset({"ReverseV2", "Roll"})
"""Types of ops that put the slices of their first input along some axes in a different order."""
_AXES, _PERMUTATION, _MULTIPLES = range(3)
_AXES_OF: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("All", "Any", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"), (1, _AXES)),
    **dict.fromkeys(("Cumprod", "Cumsum", "CumulativeLogsumexp"), (1, _AXES)),
    "ConcatV2": (-1, _AXES),
    "GatherV2": (2, _AXES),
    "ReverseV2": (1, _AXES),
    "Roll": (2, _AXES),
    "Tile": (1, _MULTIPLES),
    "Transpose": (1, _PERMUTATION),
}
"""By type of op: the index of the input that names the axes along which the op combines or picks elements, and what
this input holds."""
_STACKS = frozenset({"Pack", "Unpack"})
"""Types of ops that add or remove the axis in their attribute `axis`."""
_SPLITS = frozenset({"Split", "SplitV"})
_SORTS = frozenset({"TopK", "TopKV2"})
"""Types of ops that pick elements along the last axis of their first input."""
LOOKUPS = frozenset({"Gather", "GatherV2", "ResourceGather"})
"""Types of ops that take slices of a table by number, such as the table of an embedding."""
_MAX_OF_PRODUCT = 20
"""Maximum number of ops between the two reshapes of a Dense layer."""


class Carrier(NamedTuple):
    """A tensor whose first axis is kept by another tensor.

    Attributes:
        row: The tensor.
        is_certain: Whether slice i of the other tensor is certainly computed from slice i of this tensor. If False,
            only the equal sizes of the axes suggest this, which is enough for a batch.
        is_reordered: Whether slice i of the other tensor may come from another slice of this tensor.
    """

    row: TensorEvent
    is_certain: bool
    is_reordered: bool = False


class FirstAxis:
    """Follows the first axis of one run's tensors to the inputs of their ops.

    The caller must hold the lock of the data flow.
    """

    def __init__(self, flow: DataFlow, facts: OpFacts, unrecorded: UnrecordedInputs) -> None:
        self._flow = flow
        self._facts = facts
        self._unrecorded = unrecorded

    def carriers(self, row: TensorEvent) -> list[Carrier]:
        """Returns the inputs of an op from which its output's first axis may come; empty if that is not certain."""
        axes = self._axes(row)
        if row.op_type in LOOKUPS and (axes is None or 0 in axes):
            indices = self._unrecorded.indices(row)
            if indices is None:
                return self._reordered(row)
            return _certain(self._unrecorded.rows_behind(row, indices.tensor, num_axes=indices.num_axes))
        if (texts := self._unrecorded.split_texts(row)) is not None:
            return _certain(self._unrecorded.rows_behind(row, texts.tensor, num_axes=texts.num_axes))
        if row.op_type == "StridedSlice" and self._may_skip_or_reverse(row):
            return self._reordered(row)
        if row.op_type in _REORDERING or (row.op_type in _REORDERING_ALONG_AXES and (axes is None or 0 in axes)):
            return self._reordered(row)
        if row.op_type in _SELECTING or row.op_type == READER or not row.shape:
            return []
        size = row.shape[0]
        taken = [(index, source) for index, _, source in self._flow.taken_by(row) if source.shape]
        inputs = [source for _, source in taken]
        alike = [source for source in inputs if (source.shape or ())[0] == size]
        if row.op_type in ELEMENTWISE:
            # Broadcasting matches axes from the last one on, so the first axes of tensors with equally many axes
            # correspond.
            alike = [source for source in alike if num_axes_of(source) == len(row.shape)]
            return _certain([*alike, *self._unrecorded.rows_behind(row, row.graph_tensor, num_axes=num_axes_of(row))])
        if row.op_type in _MATRIX_PRODUCTS and len(row.shape) > 2:
            # An input with fewer axes is multiplied by each slice of the other input.
            return _certain(source for source in alike if num_axes_of(source) == len(row.shape))
        if row.op_type == "Einsum" and (labelled := self._labelled_inputs(row)):
            return _certain(source for index, source in taken if index in labelled and source in alike)
        if axes is not None:
            # The op reduces, joins, gathers or repeats along axes other than the first axis of its tensors.
            return _certain(() if 0 in axes else alike)
        if row.op_type in _SORTS:
            return _certain(source for source in alike if num_axes_of(source) == len(row.shape) > 1)
        if row.op_type in _SPLITS:  # along the axis whose size changes
            return _certain(source for source in alike if (source.shape or ())[1:] != row.shape[1:])
        if row.op_type in RESHAPING and (carrier := self._behind_product(row)) is not None:
            return _certain([carrier])
        if self._keeps_slices(row):
            return _certain(source for index, source in taken if index == 0 and source in alike)
        others = [
            (source, axis) for source in inputs for axis, length in enumerate(source.shape or ()) if length == size
        ]
        if row.scope == "graph" and self._facts.is_open(row, 0):
            others = [(source, axis) for source, axis in others if self._facts.is_open(source, axis)]
        elif size in row.shape[1:]:
            return []
        if any(axis != 0 for _, axis in others):
            return []
        return [Carrier(source, is_certain=len(inputs) == 1) for source, _ in others]

    def _reordered(self, row: TensorEvent) -> list[Carrier]:
        """Returns the inputs with as many slices as the output, as carriers of reordered slices."""
        alike = (source for _, _, source in self._flow.taken_by(row) if row.shape and source.shape)
        return [
            Carrier(source, is_certain=True, is_reordered=True)
            for source in alike
            if (source.shape or ())[:1] == (row.shape or ())[:1]
        ]

    def _axes(self, row: TensorEvent) -> set[int] | None:
        """Returns the axes along which an op combines or picks elements, or None if the recording does not show them.

        Along the other axes, each slice of the output is computed from the same slice of the inputs.
        """
        graph_tensor = row.graph_tensor
        op = None if graph_tensor is None else self._flow.graphs.op(graph_tensor.graph_id, graph_tensor.op_name)
        if graph_tensor is None or op is None or op.op_type != row.op_type:
            return None
        if op.op_type in _STACKS:
            axis = (self._facts.attributes(row) or {}).get("axis")
            rank = len(row.shape or ()) + (op.op_type == "Unpack")
            return {axis % max(rank, 1)} if isinstance(axis, int) else None
        rule = _AXES_OF.get(op.op_type)
        if rule is None:
            return None
        index, meaning = rule
        if index >= len(op.inputs) or (
            row.op_type == "GatherV2" and (self._facts.attributes(row) or {}).get("batch_dims")
        ):
            return None
        numbers = self._facts.integers(graph_tensor.of_op(*op.inputs[index]))
        shape = self._facts.static_shape(graph_tensor.of_op(*op.inputs[0]))
        if numbers is None or shape is None:
            return None
        if meaning == _PERMUTATION:
            return {axis for axis, source in enumerate(numbers) if axis != source}
        if meaning == _MULTIPLES:
            return {axis for axis, number in enumerate(numbers) if number != 1}
        return {axis % max(len(shape), 1) for axis in numbers}

    def _behind_product(self, row: TensorEvent) -> TensorEvent | None:
        """Returns the first input of a matrix product that a Dense layer computes for tensors with three axes or more.

        A Dense layer merges all axes except the last into one axis, multiplies the resulting matrix by the weights, and
        splits the merged axis again.

        Args:
            row: The output of the last Reshape.
        """
        axes, num_rows = row.shape or (), math.prod((row.shape or ())[:-1])
        carrier = row
        for _ in range(_MAX_OF_PRODUCT):
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

    def _may_skip_or_reverse(self, row: TensorEvent) -> bool:
        """Returns whether a StridedSlice may take the slices along the first axis in steps other than 1.

        The strides of an eager op are not recorded. If the shape stays the same, the strides are the only reason for
        the op.
        """
        graph_tensor = row.graph_tensor
        if graph_tensor is None:
            return any(source.shape == row.shape for _, _, source in self._flow.taken_by(row))
        op = self._flow.graphs.op(graph_tensor.graph_id, graph_tensor.op_name)
        if op is None or op.op_type != "StridedSlice" or len(op.inputs) < 4:
            return False
        strides = self._facts.integers(graph_tensor.of_op(*op.inputs[3]))
        return not strides or strides[0] != 1

    def _keeps_slices(self, row: TensorEvent) -> bool:
        """Returns whether each slice of an output is certainly computed from the same slice of the first input."""
        if row.op_type in RESHAPING:
            return True  # the elements keep their order, so slice i has the same elements before and after
        if len(row.shape or ()) < 2 or row.op_type not in (*_KEEPS_SLICES, "StridedSlice"):
            return False
        attributes = self._facts.attributes(row)
        if row.op_type == "StridedSlice":
            return attributes is not None and _takes_whole_axis(attributes)
        # A fused product has the name of the addition that follows the product, so the product's attributes are not
        # known here.
        return row.op_type != "MatMul" or (attributes is not None and not attributes.get("transpose_a", False))

    def _labelled_inputs(self, row: TensorEvent) -> list[int]:
        """Returns the inputs of an Einsum that have the label of the output's first axis, on their first axis only."""
        equation = (self._facts.attributes(row) or {}).get("equation")
        terms, _, result = equation.partition("->") if isinstance(equation, str) else ("", "", "")
        label = result[:1]
        if not label.isalpha():
            return []
        return [index for index, term in enumerate(terms.split(",")) if term[:1] == label and term.count(label) == 1]


def _certain(rows: Iterable[TensorEvent]) -> list[Carrier]:
    return [Carrier(row, is_certain=True) for row in rows]


def _takes_whole_axis(attributes: dict[str, Any]) -> bool:
    """Returns whether the subscripts of a StridedSlice begin with `:`, according to the lowest bits of its masks."""
    return [mask & 1 if isinstance(mask, int) else None for mask in slice_masks(attributes)] == [1, 1, 0, 0, 0]
