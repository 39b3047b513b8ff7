"""The native backend: the compiled core measures tensors and spools events, in kernels and in the op callback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import RECORD_DTYPE
from tfdbg_arrow.writer.backend import Handlers, OnNonFinite
from tfdbg_arrow.writer.events import EventWriter
from tfdbg_arrow.writer.graphs.executed import GraphOptimizer
from tfdbg_arrow.writer.hooks import runtime
from tfdbg_arrow.writer.hooks.executed import load_optimizer
from tfdbg_arrow.writer.scopes import EagerScope
from tfdbg_arrow.writer.settings import Settings
from tfdbg_arrow.writer.stacks import StackTable


class NativeSpool:
    """The core's spool, which the sink drains, and the stacks that its events refer to.

    Args:
        settings: The settings of the recording.
        core: The compiled core.
        paths: The paths of the spool's files.
        journal: Takes the strings that records refer to.
        generation: The number of the recording in this process.

    Raises:
        RecordingError: The core does not work with the installed TensorFlow.
        OSError: The spool cannot be allocated.
    """

    stack_table: StackTable

    def __init__(self, settings: Settings, *, core: Any, paths: SpoolPaths, journal: Journal, generation: int) -> None:
        try:
            core.load_tensorflow(*runtime.library_paths())
        except RuntimeError as error:
            raise RecordingError(
                f"the native core does not fit this version of TensorFlow: {error}; recording supports 2.17 to 2.21"
            ) from error
        self.core = core
        self._paths = (paths.spool, paths.values)
        paths.spool.parent.mkdir(parents=True, exist_ok=True)
        self.recording = core.Recording(
            str(paths.spool),
            str(paths.values),
            settings.memory.spool_records,
            int(settings.mode),
            settings.dtype_mask,
            generation,
            settings.when_full == "wait",
        )
        self.recording.set_journal(journal.descriptor)
        self._append_lock = threading.Lock()
        self._is_open = False

    def open(self) -> None:
        """Starts to take records, also from the native ops."""
        self.core.set_stack_handler(lambda stack_id, frames: self.stack_table.add(stack_id, [frames]))
        self.recording.start()
        self._is_open = True

    def append(self, records: npt.NDArray[np.void]) -> bool:
        """Appends records that belong together; returns False if there was no room."""
        with self._append_lock:
            return self._is_open and bool(self.recording.append(np.ascontiguousarray(records).view(np.uint8)))

    def append_value(self, data: bytes) -> int:
        """Writes the elements of a tensor; returns their offset, or -1 if they could not be written."""
        return int(self.recording.append_value(np.frombuffer(data, np.uint8)))

    def next_execution_index(self) -> int:
        """Returns the next execution index."""
        return int(self.recording.next_execution_index())

    def last_event_index(self) -> int:
        """Returns the event index of the calling thread's last append; -1 if there was no room."""
        return int(self.core.last_event_index())

    def intern_string(self, text: str) -> int:
        """Returns the ID of a string."""
        return int(self.core.intern_string(text))

    def stop(self) -> None:
        """Stops recording; events in the spool stay."""
        with self._append_lock:
            self._is_open = False
        self.recording.stop()
        self.core.set_handlers(None, None, None)

    def abandon(self) -> None:
        """Drops the recording in a forked child without changing its files."""
        self.core.set_stack_handler(None)
        self.recording.abandon()

    def remove_files(self) -> None:
        """Removes the spool's files; call it when all events are in the logdir."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stops writing; the files stay."""
        self.core.set_stack_handler(None)
        self.recording.set_journal(-1)

    def drain(self, max_records: int) -> npt.NDArray[np.void]:
        """Returns up to `max_records` committed records, in order; their slots stay in use until release()."""
        records: npt.NDArray[np.void] = self.recording.drain(max_records).view(RECORD_DTYPE)
        return records

    def release(self, upto: int, rows_upto: int) -> None:
        """Frees the slots of drained records before `upto`; `rows_upto` bounds the rows that are in sealed parts."""
        self.recording.release(upto, rows_upto)

    def num_free(self) -> int:
        """Returns the number of free slots."""
        return int(self.recording.num_free())

    def capacity(self) -> int:
        """Returns the number of slots."""
        return int(self.recording.capacity())

    def write_names(self) -> int:
        """Writes the strings to the journal that could not be written before; returns how many are still missing."""
        return int(self.core.write_unwritten_strings())

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Waits until a bad value arrives (returns True), `pending` records wait, or the timeout expires."""
        return bool(self.recording.wait(timeout_s, pending))

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings with the ID `start` and above."""
        return list(self.core.strings(start))

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns the stored elements of a tensor."""
        return bytes(self.recording.read_value(offset, size))

    def release_values(self, upto: int) -> None:
        """Frees the disk space of values before an offset."""
        self.recording.release_values(upto)

    def num_dropped(self) -> int:
        """Returns how many records were dropped for lack of room."""
        return int(self.recording.num_dropped())

    def num_unkept_values(self) -> int:
        """Returns the number of tensors whose elements could not be written."""
        return int(self.recording.num_unkept_values())

    def num_events(self) -> int:
        """Returns the next event index."""
        return int(self.recording.num_events())

    def set_on_nonfinite(self, reaction: OnNonFinite, run_id: str) -> None:
        """Sets what happens at a bad tensor of a graph; call it before start()."""
        self.recording.set_on_nonfinite(int(reaction), run_id)

    def take_nonfinite_notes(self) -> list[int]:
        """Returns the event indexes of the bad tensors of graphs noted since the last call."""
        return list(self.recording.take_nonfinite_notes())

    def set_watching(self, is_watching: bool) -> None:
        """Sets whether `on_nonfinite` is called for every eager op, or only if there are bad tensors."""
        self.core.set_watching(is_watching)

    def set_step(self, step: int) -> None:
        """Sets the training step of the following events."""
        self.recording.set_step(step)

    def set_local_task(self, task: str) -> None:
        """Sets the address of this process; eager tensors of other processes are then not fetched."""
        self.core.set_local_task(task)

    def set_paused(self, paused: bool) -> None:
        """Stops recording ops, or resumes it."""
        self.recording.set_paused(paused)

    def intern_stack(self) -> int:
        """Returns the ID of the calling thread's Python stack; -1 for none."""
        return int(self.core.intern_stack(0))

    def load_optimizer(self, *, records_others: bool, device_types: Sequence[str] = ("CPU",)) -> GraphOptimizer:
        """Makes TensorFlow call the core's graph optimizer, and returns it.

        Args:
            records_others: Whether to record nodes that correspond to no op of the program.
            device_types: The types of the devices that graphs run on.

        Raises:
            RecordingError: This version of TensorFlow does not accept the optimizer.
        """
        load_optimizer(self.core.__file__, device_types)
        self.recording.set_records_others(records_others)
        optimizer: GraphOptimizer = self.recording
        return optimizer


