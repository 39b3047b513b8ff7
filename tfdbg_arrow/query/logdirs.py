"""Summaries of the logdirs below a directory, read within a time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.storage.search import LogdirsBelow


@dataclass(frozen=True, kw_only=True)
class LogdirSummary:
    """The summary of one logdir.

    Attributes:
        path: The directory.
        num_runs: Number of runs in the logdir; None if the directory cannot be listed.
        wall_time_ns: When the logdir was last changed, in nanoseconds since 1970-01-01T00:00:00Z.
        is_bad: Whether the logdir has a tensor with a NaN or an infinity; None if the logdir was not read.
    """

    path: str
    num_runs: int | None
    wall_time_ns: int
    is_bad: bool | None


def read_summaries(below: LogdirsBelow, *, max_read: int = 20, max_seconds: float = 2.0) -> tuple[LogdirSummary, ...]:
    """Returns a summary of each logdir, in the same order.

    Args:
        below: The logdirs.
        max_read: Maximum number of logdirs that are opened. `is_bad` is None for the other logdirs.
        max_seconds: No logdir is opened after this time in seconds.
    """
    end = time.monotonic() + max_seconds
    return tuple(
        LogdirSummary(
            path=str(logdir.path),
            num_runs=logdir.num_runs,
            wall_time_ns=logdir.wall_time_ns,
            is_bad=_is_bad(logdir.path, end - time.monotonic()) if index < max_read else None,
        )
        for index, logdir in enumerate(below.logdirs)
    )


def _is_bad(path: Path, seconds: float) -> bool | None:
    if seconds <= 0:
        return None
    try:
        with OpenLogdir(path) as logdir, logdir.within(seconds):
            return bool(logdir.rows("SELECT 1 FROM tensor_health WHERE has_inf_or_nan LIMIT 1"))
    except TfdbgArrowError:
        return None
