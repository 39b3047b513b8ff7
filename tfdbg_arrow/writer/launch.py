"""Records an unchanged program from its import of TensorFlow to its end.

Recording starts only when the program has imported TensorFlow. So the program's own set-up works as usual, for example
its imports and the environment variables that it sets for TensorFlow. A program that calls TensorFlow's
`tf.debugging.experimental.enable_dump_debug_info` is recorded with the settings of that call; TensorFlow's own dumping
never starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

from tfdbg_arrow.errors import (
    LogdirError,
    MissingDependencyError,
    NonFiniteError,
    SettingError,
    TfdbgArrowError,
    install_command,
)
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.storage.manifest import read_live_parts
from tfdbg_arrow.writer import active_recording
from tfdbg_arrow.writer.backend import require_native_core
from tfdbg_arrow.writer.hooks.patches import KERAS_PACKAGES, AfterImport
from tfdbg_arrow.writer.import_garbage import frozen_at_end
from tfdbg_arrow.writer.program import Program, ProgramAborted, check_program, run_program
from tfdbg_arrow.writer.recover import remove_run
from tfdbg_arrow.writer.remote.upload_logdir import remove_run_if_empty
from tfdbg_arrow.writer.settings import Request, Settings

_TENSORFLOW = "tensorflow"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a recorded program.

    Attributes:
        exit_code: The exit code that `python` would return: 1 for an exception, 130 for Ctrl-C.
        run_ids: The recorded runs, in order; empty if nothing was recorded.
        is_child: Whether the program forked this process, which then has no recording to report.
        stop: The first error that the recording raised to stop the program; None if it raised no error.
    """

    exit_code: int
    run_ids: tuple[str, ...]
    is_child: bool
    stop: NonFiniteError | None = None


def record_program(program: Program, request: Request, *, seed: int | None = None) -> Outcome:
    """Runs a program in this process to its end, and records it.

    Args:
        program: The program to run.
        request: The settings of the recording, unless the program calls enable_dump_debug_info.
        seed: A number from 0 to 2**32 - 1. The number seeds Python's and NumPy's random generators before the program
            starts, and TensorFlow's generator when TensorFlow is imported. None leaves the generators alone.

    Raises:
        RecordingError: The program does not exist, or cannot be recorded.
        SettingError: A setting is not valid.
        LogdirError: The logdir cannot be written.
        MissingDependencyError: TensorFlow is not installed.
    """
    location = parse_location(request.logdir)
    logdir = location.expanduser().absolute() if isinstance(location, Path) else None
    request = replace(request, logdir=request.logdir if logdir is None else logdir)
    check_program(program)
    is_new = logdir is not None and not logdir.exists()
    request.check()
    if importlib.util.find_spec(_TENSORFLOW) is None:
        raise MissingDependencyError(
            f"recording needs TensorFlow, which is not installed; run: {install_command('tensorflow')}"
        )
    require_native_core()
    if seed is not None:
        if not 0 <= seed < 2**32:
            raise SettingError(f"the seed is {seed}; expected 0 to {2**32 - 1}")
        random.seed(seed)
        numpy.random.seed(seed)
    launch = _Launch(request)
    pid = os.getpid()
    exit_code = 0

    def start(tensorflow: ModuleType) -> None:
        if tensorflow.__name__ != _TENSORFLOW:
            return
        finder.remove()
        launch.start(tensorflow)
        if seed is not None:
            tensorflow.random.set_seed(seed)

    # If a program imports Keras first, Keras imports TensorFlow during its own import.
    finder = AfterImport([_TENSORFLOW, *KERAS_PACKAGES], start, around=frozen_at_end)
    finder.install()
    active_recording.note_exit_code()
    try:
        exit_code = run_program(program)
    except ProgramAborted:
        pass  # launch.failure holds the reason
    finally:
        finder.remove()
        if os.getpid() == pid:
            launch.end()
            _follow(None)
            if logdir is not None and is_new and not launch.run_ids:
                with contextlib.suppress(OSError):  # the logdir is not empty
                    logdir.rmdir()
    if launch.failure is not None:
        raise launch.failure
    return Outcome(exit_code=exit_code, run_ids=tuple(launch.run_ids), is_child=os.getpid() != pid, stop=launch.stop)


