"""Runs a Python program in this process as `python script.py` or `python -m module` would.

The program gets the same environment: its own module `__main__` in `sys.modules`, its `sys.argv` and `sys.path[0]`, the
working directory, and tracebacks without tfdbg_arrow's frames.

Source: https://docs.python.org/3/using/cmdline.html and `runpy`.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import runpy
import sys
import threading
import zipfile
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from tfdbg_arrow.errors import RecordingError
from tfdbg_arrow.writer.own_frames import without_own_frames

EXIT_INTERRUPTED = 130
"""The exit code that a shell reports for a program that Ctrl-C ended."""


class ProgramAborted(BaseException):
    """Ends a program from within; neither run_program() nor `except Exception` in the program catches it."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program to run.

    Attributes:
        name: Path of a script, or of a directory or zip file with a `__main__.py`; or a module's dotted name.
        is_module: Whether `name` is a module, as with `python -m`.
        args: The arguments of the program, without its own name.
    """

    name: str
    is_module: bool = False
    args: tuple[str, ...] = ()


class _NotRunnableError(Exception):
    """The error that runpy raises if there is nothing to run."""


@dataclass(frozen=True, kw_only=True)
class _Main:
    """The code that is executed as `__main__`."""

    code: CodeType
    file_path: str
    loader: Any
    spec: importlib.machinery.ModuleSpec | None = None
    package: str | None = None


def check_program(program: Program) -> None:
    """Checks that a program exists, before anything is prepared for it.

    Raises:
        RecordingError: There is no such script or module.
    """
    if not program.is_module:
        path = os.path.abspath(program.name)
        try:
            if os.path.isfile(path) or not os.path.exists(path):  # do not open a pipe: its writer would see it closed
                io.open_code(path).close()
        except OSError as error:
            raise RecordingError(
                f"the script {program.name} cannot be read: {error.strerror or error}; "
                "give the path of a Python script, or -m and the name of a module"
            ) from error
        return
    top = program.name.partition(".")[0]
    sys.path.insert(0, _search_directory(program))
    try:
        is_there = bool(top) and importlib.util.find_spec(top) is not None
    finally:
        sys.path.pop(0)
    if not is_there:
        raise RecordingError(
            f"there is no module {program.name!r} to run; expected one that `python -m {program.name}` can find"
        )


def run_program(program: Program) -> int:
    """Runs a program and its threads to their end, and returns the exit code that `python` would return.

    Uncaught exceptions are printed as Python prints them. The program's `__main__` stays in `sys.modules`.

    Raises:
        RecordingError: The program cannot be run.
        ProgramAborted: A function that the program called raised it.
    """
    sys.argv[:] = ["-m" if program.is_module else program.name, *program.args]
    if not sys.flags.safe_path:
        sys.path[0] = _search_directory(program)
    sys.excepthook = sys.__excepthook__  # undo the command line's hook for the program
    try:
        main = _load(program)
    except (RecordingError, ProgramAborted):
        raise
    except BaseException as error:
        return _uncaught(error)
    exit_code = _run(main)
    wait_for_threads = getattr(threading, "_shutdown", None)  # multiprocessing also calls it when its processes end
    if wait_for_threads is not None:
        try:
            wait_for_threads()
        except BaseException as error:
            return _uncaught(error)
    return exit_code


def execute_main(code: CodeType, namespace: dict[str, Any]) -> None:
    """Executes a program. In the program's stacks, frames outside this function belong to the command line."""
    exec(code, namespace)


EXECUTE_MAIN_CODE = execute_main.__code__
"""Identifies the frame of execute_main() in a stack."""


def _load(program: Program) -> _Main:
    if not program.is_module and not _is_search_path(program.name):
        path = os.path.abspath(program.name)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        return _Main(code=_script_code(path), file_path=path, loader=loader)
    runner: Any = runpy  # pdb and cProfile also run modules through these private functions
    try:
        if program.is_module:
            _, spec, code = runner._get_module_details(program.name, _NotRunnableError)
        else:
            _, spec, code = runner._get_main_module_details(_NotRunnableError)
    except _NotRunnableError as error:
        kind = "module" if program.is_module else "directory or zip file"
        raise RecordingError(
            f"the {kind} {program.name} cannot be run: {error}; give one that `python` itself can run"
        ) from None
    if program.is_module:
        sys.argv[0] = spec.origin
    return _Main(code=code, file_path=spec.origin, loader=spec.loader, spec=spec, package=spec.parent)


def _script_code(path: str) -> CodeType:
    with io.open_code(path) as file:
        content = file.read()  # all at once, because a pipe can be read only once
    compiled: CodeType | None = pkgutil.read_code(io.BytesIO(content))
    return compile(content, path, "exec", dont_inherit=True) if compiled is None else compiled


def _run(main: _Main) -> int:
    module = ModuleType("__main__")
    vars(module).update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None if main.spec is None else main.spec.cached,
        __file__=main.file_path,
        __loader__=main.loader,
        __package__=main.package,
        __spec__=main.spec,
    )
    sys.modules["__main__"] = module
    try:
        execute_main(main.code, vars(module))
    except SystemExit as error:
        return _exit_code(error)
    except ProgramAborted:
        raise
    except BaseException as error:
        return _uncaught(error)
    return 0


def _search_directory(program: Program) -> str:
    """Returns the entry that Python puts first into sys.path."""
    if program.is_module:
        return os.getcwd()
    path = os.path.realpath(program.name)
    return path if _is_search_path(path) else os.path.dirname(path)


def _is_search_path(path: str) -> bool:
    """Returns whether a path is a directory or a zip file of modules, and not a script."""
    return os.path.isdir(path) or (os.path.isfile(path) and zipfile.is_zipfile(path))  # reading a pipe would empty it


def _exit_code(error: SystemExit) -> int:
    """Returns the exit code of a sys.exit(). If the program passed a text, writes it to stderr and returns 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    sys.stderr.write(f"{error.code}\n")
    return 1


def _uncaught(error: BaseException) -> int:
    """Prints an exception as Python does at the end of a program; returns the exit code."""
    error.__traceback__ = without_own_frames(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as exit_:
        return _exit_code(exit_)
    except BaseException as failure:
        failure.__context__ = None  # the original exception is printed below
        sys.stderr.write("Error in sys.excepthook:\n")
        failure.__traceback__ = without_own_frames(failure.__traceback__)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        # The program is the last code that was compiled from text, and raised KeyboardInterrupt. Python would therefore
        # end with the status of SIGINT, and not with an exit code. Compiling other text prevents this.
        exec("")
        return EXIT_INTERRUPTED
    return 1
