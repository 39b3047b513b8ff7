"""RaggedBatches: finds the samples to which the values of a ragged component of a batch belong."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from tfdbg_arrow.query.batch_axis import BatchSource
from tfdbg_arrow.query.batch_axis.ragged_rows import TO_VALUES
from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT
from tfdbg_arrow.query.step_inputs import KeptInput, StepInputs


@dataclass(frozen=True)
class RaggedBatch:
    """A ragged component of a batch whose samples have values along one ragged axis.

    Attributes:
        values: The kept values of all samples.
        limits: Sample i has the values from limits[i] up to limits[i + 1].
        source: The component, as a source of the batch.
        slot: The number of the component.
        is_reduced: Whether the bad tensor reduces the values of each sample.
    """

    values: KeptInput
    limits: tuple[int, ...]
    source: BatchSource
    slot: int

    is_reduced: bool = False

    @property
    def num_slices(self) -> int:
        """The number of slices along the first axis of the bad tensor."""
        return len(self.limits) - 1 if self.is_reduced else self.limits[-1]

    def sample_of(self, index: int) -> int:
        """Returns the sample of a value, or of a slice of a tensor that reduces the values of each sample."""
        return index if self.is_reduced else bisect_right(self.limits, index) - 1


class RaggedBatches:
    """Recognizes the values of ragged components in one run. The caller must hold the lock of the data flow."""

    def __init__(self, flow: DataFlow, batches: StepBatches, step_inputs: StepInputs) -> None:
        self._flow = flow
        self._batches = batches
        self._step_inputs = step_inputs

    def find(self, source: BatchSource) -> RaggedBatch | None:
        """Returns the ragged component whose values are a given source; None for another source.

        The result is also None unless the recording kept the values and the limits, as arguments of a step.
        """
        values, events = source.row, self._flow.events
        if values.op_type != TO_VALUES or values.tensor_id is None or values.execution_index is None:
            return None
        outputs = {slot: tensor_id for slot, (tensor_id, _) in events.execution_outputs(values.execution_index).items()}
        component = events.execution_inputs(values.execution_index).get(0)
        if outputs != {0: outputs.get(0), 1: values.tensor_id} or component is None:
            return None  # e.g. several ragged axes
        taken_in = events.eager(component).execution_index
        is_element = events.eager(component).op_type in GETS_ELEMENT and self._batches.has_batches(taken_in)
        input_of_tensor = self._step_inputs.of_tensors(outputs.values())
        if not is_element or taken_in is None or set(input_of_tensor) != set(outputs.values()):
            return None
        limits = self._step_inputs.integers(input_of_tensor[outputs[0]])
        size = input_of_tensor[values.tensor_id].shape[:1]
        is_ordered = all(start <= end for start, end in pairwise(limits))
        if len(limits) < 2 or not is_ordered or limits[0] != 0 or (limits[-1],) != size:
            return None
        slots = {tensor_id: slot for slot, (tensor_id, _) in events.execution_outputs(taken_in).items()}
        element = BatchSource(values, taken_in, component=EagerValue(component))
        slot = slots.get(component, 0)
        return RaggedBatch(input_of_tensor[values.tensor_id], limits, element, slot, is_reduced=source.is_reduced)