class NativeBackend(NativeSpool):
    """Measures tensors in the core's own kernels; takes the arguments of NativeSpool and raises its errors."""

    name = "native"

    def __init__(self, settings: Settings, *, core: Any, paths: SpoolPaths, journal: Journal, generation: int) -> None:
        super().__init__(settings, core=core, paths=paths, journal=journal, generation=generation)
        self._generation = generation
        self.op_callback: Callable[..., Any] = core.op_callback
        self.events: EventWriter = self

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""
        self.core.set_handlers(
            handlers.on_graph_op, handlers.covers_op, handlers.on_error, on_nonfinite=handlers.on_nonfinite
        )
        self.core.set_watching(False)
        self.open()

    def set_scope(self, layer: int, role: int, forward_execution: int) -> None:
        """Sets the layer, role and forward execution of the calling thread's following ops."""
        self.core.set_scope(self._generation, layer, role, forward_execution)

    def enter_gradient(self, op_type: str, attrs: object) -> bool:
        """Enters the gradient function of an execution in the calling thread; returns False if it is unknown."""
        return bool(self.core.enter_gradient(self._generation, op_type, attrs))

    def current_scope(self) -> EagerScope:
        """Returns the scope of the calling thread's ops."""
        scope: EagerScope = self.core.current_scope()
        return scope

    def restore_scope(self, scope: Any) -> None:
        """Restores a scope that current_scope() returned."""
        self.core.restore_scope(scope)

    def forget_forward(self, attrs: object) -> None:
        """Forgets the execution with these attributes: they now belong to an op of a graph."""
        self.core.forget_forward(attrs)

    def execution_of(self, tensor: Any) -> int:
        """Returns the execution that has just made an eager tensor; -1 if it is unknown."""
        return int(self.core.execution_of(tensor))

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, *, runs_as: bytes) -> int:
        """Records that a call of a function begins; returns its execution index, or -1 if it is not recorded."""
        return int(self.core.begin_call(function_name, inputs, num_outputs, runs_as))

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None) -> None:
        """Records that the call returned its outputs, or raised an error of the class with this name."""
        self.core.end_call(execution_index, outputs, error_type)

    def record_failed_op(self, op_type: str | bytes, inputs: Sequence[Any], error_type: str) -> None:
        """Records that an eager op raised an error of the class with this name."""
        self.core.record_failed_op(op_type, inputs, error_type)
