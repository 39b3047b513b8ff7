"""enable(), disable(), capture() and mark(): start, stop and label the recording of this process."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.errors import (
    LogdirError,
    MissingDependencyError,
    NonFiniteError,
    RecordingError,
    TfdbgArrowError,
    install_command,
)
from tfdbg_arrow.spool.records import RECORD_SIZE
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.writer.address_space import check_room
from tfdbg_arrow.writer.ending import Ending
from tfdbg_arrow.writer.interruptions import finish
from tfdbg_arrow.writer.memory import DEFAULT_MAX_MEMORY_BYTES
from tfdbg_arrow.writer.program import EXECUTE_MAIN_CODE
from tfdbg_arrow.writer.recording.marks import as_step
from tfdbg_arrow.writer.remote.uploader import (
    DEFAULT_MAX_LOCAL_BYTES,
    DEFAULT_UPLOAD_TIMEOUT_S,
)
from tfdbg_arrow.writer.selection import Choice
from tfdbg_arrow.writer.settings import Request, Settings

if TYPE_CHECKING:
    from tfdbg_arrow.writer.recording.recording import Recording


_lock = threading.RLock()

_ending: Ending | None = None
"""The end of the newest recording: not begun, running in another thread, or complete."""

_is_registered_at_exit = False

_has_exit_code = False
"""Whether tfdbg_arrow chooses the exit code of the process, however the program ended."""

_INTERRUPTED_END_S = 5.0
"""How many seconds disable() waits if the calling thread may hold a lock that the writing thread needs."""


_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OWN_FILES = (__file__, contextlib.__file__, os.path.join(_PACKAGE, "stop.py"))
_RECORDER = tuple(os.path.join(_PACKAGE, name, "") for name in ("writer", "spool", "storage"))
_HOOKS = os.path.join(_PACKAGE, "writer", "hooks", "")


@dataclass(frozen=True)
class Capture:
    """The recording that `capture()` yields.

    Attributes:
        logdir: The logdir; a URL is a string. None if TFDBG_ARROW=0 turned the recording off.
        run_id: The ID of the run. None if TFDBG_ARROW=0 turned the recording off.
    """

    logdir: Path | str | None
    run_id: str | None


def enable(
    logdir: str | os.PathLike[str],
    tensor_debug_mode: str = "FULL_HEALTH",
    circular_buffer_size: int = -1,
    op_regex: str | None = None,
    tensor_dtypes: Collection[Any] | Callable[[Any], bool] | None = None,
    *,
    health_backend: str = "auto",
    max_memory_bytes: int = DEFAULT_MAX_MEMORY_BYTES,
    when_full: str = "wait",
    xla: str = "auto",
    graphs: str = "auto",
    storage_options: Mapping[str, Any] | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    upload_timeout_s: float = DEFAULT_UPLOAD_TIMEOUT_S,
    max_local_bytes: int = DEFAULT_MAX_LOCAL_BYTES,
    values: str | re.Pattern[str] | Choice | None = None,
    steps: object = None,
    max_bytes: int | None = None,
    dump_on: str | None = None,
    dump_after: int | None = None,
    on_nonfinite: str | Callable[[Any], object] = "record",
    redact: str | Collection[str] | None = None,
    histograms: bool = False,
    exact_subnormals: bool = False,
    run_name: str | None = None,
    tags: Collection[str] | Mapping[str, object] | None = None,
    notes: str | None = None,
) -> str | None:
    """Records this process into a logdir until you call disable() or the process ends.

    The recording holds eager ops, function calls, graphs and the health of tensors, from all threads.
    Functions that were traced earlier are traced again at their next call.

    Args:
        logdir: The directory to write to, or a URL that fsspec opens, such as `s3://bucket/path`. The logdir is created
            if it does not exist, and may hold other runs. Parts are uploaded to a URL in the background during the
            recording.
        tensor_debug_mode: How much is recorded of each tensor: NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH,
            FULL_NUMERICS, SHAPE or FULL_TENSOR. spec/README.md lists the columns that each mode fills.
        circular_buffer_size: Keep only the last executions and the last graph tensors, at most this many of each, and
            the events around bad values. When an infinity or a NaN occurs, the content of the buffer and the next
            `dump_after` events are kept. 0 or less keeps all events. flush() writes the content of the buffer.
        op_regex: Record tensors only of ops whose type matches (`re.match`). None records all ops.
        tensor_dtypes: Record only tensors of these dtypes, or of dtypes for which the callable returns True. None
            means the dtypes of the mode: floating and complex dtypes for the health modes.
        health_backend: Where the elements of tensors are counted. "native" counts in the compiled core on the host.
            "tensorflow" counts with TensorFlow's own ops on the device where the tensor is. "auto" is "tensorflow" if
            there is a GPU, and "native" otherwise. Both need the native core.
        max_memory_bytes: How much memory the recording may use, from 192 MiB to 16 GiB. A quarter of this memory is for
            the spool, the file that events pass through. The limit does not include the description of the program, the
            events of a circular buffer, or tensors of many MiB that are kept whole.
        when_full: What happens when the program records events faster than they are written and the spool is full.
            "wait" makes the program wait for room. If nothing can be written for five seconds, events are dropped from
            then on. "drop" drops events that do not fit. `capture_stat` counts the dropped events.
        xla: How to treat functions with jit_compile=True. "inside" keeps them compiled and records them; in their
            loops, it records only the first iteration with a bad value and the last iteration. "observe" runs them
            without XLA and records them. "keep" keeps them compiled and does not record them; `Logdir.coverage()` lists
            their ops. "auto" is "observe" if TensorFlow sees a GPU, if elements of tensors are kept (`values`,
            FULL_TENSOR), or with `histograms`. Otherwise, "auto" is "inside". In sessions of `tf.compat.v1` and in
            functions of tf.data, "inside" does the same as "observe" (docs/xla.md).
        graphs: Which ops of functions are recorded. "executed" records the ops that run after TensorFlow's optimizer
            has changed your graphs. The numbers are the same as in an unrecorded run. Ops that TensorFlow fuses are
            recorded as one op. "traced" switches off TensorFlow's passes that fuse, fold or reorder ops, so that each
            of your ops is recorded. This applies to the recorded functions, and to sessions that are created during the
            recording. Numbers can then differ from those of an unrecorded run. "auto" is "traced" with `op_regex` or
            `values`, because these settings choose among your ops. Otherwise, "auto" is "executed".
            docs/executed_graphs.md has details.
        storage_options: fsspec's arguments for the URL, such as `{"endpoint_url": …}`. None uses the configuration of
            fsspec and of the store's client.
        local_dir: The directory for the local files of recordings to URLs. Each recording creates its own directory in
            `local_dir`. None means the value of the environment variable TFDBG_ARROW_LOCAL_DIR, or the directory for
            temporary files if the variable is not set.
        upload_timeout_s: How many seconds the end of a recording to a URL waits for the last uploads. Files that were
            not sent by then stay in the local directory, and a warning says how to send them.
        max_local_bytes: How many bytes of parts a recording to a URL keeps locally. Beyond this limit, the oldest
            events that could not be sent are dropped, and `capture_stat` counts them. The spool and a part that is
            being merged are not included.
        values: Keep the elements of the tensors of chosen ops, and only the health of all other tensors. The value is a
            regular expression that matches the op's name or type (`re.match`), or a callable that takes (op_type,
            op_name). For eager ops, op_name is None, and the callable is called once for each op type. Chosen ops are
            recorded even if another filter excludes them.
        steps: Record only these training steps. mark(step=...) or Keras's fit sets the current step. The value is a
            number k for every k-th step, a range or slice, text such as "0:100,1000:,::10", or a list of these. In a
            text, a single number means that one step. Events before the first mark are recorded. None records all
            steps.
        max_bytes: How much disk space the parts of executions and tensors may use, at least 1 MiB. Beyond this limit,
            the middle of the run is dropped. Half of these bytes hold the beginning of the run, and the other half its
            end. The events around the first infinity and the first NaN are kept too. None means no limit.
        dump_on: "nonfinite" writes the content of a circular buffer only when a bad value occurs. A healthy run then
            has no executions and no tensors on disk. None also writes the content at the end.
        dump_after: With a circular buffer, how many executions and graph tensors to keep after a bad value. None means
            as many as the buffer holds.
        on_nonfinite: What happens at a NaN or an infinity. "record" only records it. "keep" also keeps the inputs of
            the op that created it, if the op ran on a CPU (table `input_value`). "keep" also keeps the inputs of the
            training step (table `step_input`). All kept inputs take at most 256 MiB. From these inputs, `tfdbg-arrow
            repro` writes a script that shows the bad value and the bad sample of the batch. "raise" stops the program
            with a NonFiniteError at the op that created the bad value. A callable is called with the NonFinite, in the
            thread that runs the program, once for each origin and at most 100 times. Errors that the callable raises go
            to the program. A bad value does not count if no op computes with it, for example if `tf.where` does not
            select it (docs/live_stop.md).
        redact: What to leave out of the logdir: "paths", "source" or a list of both. "paths" makes file paths relative
            to the working directory or to the installed packages, or replaces them by a hash and the file's name. The
            host name, the command line and the working directory are then NULL. "source" leaves out the text of the
            program and keeps line numbers. Names of ops, functions and variables, marks and tensors stay unchanged
            (SECURITY.md).
        histograms: Whether to count the finite elements of each floating-point tensor by their sign and power of two.
            The counts are columns of `tensor_health`. Needs FULL_HEALTH, FULL_NUMERICS or FULL_TENSOR
            (docs/recording.md).
        exact_subnormals: Whether to count tensors on a GPU exactly as on a CPU, where a subnormal number does not count
            as zero. The exact counts take more ops for each tensor. FULL_NUMERICS always counts subnormal numbers
            exactly.
        run_name: A name for the run, at most 200 characters in one line. The viewer shows it, and you can use it in
            place of the ID of the run, if no other run of the logdir has the same name.
        tags: At most 100 texts that describe the run, each of at most 200 characters. The items of a mapping, such as
            `{"lr": 0.1}`, become texts such as `lr=0.1`. The tags are in the table `run`.
        notes: A longer text about the run, at most 10,000 characters.

    Returns:
        The ID of the run. None if the environment variable TFDBG_ARROW=0 turned recording off.

    Raises:
        SettingError: A setting is not valid.
        LogdirError: The logdir cannot be written.
        RecordingError: A recording is already active, or the recording cannot start.
        MissingDependencyError: TensorFlow, or the package that opens the URL, is not installed.
    """
    return start(Request(**locals()))  # Request has the same settings and defaults


def is_turned_off() -> bool:
    """Returns True if the environment variable TFDBG_ARROW=0 turned all recording off."""
    return os.environ.get("TFDBG_ARROW") == "0"


def check(request: Request) -> Settings:
    """Checks a request, creates the logdir, and returns the settings; raises the same errors as enable()."""
    return request.check(as_dtype)


def as_dtype(value: object) -> Any:
    """Returns the TensorFlow dtype that a value stands for; raises a TypeError if it stands for no dtype."""
    return _tensorflow().as_dtype(value)


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependencyError(
            f"recording needs TensorFlow, which is not installed; run: {install_command('tensorflow')}"
        ) from error
    return tf


def start(request: Request) -> str | None:
    """Starts a recording; returns and raises the same as enable(). An interruption undoes the whole start."""
    global _ending
    if is_turned_off():
        return None
    _tensorflow()
    _wait_for_end()
    with _lock:
        recording = _active()
        if recording is not None:
            raise RecordingError(
                f"a recording to {recording.settings.shown_logdir} is active; call tfdbg_arrow.disable() before another"
            )
        settings = check(request)
        undo = ExitStack()
        try:
            if settings.remote is not None:
                undo.callback(shutil.rmtree, settings.logdir, ignore_errors=True)
            from tfdbg_arrow.writer.recording.recording import Recording  # loads TensorFlow's private API

            check_room(spool_bytes=settings.memory.spool_records * RECORD_SIZE)
            recording = Recording(settings, undo)
            ending = Ending(recording)
            undo.callback(ending.cancel)
            ending.start()
            recording.start()
            _register_at_exit()
            undo.callback(_forget)
            _ending = ending
            return recording.run_id
        except BaseException as error:
            finish(undo.close)
            if not isinstance(error, OSError) or isinstance(error, TfdbgArrowError):
                raise
            raise LogdirError(
                f"the logdir {settings.logdir} cannot be written: {error}; free space or choose another path"
            ) from error


def _forget() -> None:
    global _ending
    _ending = None


def disable(*, wait: bool = True) -> None:
    """Ends the active recording and writes the remaining events.

    If no recording is active, disable() only waits until the previous recording has been written.

    Functions that were traced during the recording are traced again, without recording, at their next call. A thread of
    the recording writes the remaining events, and disable() waits for it. If a KeyboardInterrupt occurs meanwhile, it
    reaches the program, and the thread continues. The next enable() and the end of the process wait for that thread.
    disable() may be called from anywhere, also from a signal handler, a finalizer or a function that is being traced.
    If the caller interrupted the recorder itself, disable() waits for five seconds at most.

    Writing many events can take long. If it takes more than ten seconds, a line on stderr says how much is done.

    Args:
        wait: Whether to wait until everything is written. If False, disable() stops the recording and returns at once,
            and another thread writes the remaining events. Until is_writing() returns False, the logdir lacks the last
            events and the run counts as unfinished. The next disable(), the next enable() and the end of the process
            wait for that thread.

    Raises:
        NonFiniteError: With `on_nonfinite="raise"`, there is a bad value that no op has used yet.
    """
    recording = _active()
    try:
        if recording is not None and recording.stop is not None:
            recording.stop.at_boundary()
    finally:
        end(wait=wait)


def end(*, wait: bool = True) -> None:
    """Ends the active recording as disable() does, but does not raise NonFiniteError."""
    ending = _ending
    if ending is None:
        return
    recording = ending.recording
    try:
        if recording is not None:
            recording.observe_thread()
    finally:
        ending.begin()
    if recording is None:
        return
    # This thread may hold a lock that the end needs, if a signal handler or a finalizer interrupted the recorder, or if
    # a function that is being traced called end().
    is_in_core = recording.is_in_core()
    is_interrupted = is_in_core or _is_in_recorder()
    ending.wait_for_hooks()
    if wait and not is_in_core:
        ending.wait(_INTERRUPTED_END_S if is_interrupted else None)
    elif not is_interrupted:
        ending.wait_until_stopped()


def _active() -> Recording | None:
    ending = _ending
    return None if ending is None else ending.active


def _is_in_recorder() -> bool:
    """Returns True if the stack has a frame of the recorder: it called the program, or the program interrupted it.

    The hooks do not count: they call the program all the time, and hold no locks.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _OWN_FILES:  # this call of disable()
        frame = frame.f_back
    while frame is not None and frame.f_code is not EXECUTE_MAIN_CODE:
        path = frame.f_code.co_filename
        if path.startswith(_RECORDER) and not path.startswith(_HOOKS):
            return True
        frame = frame.f_back
    return False


