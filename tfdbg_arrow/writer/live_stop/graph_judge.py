"""Decides which tensors of graphs stop the program if they are bad.

GraphJudge decides for the graphs that XLA compiles. For the graphs that TensorFlow runs, the native core decides by the
same rules. It reports the tensors that do not stop the program, and GraphJudge keeps the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tfdbg_arrow.writer.graphs.own_ops import TensorBatch
from tfdbg_arrow.writer.live_stop.masking import mask_reason


class GraphJudge:
    """Decides which tensors of graphs stop the program if they are bad.

    Args:
        is_used_by_graph: Returns True if another graph uses the results of a graph; that graph then decides about them.
    """

    def __init__(self, *, is_used_by_graph: Callable[[Any], bool]) -> None:
        self.is_used_by_graph = is_used_by_graph
        self._masked: dict[int, tuple[str, str]] = {}

    def judge(self, graph: Any, batches: list[TensorBatch]) -> list[TensorBatch]:
        """Returns the batches of a function's graph with `decides` set for each tensor."""
        returned = set() if self.is_used_by_graph(graph) else {id(tensor) for tensor in graph.outputs}
        return [self._judged(batch, returned) for batch in batches]

    def note_masked(self, node: int, op_name: str, op_type: str, slot: int, users: Sequence[str]) -> None:
        """Notes a tensor that does not stop the program, given its key and the types of the ops that take it."""
        reason = mask_reason(op_type, slot, users=users, is_returned=False)
        if reason is not None:
            self._masked[node] = (f"{op_name}:{slot} ({op_type})", reason)

    def masked(self, node: int) -> tuple[str, str] | None:
        """Returns name and reason of a tensor that does not stop the program, given its key; None if it does."""
        return self._masked.get(node)

    def _judged(self, batch: TensorBatch, returned: set[int]) -> TensorBatch:
        decides = []
        for tensor, node in zip(batch.tensors, batch.nodes, strict=True):
            op_type, slot = batch.op.type, tensor.value_index
            users = [user.type for user in tensor.consumers()]
            reason = mask_reason(op_type, slot, users=users, is_returned=id(tensor) in returned)
            if reason is not None:
                self._masked[node] = (f"{batch.op.name}:{slot} ({op_type})", reason)
            decides.append(reason is None)
        return replace(batch, decides=tuple(decides))
