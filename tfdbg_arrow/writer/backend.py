"""The interface between a recording and its health backend, which measures tensors and spools events.

`native_backend.py` measures in the compiled core. `tensorflow_backend` measures with TensorFlow's own ops, on the
device where a tensor is. Both spool in the core. `choose_backend` picks one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.writer.events import EventWriter
from tfdbg_arrow.writer.graphs.executed import GraphOptimizer
from tfdbg_arrow.writer.recorder import Recorder
from tfdbg_arrow.writer.scopes import EagerScopes
from tfdbg_arrow.writer.settings import Settings
from tfdbg_arrow.writer.stacks import StackTable


class OnNonFinite(IntEnum):
    """What happens at a bad tensor of a graph that is not masked; the native core uses the same values."""

    RECORD = 0
    NOTE = 1
    """The tensor is noted for take_nonfinite_notes()."""
    FAIL = 2
    """The step fails."""


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """The callbacks of a backend. Only `on_nonfinite` may raise an error.

    Attributes:
        on_graph_op: `(op_type, op_name, outputs, graph, stack_id, wall_time_ns)`: called when an op is created in a
            graph.
        covers_op: `(op_type)`: returns what is recorded of the tensors of eager ops of this type: 0 nothing, 1 their
            facts, 2 also their elements, for all dtypes. None means 1 for all.
        on_error: `(what, error)`: called when something could not be recorded.
        on_nonfinite: `(op_type, inputs, bad)`: called after an eager op or call. `bad` lists the bad tensors since the
            last call, as (tensor id, output slot or -1 for an external tensor, event index or -1). It is called if
            there are bad tensors, and for all ops while set_watching() is on. Errors that it raises go to the program.
            None means no callback.
    """

    on_graph_op: Callable[[str, str | None, Sequence[Any], Any, int, int], None]
    covers_op: Callable[[str | bytes], int] | None
    on_error: Callable[[str, object], None]
    on_nonfinite: Callable[[str | bytes, Sequence[Any], Sequence[tuple[int, int, int]]], None] | None = None


class Backend(Recorder, EagerScopes, Protocol):
    """Records events; the sink drains them."""

    name: str
    """`native` or `tensorflow`, as the `run` table stores it."""
    op_callback: Callable[..., Any]
    """TensorFlow's op callback: `(op_type, inputs, attrs, outputs, op_name=None, graph=None)`; returns the outputs."""
    events: EventWriter
    """Takes records that Python code makes."""
    stack_table: StackTable
    """Takes the stacks that events refer to; set it before start()."""

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""

    def stop(self) -> None:
        """Stops recording; events in the spool can still be drained."""

    def abandon(self) -> None:
        """Drops the recording in a forked child without changing its files."""

    def close(self) -> None:
        """Stops writing; the spool's files stay."""

    def remove_files(self) -> None:
        """Removes the spool's files; call it when all events are in the logdir."""

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, *, runs_as: bytes) -> int:
        """Records that a call of a function begins.

        Args:
            function_name: The name of the function.
            inputs: The arguments of the call.
            num_outputs: The number of results.
            runs_as: The name of the function that TensorFlow runs: this one or a copy of it.

        Returns:
            The execution index; -1 if the call is not recorded.
        """

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None) -> None:
        """Records that the call returned its outputs, or raised an error of the class with this name."""

    def record_failed_op(self, op_type: str | bytes, inputs: Sequence[Any], error_type: str) -> None:
        """Records that an eager op raised an error of the class with this name."""

    def intern_stack(self) -> int:
        """Returns the ID of the calling thread's Python stack; -1 for none."""

    def num_events(self) -> int:
        """Returns the next event index."""

    def load_optimizer(self, *, records_others: bool) -> GraphOptimizer:
        """Makes TensorFlow call the core's graph optimizer, and returns it.

        Args:
            records_others: Whether to record nodes that correspond to no op of the program.

        Raises:
            RecordingError: This version of TensorFlow does not accept the optimizer.
        """

    def set_step(self, step: int) -> None:
        """Sets the training step of the following events."""

    def set_local_task(self, task: str) -> None:
        """Sets the address of this process, such as `/job:chief/replica:0/task:0`.

        Eager tensors of other processes are then not fetched.
        """

    def set_paused(self, paused: bool) -> None:
        """Stops recording ops, at almost no cost, or resumes it."""

    def set_on_nonfinite(self, reaction: OnNonFinite, run_id: str) -> None:
        """Sets what happens at a bad tensor of a graph; call it before start()."""

    def set_watching(self, is_watching: bool) -> None:
        """Sets whether `on_nonfinite` is called for every eager op, or only if there are bad tensors."""

    def take_nonfinite_notes(self) -> list[int]:
        """Returns the event indexes of the bad tensors of graphs noted since the last call, one for each node."""


def native_core() -> Any:
    """Returns the compiled core; None if it was not built."""
    try:
        return importlib.import_module("tfdbg_arrow.writer.native._core")
    except ImportError:
        return None


def require_native_core() -> Any:
    """Returns the compiled core.

    Raises:
        RecordingError: It was not built.
    """
    core = native_core()
    if core is None:
        raise RecordingError(
            "tfdbg_arrow was installed without its native core, which recording needs; install a C++17 compiler, then "
            "install tfdbg_arrow again (`pip install --verbose` shows why the core was not built)"
        )
    return core


def choose_backend(settings: Settings, *, paths: SpoolPaths, journal: Journal, generation: int) -> Backend:
    """Returns the backend that the settings ask for; `auto` is `tensorflow` if there is a GPU, otherwise `native`.

    Args:
        settings: The settings of the recording.
        paths: The files for events and kept tensor values.
        journal: Takes the strings that records refer to.
        generation: The number of the recording in this process.

    Raises:
        RecordingError: There is no native core, or it does not support this TensorFlow or its devices.
        OSError: The spool cannot be created.
    """
    from tfdbg_arrow.writer.hooks import runtime
    from tfdbg_arrow.writer.native_backend import NativeBackend
    from tfdbg_arrow.writer.tensorflow_backend.backend import TensorFlowBackend

    core = require_native_core()
    accelerators = runtime.accelerator_types()
    if accelerators - {"GPU"}:
        raise RecordingError(
            f"TensorFlow has devices of the types {sorted(accelerators)}; recording supports only CPUs and GPUs"
        )
    counts_on_device = settings.health_backend == "tensorflow" or (settings.health_backend == "auto" and accelerators)
    backend = TensorFlowBackend if counts_on_device else NativeBackend
    return backend(settings, core=core, paths=paths, journal=journal, generation=generation)


def compiled_calls() -> tuple[str, str] | None:
    """Returns the names of the native core's custom calls for functions that XLA compiles; None if there are none.

    The first call summarizes a tensor, the second concatenates matrices.
    """
    from tfdbg_arrow.writer.hooks import runtime

    core = native_core()
    if runtime.has_accelerator():
        return None
    cc_path = runtime.library_paths()[1]
    return (core.SUMMARIZE_CALL, core.JOIN_CALL) if core.register_compiled_calls(cc_path) else None
