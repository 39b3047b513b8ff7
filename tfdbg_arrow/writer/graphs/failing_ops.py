"""Which ops of a graph can fail because of values, and what has to be recorded before one of them runs.

An op that fails ends its whole graph: what waits to be recorded is lost. So such an op waits for the record ops of the
floating tensors that it depends on. That adds no order between ops of the program: those tensors come before it anyway.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.writer.graphs.own_ops import TensorBatch, is_own
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
"""Op types that look at their values, and can fail because of them."""

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
"""Op types that fail on the host only: on a GPU they leave out what is out of range, or give zeros or NaN for it.
Source: the definitions of these ops in tensorflow/core/ops, which say so of their GPU kernels."""

_ON_HOST_PREFIXES = ("ResourceScatter", "Scatter", "Segment", "SparseSegment", "TensorScatter", "UnsortedSegment")

_RESHAPING = frozenset({"BroadcastTo", "Reshape"})

_OF_SHAPES = frozenset({"Const", "Rank", "Shape", "ShapeN", "Size"})

_OF_INTEGERS = frozenset(
    (
        *("AddV2", "BroadcastArgs", "Cast", "ConcatV2", "FloorDiv", "GatherV2", "Identity", "Maximum", "Mul", "Pack"),
        *("Prod", "Range", "Slice", "StridedSlice", "Sub"),
    )
)
"""Op types that the shapes for reshaping are computed by."""

_INDEX_INPUT = {"Gather": 1, "GatherV2": 1, "StridedSlice": 1}
"""Op types that fail where an index is out of range, with the input that holds the indices."""


@dataclass(frozen=True)
class Stage:
    """Tensors that the same ops wait for.

    Attributes:
        batches: The tensors; record ops that take some of these take no others.
        gates: The ops that wait for them.
    """

    batches: tuple[TensorBatch, ...]
    gates: tuple[Any, ...]


@dataclass(frozen=True)
class Stages:
    """How the tensors of a graph are recorded.

    Attributes:
        stages: The tensors, each in one of them.
        calls: For ops that can fail, the ops that call functions and have to return before.
    """

    stages: tuple[Stage, ...]
    calls: tuple[tuple[Any, tuple[Any, ...]], ...]


class StageFinder:
    """Finds the stages of graphs; a graph's callees come before it."""

    def __init__(self) -> None:
        self._failing = FailingOps()

    def find(
        self, graph: Any, state: GraphState, batches: Sequence[TensorBatch], *, also: Sequence[Any] = ()
    ) -> Stages:
        """Returns the stages of tensors that are to be recorded.

        Args:
            graph: The graph.
            state: What is known of it.
            batches: The tensors.
            also: The ops that wait too where some op of the graph can fail: those that end an iteration of a loop.
        """
        found = self._failing.find(graph, state)
        if not found:
            return Stages(stages=(Stage(batches=tuple(batches), gates=()),) if batches else (), calls=())
        ops = [op for op in graph.get_operations() if not is_own(op.type, op.name)]
        failing = [op for op in ops if op.name in found]
        failing += also
        nearest = _nearest(ops, failing)
        by_gates: defaultdict[int, list[TensorBatch]] = defaultdict(list)
        for batch in batches:
            can_be_bad = any(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in batch.tensors)
            by_gates[nearest[batch.op.name] if can_be_bad else 0].append(batch)
        stages = [
            Stage(batches=tuple(group), gates=tuple(_members(gates, failing))) for gates, group in by_gates.items()
        ]
        calls: defaultdict[str, list[Any]] = defaultdict(list)
        for name in sorted({key[0] for key in state.callees}):
            for op in _members(nearest[name], failing):
                calls[op.name].append(graph.get_operation_by_name(name))
        return Stages(
            stages=tuple(stages), calls=tuple((op, tuple(calls[op.name])) for op in failing if op.name in calls)
        )