class DumpWriter:
    """The result of enable_dump_debug_info, with the methods that TensorFlow documents for it.

    Attributes:
        dump_root: The dump_root that the program requested.
    """

    def __init__(self, dump_root: str) -> None:
        self.dump_root = dump_root

    def FlushNonExecutionFiles(self) -> None:  # noqa: N802
        """Writes everything recorded so far."""
        active_recording.flush()

    def FlushExecutionFiles(self) -> None:  # noqa: N802
        """Writes everything recorded so far, including the content of the circular buffers."""
        active_recording.flush()


def enable_dump_debug_info(
    dump_root: str | os.PathLike[str],
    tensor_debug_mode: str = "NO_TENSOR",
    circular_buffer_size: int = 1000,
    op_regex: str | None = None,
    tensor_dtypes: Sequence[Any] | Callable[[Any], bool] | None = None,
) -> DumpWriter:
    """Records this process, with the arguments and defaults of tf.debugging.experimental.enable_dump_debug_info.

    A second call with the same settings and the same `dump_root` does nothing. With another `dump_root`, it ends the
    recording and begins a new one there. The content of the circular buffers is written when the writer is flushed,
    when a bad value occurs, and when the recording ends.

    Args:
        dump_root: The logdir. Under `tfdbg-arrow run` it is ignored, because that command chooses the logdir.
        tensor_debug_mode: How much of each tensor to record. FULL_NUMERICS, which TensorFlow only declares, is also
            supported.
        circular_buffer_size: Keep only the last executions and the last graph tensors, at most this many of each, and
            the events around bad values. 0 or less means all events.
        op_regex: Record tensors only of ops whose type matches (`re.match`).
        tensor_dtypes: Record tensors only of these dtypes (a list or tuple of dtypes or their names), or of dtypes for
            which the callable returns True; None or an empty list means the dtypes of the mode.

    Returns:
        A writer with `FlushNonExecutionFiles()`, `FlushExecutionFiles()` and `dump_root`.

    Raises:
        SettingError: A setting is not valid, or differs from the earlier call. The error is also a ValueError.
        TypeError: An element of tensor_dtypes is not a dtype, as in TensorFlow. The error is also a SettingError.
        LogdirError: The dump_root cannot be written.
        RecordingError: A recording that enable() began is active, or recording cannot start.
        MissingDependencyError: TensorFlow is not installed.
    """
    writer = DumpWriter(os.fspath(dump_root))
    if active_recording.is_turned_off():
        return writer
    _check_dtypes(tensor_dtypes)
    with _state.lock:
        launch = _state.launch
        request = replace(
            Request(logdir=dump_root) if launch is None else launch.request,
            tensor_debug_mode=tensor_debug_mode,
            circular_buffer_size=circular_buffer_size,
            op_regex=op_regex,
            tensor_dtypes=tensor_dtypes or None,  # in TensorFlow, an empty list means no filter
        )
        before = _in_force()
        if before is None:
            _begin(request, launch)
        else:
            settings = active_recording.check(request)
            _check_same(before, _InForce(request=request, settings=settings, run_id=before.run_id))
            if settings.logdir != before.settings.logdir:
                active_recording.disable()
                _begin(request, launch)
    return writer


class _NotADtypeError(SettingError, TypeError):
    """An element of tensor_dtypes is not a dtype."""


def _check_dtypes(tensor_dtypes: object) -> None:
    """Raises the exceptions that TensorFlow's enable_dump_debug_info raises for bad dtypes, in every mode."""
    if tensor_dtypes is None or (callable(tensor_dtypes) and not isinstance(tensor_dtypes, (list, tuple))):
        return
    if not isinstance(tensor_dtypes, (list, tuple)):
        raise SettingError(
            f"tensor_dtypes is {tensor_dtypes!r}; expected None, a list or tuple of dtypes or their names, or a "
            "callable that takes a dtype and returns True or False"
        )
    for item in tensor_dtypes:
        try:
            active_recording.as_dtype(item)
        except TypeError as error:
            raise _NotADtypeError(
                f"tensor_dtypes has {item!r}, which is not a dtype of TensorFlow or the name of one; give for example "
                "tf.float32 or 'float32'"
            ) from error


def disable_dump_debug_info() -> None:
    """Ends the recording that enable_dump_debug_info() began; does nothing if there is none."""
    with _state.lock:
        before, _state.in_force = _in_force(), None
        if before is not None:
            end = active_recording.disable if _state.launch is None else _state.launch.end
            end()


