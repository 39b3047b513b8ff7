"""Records a program that knows nothing of it, from its import of TensorFlow to its end.

Recording starts when the program has imported TensorFlow, not before: what it sets up first (environment variables
that TensorFlow reads, its own imports) works as ever. A program that calls TensorFlow's own
`tf.debugging.experimental.enable_dump_debug_info` is recorded with the settings that it gives there; TensorFlow's own
dumping never starts.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tfdbg_arrow.errors import (
    MissingDependencyError,
    NonFiniteError,
    RecordingError,
    SettingError,
    TfdbgArrowError,
)
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_layout import manifest_path, part_directory, read_live_parts
from tfdbg_arrow.writer import session
from tfdbg_arrow.writer.backend import native_core
from tfdbg_arrow.writer.program import Program, ProgramAborted, check_program, run_program
from tfdbg_arrow.writer.settings import Request

_TENSORFLOW = "tensorflow"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a recorded program ended.

    Attributes:
        exit_code: Its own, as `python` would give it: 1 for an exception, 130 for Ctrl-C.
        run_ids: The runs that were recorded, in order; empty where nothing was.
        is_child: Whether this process is one that the program forked, and has nothing to tell of the recording.
        stop: The first error with which the recording stopped the program; None where it did not.
    """

    exit_code: int
    run_ids: tuple[str, ...]
    is_child: bool
    stop: NonFiniteError | None = None


def record_program(program: Program, request: Request) -> Outcome:
    """Runs a program in this process to its end, and records it.

    Args:
        program: What to run.
        request: How to record it, unless the program calls enable_dump_debug_info.

    Raises:
        RecordingError: The program is not there, or it cannot be recorded.
        SettingError: A setting cannot be used.
        LogdirError: The logdir cannot be written.
        MissingDependencyError: TensorFlow is not installed.
    """
    logdir = Path(request.logdir).expanduser().absolute()
    request = replace(request, logdir=logdir)
    check_program(program)
    is_new = not logdir.exists()
    request.check()
    if importlib.util.find_spec(_TENSORFLOW) is None:
        raise MissingDependencyError(
            "recording needs TensorFlow, which is not installed; run: pip install 'tfdbg-arrow[tensorflow]'"
        )
    if request.health_backend == "native" and native_core() is None:
        raise RecordingError(
            "health_backend is 'native', but tfdbg_arrow was installed without its native core, for want of a C++ "
            "compiler; use 'auto', or install a C++17 compiler and then tfdbg_arrow again"
        )
    launch = _Launch(request)
    pid = os.getpid()
    exit_code = 0
    finder = _AfterImport(_TENSORFLOW, launch.start)
    sys.meta_path.insert(0, finder)
    try:
        exit_code = run_program(program)
    except ProgramAborted:
        pass  # launch.failure says why
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        if os.getpid() == pid:
            launch.end()
            if is_new and not launch.run_ids:
                with contextlib.suppress(OSError):  # it holds something after all
                    logdir.rmdir()
    if launch.failure is not None:
        raise launch.failure
    return Outcome(exit_code=exit_code, run_ids=tuple(launch.run_ids), is_child=os.getpid() != pid, stop=launch.stop)