class FailingOps:
    """Finds the ops of graphs that can fail; a graph's callees come before it."""

    def __init__(self) -> None:
        self._graphs: set[int] = set()

    def find(self, graph: Any, state: GraphState) -> dict[str, bool]:
        """Returns the ops of a graph that can fail, by name, and whether they do so on the host only.

        Args:
            graph: The graph.
            state: What is known of it.
        """
        found = {key[0]: False for key, callee in state.callees.items() if callee in self._graphs}
        for op in graph.get_operations():
            if op.name not in found and not is_own(op.type, op.name) and can_fail(op):
                found[op.name] = op.type in _ON_HOST or op.type.startswith(_ON_HOST_PREFIXES)
        if found:
            self._graphs.add(state.graph_id)
        return found


def can_fail(op: Any) -> bool:
    """Returns whether an op can fail because of the values of its inputs, in a way that programs meet."""
    kind = op.type
    if kind in _ALWAYS or kind.startswith(_ALWAYS_PREFIXES):
        return True
    if kind in _RESHAPING:
        # From a shape that the program computes TensorFlow infers what would be right, not what is.
        return not (_keeps_size(op.inputs[0].shape, op.outputs[0].shape) and _is_of_shapes(op.inputs[1]))
    if kind in _INDEX_INPUT:
        # Slices of shapes are taken everywhere, and are right.
        is_of_values = op.outputs[0].dtype.is_floating or op.outputs[0].dtype.is_complex
        is_index = kind != "StridedSlice" or op.get_attr("shrink_axis_mask") != 0
        return bool(is_of_values and is_index and op.inputs[_INDEX_INPUT[kind]].op.type != "Const")
    return False


def without_idle_checks(batches: Sequence[TensorBatch], needed: Sequence[Any]) -> list[TensorBatch]:
    """Returns the batches without what only runs if a check does that TensorFlow leaves out: recorded, it could fail.

    Args:
        batches: The tensors of a graph that are to be recorded.
        needed: The ops that run without a recording.
    """
    names = {op.name for op in needed}
    idle = [batch.op for batch in batches if batch.op.type in _CHECKS and batch.op.name not in names]
    reached: set[str] = set()
    while idle:
        op = idle.pop()
        if op.name not in reached:
            reached.add(op.name)
            idle += [user for output in op.outputs for user in output.consumers()]
    return [batch for batch in batches if batch.op.name not in reached]


def has_checks(batches: Sequence[TensorBatch]) -> bool:
    """Returns whether some batch is the output of an op that only checks its input."""
    return any(batch.op.type in _CHECKS for batch in batches)


def _is_of_shapes(tensor: Any) -> bool:
    """Whether a tensor is made of constants and of the shapes of tensors alone."""
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
    """Whether two static shapes have the same number of elements, if what is unknown in each is the same."""
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


def _nearest(ops: Sequence[Any], failing: Sequence[Any]) -> dict[str, int]:
    """For each op those of `failing` that depend on it with no other in between, as bits."""
    users: defaultdict[str, set[str]] = defaultdict(set)
    for op in ops:
        for source in itertools.chain((tensor.op for tensor in op.inputs), op.control_inputs):
            users[source.name].add(op.name)
    bits = {op.name: 1 << index for index, op in enumerate(failing)}
    nearest: dict[str, int] = {}
    for op in reversed(ops):  # nearly always users come later
        waiting = [op.name]
        while waiting:
            name = waiting[-1]
            unknown = [user for user in users[name] if user not in nearest and user not in bits]
            if unknown and name not in nearest:
                waiting += unknown
                continue
            waiting.pop()
            found = 0
            for user in users[name]:
                found |= bits.get(user) or nearest.get(user, 0)
            nearest[name] = found
    return nearest


def _members(bits: int, failing: Sequence[Any]) -> Iterator[Any]:
    return (op for index, op in enumerate(failing) if bits >> index & 1)
