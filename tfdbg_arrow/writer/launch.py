"""Records an unchanged program from its import of TensorFlow to its end.

Recording starts when the program has imported TensorFlow, and not earlier, so that its own set-up works as usual (for
example environment variables that TensorFlow reads, and imports). A program that calls TensorFlow's
`tf.debugging.experimental.enable_dump_debug_info` is recorded with the settings of that call; TensorFlow's own dumping
never starts.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tfdbg_arrow.errors import (
    LogdirError,
    MissingDependencyError,
    NonFiniteError,
    TfdbgArrowError,
    install_command,
)
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.location import parse_location
from tfdbg_arrow.schema.logdir_layout import manifest_path, part_directory
from tfdbg_arrow.schema.manifest import read_live_parts
from tfdbg_arrow.writer import dump_api, session
from tfdbg_arrow.writer.backend import require_native_core
from tfdbg_arrow.writer.program import Program, ProgramAborted, check_program, run_program
from tfdbg_arrow.writer.remote.upload_logdir import remove_run_if_empty
from tfdbg_arrow.writer.settings import Request

_TENSORFLOW = "tensorflow"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a recorded program.

    Attributes:
        exit_code: The exit code that `python` would return: 1 for an exception, 130 for Ctrl-C.
        run_ids: The recorded runs, in order; empty if nothing was recorded.
        is_child: Whether this process was forked by the program, so that it has no recording to report.
        stop: The first error with which the recording stopped the program; None if it did not.
    """

    exit_code: int
    run_ids: tuple[str, ...]
    is_child: bool
    stop: NonFiniteError | None = None


def record_program(program: Program, request: Request) -> Outcome:
    """Runs a program in this process to its end, and records it.

    Args:
        program: The program to run.
        request: The settings of the recording, unless the program calls enable_dump_debug_info.

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
    launch = _Launch(request)
    pid = os.getpid()
    exit_code = 0
    finder = _AfterImport(_TENSORFLOW, launch.start)
    sys.meta_path.insert(0, finder)
    try:
        exit_code = run_program(program)
    except ProgramAborted:
        pass  # launch.failure holds the reason
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        if os.getpid() == pid:
            launch.end()
            dump_api.follow(None)
            if logdir is not None and is_new and not launch.run_ids:
                with contextlib.suppress(OSError):  # it is not empty
                    logdir.rmdir()
    if launch.failure is not None:
        raise launch.failure
    return Outcome(exit_code=exit_code, run_ids=tuple(launch.run_ids), is_child=os.getpid() != pid, stop=launch.stop)


class _Launch:
    """The recordings of one program, first with the settings of the launch, then with those that it requests itself."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.run_ids: list[str] = []
        self.failure: TfdbgArrowError | None = None
        self.stop: NonFiniteError | None = None

    def start(self, tensorflow: ModuleType) -> None:
        """Starts recording, and replaces TensorFlow's own dumping."""
        try:
            self._enable(self._request)
        except TfdbgArrowError as error:
            self.failure = error
            raise ProgramAborted from error
        dump_api.follow(dump_api.Launch(request=self._request, begin=self._begin_asked_for, end=self.end))
        experimental = tensorflow.debugging.experimental
        _replace_everywhere(experimental.enable_dump_debug_info, dump_api.enable_dump_debug_info)
        _replace_everywhere(experimental.disable_dump_debug_info, dump_api.disable_dump_debug_info)

    def end(self) -> None:
        """Ends the active recording, and stores the first error with which a recording stopped the program."""
        self.stop = self.stop or session.stop_error()
        try:
            session.disable()
        except NonFiniteError as error:  # a bad value that the program left unused
            self.stop = self.stop or error

    def _enable(self, request: Request) -> str | None:
        run_id = session.start(request)
        if run_id is not None:
            self.run_ids.append(run_id)
        return run_id

    def _begin_asked_for(self, request: Request) -> str | None:
        """Begins a recording with the settings that the program requested, instead of those of the launch."""
        self.end()
        self._discard_if_empty()
        return self._enable(request)

    def _discard_if_empty(self) -> None:
        """Removes the last run if nothing happened in it, because the program requested its own settings at once."""
        logdir = parse_location(self._request.logdir)
        if not self.run_ids:
            return
        if not isinstance(logdir, Path):
            # A run that remains is complete and empty, which is no reason to stop the program.
            with contextlib.suppress(LogdirError):
                if remove_run_if_empty(logdir.open(self._request.storage_options), run_id=self.run_ids[-1]):
                    self.run_ids.pop()
            return
        if _is_empty(logdir, run_id=self.run_ids[-1]):
            run_id = self.run_ids.pop()
            (logdir / manifest_path(run_id)).unlink(missing_ok=True)
            for table in TABLES:
                shutil.rmtree(logdir / part_directory(table.name, run_id=run_id), ignore_errors=True)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once, with a module as its argument, as soon as that module has been imported."""

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
    """A loader that calls a function after the module's own loader has finished."""

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
    """Replaces a function of TensorFlow under all names by which it is exported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == _TENSORFLOW:
            names = [key for key, value in list(vars(module).items()) if value is original]
            for key in names:
                setattr(module, key, replacement)


def _is_empty(logdir: Path, *, run_id: str) -> bool:
    return not any(entry.rows for entry in read_live_parts(logdir, run_id=run_id) if entry.table != "run")
