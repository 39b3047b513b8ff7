"""The ops that record graphs where there is a native core: one takes the summaries of many tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tfdbg_arrow.spool.records import NUM_INLINE_DIMS
from tfdbg_arrow.writer.graphs.own_ops import TensorBatch
from tfdbg_arrow.writer.hooks import record_ops
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend import summary
from tfdbg_arrow.writer.tensorflow_backend.devices import Devices, by_device, dtype_number, placed


class NativeSummaryOps:
    """Records with the native ops: summaries, and on the host what TensorFlow cannot summarize."""

    def __init__(self, mode: TensorDebugMode, *, generation: int, devices: Devices) -> None:
        self._mode = mode
        self._generation = generation
        self._devices = devices
        self._on_host = record_ops.NativeRecordOps(generation=generation)

    def add(self, graph: Any, batches: Sequence[TensorBatch], *, is_stateless: bool = False) -> list[Any]:
        """Adds the ops; returns those that must run."""
        # What the user chose goes there whole, and so does what a summary has no room for.
        whole = [batch for batch in batches if batch.is_chosen]
        others = [batch for batch in batches if not batch.is_chosen]
        added = self._on_host.add(graph, [*whole, *_select(others, self._belongs_on_host)], is_stateless=is_stateless)
        summarized = _select(others, lambda tensor: not self._belongs_on_host(tensor))
        for device, group in by_device(summarized).items():
            tensors = [each.tensor for each in group]
            with record_ops.own_scope(graph), placed(self._devices.measuring(device)):
                rows = summary.pack(tensors, mode=self._mode)
            added.append(
                record_ops.create_summary_op(
                    graph,
                    rows,
                    nodes=[each.node for each in group],
                    dtypes=[dtype_number(tensor) for tensor in tensors],
                    decides=[each.decides for each in group],
                    generation=self._generation,
                    device=device,
                    is_stateless=is_stateless,
                )
            )
        return added

    def _belongs_on_host(self, tensor: Any) -> bool:
        return (
            self._mode is TensorDebugMode.FULL_TENSOR
            or not summary.can_measure(tensor.dtype)
            or (tensor.shape.rank or 0) > NUM_INLINE_DIMS  # a summary has no room for its shape
        )


def _select(batches: Sequence[TensorBatch], is_wanted: Callable[[Any], bool]) -> list[TensorBatch]:
    selected: list[TensorBatch] = []
    for batch in batches:
        pairs = [each for each in zip(batch.tensors, batch.nodes, batch.all_decides, strict=True) if is_wanted(each[0])]
        if pairs:
            tensors, nodes, decides = zip(*pairs, strict=True)
            selected.append(replace(batch, tensors=tensors, nodes=nodes, decides=decides))
    return selected
