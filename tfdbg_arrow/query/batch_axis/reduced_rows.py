"""ReducedRows: recognizes tensors that reduce the rows of a ragged or sparse component of a batch, such as a mean."""

from __future__ import annotations

from tfdbg_arrow.query.batch_axis.op_facts import OpFacts
from tfdbg_arrow.query.batch_axis.step_batches import StepBatches
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import EagerValue, GraphTensor, Op, TensorEvent
from tfdbg_arrow.query.source_arrays import GETS_ELEMENT

RAGGED = "RaggedTensorFromVariant"
"""The type of op that makes the limits of the rows (output 0) and the values (output 1) of a ragged component."""
SPARSE = "DeserializeSparse"
"""The type of op that makes the indices (output 0), the values and the shape of a sparse component."""
_OUTPUTS = {RAGGED: {0, 1}, SPARSE: {0, 1, 2}}
"""The outputs of ops that make a component with one ragged axis. An op with other outputs makes several ragged axes."""
REDUCES_ROWS = frozenset({
    "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum",
})  # fmt: skip
"""Types of ops that reduce the values of each row of a ragged tensor. Input 1 has the row of each value."""
ROW_OF_EACH_VALUE = "RaggedSplitsToSegmentIds"
"""The scope of the ops with which TensorFlow computes the row of each value from the limits of the rows."""
_REDUCES_SPARSE = frozenset({"SparseReduceMax", "SparseReduceSum"})
"""Types of ops that reduce a sparse tensor. Input 0 has the indices of the tensor, and input 3 has the axes."""
_MULTIPLIES_SPARSE = "SparseTensorDenseMatMul"
"""The type of op that multiplies a sparse matrix by a dense matrix. Input 0 has the indices of the sparse matrix."""
_MAX_OPS = 200
"""Maximum number of ops that are examined. TensorFlow uses about 60."""


class ReducedRows:
    """Recognizes tensors that reduce rows of ragged and sparse components in one run.

    The caller must hold the lock of the data flow.
    """

    def __init__(self, flow: DataFlow, facts: OpFacts, batches: StepBatches) -> None:
        self._flow = flow
        self._facts = facts
        self._batches = batches

    def values_of(self, reduced: TensorEvent) -> TensorEvent | None:
        """Returns the values of the component whose rows a tensor reduces; None for another tensor.

        Slice i of the tensor is computed from the values of sample i.
        """
        place, events = reduced.graph_tensor, self._flow.events
        rows = None if place is None else self._rows(reduced, place)
        source = None if rows is None else self._flow.trace(rows, how="graph", near=rows.near).place
        made = events.eager(source.tensor_id) if isinstance(source, EagerValue) else None
        if made is None or made.output_slot != 0 or made.execution_index is None:
            return None
        outputs = events.execution_outputs(made.execution_index)
        component = events.execution_inputs(made.execution_index).get(0)
        if outputs.keys() != _OUTPUTS.get(made.op_type or "") or component is None:
            return None
        element = events.eager(component)
        is_of_batch = element.op_type in GETS_ELEMENT and self._batches.has_batches(element.execution_index)
        return events.eager(outputs[1][0]).event if is_of_batch else None

    def _rows(self, reduced: TensorEvent, place: GraphTensor) -> GraphTensor | None:
        """Returns the tensor with the row of each value, if the op reduces along other axes than the rows."""
        graph = self._flow.graphs.graph(place.graph_id)
        op = graph.ops.get(place.op_name)
        if op is None or op.op_type != reduced.op_type or not op.inputs:
            return None
        if op.op_type in REDUCES_ROWS:
            limits = self._argument_behind(op, graph.ops)
            return None if limits is None else place.of_op(limits)
        if op.op_type in _REDUCES_SPARSE:
            axes = self._facts.integers(place.of_op(*op.inputs[3]))
            rank = self._facts.static_shape(place.of_op(*op.inputs[0]))
            is_kept = (
                bool(axes) and rank is not None and rank[1:] != (-1,) and 0 not in {a % rank[1] for a in axes or ()}
            )
            return place.of_op(*op.inputs[0]) if is_kept else None
        if op.op_type == _MULTIPLIES_SPARSE and (self._facts.attributes(reduced) or {}).get("adjoint_a") is False:
            return place.of_op(*op.inputs[0])
        return None

    @staticmethod
    def _argument_behind(op: Op, ops: dict[str, Op]) -> str | None:
        """Returns the argument with the limits from which the rows of the values are computed; None if unknown.

        Limits that the program computed itself, for example those of a slice, do not count.
        """
        segment_ids = op.inputs[1][0] if len(op.inputs) > 1 else ""
        before, scope, _ = segment_ids.partition(f"{ROW_OF_EACH_VALUE}/")
        to_follow = [segment_ids] if scope else []
        seen, arguments = set(to_follow), set()
        while to_follow and len(seen) < _MAX_OPS:
            name = to_follow.pop()
            source = ops.get(name)
            if source is None or (source.inputs and not name.startswith(before + scope)):
                return None
            if not source.inputs and source.op_type != "Const":
                arguments.add(name)
            new = {taken for taken, _ in source.inputs} - seen
            seen |= new
            to_follow += new
        return arguments.pop() if not to_follow and len(arguments) == 1 else None
