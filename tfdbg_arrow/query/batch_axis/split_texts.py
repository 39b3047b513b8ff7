"""SplitTexts: follows ragged tensors of words back to the texts that `tf.strings.split` split.

TensorFlow keeps a ragged tensor as its values and the limits of its rows. TensorFlow computes the values and the limits
with many integer ops. No single one of these ops shows that the rows keep their order. So the ops are recognized by the
scopes in which TensorFlow creates them.
"""

from __future__ import annotations

from tfdbg_arrow.query.batch_axis.op_facts import OpFacts, slice_masks
from tfdbg_arrow.query.batch_axis.reduced_rows import REDUCES_ROWS, ROW_OF_EACH_VALUE
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.recorded import GraphTensor, Op

_ROW_LIMITS = "RowPartitionFromValueRowIds"
"""The scope in which TensorFlow computes the limits of the rows from the row of each value."""
_TO_DENSE = "RaggedTensorToTensor"
ROWS_OF_WORDS = REDUCES_ROWS | {_TO_DENSE}
"""Types of ops whose slices along the first axis can be computed from the rows of a ragged tensor."""
OF_EACH_TEXT = frozenset({
    "RegexReplace", "StaticRegexReplace", "StringLower", "StringStrip", "StringUpper", "Substr",
})  # fmt: skip
"""Types of ops that change each text of their first input."""
_SPLITS_TEXTS = "StringSplitV2"


class SplitTexts:
    """Finds the split texts in the graphs of one run."""

    def __init__(self, graphs: GraphReader, facts: OpFacts) -> None:
        self._graphs = graphs
        self._facts = facts

    def of(self, tensor: GraphTensor | None) -> GraphTensor | None:
        """Returns a vector of texts. Slice i of the given tensor was computed from the words of text i.

        The result is None if the slices are not certainly computed from the words of texts.
        """
        op = None if tensor is None else self._graphs.op(tensor.graph_id, tensor.op_name)
        if tensor is None or op is None:
            return None
        if op.op_type in REDUCES_ROWS and len(op.inputs) > 1:
            name, slot = op.inputs[1]
            before, scope, _ = name.partition(f"/{ROW_OF_EACH_VALUE}")
            # The number of the scope, as in RaggedSplitsToSegmentIds_1, belongs to the name.
            number = name[len(before + scope) :].partition("/")[0]
            limits = self._input(tensor, f"{before}{scope}{number}/strided_slice") if scope else None
            return self._split_into_rows(tensor.of_op(name, slot)) if not scope else self._with_limits(limits)
        if op.op_type == _TO_DENSE and len(op.inputs) > 3:
            types = (self._facts.attributes_of(tensor) or {}).get("row_partition_types")
            if types == ["ROW_SPLITS"]:
                return self._with_limits(tensor.of_op(*op.inputs[3]))
            if types == ["FIRST_DIM_SIZE", "VALUE_ROWIDS"] and len(op.inputs) > 4:
                return self._split_into_rows(tensor.of_op(*op.inputs[4]))
        return None

    def _with_limits(self, limits: GraphTensor | None) -> GraphTensor | None:
        """Returns the texts of a ragged tensor, given the limits of its rows."""
        if limits is None or not limits.op_name.endswith("/concat"):
            return None
        scope = limits.op_name.removesuffix("/concat")
        if not scope.rpartition("/")[2].startswith(_ROW_LIMITS):
            return None
        rows = self._input(limits, f"{scope}/bincount/Reshape")
        return None if rows is None else self._split_into_rows(rows)

    def _split_into_rows(self, rows: GraphTensor) -> GraphTensor | None:
        """Returns the texts, given the row of each word: the first column of the indices that the split returns."""
        op = self._op(rows)
        while op is not None and op.op_type in ("Cast", "Identity") and op.inputs:
            rows = rows.of_op(*op.inputs[0])
            op = self._op(rows)
        if op is None or op.op_type != "StridedSlice" or len(op.inputs) < 2:
            return None
        attributes = self._facts.attributes_of(rows) or {}
        begin = self._facts.integers(rows.of_op(*op.inputs[1]))
        split = self._op(rows.of_op(*op.inputs[0]))
        is_of_rows = slice_masks(attributes) == [1, 1, 0, 0, 2] and begin == [0, 0] and op.inputs[0][1] == 0
        if not is_of_rows or split is None or split.op_type != _SPLITS_TEXTS or not split.inputs:
            return None
        return rows.of_op(*split.inputs[0])

    def _input(self, tensor: GraphTensor, op_name: str) -> GraphTensor | None:
        op = self._graphs.op(tensor.graph_id, op_name)
        return None if op is None or not op.inputs else tensor.of_op(*op.inputs[0])

    def _op(self, tensor: GraphTensor) -> Op | None:
        return self._graphs.op(tensor.graph_id, tensor.op_name)
