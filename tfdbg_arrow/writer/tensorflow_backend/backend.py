"""The TensorFlow backend: TensorFlow's ops measure tensors on their devices, and the core spools the events."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import NO_STEP
from tfdbg_arrow.storage.layout import SpoolPaths
from tfdbg_arrow.writer.backend import Backend, Handlers
from tfdbg_arrow.writer.eager_recorder import EagerRecorder
from tfdbg_arrow.writer.graphs.executed import GraphOptimizer
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.hooks.unobserved import is_remote, unobserved
from tfdbg_arrow.writer.settings import Settings
from tfdbg_arrow.writer.tensorflow_backend.summary import device_graphs, measure_row


class TensorFlowBackend(Backend):
    """Measures tensors with TensorFlow's own ops; takes the arguments of Backend and raises its errors."""

    name = "tensorflow"

    def __init__(self, settings: Settings, *, core: Any, paths: SpoolPaths, journal: Journal, generation: int) -> None:
        super().__init__(settings, core=core, paths=paths, journal=journal, generation=generation)
        self._step = NO_STEP
        this = weakref.proxy(self)  # no reference cycle: the recorder is stopped before this object is gone
        self._eager = EagerRecorder(
            settings,
            backend=this,
            tensor_id=runtime.eager_tensor_id,
            measure=lambda tensors: this._measure(tensors),
            step=lambda: this._step,
        )
        self._mode = settings.mode
        self._dtype_mask = settings.dtype_mask
        self.op_callback = self._eager.op_callback
        self.set_scope = self._eager.set_scope
        self.enter_gradient = self._eager.enter_gradient
        self.current_scope = self._eager.current_scope
        self.restore_scope = self._eager.restore_scope
        self.forget_forward = self._eager.forget_forward
        self.execution_of = self._eager.execution_of
        self.begin_call = self._eager.begin_call
        self.end_call = self._eager.end_call
        self.record_failed_op = self._eager.record_failed_op

    def load_optimizer(self, *, records_others: bool, device_types: Sequence[str] = ("CPU",)) -> GraphOptimizer:
        """Makes TensorFlow call the core's graph optimizer, which counts tensors on their devices, and returns it.

        If there is an accelerator, the core counts the tensors that are on the host.

        Args:
            records_others: Whether to record nodes that correspond to no op of the program.
            device_types: The types of the devices that graphs run on, except for accelerators.

        Raises:
            RecordingError: This version of TensorFlow does not accept the optimizer.
        """
        accelerators = sorted(runtime.accelerator_types())
        optimizer = super().load_optimizer(records_others=records_others, device_types=[*device_types, *accelerators])
        counting = accelerators or ["CPU"]
        # TensorFlow's op that counts does not run on a GPU if the program asks for deterministic ops. Tensors are then
        # copied to the host.
        if not runtime.refuses_counting_on_accelerators():
            graphs = device_graphs(self._mode, dtype_mask=self._dtype_mask, device_types=counting)
            optimizer.set_summary_graphs(counting, graphs)
        return optimizer

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""
        self.open()
        self._eager.start(handlers)

    def stop(self) -> None:
        """Stops recording; events in the spool can still be drained."""
        self._eager.stop()
        super().stop()

    def abandon(self) -> None:
        """Drops the recording in a forked child without changing its files."""
        self._eager.stop()
        super().abandon()

    def _measure(self, tensors: Sequence[Any]) -> npt.NDArray[np.float64]:
        with unobserved():
            return np.stack(
                [measure_row(tensor, mode=self._mode, device=_measuring_device(tensor.device)) for tensor in tensors]
            )

    def set_local_task(self, task: str) -> None:
        """Stops fetching eager tensors of other processes; `task` is not used."""
        self._eager.is_remote = is_remote

    def set_step(self, step: int) -> None:
        """Sets the training step of the following events."""
        self._step = step
        super().set_step(step)

    def set_paused(self, paused: bool) -> None:
        """Stops recording ops, or resumes it."""
        self._eager.is_paused = paused
        super().set_paused(paused)

    def set_watching(self, is_watching: bool) -> None:
        """Sets whether `on_nonfinite` is called for every eager op, or only if there are bad tensors."""
        self._eager.is_watching = is_watching


def _measuring_device(device: str) -> str:
    """Returns the device on which to measure an eager tensor, given its own; empty lets TensorFlow choose."""
    if runtime.refuses_counting_on_accelerators():
        return runtime.host_device_name()
    return device if runtime.has_accelerator() and runtime.allows_soft_placement() else ""