def _wait_for_end() -> None:
    """If the end of a recording has begun, waits until the recording is written."""
    ending = _ending
    if ending is not None and ending.is_running():
        ending.wait()


def stop_error() -> NonFiniteError | None:
    """Returns the first error that the active recording raised to stop the program; None if there is none."""
    recording = _active()
    return None if recording is None or recording.stop is None else recording.stop.first_error


def flush() -> None:
    """Writes everything recorded so far to the logdir; does nothing if no recording is active.

    Raises:
        NonFiniteError: With `on_nonfinite="raise"`, there is a bad value that no op has used yet.
    """
    recording = _active()
    if recording is not None:
        recording.flush()
        if recording.stop is not None:
            recording.stop.at_boundary()


@contextmanager
def capture(logdir: str | os.PathLike[str], *args: Any, wait: bool = True, **kwargs: Any) -> Iterator[Capture]:
    """Records the body of a `with` statement.

    capture() takes the arguments of enable(), and raises the errors of enable() and disable().

    Args:
        logdir: Where to record to, as for enable().
        *args: As for enable().
        wait: Whether to wait at the end until everything is written, as for disable().
        **kwargs: As for enable().
    """
    run_id = enable(logdir, *args, **kwargs)
    try:
        yield Capture(logdir=_shown_location(logdir) if run_id is not None else None, run_id=run_id)
    except BaseException:
        if run_id is not None:
            end(wait=wait)
        raise
    if run_id is not None:
        disable(wait=wait)