class _Launch:
    """The recordings of one program: with the settings of the launch, then with those that it asks for itself."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._asked_for: Request | None = None
        self._as_dtype: Callable[[Any], Any] | None = None
        self._lock = threading.RLock()
        self.run_ids: list[str] = []
        self.failure: TfdbgArrowError | None = None
        self.stop: NonFiniteError | None = None

    def start(self, tensorflow: ModuleType) -> None:
        """Starts to record, and takes the place of TensorFlow's own dumping."""
        try:
            self._enable(self._request)
        except TfdbgArrowError as error:
            self.failure = error
            raise ProgramAborted from error
        self._as_dtype = tensorflow.as_dtype
        experimental = tensorflow.debugging.experimental
        _replace_everywhere(experimental.enable_dump_debug_info, self._enable_dump_debug_info)
        _replace_everywhere(experimental.disable_dump_debug_info, self._disable_dump_debug_info)

    def end(self) -> None:
        """Ends the recording in force, and keeps the first error with which one stopped the program."""
        self.stop = self.stop or session.stop_error()
        try:
            session.disable()
        except NonFiniteError as error:  # a bad value that the program left lying about
            self.stop = self.stop or error

    def _enable(self, request: Request) -> None:
        run_id = session.start(request)
        if run_id is not None:
            self.run_ids.append(run_id)

    def _enable_dump_debug_info(
        self,
        dump_root: str,
        tensor_debug_mode: str = "NO_TENSOR",
        circular_buffer_size: int = 1000,
        op_regex: str | None = None,
        tensor_dtypes: Collection[Any] | Callable[[Any], bool] | None = None,
    ) -> _DumpWriter:
        """Records with these settings from here on; nothing is written to `dump_root`.

        Raises:
            ValueError: A setting cannot be used, or is not that of an earlier call.
        """
        request = replace(
            self._request,
            tensor_debug_mode=tensor_debug_mode,
            circular_buffer_size=circular_buffer_size,
            op_regex=op_regex,
            tensor_dtypes=tensor_dtypes or None,  # there, an empty list is no filter
        )
        request.check(self._as_dtype)
        with self._lock:
            if self._asked_for is None:
                self.end()
                self._discard_if_empty()
                self._enable(request)
                self._asked_for = request
            else:
                _check_same(self._asked_for, request)
        return _DumpWriter(dump_root)

    def _disable_dump_debug_info(self) -> None:
        """Ends the recording that enable_dump_debug_info started, if there is one."""
        with self._lock:
            if self._asked_for is not None:
                self._asked_for = None
                self.end()

    def _discard_if_empty(self) -> None:
        """Removes the last run if nothing happened in it: the program asked for its own settings at once."""
        logdir = Path(self._request.logdir)
        if self.run_ids and _is_empty(logdir, run_id=self.run_ids[-1]):
            run_id = self.run_ids.pop()
            (logdir / manifest_path(run_id)).unlink(missing_ok=True)
            for table in TABLES:
                shutil.rmtree(logdir / part_directory(table.name, run_id=run_id), ignore_errors=True)


class _DumpWriter:
    """What enable_dump_debug_info returns: the methods that TensorFlow documents for it."""

    def __init__(self, dump_root: str) -> None:
        self.dump_root = dump_root

    def FlushNonExecutionFiles(self) -> None:  # noqa: N802
        session.flush()

    def FlushExecutionFiles(self) -> None:  # noqa: N802
        session.flush()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, with the module, as soon as that module has been imported."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ObservedLoader(spec.loader, self._loaded)
                return spec
        return None

    def _loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._action(module)


class _ObservedLoader(importlib.abc.Loader):
    """A loader that calls a function after the module's own has done its work."""

    def __init__(self, loader: Any, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)


def _replace_everywhere(original: object, replacement: object) -> None:
    """Puts a replacement in the place of a function of TensorFlow's, under all the names that it exports it by."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _TENSORFLOW:
            names = [key for key, value in list(vars(module).items()) if value is original]
            for key in names:
                setattr(module, key, replacement)


def _check_same(before: Request, now: Request) -> None:
    """Refuses what TensorFlow refuses: another mode or buffer while one is in force."""
    for name in ("tensor_debug_mode", "circular_buffer_size"):
        if getattr(before, name) != getattr(now, name):
            raise SettingError(
                f"{name} is {getattr(now, name)!r}, but this program's enable_dump_debug_info() has been called with "
                f"{getattr(before, name)!r} already; call disable_dump_debug_info() first"
            )


def _is_empty(logdir: Path, *, run_id: str) -> bool:
    return not any(entry.rows for entry in read_live_parts(logdir, run_id=run_id) if entry.table != "run")
