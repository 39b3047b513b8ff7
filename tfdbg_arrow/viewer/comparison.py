"""Comparison of two runs in a separate process.

Comparing large runs takes long and needs more memory than a server should use. A separate process can be stopped at any
time, frees its memory when it ends, and does not slow down other pages.
"""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query import Diff, LayerDifferences, Logdir, diff, layer_differences, open_logdir
from tfdbg_arrow.storage.location import parse_location
from tfdbg_arrow.viewer.page import NoAnswerError, TookTooLongError
from tfdbg_arrow.viewer.source_text import Excerpt, read_excerpt

_running = threading.Lock()
"""Allows one comparison at a time, because each may use a gigabyte of memory."""
_PARENT_POLL_S = 0.5
"""Seconds between two checks whether the server still runs. Without a server, nobody waits for the comparison."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A request to compare two runs.

    Attributes:
        path: The path or URL of A's logdir.
        storage_options: fsspec's arguments for a URL.
        run_a: Run A.
        run_b: Run B.
        other_path: The path of B's logdir; None means the path of A's logdir.
        known: The ops that are known to diverge, as in the arguments of `tfdbg_arrow.query.diff`.
        last_step: The last training step that `diff` compares; None means all.
        positions: The positions of the map, as in the arguments of `tfdbg_arrow.query.layer_differences`.
    """

    path: str
    storage_options: Mapping[str, Any] | None
    run_a: str
    run_b: str
    other_path: str | None = None
    known: str | None = None
    last_step: int | None = None
    positions: tuple[int | None, int | None] = (None, None)

    @property
    def command(self) -> str:
        """The command that makes the same comparison without a time limit."""
        options = (("--known", self.known), ("--last-step", self.last_step))
        given = [word for name, value in options if value is not None for word in (name, str(value))]
        path = str(parse_location(self.path))  # without a password
        paths = [path] if self.other_path is None else [path, self.other_path]
        return shlex.join(["tfdbg-arrow", "diff", *paths, "--run-a", self.run_a, "--run-b", self.run_b, *given])


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The comparison of the ops of two runs.

    Attributes:
        diff: The result of the comparison.
        source_a: The lines around the user's innermost frame at the divergence, in A.
        source_b: The lines around the user's innermost frame at the divergence, in B.
    """

    diff: Diff
    source_a: Excerpt | None
    source_b: Excerpt | None


def compare_ops(a: Logdir, b: Logdir, asked: Comparison) -> Compared:
    """Compares the ops of two runs, as `tfdbg_arrow.query.diff` does."""
    answer = diff(a, b, run_a=asked.run_a, run_b=asked.run_b, known=asked.known, last_step=asked.last_step)
    divergence = answer.divergence
    return Compared(
        diff=answer,
        source_a=None if divergence is None else read_excerpt(a, divergence.a.source, run_id=answer.run_a),
        source_b=None if divergence is None else read_excerpt(b, divergence.b.source, run_id=answer.run_b),
    )


def compare_layers(a: Logdir, b: Logdir, asked: Comparison) -> LayerDifferences | None:
    """Compares the layers of two runs, as `tfdbg_arrow.query.layer_differences` does."""
    return layer_differences(a, b, run_a=asked.run_a, run_b=asked.run_b, positions=asked.positions)


def answer_of(
    compare: Callable[[Logdir, Logdir, Comparison], _Result], asked: Comparison, *, timeout_s: float
) -> _Result:
    """Runs a function of this module in a separate process, and returns its answer.

    Args:
        compare: The function.
        asked: The request.
        timeout_s: Time limit in seconds.

    Raises:
        TookTooLongError: The comparison took longer than `timeout_s`. The message contains the command for a comparison
            without a time limit.
        NoAnswerError: The process ended without an answer.
        TfdbgArrowError: The comparison raised this error.
    """
    instead = f"compare only the first training steps (last_step=20 in the address), or run: {asked.command}"
    if not _running.acquire(timeout=timeout_s):
        raise TookTooLongError(f"another comparison is still running; try again, {instead}")
    try:
        # DuckDB writes temporary files into this directory. The server removes the directory, because a stopped process
        # cannot.
        with tempfile.TemporaryDirectory(prefix="tfdbg_arrow_view_diff_") as directory:
            done = subprocess.run(
                [sys.executable, "-P", "-c", "from tfdbg_arrow.viewer.comparison import main; main()"],
                input=pickle.dumps((compare, asked, os.getpid())),
                stdout=subprocess.PIPE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    "TMPDIR": directory,
                },
                timeout=timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise TookTooLongError(
            f"the comparison took longer than {timeout_s:g} seconds and was stopped; {instead}"
        ) from None
    finally:
        _running.release()
    if done.returncode:
        raise NoAnswerError(
            f"the comparison ended without an answer (exit code {done.returncode}; see its log); {instead}"
        )
    answer: _Result = pickle.loads(done.stdout)  # safe: written by a process that we started
    if isinstance(answer, TfdbgArrowError):
        raise answer
    return answer


def end_with(parent: int) -> None:
    """Ends this process after its parent has ended, because then nobody waits for the answer.

    Args:
        parent: The process ID of the parent.
    """

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Reads a request from stdin, and writes the answer to stdout.

    The request is a tuple: a function of this module, a Comparison, and the process ID of the server. If the comparison
    raises a TfdbgArrowError, the answer is this error.
    """
    compare, asked, parent = pickle.load(sys.stdin.buffer)
    end_with(parent)
    try:
        with open_logdir(asked.path, storage_options=asked.storage_options) as a:
            if asked.other_path is None:
                answer = compare(a, a, asked)
            else:
                with open_logdir(asked.other_path) as b:
                    answer = compare(a, b, asked)
    except TfdbgArrowError as error:
        answer = error
    try:
        sys.stdout.buffer.write(pickle.dumps(answer))
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the server has ended
        os._exit(1)
