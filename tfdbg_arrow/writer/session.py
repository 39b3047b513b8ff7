"""enable(), disable(), capture(), mark(): which recording is in force, from its begin to its end."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.errors import (
    LogdirError,
    MissingDependencyError,
    NonFiniteError,
    RecordingError,
    TfdbgArrowError,
)
from tfdbg_arrow.schema.location import parse_location
from tfdbg_arrow.writer.chosen_values import Choice
from tfdbg_arrow.writer.memory import DEFAULT_MAX_MEMORY_BYTES
from tfdbg_arrow.writer.recording.marks import as_step
from tfdbg_arrow.writer.remote.settings import (
    DEFAULT_MAX_LOCAL_BYTES,
    DEFAULT_UPLOAD_TIMEOUT_S,
)
from tfdbg_arrow.writer.settings import Request, Settings

if TYPE_CHECKING:
    from tfdbg_arrow.writer.recording.recording import Recording


_lock = threading.RLock()

_active: Recording | None = None

_is_registered_at_exit = False


@dataclass(frozen=True)
class Capture:
    """A recording, as `capture()` gives it.

    Attributes:
        logdir: Where it goes, a URL as text; None where TFDBG_ARROW=0 turned it off.
        run_id: Its run's id; None likewise.
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
) -> str | None:
    """Records this process into a logdir until disable() or its end.

    Eager ops, function calls, graphs and the health of tensors are recorded, from all threads.
    Functions traced earlier are traced again at their next call.

    Args:
        logdir: Directory to write to, or a URL that fsspec opens, as `s3://bucket/path`; made if missing. It may hold
            other runs. To a URL, parts are sent in the background while they are made.
        tensor_debug_mode: How much of each tensor: NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH,
            FULL_NUMERICS, SHAPE or FULL_TENSOR (spec/README.md says which columns each fills).
        circular_buffer_size: Keep only so many last executions and graph tensors, and what lies around the first
            infinity and the first NaN; 0 or less: all.
        op_regex: Record tensors only of ops whose type matches (`re.match`).
        tensor_dtypes: Record tensors only of these dtypes, or for which the callable is true of their dtype;
            None: the mode's own, which for health modes are the floating and complex ones.
        health_backend: `native` (the compiled core), `tensorflow` (TensorFlow's own summary op, also
            on accelerators), or `auto`.
        max_memory_bytes: What the recording may take of memory, however fast events come, from 192 MiB to 16 GiB. A
            quarter of it is the spool, the file through which events pass. What describes the program, the N events
            of a circular buffer, and tensors of many MiB that are kept whole come on top.
        when_full: What a program does that records faster than events can be written, once the spool is full: `wait`,
            it goes on as there is room, or after five seconds in which nothing could be written, from when on events
            are dropped; `drop`, events that find no room are dropped. capture_stat counts what was dropped.
        xla: What becomes of functions with jit_compile=True. `inside`: they stay compiled and are recorded; of a loop
            in them, the first iteration with a bad value and the last one. `observe`: they run without XLA, and are
            recorded. `keep`: they stay compiled and are not recorded; `Logdir.coverage()` lists what runs in them.
            `auto`: `inside`, or `observe` where the elements of tensors are kept (`values`, FULL_TENSOR) and without
            the native core. In sessions of `tf.compat.v1` and in functions of tf.data, `inside` does what `observe`
            does (docs/xla.md).
        graphs: Which ops of functions are recorded. `executed`: those that TensorFlow's optimizer makes of your ops and
            that run. The numbers are those of an unrecorded run, and ops that it fuses are recorded as one. `traced`:
            your ops. TensorFlow then does not fuse or fold them, so numbers can differ from an unrecorded run. `auto`:
            `executed` on CPUs and GPUs with the native core. `traced` on TPUs, and with `op_regex` and `values`, which
            choose among your ops; docs/executed_graphs.md has the other cases.
        storage_options: fsspec's arguments for the URL, as `{"endpoint_url": …}`; None: what its configuration and
            the store's client find.
        local_dir: Directory for the local files of a recording to a URL, of which each gets a directory of its own
            there; None: that of the environment variable TFDBG_ARROW_LOCAL_DIR, else that for temporary files.
        upload_timeout_s: Seconds that the end of a recording to a URL waits for the last uploads; what is not sent by
            then is kept in the local directory, and a warning says how to send it.
        max_local_bytes: Bytes of parts that a recording to a URL keeps locally. Beyond them the oldest events that
            could not be sent are dropped, and counted in `capture_stat`. The spool, and a part that is being merged,
            come on top.
        values: Keep the elements of the tensors of these ops, and only the health of the others: a regular expression
            that the op's name or type matches (`re.match`), or a callable that takes (op_type, op_name). An eager op
            has no name: None, and it is asked once for a type. No other filter leaves chosen ops out.
        steps: Record only these training steps, as mark(step=...) or Keras's fit tell them: a number k for every
            k-th, a range or slice, text such as "0:100,1000:,::10" (in which a number alone is that one step), or a
            list of these. What runs before the first mark is recorded.
        max_bytes: What the parts of executions and tensors may take on disk: beyond it the middle of the run is
            dropped, the first half of these bytes and the last are kept, and so is what lies around the first
            infinity and the first NaN. At least 1 MiB; None: no bound.
        dump_on: `nonfinite`: hold the last `circular_buffer_size` executions and graph tensors in memory, and write
            them only when a bad value comes up. Of a healthy run no execution and no tensor is written.
        dump_after: With dump_on, write so many executions and graph tensors after the bad one; None: as many as
            the buffer holds.
        on_nonfinite: What a NaN or an infinity does: `record`, only recorded; `raise`, the program is stopped with a
            NonFiniteError at the op where it came up; a callable, it is called with the NonFinite, once for each
            origin and at most 100 times, in the thread that runs the program, and what it raises goes to the program.
            Values that nothing computes with, as those that `tf.where` leaves out, do neither (docs/live_stop.md).
        redact: What the logdir is not to tell, `paths`, `source` or a list of both. `paths`: file paths become relative
            to the working directory or the installed packages, or a hash and the file's name; host name, command line
            and working directory are NULL. `source`: no text of the program is kept, line numbers are. Names of ops,
            functions and variables, marks and tensors stay as they are (SECURITY.md).

    Returns:
        The run's id; None where the environment variable TFDBG_ARROW=0 turned recording off.

    Raises:
        SettingError: A setting cannot be used.
        LogdirError: The logdir cannot be written.
        RecordingError: A recording is in force already, or cannot start.
        MissingDependencyError: TensorFlow, or what opens the URL, is not installed.
    """
    return start(
        Request(
            logdir=logdir,
            tensor_debug_mode=tensor_debug_mode,
            circular_buffer_size=circular_buffer_size,
            op_regex=op_regex,
            tensor_dtypes=tensor_dtypes,
            health_backend=health_backend,
            max_memory_bytes=max_memory_bytes,
            when_full=when_full,
            xla=xla,
            graphs=graphs,
            storage_options=storage_options,
            local_dir=local_dir,
            upload_timeout_s=upload_timeout_s,
            max_local_bytes=max_local_bytes,
            values=values,
            steps=steps,
            max_bytes=max_bytes,
            dump_on=dump_on,
            dump_after=dump_after,
            on_nonfinite=on_nonfinite,
            redact=redact,
        )
    )


