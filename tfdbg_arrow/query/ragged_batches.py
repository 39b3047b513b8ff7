"""RaggedBatches: finds the samples that the values of a ragged or sparse component of a batch belong to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tfdbg_arrow.query.batch_axis import BatchSource
from tfdbg_arrow.query.batch_axis.reduced_rows import RAGGED, SPARSE
from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT
from tfdbg_arrow.query.step_inputs import KeptInput, StepInputs


@dataclass(frozen=True)
class RaggedBatch:
    """A ragged or sparse component of a batch. A ragged component has one ragged axis.

    Attributes:
        values: The kept values of all samples.
        limits: Sample i has the values from index limits[i] to limits[i + 1] - 1.
        source: The component, as a source of the batch.
        slot: The number of the component.
        first_id: The ID of the first tensor that TensorFlow passes to a function for this component. The argument for
            this tensor has the name of the component.
        is_reduced: Whether the values of each sample were reduced to one slice of the bad tensor.
    """

    values: KeptInput
    limits: tuple[int, ...]
    source: BatchSource
    slot: int
    first_id: int
    is_reduced: bool

    @property
    def num_slices(self) -> int:
        """The number of slices that the bad tensor must have along its first axis."""
        return len(self.limits) - 1 if self.is_reduced else self.limits[-1]

    def sample_of(self, index: int) -> int:
        """Returns the sample that a slice of the bad tensor belongs to."""
        return index if self.is_reduced else bisect_right(self.limits, index) - 1


class RaggedBatches:
    """Recognizes the values of ragged and sparse components in one run.

    The caller must hold the lock of the data flow.
    """

    def __init__(self, flow: DataFlow, batches: StepBatches, step_inputs: StepInputs) -> None:
        self._flow = flow
        self._batches = batches
        self._step_inputs = step_inputs

    def find(self, source: BatchSource, *, num_slices: int) -> RaggedBatch | None:
        """Returns the component whose values are a given source; None if the source is something else.

        The result is also None if the recording did not keep the values and their positions as arguments of a step.

        Args:
            source: The source.
            num_slices: Number of slices along the first axis of the bad tensor.
        """
        values, events = source.row, self._flow.events
        is_sparse = values.op_type == SPARSE and source.is_reduced
        if not (values.op_type == RAGGED or is_sparse) or values.tensor_id is None or values.execution_index is None:
            return None
        outputs = {slot: tensor_id for slot, (tensor_id, _) in events.execution_outputs(values.execution_index).items()}
        component = events.execution_inputs(values.execution_index).get(0)
        if outputs.get(1) != values.tensor_id or len(outputs) != (3 if is_sparse else 2) or component is None:
            return None  # e.g. several ragged axes
        taken_in = events.eager(component).execution_index
        is_element = events.eager(component).op_type in GETS_ELEMENT and self._batches.has_batches(taken_in)
        input_of_tensor = self._step_inputs.of_tensors((outputs[0], outputs[1]))
        if not is_element or taken_in is None or len(input_of_tensor) != 2:
            return None
        kept_places, kept_values = input_of_tensor[outputs[0]], input_of_tensor[outputs[1]]
        limits = self._step_inputs.integers(kept_places)
        if len(kept_places.shape) != (2 if is_sparse else 1):
            return None
        if is_sparse:
            rows = limits[:: kept_places.shape[1]]
            limits = tuple(bisect_left(rows, row) for row in range(num_slices + 1)) if _is_sorted(rows) else ()
        if len(limits) < 2 or not _is_sorted(limits) or limits[0] != 0 or (limits[-1],) != kept_values.shape[:1]:
            return None
        slots = {tensor_id: slot for slot, (tensor_id, _) in events.execution_outputs(taken_in).items()}
        element = BatchSource(values, taken_in, component=EagerValue(component))
        batch = RaggedBatch(
            values=kept_values,
            limits=limits,
            source=element,
            slot=slots.get(component, 0),
            first_id=outputs[0 if is_sparse else 1],
            is_reduced=source.is_reduced,
        )
        return batch if batch.num_slices == num_slices else None


def _is_sorted(numbers: Sequence[int]) -> bool:
    return all(one <= other for one, other in pairwise(numbers))