class _Launch:
    """The recordings of one program: first with the settings of the launch, then with those that the program requests.

    Attributes:
        request: The logdir, and the settings that the program cannot choose.
        run_ids: The recorded runs that are not empty, in order.
        failure: Why the program could not be recorded.
        stop: The first error that a recording raised to stop the program.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.run_ids: list[str] = []
        self.failure: TfdbgArrowError | None = None
        self.stop: NonFiniteError | None = None

    def start(self, tensorflow: ModuleType) -> None:
        """Starts recording, and replaces TensorFlow's own dumping."""
        try:
            self._enable(self.request)
        except TfdbgArrowError as error:
            self.failure = error
            raise ProgramAborted from error
        _follow(self)
        experimental = tensorflow.debugging.experimental
        for replacement in (enable_dump_debug_info, disable_dump_debug_info):
            _replace_everywhere(replacement.__name__, getattr(experimental, replacement.__name__), replacement)

    def end(self) -> None:
        """Ends the active recording, and stores the first error that a recording raised to stop the program."""
        self.stop = self.stop or active_recording.stop_error()
        try:
            active_recording.disable()
        except NonFiniteError as error:  # a bad value that the program left unused
            self.stop = self.stop or error

    def _enable(self, request: Request) -> str | None:
        run_id = active_recording.start(request)
        if run_id is not None:
            self.run_ids.append(run_id)
        return run_id

    def begin(self, request: Request) -> str | None:
        """Begins a recording with the settings that the program requested, instead of those of the launch."""
        self.end()
        self._discard_if_empty()
        return self._enable(request)

    def _discard_if_empty(self) -> None:
        """Removes the last run if nothing happened in it, because the program requested its own settings at once."""
        logdir = parse_location(self.request.logdir)
        if not self.run_ids:
            return
        if not isinstance(logdir, Path):
            # If the run cannot be removed, it remains as a complete, empty run. This failure is no reason to stop the
            # program.
            with contextlib.suppress(LogdirError):
                if remove_run_if_empty(logdir.open(self.request.storage_options), run_id=self.run_ids[-1]):
                    self.run_ids.pop()
            return
        if _is_empty(logdir, run_id=self.run_ids[-1]):
            remove_run(logdir, run_id=self.run_ids.pop())


def _replace_everywhere(function_name: str, original: object, replacement: object) -> None:
    """Replaces a function of TensorFlow in every module that exports it."""
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == _TENSORFLOW and vars(module).get(function_name) is original:
            setattr(module, function_name, replacement)


def _is_empty(logdir: Path, *, run_id: str) -> bool:
    return not any(entry.rows for entry in read_live_parts(logdir, run_id=run_id) if entry.table != "run")


@dataclass(frozen=True, kw_only=True)
class _InForce:
    request: Request
    settings: Settings
    run_id: str | None


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.launch: _Launch | None = None
        self.in_force: _InForce | None = None


_state = _State()


def _renew_lock() -> None:
    """Gives a forked child a lock of its own, because a thread of the parent may hold the lock."""
    _state.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def _follow(launch: _Launch | None) -> None:
    """Makes later calls of enable_dump_debug_info() use the logdir of a launch; None means their own dump_root."""
    with _state.lock:
        _state.launch, _state.in_force = launch, None


def _begin(request: Request, launch: _Launch | None) -> None:
    settings = active_recording.check(request)
    run_id = active_recording.start(request) if launch is None else launch.begin(request)
    _state.in_force = None
    if run_id is not None:
        _state.in_force = _InForce(request=request, settings=settings, run_id=run_id)


def _in_force() -> _InForce | None:
    """Returns the recording that this module began, unless it has ended in the meantime."""
    in_force = _state.in_force
    return in_force if in_force is not None and in_force.run_id == active_recording.run_id() else None


def _check_same(before: _InForce, now: _InForce) -> None:
    """Raises an error if settings differ from those of the active recording; TensorFlow would ignore a new filter."""
    for name, old, new in (
        ("tensor_debug_mode", before.settings.mode, now.settings.mode),
        ("circular_buffer_size", before.settings.circular_buffer_size, now.settings.circular_buffer_size),
        ("op_regex", before.settings.op_regex, now.settings.op_regex),
        ("tensor_dtypes", before.settings.dtypes, now.settings.dtypes),
    ):
        if old != new:
            raise SettingError(
                f"{name} is {getattr(now.request, name)!r}, but enable_dump_debug_info() has already been called with "
                f"{getattr(before.request, name)!r}; call disable_dump_debug_info() first"
            )
