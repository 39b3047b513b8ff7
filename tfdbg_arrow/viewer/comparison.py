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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query import Diff, Logdir, diff, open_logdir
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.viewer.page import NoAnswerError, TookTooLongError

_running = threading.Lock()
"""Allows one comparison at a time, because each may use a gigabyte of memory."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A request to compare two runs.

    Attributes:
        path: The logdir's path or URL.
        storage_options: fsspec's arguments for a URL.
        run_a: Run A.
        run_b: Run B.
        known: Ops that are known to diverge, as `tfdbg_arrow.query.diff` takes them.
        last_step: The last training step to compare; None means all.
    """

    path: str
    storage_options: Mapping[str, Any] | None
    run_a: str
    run_b: str
    known: str | None = None
    last_step: int | None = None

    @property
    def command(self) -> str:
        """The command that makes the same comparison without a time limit."""
        options = (("--known", self.known), ("--last-step", self.last_step))
        given = [word for name, value in options if value is not None for word in (name, str(value))]
        path = str(parse_location(self.path))  # without a password
        return shlex.join(["tfdbg-arrow", "diff", path, "--run-a", self.run_a, "--run-b", self.run_b, *given])


def comparison_of(
    logdir: Logdir, *, run_a: str, run_b: str, known: str | None = None, last_step: int | None = None
) -> Comparison:
    """Returns the request to compare two runs of an open logdir."""
    path = logdir.path.url if isinstance(logdir.path, RemoteLocation) else str(logdir.path)
    return Comparison(
        path=path,
        storage_options=logdir.storage_options,
        run_a=run_a,
        run_b=run_b,
        known=known,
        last_step=last_step,
    )


def compare(asked: Comparison, *, timeout_s: float) -> Diff:
    """Compares two runs of a logdir, as `tfdbg_arrow.query.diff` does.

    Args:
        asked: The request.
        timeout_s: Time limit in seconds.

    Raises:
        TookTooLongError: The comparison took longer; the message gives the command that has no time limit.
        NoAnswerError: The process ended without an answer.
        TfdbgArrowError: The comparison raised this error.
    """
    instead = f"compare only the first training steps (last_step=20 in the address), or run: {asked.command}"
    if not _running.acquire(timeout=timeout_s):
        raise TookTooLongError(f"another comparison is still running; try again, {instead}")
    try:
        # DuckDB spills into this directory, which is removed even if the process is stopped and cannot clean up.
        with tempfile.TemporaryDirectory(prefix="tfdbg_arrow_view_diff_") as directory:
            done = subprocess.run(
                [sys.executable, "-P", "-c", "from tfdbg_arrow.viewer.comparison import main; main()"],
                input=pickle.dumps(asked),
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
    found = pickle.loads(done.stdout)  # safe: written by a process that we started
    if isinstance(found, TfdbgArrowError):
        raise found
    assert isinstance(found, Diff)
    return found


def main() -> None:
    """Reads a Comparison from stdin and writes a Diff, or the error that was raised, to stdout."""
    asked: Comparison = pickle.load(sys.stdin.buffer)
    found: Diff | TfdbgArrowError
    try:
        with open_logdir(asked.path, storage_options=asked.storage_options) as logdir:
            found = diff(logdir, run_a=asked.run_a, run_b=asked.run_b, known=asked.known, last_step=asked.last_step)
    except TfdbgArrowError as error:
        found = error
    sys.stdout.buffer.write(pickle.dumps(found))