def is_turned_off() -> bool:
    """Returns whether the environment variable TFDBG_ARROW=0 turned all recording off."""
    return os.environ.get("TFDBG_ARROW") == "0"


def check(request: Request) -> Settings:
    """Returns a request as settings, and makes the logdir; raises what enable() does."""
    return request.check(_tensorflow().as_dtype)


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependencyError(
            "recording needs TensorFlow, which is not installed; run: pip install 'tfdbg-arrow[tensorflow]'"
        ) from error
    return tf


def start(request: Request) -> str | None:
    """Starts a recording; returns and raises what enable() does."""
    global _active
    if is_turned_off():
        return None
    _tensorflow()
    with _lock:
        if _active is not None:
            raise RecordingError(
                f"a recording to {_active.settings.shown_logdir} is in force; call tfdbg_arrow.disable() before another"
            )
        settings = check(request)
        try:
            from tfdbg_arrow.writer.recording.recording import Recording  # loads TensorFlow's private API

            recording = Recording(settings)
            recording.start()
        except Exception as error:
            if settings.remote is not None:
                shutil.rmtree(settings.logdir, ignore_errors=True)
            if not isinstance(error, OSError) or isinstance(error, TfdbgArrowError):
                raise
            raise LogdirError(
                f"the logdir {settings.logdir} cannot be written: {error}; free space or choose another path"
            ) from error
        _active = recording
        _register_at_exit()
        return recording.run_id