def mark(step: int | None = None, **labels: object) -> None:
    """Labels all following events with a training step and with labels of your own.

    mark() does nothing if no recording is active.

    Args:
        step: The training step: an integer of at most 64 bits, which may be a scalar tensor or a NumPy integer.
        **labels: Names and values, such as `epoch=3, phase="validation"`. Values are stored as text.

    Raises:
        SettingError: The step is not an integer.
        NonFiniteError: With `on_nonfinite="raise"`, there is a bad value that no op has used yet.
    """
    recording = _active()
    if recording is None:
        return
    if recording.stop is not None:
        recording.stop.at_boundary()
    recording.mark(None if step is None else as_step(step), labels)


def end_step() -> None:
    """Ends the training step: the following events have no step until the next mark with a step."""
    recording = _active()
    if recording is not None:
        recording.end_step()


def is_recording() -> bool:
    """Returns True if a recording is active in this process."""
    return _active() is not None


def is_writing() -> bool:
    """Returns True while another thread writes the end of a recording; see `wait` of disable()."""
    ending = _ending
    return ending is not None and ending.is_running()


def run_id() -> str | None:
    """Returns the ID of the run that is being recorded; None if there is none."""
    recording = _active()
    return None if recording is None else recording.run_id


def may_have_bad_values(run_id: str) -> bool:
    """Returns False if a run was recorded without a NaN or an infinity, and is completely written.

    The result is True for a run with a bad value, for a run that is not the newest of this process, and until the run
    is written.
    """
    ending = _ending
    return ending is None or ending.run_id != run_id or ending.may_have_bad_values


