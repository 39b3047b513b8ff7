"""Finds the ops of a graph that can fail because of values, so that tensors are recorded before they run.

An op that fails ends its whole graph, and tensors that are not recorded yet are lost. So such an op waits for the
record ops of the floating tensors that it depends on. This adds no order between ops of the program, because those
tensors are computed before the op anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdbg_arrow.writer.graphs.own_ops import is_own
from tfdbg_arrow.writer.graphs.registry import GraphState

_CHECKS = frozenset({"CheckNumerics", "CheckNumericsV2"})

_ALWAYS = _CHECKS | frozenset(
    (
        *("Assert", "EnsureShape", "PyFunc", "PyFuncStateless", "EagerPyFunc"),
        *("Cholesky", "CholeskyGrad", "Eig", "LogMatrixDeterminant", "MatrixDeterminant", "MatrixInverse"),
        *("MatrixLogarithm", "MatrixSolve", "MatrixSolveLs", "MatrixSquareRoot", "MatrixTriangularSolve", "Qr"),
        *("SelfAdjointEigV2", "Svd"),
        *("Bincount", "CTCLoss", "CTCLossV2", "DenseBincount", "DynamicPartition", "DynamicStitch", "GatherNd"),
        *("ParallelDynamicStitch", "ResourceGather", "ResourceGatherNd", "ScatterNd", "SparseReshape"),
        *("SparseSoftmaxCrossEntropyWithLogits", "SparseToDense", "SparseTensorDenseMatMul"),
        *("Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "StatelessMultinomial"),
        *("StatelessParameterizedTruncatedNormal", "StringToNumber"),
    )
)
"""Op types that can fail because of the values of their inputs."""

_ALWAYS_PREFIXES = (
    *("Decode", "LookupTable", "Parse", "Ragged", "ResourceScatter", "Scatter", "Segment", "SparseSegment"),
    *("TensorScatter", "UnsortedSegment"),
)

_ON_HOST = frozenset(
    (
        *("Bincount", "DenseBincount", "DynamicPartition", "DynamicStitch", "Gather", "GatherNd", "GatherV2"),
        *("Multinomial", "ParallelDynamicStitch", "ParameterizedTruncatedNormal", "ResourceGather", "ResourceGatherNd"),
        *("ScatterNd", "SparseSoftmaxCrossEntropyWithLogits", "SparseTensorDenseMatMul", "StatelessMultinomial"),
        "StatelessParameterizedTruncatedNormal",
    )
)
"""Op types that fail only on the host. On a GPU they skip values that are out of range, or return zeros or NaN instead.
Source: the definitions of these ops in tensorflow/core/ops, which document it for their GPU kernels."""

_ON_HOST_PREFIXES = ("ResourceScatter", "Scatter", "Segment", "SparseSegment", "TensorScatter", "UnsortedSegment")

_RESHAPING = frozenset({"BroadcastTo", "Reshape"})

_OF_SHAPES = frozenset({"Const", "Rank", "Shape", "ShapeN", "Size"})

_OF_INTEGERS = frozenset(
    (
        *("AddV2", "BroadcastArgs", "Cast", "ConcatV2", "FloorDiv", "GatherV2", "Identity", "Maximum", "Mul", "Pack"),
        *("Prod", "Range", "Slice", "StridedSlice", "Sub"),
    )
)
"""Op types that compute the shapes for reshaping."""

_INDEX_INPUT = {"Gather": 1, "GatherV2": 1, "StridedSlice": 1}
"""Op types that fail if an index is out of range; the value is the input that holds the indices."""


class FailingOps:
    """Finds the ops of graphs that can fail; call find() for the callees of a graph first."""

    def __init__(self) -> None:
        self._graphs: set[int] = set()

    def find(self, graph: Any, state: GraphState) -> dict[str, bool]:
        """Returns the names of the ops of a graph that can fail, and whether they fail only on the host.

        Args:
            graph: The graph.
            state: The state of the graph.
        """
        found = {key[0]: False for key, callee in state.callees.items() if callee in self._graphs}
        for op in graph.get_operations():
            if op.name not in found and not is_own(op.type, op.name) and can_fail(op):
                found[op.name] = op.type in _ON_HOST or op.type.startswith(_ON_HOST_PREFIXES)
        if found:
            self._graphs.add(state.graph_id)
        return found


def can_fail(op: Any) -> bool:
    """Returns True if an op can fail because of the values of its inputs, in a way that occurs in practice."""
    kind = op.type
    if kind in _ALWAYS or kind.startswith(_ALWAYS_PREFIXES):
        return True
    if kind in _RESHAPING:
        # For a shape that the program computes, TensorFlow infers the output shape that would be valid.
        return not (_keeps_size(op.inputs[0].shape, op.outputs[0].shape) and _is_of_shapes(op.inputs[1]))
    if kind in _INDEX_INPUT:
        # Slices of shapes are very common and valid.
        is_of_values = op.outputs[0].dtype.is_floating or op.outputs[0].dtype.is_complex
        is_index = kind != "StridedSlice" or op.get_attr("shrink_axis_mask") != 0
        return bool(is_of_values and is_index and op.inputs[_INDEX_INPUT[kind]].op.type != "Const")
    return False


def _is_of_shapes(tensor: Any) -> bool:
    """Returns True if a tensor is computed only from constants and the shapes of tensors."""
    waiting, seen = [tensor.op], set()
    while waiting:
        op = waiting.pop()
        if op.name in seen or op.type in _OF_SHAPES:
            continue
        if op.type not in _OF_INTEGERS:
            return False
        seen.add(op.name)
        waiting += [each.op for each in op.inputs]
    return True


def _keeps_size(before: Any, after: Any) -> bool:
    """Returns True if two static shapes have the same number of elements, assuming equal unknown dimensions."""
    if before.rank is None or after.rank is None:
        return False
    known = [[dim for dim in shape.as_list() if dim is not None] for shape in (before, after)]
    unknown = [shape.rank - len(dims) for shape, dims in zip((before, after), known, strict=True)]
    sizes = [_product(dims) for dims in known]
    return sizes[0] == sizes[1] and unknown[0] == unknown[1] <= 1


def _product(dims: Sequence[int]) -> int:
    product = 1
    for dim in dims:
        product *= dim
    return product
