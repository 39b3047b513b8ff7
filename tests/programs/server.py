"""A process that has imported TensorFlow, and forks a child for each Python program that it is asked to run.

To its program, a child looks like a newly started process: the child has its own `__main__`, command line, environment,
directory, streams, and `sys.path`. The server's imports are not in `sys.modules` before the program imports them. The
child ends like an interpreter. On the stack of the program, only the outermost frame belongs to this file.

A request is one message on the socket with file descriptor `sys.argv[1]`. The message carries the descriptors of stdin,
stdout, stderr, and of a socket for the answers. The first answer is a line with the program's process ID. The second
answer is a line with the wait status of the program.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import runpy
import signal
import socket
import sys
import types
from collections.abc import Sequence
from typing import Any

IMPORTED = ("numpy", "pyarrow.parquet", "pyarrow.dataset", "tensorflow", "keras", "click")
_LARGEST_REQUEST_BYTES = 1 << 20


class _Imported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides modules that were imported earlier as if they were imported only now."""

    def __init__(self, modules: dict[str, types.ModuleType]) -> None:
        self._modules = modules
        self._specs = {name: module.__spec__ for name, module in modules.items()}
        for name in modules:
            del sys.modules[name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = self._specs.get(fullname)
        if known is None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=known.origin)
        spec.submodule_search_locations = known.submodule_search_locations
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        top = module.__name__.partition(".")[0]
        module.__spec__ = self._specs[module.__name__]
        module.__loader__ = None if module.__spec__ is None else module.__spec__.loader
        for name, other in self._modules.items():
            # Add the package's own modules. TensorFlow imports nearly all modules, so add all modules for TensorFlow.
            if top in ("tensorflow", "keras") or name.partition(".")[0] == top:
                sys.modules.setdefault(name, other)


def import_all() -> None:
    """Imports the slow modules, and hides them. No import may leave threads, because a fork would lose them."""
    before = set(sys.modules)
    for name in IMPORTED:
        importlib.import_module(name)
    modules = {
        name: module
        for name, module in sys.modules.items()
        if name not in before and name.partition(".")[0] not in sys.stdlib_module_names
    }
    # Python reseeds its own random numbers after a fork.
    os.register_at_fork(after_in_child=sys.modules["numpy"].random.seed)
    gc.collect()
    gc.freeze()  # keeps the garbage collection of a child from copying all objects
    sys.meta_path.insert(0, _Imported(modules))


def next_program(requests: socket.socket) -> dict[str, Any]:
    """Serves requests. Returns only in a child, with the request that the child has to run."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST_BYTES, 4)
        if not message:
            os._exit(0)  # skips the cleanup of the imported modules
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, f"{len(threads)} threads are running, and a fork would lose all but one"
        if os.fork() == 0:
            requests.close()
            _fork_and_wait(*descriptors)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()


def _fork_and_wait(stdin: int, stdout: int, stderr: int, answers: int) -> None:
    """Forks again, and returns in the new process, which runs the program.

    The parent waits, reports the end, and exits.
    """
    program = os.fork()
    if program == 0:
        os.close(answers)
        for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return
    for descriptor in (stdin, stdout, stderr):
        os.close(descriptor)
    try:
        os.write(answers, b"%d\n" % program)
        _, status = os.waitpid(program, 0)
        os.write(answers, b"%d\n" % status)
    finally:
        os._exit(0)


def _reap() -> None:
    """Reaps the children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def become(request: dict[str, Any]) -> None:
    """Prepares this process to run the `__main__` of a program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    first, *arguments = request["words"]
    is_module = first == "-m"
    sys.argv[:] = ["-m", *arguments[1:]] if is_module else [first, *arguments]
    sys.orig_argv[:] = [sys.executable, *request["words"]]
    searched = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [os.getcwd() if is_module else os.path.dirname(os.path.realpath(first)), *searched]
    importlib.invalidate_caches()
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if not is_module:
        path = os.path.abspath(first)
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        vars(main).update(__annotations__={}, __builtins__=builtins, __cached__=None, __file__=path, __loader__=loader)


def code_of(script: str) -> types.CodeType:
    with open(script, "rb") as file:
        return compile(file.read(), os.path.abspath(script), "exec", dont_inherit=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_all()
    _request = next_program(socket.socket(fileno=int(sys.argv[1])))
    become(_request)
    try:
        if _request["words"][0] == "-m":
            runpy._run_module_as_main(_request["words"][1])  # type: ignore[attr-defined]  # as `python -m` does
        else:
            exec(code_of(_request["words"][0]), vars(sys.modules["__main__"]))
    except BaseException as _error:
        if _error.__traceback__ is not None:
            _error.__traceback__ = _error.__traceback__.tb_next  # removes this frame from the shown traceback
        raise
