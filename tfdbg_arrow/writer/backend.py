"""What measures tensors and spools events: the seam between a recording and its health backend.

`native_backend.py` is the compiled core; `tensorflow_backend` uses TensorFlow's own summary op and also serves
accelerators and installs without the core. `choose_backend` picks one.
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
from tfdbg_arrow.writer.graphs.own_ops import RecordOps, SingleRecordOps
from tfdbg_arrow.writer.recorder import Recorder
from tfdbg_arrow.writer.scopes import EagerScopes
from tfdbg_arrow.writer.settings import Settings
from tfdbg_arrow.writer.stacks import StackTable


class OnNonFinite(IntEnum):
    """What a bad tensor of a graph does that nothing masks; the values are the native core's."""

    RECORD = 0
    NOTE = 1
    """Is noted, for take_nonfinite_notes()."""
    FAIL = 2
    """Fails the step."""


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """What a backend calls out to while it records. Only those may raise that say so.

    Attributes:
        on_graph_op: `(op_type, op_name, outputs, graph, stack_id, wall_time_ns)`: an op is created in a graph.
        covers_op: `(op_type)`: what is recorded of the tensors of eager ops of that type: 0 nothing, 1 their facts,
            2 their elements too, whatever their dtype; None: 1 for all.
        on_error: `(what, error)`: recording something failed.
        on_nonfinite: `(op_type, inputs, bad)`: an eager op or call ran; `bad` are the bad tensors met since the last
            time, as (tensor id, output slot or -1 for one from outside, event index or -1). Told of ops with one
            and, while set_watching() says so, of all. May raise: that goes to the program. None: nothing is told.
        on_bad_graph_tensors: `(pairs of key and event index)`: tensors of a graph that can stop the program are bad,
            where no native op says so. May raise: that fails the step.
    """

    on_graph_op: Callable[[str, str | None, Sequence[Any], Any, int, int], None]
    covers_op: Callable[[str | bytes], int] | None
    on_error: Callable[[str, object], None]
    on_nonfinite: Callable[[str | bytes, Sequence[Any], Sequence[tuple[int, int, int]]], None] | None = None
    on_bad_graph_tensors: Callable[[Sequence[tuple[int, int]]], None] = lambda pairs: None


class Backend(Recorder, EagerScopes, Protocol):
    """Records; the sink drains it."""

    name: str
    """`native` or `tensorflow`, as the `run` table says it."""
    has_native_ops: bool
    """Whether the ops of the native core can be used in graphs."""
    op_callback: Callable[..., Any]
    """TensorFlow's op callback: `(op_type, inputs, attrs, outputs, op_name=None, graph=None)`; returns the outputs."""
    record_ops: RecordOps
    """Makes graphs record."""
    session_record_ops: SingleRecordOps
    """Makes the graphs of sessions record."""
    events: EventWriter
    """Takes records that Python made."""
    stack_table: StackTable
    """Takes the stacks that events refer to; set before start()."""

    def start(self, handlers: Handlers) -> None:
        """From here on events are recorded."""

    def stop(self) -> None:
        """No event is recorded after it returns; what is in the spool can still be drained."""

    def abandon(self) -> None:
        """Lets go of everything without touching it: the process is a fork's child."""

    def close(self) -> None:
        """Writes nothing from here on; the spool's files stay."""

    def remove_files(self) -> None:
        """Removes the spool's files: all of it is in the logdir."""

    def begin_call(self, function_name: bytes, inputs: Sequence[Any], num_outputs: int, *, runs_as: bytes) -> int:
        """Records that a call of a function begins.

        Args:
            function_name: The function.
            inputs: What it is called with.
            num_outputs: How many results it has.
            runs_as: The function that TensorFlow runs for it: this one or a copy.

        Returns:
            The execution index, -1 for none.
        """

    def end_call(self, execution_index: int, outputs: Sequence[Any] | None, error_type: str | None) -> None:
        """Records that the call has returned its outputs, or raised an error of a class, by name."""

    def record_failed_op(self, op_type: str | bytes, inputs: Sequence[Any], error_type: str) -> None:
        """Records that an eager op raised an error of a class, by name."""

    def intern_stack(self) -> int:
        """Returns the id of the calling thread's Python stack, -1 for none."""

    def num_events(self) -> int:
        """Returns the next event index."""

    def record_executed_graphs(self, *, records_others: bool) -> GraphOptimizer:
        """Records graphs as TensorFlow's optimizer leaves them; returns what tells the optimizer of graphs.

        Args:
            records_others: Whether nodes are recorded that stand for no op of the program.

        Raises:
            RecordingError: That is not possible here.
        """

    def set_step(self, step: int) -> None:
        """Labels the events from here on."""

    def set_local_task(self, task: str) -> None:
        """Eager tensors of other processes than this one, as `/job:chief/replica:0/task:0`, are not fetched."""

    def set_paused(self, paused: bool) -> None:
        """Leaves out everything that runs from here on, at next to no cost, or records it again."""

    def set_on_nonfinite(self, reaction: OnNonFinite, run_id: str) -> None:
        """Says what a bad tensor of a graph does; before start()."""

    def set_watching(self, is_watching: bool) -> None:
        """Says whether every eager op is told of, not only those with a bad tensor."""

    def take_nonfinite_notes(self) -> list[int]:
        """Returns the event indexes of bad tensors of graphs that were noted since the last call, one for each node."""


def native_core() -> Any:
    """Returns the compiled core, None if it was not built."""
    try:
        return importlib.import_module("tfdbg_arrow.writer.native._core")
    except ImportError:
        return None


def choose_backend(settings: Settings, *, paths: SpoolPaths, journal: Journal, generation: int) -> Backend:
    """Returns the backend that the settings ask for; for `auto` the native one where it can serve.

    Args:
        settings: What to record.
        paths: Where events and kept tensor values are spooled.
        journal: Takes the strings that records refer to.
        generation: Number of the recording in this process.

    Raises:
        RecordingError: The native backend was asked for and cannot serve.
        OSError: The spool cannot be made.
    """
    from tfdbg_arrow.writer.hooks import runtime
    from tfdbg_arrow.writer.native_backend import NativeBackend

    core = native_core()
    if settings.health_backend == "tensorflow" or (settings.health_backend == "auto" and runtime.has_accelerator()):
        return _tensorflow_backend(settings, core=core, generation=generation, paths=paths, journal=journal)
    try:
        if core is None:
            raise RecordingError("tfdbg_arrow was installed without its native core, for want of a C++ compiler")
        return NativeBackend(settings, core=core, generation=generation, paths=paths, journal=journal)
    except RecordingError:
        if settings.health_backend == "native":
            raise
        return _tensorflow_backend(settings, core=None, generation=generation, paths=paths, journal=journal)


def compiled_calls() -> tuple[str, str] | None:
    """Returns the names of the calls of the native core in functions that XLA compiles; None where it takes none.

    The first summarises a tensor, the second puts matrices below one another.
    """
    from tfdbg_arrow.writer.hooks import runtime

    core = native_core()
    if core is None or runtime.has_accelerator():
        return None
    cc_path = runtime.library_paths()[1]
    return (core.SUMMARIZE_CALL, core.JOIN_CALL) if core.register_compiled_calls(cc_path) else None


def _tensorflow_backend(
    settings: Settings, *, core: Any, generation: int, paths: SpoolPaths, journal: Journal
) -> Backend:
    from tfdbg_arrow.writer.tensorflow_backend.backend import TensorFlowBackend

    return TensorFlowBackend(settings, core=core, generation=generation, paths=paths, journal=journal)
