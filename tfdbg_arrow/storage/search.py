"""Finds the logdirs below a directory."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.safe_text import number_of, some_of
from tfdbg_arrow.storage.layout import MANIFEST_DIRECTORY, MARKER_NAME, spooled_run_ids
from tfdbg_arrow.storage.manifest import run_ids

MAX_DEPTH = 5
"""Maximum depth of the directories that are searched: `PARENT/1/2/3/4/5` has depth 5."""
MAX_DIRECTORIES = 5_000
"""Maximum number of directories that are listed. `is_cut` says if there are more."""
MAX_ENTRIES = 200_000
"""Maximum number of entries that are examined in all directories. A directory with data may have millions."""
MAX_S = 5.0
"""Seconds after which no further directory is listed, because somebody waits for the result."""
_MAX_NAMED = 5
"""Maximum number of logdirs that a sentence names. The sentence counts the others."""


@dataclass(frozen=True, kw_only=True)
class LogdirBelow:
    """A logdir that the search found.

    Attributes:
        path: The directory.
        num_runs: Number of runs in the logdir; None if the runs cannot be listed.
        wall_time_ns: Time of the last change, in nanoseconds since 1970-01-01T00:00:00Z.
    """

    path: Path
    num_runs: int | None
    wall_time_ns: int


@dataclass(frozen=True, kw_only=True)
class LogdirsBelow:
    """The logdirs below a directory.

    Attributes:
        path: The directory.
        logdirs: The logdirs, sorted by the time of their last change, newest first.
        num_searched: Number of directories that were searched.
        is_cut: Whether the search ended at a limit before it had searched all directories up to the maximum depth.
    """

    path: Path
    logdirs: tuple[LogdirBelow, ...]
    num_searched: int
    is_cut: bool


def find_logdirs(
    path: Path,
    *,
    max_directories: int = MAX_DIRECTORIES,
    max_entries: int = MAX_ENTRIES,
    max_depth: int = MAX_DEPTH,
    max_seconds: float = MAX_S,
) -> LogdirsBelow:
    """Searches a directory for logdirs, level by level.

    The search leaves out directories whose names begin with a dot, directories inside a logdir, and directories that
    cannot be listed. The search does not follow symbolic links.

    Args:
        path: The directory. If this directory is a logdir, only this logdir is returned.
        max_directories: Maximum number of directories to list.
        max_entries: Maximum number of directory entries to examine.
        max_depth: Maximum depth of the directories to list.
        max_seconds: After this number of seconds, no further directory is listed. Slow disks need this limit.
    """
    logdirs: list[LogdirBelow] = []
    unsearched = deque([(path, 0)])
    num_searched = num_entries = 0
    end = time.monotonic() + max_seconds
    while unsearched and num_searched < max_directories and num_entries < max_entries and time.monotonic() < end:
        directory, depth = unsearched.popleft()
        num_searched += 1
        inner: list[str] = []
        is_logdir = False
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    num_entries += 1
                    if entry.name == MARKER_NAME and entry.is_file(follow_symlinks=False):
                        is_logdir = True
                        break
                    if num_entries >= max_entries:
                        break
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        inner.append(entry.name)
        except OSError:
            continue
        if is_logdir:
            logdirs.append(_described(directory))
        elif depth < max_depth:
            unsearched.extend((directory / name, depth + 1) for name in sorted(inner))
    logdirs.sort(key=lambda logdir: (-logdir.wall_time_ns, str(logdir.path)))
    is_cut = bool(unsearched) or num_entries >= max_entries
    return LogdirsBelow(path=path, logdirs=tuple(logdirs), num_searched=num_searched, is_cut=is_cut)


def below_text(below: LogdirsBelow) -> str:
    """Returns advice for a directory that is not a logdir, as the last words of a sentence."""
    if not below.logdirs:
        cut = f" ({cut_text(below)})" if below.is_cut else ""
        return f"give the directory that a recording wrote{cut}."
    names = some_of([f"{logdir.path} ({runs_text(logdir)})" for logdir in below.logdirs], _MAX_NAMED)
    cut = f" ({cut_text(below)})" if below.is_cut else ""
    return f"give one of the logdirs below it, newest first: {names}{cut}."


def cut_text(below: LogdirsBelow) -> str:
    """Returns a text that says that a search ended at a limit."""
    return f"the search for logdirs below it stopped after {number_of(below.num_searched, 'directory', 'directories')}"


def runs_text(logdir: LogdirBelow) -> str:
    """Returns the number of runs of a logdir, such as `2 runs`."""
    return "its runs cannot be listed" if logdir.num_runs is None else number_of(logdir.num_runs, "run")


def _described(logdir: Path) -> LogdirBelow:
    times = []
    files = [str(logdir / MARKER_NAME), str(logdir / MANIFEST_DIRECTORY), *_manifests(logdir)]
    for file in files:
        with contextlib.suppress(OSError):
            times.append(os.lstat(file).st_mtime_ns)
    try:
        num_runs = len({*run_ids(logdir), *spooled_run_ids(logdir)})
    except LogdirError:
        num_runs = None
    return LogdirBelow(path=logdir, num_runs=num_runs, wall_time_ns=max(times, default=0))


def _manifests(logdir: Path) -> list[str]:
    try:
        with os.scandir(logdir / MANIFEST_DIRECTORY) as entries:
            return [entry.path for entry in entries]
    except OSError:
        return []
