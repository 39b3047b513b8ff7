"""RaggedRows: recognizes the sums over the rows of a ragged component of a batch, such as those of a mean."""

from __future__ import annotations

from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue, TensorEvent
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT

TO_VALUES = "RaggedTensorFromVariant"
"""The type of op that makes the limits of the rows (output 0) and the values of a ragged component (output 1)."""
_REDUCES_SEGMENTS = frozenset({
    "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum",
})  # fmt: skip
"""Types of ops that reduce the values of each row of a ragged tensor. Input 1 has the row of each value."""
_ROW_OF_EACH_VALUE = "RaggedSplitsToSegmentIds"
"""The scope of the ops with which TensorFlow computes the row of each value from the limits of the rows."""
_MAX_OPS = 200
"""Maximum number of ops that are examined. TensorFlow uses about 60."""


class RaggedRows:
    """Recognizes sums over the rows of ragged components in one run.

    The caller must hold the lock of the data flow.
    """

    def __init__(self, flow: DataFlow, batches: StepBatches) -> None:
        self._flow = flow
        self._batches = batches

    def values_of(self, reduced: TensorEvent) -> TensorEvent | None:
        """Returns the values of the ragged component whose rows a tensor reduces; None for another tensor.

        Slice i of the tensor is computed from the values of sample i.
        """
        place, events = reduced.graph_tensor, self._flow.events
        if place is None or reduced.op_type not in _REDUCES_SEGMENTS:
            return None
        limits = self._argument_behind(reduced)
        source = None if limits is None else self._flow.trace(place.of_op(limits), how="graph", near=place.near).place
        made = events.eager(source.tensor_id) if isinstance(source, EagerValue) else None
        if made is None or made.op_type != TO_VALUES or made.output_slot != 0 or made.execution_index is None:
            return None
        outputs = events.execution_outputs(made.execution_index)
        component = events.execution_inputs(made.execution_index).get(0)
        if outputs.keys() != {0, 1} or component is None:
            return None  # e.g. several ragged axes
        element = events.eager(component)
        is_of_batch = element.op_type in GETS_ELEMENT and self._batches.has_batches(element.execution_index)
        return events.eager(outputs[1][0]).event if is_of_batch else None

    def _argument_behind(self, reduced: TensorEvent) -> str | None:
        """Returns the only argument from which the rows of the values are computed; None if there are several."""
        ops = self._flow.graphs.graph(reduced.graph_id or 0).ops
        op = ops.get(reduced.op_name or "")
        to_follow = [] if op is None or len(op.inputs) < 2 else [op.inputs[1][0]]
        if not to_follow or _ROW_OF_EACH_VALUE not in to_follow[0]:
            return None
        seen, arguments = set(to_follow), set()
        while to_follow and len(seen) < _MAX_OPS:
            name = to_follow.pop()
            source = ops.get(name)
            if source is None:
                return None
            if not source.inputs and source.op_type != "Const":
                arguments.add(name)
            new = {taken for taken, _ in source.inputs} - seen
            seen |= new
            to_follow += new
        return arguments.pop() if not to_follow and len(arguments) == 1 else None