def _shown_location(logdir: str | os.PathLike[str]) -> Path | str:
    location = parse_location(logdir)
    return location if isinstance(location, Path) else location.url


def _end_at_exit() -> None:
    ending = _ending
    if ending is None:
        return
    try:
        ending.outlived_program |= ending.active is not None or ending.is_running()
        disable()
    except NonFiniteError as error:  # no code is left to catch the error
        sys.stderr.write(f"tfdbg_arrow: {error}\n")
    except KeyboardInterrupt:
        pass  # no code is left to interrupt; Python would print the error and ignore it
    finally:
        ending.begin()
        ending.outlast()  # Python must not end while the sink's thread runs C++ code


def note_exit_code() -> None:
    """Notes that the caller chooses the exit code of the process, however the program ended."""
    global _has_exit_code
    _has_exit_code = True


def _keep_exit_status() -> None:
    """Makes Python end with the status of SIGINT, if KeyboardInterrupt ended the program.

    Python itself uses this status only if the last code that was compiled from text raised KeyboardInterrupt. A module
    that is imported for the first time at the end of a recording can compile text after that code.
    """
    is_interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")
    if _ending is not None and _ending.outlived_program and is_interrupted and not _has_exit_code:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def _register_at_exit() -> None:
    global _is_registered_at_exit
    if not _is_registered_at_exit:
        # Python runs these functions in reverse order. If a signal interrupts a function, the second run of that
        # function does the rest.
        for function in (_keep_exit_status, _keep_exit_status, _end_at_exit, _end_at_exit):
            atexit.register(function)
        os.register_at_fork(after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)
        _is_registered_at_exit = True


def _after_fork_in_parent() -> None:
    """Notes in the parent's recording that the forked child is not recorded; the child itself cannot note it."""
    recording = _active()
    if recording is not None:
        recording.note_fork()


def _after_fork_in_child() -> None:
    """Abandons the recording in a forked child, because the spool and the sink's thread belong to the parent."""
    global _ending, _lock
    ending, _ending = _ending, None
    _lock = threading.RLock()
    recording = None if ending is None else ending.recording
    if recording is not None:
        recording.abandon()
