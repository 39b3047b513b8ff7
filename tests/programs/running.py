"""Runs Python programs in separate processes, forked by a server that has imported TensorFlow."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_SERVER = Path(__file__).with_name("server.py")
_READ_AT_START = ("PYTHON", "TF2_", "TF_CPP_", "TF_ENABLE_", "TF_USE_", "TF_XLA_", "XLA_", "KERAS_", "OMP_")
"""Prefixes of the environment variables that the interpreter, TensorFlow or Keras read at their start. Programs with
different values of these variables get different servers."""
_AS_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_TIMEOUT_SECONDS = 300


class Program:
    """A running program, with the part of the subprocess.Popen interface that the tests need."""

    def __init__(self, answers: socket.socket, words: list[str]) -> None:
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self._answers = answers
        self._words = words
        self._lines = answers.makefile("r")
        self.pid = int(self._lines.readline())

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()
        self.wait()

    def wait(self, timeout_s: float = _TIMEOUT_SECONDS) -> int:
        """Waits for the program, and kills it after a time limit.

        Returns:
            The exit code, or the negative number of the signal that ended the program.

        Raises:
            subprocess.TimeoutExpired: The program was killed.
        """
        if self.returncode is None and not self._has_ended(timeout_s):
            self.kill()
            self._has_ended(None)
            raise subprocess.TimeoutExpired(self._words, timeout_s)
        assert self.returncode is not None
        return self.returncode

    def poll(self) -> int | None:
        if self.returncode is None:
            self._has_ended(0)
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _has_ended(self, timeout_s: float | None) -> bool:
        if not select.select([self._answers], [], [], timeout_s)[0]:
            return False
        self.returncode = os.waitstatus_to_exitcode(int(self._lines.readline()))
        self._lines.close()
        self._answers.close()
        return True


class _Server:
    """The server's process, which starts programs on request."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**environment, **_AS_ONE_THREAD},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.end)

    def start(self, request: Mapping[str, object], words: list[str], streams: tuple[int, int, int]) -> Program:
        answers, theirs = socket.socketpair()
        with theirs:
            message = json.dumps(request).encode()
            socket.send_fds(self._requests, [message], [*streams, theirs.fileno()])
        return Program(answers, words)

    def end(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def _server(pid: int, read_at_start: frozenset[tuple[str, str]]) -> _Server:
    """Returns this process's server for programs with these variables. The first call starts the server."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(_READ_AT_START)}
    return _Server({**others, **dict(read_at_start)})


def _pipe() -> tuple[IO[str], IO[str]]:
    reader, writer = os.pipe()
    return os.fdopen(reader), os.fdopen(writer, "w")


def start_python(
    *words: object,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: IO[str] | int = subprocess.DEVNULL,
    stdout: IO[str] | int = 1,
    stderr: IO[str] | int = 2,
) -> Program:
    """Starts a program as `python *words` does.

    Args:
        *words: A script, or `-m` and a module, followed by its arguments.
        cwd: Working directory. None means the current directory.
        environment: Environment variables. None means the variables of this process.
        stdin: Input of the program. With subprocess.PIPE, write to the returned program's `stdin`.
        stdout: Output of the program. With subprocess.PIPE, read from the returned program's `stdout`.
        stderr: Destination of the program's errors.
    """
    command = list(map(str, words))
    variables = dict(os.environ if environment is None else environment)
    at_start = frozenset(
        (name, value) for name, value in variables.items() if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    )
    request = {"words": command, "cwd": str(cwd or Path.cwd()), "environment": variables}
    ours: dict[str, IO[str]] = {}
    with contextlib.ExitStack() as theirs:
        nothing = theirs.enter_context(open(os.devnull, "r+"))
        if stdin == subprocess.PIPE:
            reader, ours["stdin"] = _pipe()
            stdin = theirs.enter_context(reader)
        if stdout == subprocess.PIPE:
            ours["stdout"], writer = _pipe()
            stdout = theirs.enter_context(writer)
        given = [nothing if stream == subprocess.DEVNULL else stream for stream in (stdin, stdout, stderr)]
        streams = [stream if isinstance(stream, int) else stream.fileno() for stream in given]
        program = _server(os.getpid(), at_start).start(request, command, (streams[0], streams[1], streams[2]))
    program.stdin, program.stdout = ours.get("stdin"), ours.get("stdout")
    return program


def run_to_end(
    *words: object,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Runs a program as `python *words` does. Returns its exit code and output. See start_python()."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        program = start_python(*words, cwd=cwd, environment=environment, stdout=stdout, stderr=stderr)
        returncode = program.wait(timeout_s)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(list(map(str, words)), returncode, stdout.read(), stderr.read())
