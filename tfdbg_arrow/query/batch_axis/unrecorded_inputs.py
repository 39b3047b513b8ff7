"""UnrecordedInputs: follows tensors back through integers and booleans, which have no rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from tfdbg_arrow.query.batch_axis.op_facts import OpFacts
from tfdbg_arrow.query.batch_axis.split_texts import OF_EACH_TEXT, ROWS_OF_WORDS, SplitTexts
from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue, GraphTensor, Op, Place, TensorEvent
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT
from tfdbg_arrow.schema.op_traits import Trait, types_with

ELEMENTWISE = types_with(Trait.ELEMENTWISE)
RESHAPING = types_with(Trait.RESHAPED) - {"Transpose"}
"""Types of ops whose output has the elements of the first input, in the same order."""
_REDUCTIONS = frozenset({"All", "Any", "ArgMax", "ArgMin", "Max", "Min", "Prod", "Sum"})
"""Types of ops that reduce masks and numbers, along some axes."""
_MAX_UNRECORDED = 20
"""From one op, at most this many tensors without a row are followed back."""


class UnrecordedTensor(NamedTuple):
    """A tensor that may have no row: the tensor, and the number of its axes."""

    tensor: GraphTensor
    num_axes: int


class UnrecordedInputs:
    """Finds the recorded tensors and the components of batches behind tensors without rows.

    Tensors of integers and booleans, such as pixels, token numbers and masks, have no rows. The caller must hold the
    lock of the data flow.
    """

    def __init__(self, flow: DataFlow, facts: OpFacts, batches: StepBatches) -> None:
        self._flow = flow
        self._facts = facts
        self._batches = batches
        self._split_texts = SplitTexts(flow.graphs, facts)

    def rows_behind(self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int) -> list[TensorEvent]:
        """Returns the nearest recorded tensors that reach an op through tensors without rows, such as masks.

        Such a path can end in a component of the batch that has no row. In this case, another component is returned.

        Args:
            row: The output of the op.
            start: The output or an input of the op. The search starts there.
            num_axes: Number of axes of `start`.
        """
        size = (row.shape or (0,))[0]
        rows: list[TensorEvent] = []
        for source in self._behind(row, start, num_axes=num_axes):
            if isinstance(source, TensorEvent):
                rows += [source] if source.shape and source.shape[0] == size else []
            elif siblings := [
                sibling for sibling in self._batches.siblings_of(source) if sibling.shape and sibling.shape[0] == size
            ]:
                return siblings[:1]
        return rows

    def component_behind(
        self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int
    ) -> GraphTensor | EagerValue | None:
        """Returns the component of the batch that reaches an op through tensors without rows, or None."""
        sources = self._behind(row, start, num_axes=num_axes)
        return next((source for source in sources if not isinstance(source, TensorEvent)), None)

    def indices(self, row: TensorEvent) -> UnrecordedTensor | None:
        """Returns the indices with which an op looks up rows of a table; None if the first axis may not come from them.

        The first axis certainly comes from the indices if the table has a different number of rows than the output.
        """
        graph_tensor = row.graph_tensor
        op = None if graph_tensor is None else self._flow.graphs.op(graph_tensor.graph_id, graph_tensor.op_name)
        if graph_tensor is None or op is None or len(op.inputs) < 2 or not row.shape:
            return None
        table, indices = (self._facts.static_shape(graph_tensor.of_op(*edge)) for edge in op.inputs[:2])
        if not table:  # the handle of a variable
            table = next((taken.shape for index, _, taken in self._flow.taken_by(row) if index == 0), None)
        if not table or not indices or table[0] in (-1, row.shape[0]):
            return None
        return UnrecordedTensor(graph_tensor.of_op(*op.inputs[1]), len(indices))

    def split_texts(self, row: TensorEvent) -> UnrecordedTensor | None:
        """Returns the texts if the slices of a tensor are certainly computed from their words; otherwise None."""
        texts = self._split_texts.of(row.graph_tensor) if row.op_type in ROWS_OF_WORDS else None
        return None if texts is None else UnrecordedTensor(texts, 1)

    def _behind(
        self, row: TensorEvent, start: GraphTensor | None, *, num_axes: int
    ) -> Iterator[GraphTensor | EagerValue | TensorEvent]:
        """Yields the components of the batch and the recorded tensors from which the inputs without rows are computed.

        Tensors of integers and booleans, such as pixels, token numbers and masks, have no rows.

        Args:
            row: The output of the op.
            start: The output or an input of the op. The search goes back from this tensor through ops that keep the
                first axis.
            num_axes: Number of axes of `start`.
        """
        own_shape = row.shape if start == row.graph_tensor else None
        to_follow: list[tuple[Place, int, tuple[int, ...] | None]] = (
            [] if start is None else [(start, num_axes, own_shape)]
        )
        for _ in range(_MAX_UNRECORDED):
            if not to_follow:
                return
            tensor, num_axes, shape = to_follow.pop()
            trace = self._flow.trace(tensor, how="graph", near=row.event_index)
            op = self._op_as_written(tensor) if trace.row is None else None
            path = trace.path if op is None else (tensor,)
            tensor = path[-1]
            if trace.row is not None and tensor != start:
                if num_axes_of(trace.row) == num_axes:
                    yield trace.row
                continue
            argument = next((passed for passed in reversed(path) if isinstance(passed, GraphTensor)), None)
            if shape is None and argument is not None:
                shape = self._facts.static_shape(argument)
            if isinstance(tensor, EagerValue):
                if self._flow.events.eager(tensor.tensor_id).op_type in GETS_ELEMENT and len(shape or ()) == num_axes:
                    yield tensor
                continue
            sources = () if op is None else tuple(tensor.of_op(*edge) for edge in op.inputs)
            op = op or self._flow.graphs.op(tensor.graph_id, tensor.op_name)
            if op is not None and (op.op_type in GETS_ELEMENT or self._flow.loop_bodies.is_component(tensor)):
                if len(shape or ()) == num_axes:  # a component that was broadcast has a different first axis
                    yield tensor
                continue
            if op is not None and not sources:
                sources = self._flow.borders.executed.inputs(tensor, op)
            if op is not None and op.op_type in ROWS_OF_WORDS and (texts := self._split_texts.of(tensor)) is not None:
                to_follow.append((texts, 1, self._facts.static_shape(texts)))
            elif op is not None and op.op_type in OF_EACH_TEXT and sources:
                to_follow.append((sources[0], num_axes, shape))
            elif op is not None and op.op_type in ELEMENTWISE:
                same_shape = shape if len(sources) == 1 else None  # a node that the optimizer made has no static shape
                to_follow += [(source, num_axes, same_shape) for source in sources]
            elif op is not None and op.op_type in RESHAPING and sources:
                source_shape = self._facts.static_shape(sources[0])
                if _has_same_slices(source_shape, shape):
                    to_follow.append((sources[0], len(source_shape or ()), source_shape))
            elif op is not None and op.op_type in _REDUCTIONS and sources:
                source_shape = self._facts.static_shape(sources[0])
                axes = self._facts.integers(tensor.of_op(*op.inputs[1])) if len(op.inputs) > 1 else None
                is_kept = bool(source_shape and axes) and all(axis % len(source_shape or (0,)) for axis in axes or ())
                if source_shape and (is_kept or _shows_first_axis(source_shape, self._facts.static_shape(tensor))):
                    to_follow.append((sources[0], len(source_shape), source_shape))

    def _op_as_written(self, tensor: Place) -> Op | None:
        """Returns the program's op that computes a tensor from others, even if TensorFlow did not run this op, or None.

        The inputs of this op in the program have static shapes. The nodes that the optimizer made instead have no
        static shapes.
        """
        if not isinstance(tensor, GraphTensor):
            return None
        op = self._flow.graphs.op(tensor.graph_id, tensor.op_name)
        is_computed = op is not None and op.made_for is None and op.op_type in ELEMENTWISE | RESHAPING | _REDUCTIONS
        return op if op is not None and is_computed and op.inputs else None


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


def num_axes_of(row: TensorEvent) -> int:
    """Returns the number of axes of a tensor, which is 0 if its shape is not known."""
    return len(row.shape or ())