def disable() -> None:
    """Ends the recording in force and writes what is left; does nothing if there is none.

    Functions instrumented meanwhile run on; at their next call they are traced without recording.

    Raises:
        NonFiniteError: Under `on_nonfinite="raise"`, a bad value has come up that no op has taken yet.
    """
    recording = _active
    try:
        if recording is not None and recording.stop is not None:
            recording.stop.at_boundary()
    finally:
        end()


def end() -> None:
    """Ends the recording in force as disable() does, whatever has come up."""
    global _active
    with _lock:
        recording, _active = _active, None
    if recording is not None:
        recording.close()


def stop_error() -> NonFiniteError | None:
    """Returns the first error with which the recording in force has stopped the program; None if it has not."""
    recording = _active
    return None if recording is None or recording.stop is None else recording.stop.first_error


def flush() -> None:
    """Writes everything recorded so far to the logdir; does nothing if nothing records.

    Raises:
        NonFiniteError: Under `on_nonfinite="raise"`, a bad value has come up that no op has taken yet.
    """
    recording = _active
    if recording is not None:
        recording.flush()
        if recording.stop is not None:
            recording.stop.at_boundary()


@contextmanager
def capture(logdir: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Iterator[Capture]:
    """Records the body of a `with` statement; takes the arguments of enable(), raises its errors and disable()'s."""
    run_id = enable(logdir, *args, **kwargs)
    try:
        yield Capture(logdir=_shown_location(logdir) if run_id is not None else None, run_id=run_id)
    except BaseException:
        if run_id is not None:
            end()
        raise
    if run_id is not None:
        disable()


def mark(step: int | None = None, **labels: object) -> None:
    """Labels the events from here on with a training step and with labels of your own.

    Does nothing while nothing records.

    Args:
        step: The training step: an integer within 64 bits (a scalar tensor or NumPy integer will do).
        **labels: Names and values, kept as text, as `epoch=3, phase="validation"`.

    Raises:
        SettingError: The step is no integer.
        NonFiniteError: Under `on_nonfinite="raise"`, a bad value has come up that no op has taken yet.
    """
    recording = _active
    if recording is None:
        return
    if recording.stop is not None:
        recording.stop.at_boundary()
    recording.mark(None if step is None else as_step(step), labels)


def is_recording() -> bool:
    """Returns whether a recording is in force in this process."""
    return _active is not None


def run_id() -> str | None:
    """Returns the id of the run that is being recorded, None if there is none."""
    recording = _active
    return None if recording is None else recording.run_id


def _shown_location(logdir: str | os.PathLike[str]) -> Path | str:
    location = parse_location(logdir)
    return location if isinstance(location, Path) else location.url


def _end_at_exit() -> None:
    try:
        disable()
    except NonFiniteError as error:  # nobody is left to catch it
        sys.stderr.write(f"tfdbg_arrow: {error}\n")


def _register_at_exit() -> None:
    global _is_registered_at_exit
    if not _is_registered_at_exit:
        _is_registered_at_exit = True
        atexit.register(_end_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)


def _after_fork_in_parent() -> None:
    """What runs in a fork's child is not recorded, and the parent says so: the child cannot."""
    recording = _active
    if recording is not None:
        recording.note_fork()


def _after_fork_in_child() -> None:
    """A fork's child records nothing: the spool and the sink's thread are its parent's."""
    global _active, _lock
    recording, _active = _active, None
    _lock = threading.RLock()
    if recording is not None:
        recording.abandon()
