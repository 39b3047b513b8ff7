"""The TensorFlow backend: TensorFlow's ops count tensors on a GPU, and the core spools the events."""

from __future__ import annotations

import functools

from tfdbg_arrow.writer.backend import Backend, Handlers
from tfdbg_arrow.writer.graphs.compiled_rows import RESHAPED, SAME_TENSOR
from tfdbg_arrow.writer.graphs.executed import GraphOptimizer
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.tensorflow_backend.summary import count_on_device, device_graphs, small_dtypes


class TensorFlowBackend(Backend):
    """Counts the tensors of graphs, and large eager tensors, on their devices; counts other tensors as Backend does."""

    name = "tensorflow"
    counts_on_device = True

    def load_optimizer(self, *, records_others: bool) -> GraphOptimizer:
        """Makes TensorFlow call the core's graph optimizer, which counts tensors on their devices, and returns it.

        If there is an accelerator, the core counts the tensors that are on the host.

        Args:
            records_others: Whether to record nodes that correspond to no op of the program.

        Raises:
            RecordingError: This version of TensorFlow does not accept the optimizer.
        """
        optimizer = super().load_optimizer(records_others=records_others)
        counting = sorted(runtime.accelerator_types()) or ["CPU"]
        # TensorFlow's counting op (DenseBincount) does not run on a GPU if the program asks for deterministic ops.
        # Tensors are then copied to the host.
        if not runtime.refuses_counting_on_accelerators():
            settings = self.settings
            graphs = device_graphs(
                settings.mode,
                dtype_mask=settings.dtype_mask,
                device_types=counting,
                is_exact=settings.exact_subnormals,
            )
            optimizer.set_summary_graphs(counting, graphs, small_dtypes(settings.mode, device_types=counting))
            optimizer.set_same_elements(sorted(SAME_TENSOR), sorted(RESHAPED))
        return optimizer

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""
        settings = self.settings
        count = functools.partial(count_on_device, mode=settings.mode, is_exact=settings.exact_subnormals)
        self.core.set_device_counter(count)
        super().start(handlers)

    def stop(self) -> None:
        """Stops recording; events in the spool can still be drained."""
        super().stop()
        self.core.set_device_counter(None)
