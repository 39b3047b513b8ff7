"""Backend: measures tensors in the compiled core, and spools events.

The backend of `tensorflow_backend` counts the elements of large tensors with TensorFlow's own ops, on the tensor's
device.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tfdbg_arrow._version import SUPPORTED_TENSORFLOW
from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.schema.op_traits import Trait, types_with
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import RECORD_DTYPE, Records
from tfdbg_arrow.storage.layout import SpoolPaths
from tfdbg_arrow.writer.settings import Settings
from tfdbg_arrow.writer.stacks import StackTable

if TYPE_CHECKING:
    from tfdbg_arrow.writer.graphs.executed import GraphOptimizer


class OnNonFinite(IntEnum):
    """The reaction to a bad tensor of a graph, unless it is masked; the native core uses the same values."""

    RECORD = 0
    NOTE = 1
    """The tensor is noted for take_nonfinite_notes()."""
    FAIL = 2
    """The step fails."""


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """The callbacks of a backend. Only `on_nonfinite` and `on_error` may raise an error.

    Attributes:
        covers_op: `(op_type)`: returns what to record of the tensors of eager ops of this type: 0 for nothing, 1 for
            facts, 2 for facts and elements of any dtype. None means 1 for all ops.
        on_error: `(what, error)`: called when something could not be recorded. If the program raised the error, the
            callback raises it again.
        on_nonfinite: `(op_type, inputs, bad)`: called after an eager op or call. `bad` lists the bad tensors since the
            last call, as (tensor id, output slot or -1 for an external tensor, event index or -1). The callback is
            called if there are bad tensors, and after all ops while set_watching() is on. Errors that it raises go to
            the program. None means no callback.
    """

    covers_op: Callable[[str | bytes], int] | None
    on_error: Callable[[str, object], None]
    on_nonfinite: Callable[[str | bytes, Sequence[Any], Sequence[tuple[int, int, int]]], None] | None = None


class EagerScope(Protocol):
    """The scope of executions, as stored by a backend."""

    @property
    def layer(self) -> int:
        """The interned layer; 0 if there is none."""

    @property
    def forward_execution(self) -> int:
        """The execution whose gradient is computed; -1 if there is none."""

    @property
    def is_gradient(self) -> bool:
        """Whether enter_gradient() created this scope."""


class Backend:
    """Measures tensors in the core's own kernels, and writes events to the core's spool, which the sink drains.

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

    name = "native"
    """`native` or `tensorflow`, as the `run` table stores it."""
    counts_on_device = False
    """Whether TensorFlow's ops count tensors of graphs, and large eager tensors, on their devices."""
    stack_table: StackTable
    """Takes the stacks that events refer to; set it before start()."""
    op_callback: Callable[..., Any]
    """TensorFlow's op callback: `(op_type, inputs, attrs, outputs, op_name=None, graph=None)`; returns the outputs."""
    op_executor: Callable[[Any, type, Any], Any]
    """`(original, variable, with_variables)`: returns a function that executes an eager op with `original`, or with
    `with_variables` if the op takes a variable of the given class."""

    begin_call: Callable[[bytes, Sequence[Any], int, bytes], int]
    """`(function_name, inputs, num_outputs, runs_as)`: records that a call of a function begins. `runs_as` names the
    function that TensorFlow runs: the same function or a copy. Returns the execution index, or -1 if the call is not
    recorded."""
    end_call: Callable[[int, Sequence[Any] | None, str | None], None]
    """`(execution_index, outputs, error_type)`: records that the call returned its outputs, or raised an error of the
    class with this name."""
    record_failed_op: Callable[[str | bytes, Sequence[Any], str], None]
    """`(op_type, inputs, error_type)`: records that an eager op raised an error of the class with this name."""
    execution_of: Callable[[Any], int]
    """`(tensor)`: returns the execution that has just made an eager tensor; -1 if it is unknown."""

    set_scope: Callable[[int, int, int, int], None]
    """`(layer, role, forward_execution, part_stack)`: sets the scope of the calling thread's executions: an interned
    layer (0 for none), an interned role (0 for `forward`), the execution whose gradient is computed, and the stack
    where the Keras part was made (-1 for none)."""
    current_scope: Callable[[], EagerScope]
    """Returns the scope of the calling thread's executions."""
    restore_scope: Callable[[Any], None]
    """`(scope)`: restores a scope that current_scope() returned."""
    enter_gradient: Callable[[str, object], bool]
    """`(op_type, attrs)`: enters the scope of the gradient function of an execution. `attrs` identifies the execution:
    the op callback and the gradient tape got the same object. Returns False if the execution is unknown."""
    forget_forward: Callable[[object], None]
    """`(attrs)`: forgets the execution with these attributes, because they now belong to an op of a graph."""

    def __init__(self, settings: Settings, *, core: Any, paths: SpoolPaths, journal: Journal, generation: int) -> None:
        from tfdbg_arrow.writer.hooks.runtime import library_paths

        try:
            core.load_tensorflow(*library_paths())
        except RuntimeError as error:
            raise RecordingError(
                f"the native core does not fit this version of TensorFlow: {error}; recording supports "
                f"{SUPPORTED_TENSORFLOW}"
            ) from error
        self.settings = settings
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
        self.recording.set_keeps_inputs(settings.keeps_inputs, sorted(types_with(Trait.GETS_ELEMENT)))
        self.recording.set_histograms(settings.histograms)
        self.op_callback = core.op_callback
        self.op_executor = core.op_executor
        self.begin_call = core.begin_call
        self.end_call = core.end_call
        self.record_failed_op = core.record_failed_op
        self.execution_of = core.execution_of
        self.set_scope = functools.partial(core.set_scope, generation)
        self.current_scope = core.current_scope
        self.restore_scope = core.restore_scope
        self.enter_gradient = functools.partial(core.enter_gradient, generation)
        self.forget_forward = core.forget_forward
        # Reentrant, because a signal handler may end the recording while the same thread appends.
        self._append_lock = threading.RLock()
        self._is_open = False
        self._journal = journal

    def open_journal(self) -> None:
        """Starts the journal, which takes the strings that records refer to; close() ends the journal."""
        self.recording.set_journal(self._journal.descriptor)

    def start(self, handlers: Handlers) -> None:
        """Starts to record events."""
        # The hooks report the ops of graphs, so the core need not report them.
        self.core.set_handlers(handlers.covers_op, handlers.on_error, on_nonfinite=handlers.on_nonfinite)
        self.core.set_watching(False)
        self.open()

    def open(self) -> None:
        """Starts to take records, also from the native ops."""
        self.core.set_stack_handler(self.stack_table.add)
        self.recording.start()
        self._is_open = True

    def is_recording(self) -> bool:
        """Returns True while the core records something in the calling thread; then the thread must not call stop()."""
        return bool(self.core.is_in_session())

    def stop(self) -> None:
        """Stops recording; events in the spool can still be drained."""
        with self._append_lock:
            self._is_open = False
        self.recording.stop()
        self.core.set_handlers(None, None)

    def abandon(self) -> None:
        """Drops the recording in a forked child without changing its files."""
        self.core.set_stack_handler(None)
        self.recording.abandon()

    def close(self) -> None:
        """Stops writing; the spool's files stay."""
        self.core.set_stack_handler(None)
        self.recording.set_journal(-1)

    def remove_files(self) -> None:
        """Removes the spool's files; call it when all events are in the logdir."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)

    # Methods that append records made by Python code

    def append(self, records: Records) -> bool:
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

    def intern_stack(self, skip: int = 0) -> int:
        """Returns the ID of the calling thread's Python stack; -1 for none.

        Args:
            skip: Number of the caller's innermost frames to leave out.
        """
        return int(self.core.intern_stack(1 + skip))

    # Methods that the sink uses to drain the spool

    def drain(self, max_records: int) -> Records:
        """Returns a copy of the next committed records, in order; their slots stay in use until release()."""
        records: Records = self.recording.drain(max_records).view(RECORD_DTYPE)
        return records

    def release(self, upto: int, rows_upto: int) -> None:
        """Frees the slots of drained records before an event index, and stores which rows are in sealed parts."""
        self.recording.release(upto, rows_upto)

    def num_free(self) -> int:
        """Returns the number of free slots."""
        return int(self.recording.num_free())

    def capacity(self) -> int:
        """Returns the number of slots."""
        return int(self.recording.capacity())

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Waits until a bad value arrives (returns True), `pending` records wait, or the timeout expires."""
        return bool(self.recording.wait(timeout_s, pending))

    def wake(self) -> None:
        """Ends the current or the next wait() at once; that wait returns True."""
        self.recording.wake()

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings with the ID `start` and above."""
        return list(self.core.strings(start))

    def write_names(self) -> int:
        """Writes the strings that could not be written to the journal earlier; returns how many are still missing."""
        return int(self.core.write_unwritten_strings())

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

    def num_unkept_inputs(self) -> int:
        """Returns the number of bad values whose inputs were not kept for lack of room."""
        return int(self.recording.num_unkept_inputs())

    def num_bad_steps(self) -> int:
        """Returns the number of bad values for which the inputs of the step were kept."""
        return int(self.recording.num_bad_steps())

    def keep_step_inputs(self, name: str) -> None:
        """Keeps the inputs of the running step, because a tensor that Python measured is bad.

        Args:
            name: What the tensor belongs to. The total size of the inputs that are kept for one name is limited.
        """
        self.recording.keep_step_inputs(self.intern_string(name))

    def admit_step_input(self, num_bad_steps: int, num_bytes: int) -> bool:
        """Returns whether an input of a step may be kept.

        Args:
            num_bad_steps: The result of `num_bad_steps` when the step began.
            num_bytes: The size of the input.
        """
        return bool(self.recording.admit_step_input(num_bad_steps, num_bytes))

    def num_known_arguments(self) -> int:
        """Returns the number of calls in which a large argument was not measured again."""
        return int(self.recording.num_known_arguments())

    def num_events(self) -> int:
        """Returns the next event index."""
        return int(self.recording.num_events())

    # Settings that change while events are recorded

    def set_step(self, step: int) -> None:
        """Sets the training step of the following events."""
        self.recording.set_step(step)

    def set_paused(self, paused: bool) -> None:
        """Pauses or resumes the recording of ops. A paused recording costs almost nothing."""
        self.recording.set_paused(paused)

    def set_on_nonfinite(self, reaction: OnNonFinite, run_id: str) -> None:
        """Sets what happens at a bad tensor of a graph; call it before start()."""
        self.recording.set_on_nonfinite(int(reaction), run_id)

    def take_nonfinite_notes(self) -> list[int]:
        """Returns the event indexes of bad graph tensors that were noted since the last call, one for each node."""
        return list(self.recording.take_nonfinite_notes())

    def set_watching(self, is_watching: bool) -> None:
        """Sets whether `on_nonfinite` is called for every eager op, or only if there are bad tensors."""
        self.core.set_watching(is_watching)

    def set_local_task(self, task: str) -> None:
        """Sets the address of this process, such as `/job:chief/replica:0/task:0`.

        With this address, eager tensors of other processes are not fetched.
        """
        self.core.set_local_task(task)

    def load_optimizer(self, *, records_others: bool) -> GraphOptimizer:
        """Makes TensorFlow call the core's graph optimizer, and returns it.

        Args:
            records_others: Whether to record nodes that correspond to no op of the program.

        Raises:
            RecordingError: This version of TensorFlow does not accept the optimizer.
        """
        from tfdbg_arrow.writer.hooks import runtime
        from tfdbg_arrow.writer.hooks.graph_optimizer import load_optimizer

        load_optimizer(self.core.__file__, ["CPU", *sorted(runtime.accelerator_types())])
        self.recording.set_records_others(records_others)
        optimizer: GraphOptimizer = self.recording
        return optimizer


def native_core() -> Any:
    """Returns the compiled core; None if it was not built."""
    try:
        return importlib.import_module("tfdbg_arrow.writer.native._core")
    except ImportError:
        return None


def require_native_core() -> Any:
    """Returns the compiled core.

    Raises:
        RecordingError: The core was not built.
    """
    core = native_core()
    if core is None:
        raise RecordingError(
            "tfdbg_arrow was installed without its native core, which recording needs; install a C++17 compiler, then "
            "install tfdbg_arrow again with `pip install --no-cache-dir`, without TFDBG_ARROW_NO_CORE"
        )
    return core
