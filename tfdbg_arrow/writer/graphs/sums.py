"""Which ops of a graph sum three or more tensors: their order of summation is not to depend on who looks on.

TensorFlow's AddN adds its inputs in their order, but takes first the one into whose memory it may write: the first that
nobody else holds. A record op that still holds an input would so change the order, and with it the last bits of the
sum. So what sums waits for the record ops of its inputs, and of all that shares memory with them: here they are found.

Source: tensorflow/core/kernels/aggregate_ops.cc, AddNOp; tensorflow/core/framework/op_kernel.cc, forward_input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.writer.graphs.node_defs import runs_inline
from tfdbg_arrow.writer.graphs.registry import GraphState

_SHARING = frozenset(
    (
        *("Bitcast", "CheckNumerics", "CheckNumericsV2", "EnsureShape", "ExpandDims", "Identity", "PreventGradient"),
        *("Reshape", "Slice", "Snapshot", "Split", "SplitV", "Squeeze", "StopGradient", "StridedSlice", "Unpack"),
    )
)
"""Ops whose outputs may lie in the memory of an input; IdentityN, whose outputs do one by one, is apart."""


@dataclass(frozen=True)
class Sum:
    """An op that sums, itself or in a function that it calls.

    Attributes:
        op: The `tf.Operation`.
        tensors: What it sums, and what may share memory with that; symbolic.
        calls: The ops whose functions gave some of these.
    """

    op: Any
    tensors: tuple[Any, ...]
    calls: tuple[Any, ...]


class SumFinder:
    """Finds the sums of graphs; a graph's callees come before it, so that it is known which of them sum arguments."""

    def __init__(self) -> None:
        self._of_arguments: set[int] = set()

    def find(self, graph: Any, state: GraphState, *, also: Sequence[Any]) -> list[Sum]:
        """Returns the sums of a graph, and ops of it that are to wait as if they were some."""
        callers = {name for name, _, _ in state.callees}
        summing_callers = {key[0] for key, callee in state.callees.items() if callee in self._of_arguments}
        arguments = {_key(tensor) for tensor in graph.inputs}
        found = []
        summing = [
            op for op in graph.get_operations() if _is_sum(op) or (op.name in summing_callers and runs_inline(op.type))
        ]
        for op in (*summing, *also):
            tensors = _sharing_memory(op.inputs)
            if not arguments.isdisjoint(map(_key, tensors)):
                self._of_arguments.add(state.graph_id)
            calls = {tensor.op.name: tensor.op for tensor in tensors if tensor.op.name in callers}
            found.append(Sum(op=op, tensors=tuple(tensors), calls=tuple(calls.values())))
        return found


def _is_sum(op: Any) -> bool:
    # Two terms have one order, and integers one sum.
    if op.type != "AddN" or len(op.inputs) < 3:
        return False
    dtype = op.outputs[0].dtype
    return bool(dtype.is_floating or dtype.is_complex)


def _sharing_memory(tensors: Sequence[Any]) -> list[Any]:
    """Tensors, and those that they were made of without a copy, but constants, which TensorFlow itself holds."""
    waiting = list(tensors)
    found: dict[tuple[str, int], Any] = {}
    while waiting:
        tensor = waiting.pop()
        op = tensor.op
        if _key(tensor) in found or op.type == "Const":
            continue
        found[_key(tensor)] = tensor
        if op.type in _SHARING:
            waiting += op.inputs
        elif op.type == "IdentityN":
            waiting.append(op.inputs[tensor.value_index])
    return list(found.values())


def _key(tensor: Any) -> tuple[str, int]:
    return tensor.op.name, tensor.value_index
