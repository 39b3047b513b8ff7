"""The names and paths of the files of a logdir, and the check that files lie inside the logdir.

Paths as strings are relative to the logdir, with `/` as separator. The content of a logdir is untrusted, so no function
of this module returns a path outside the logdir. spec/README.md, "Layout of a logdir", defines the names.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tfdbg_arrow.errors import LogdirError

MARKER_NAME = "tfdbg_arrow.json"
"""The file that marks a directory as a logdir."""
MANIFEST_DIRECTORY = "manifest"
SPOOL_DIRECTORY = "spool"
TEMPORARY_SUFFIX = ".tmp"
"""The suffix of files that are still being written."""

_RUN_ID = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RUN_DIRECTORY = re.compile(r"run=(.+)", re.DOTALL)
PART_GLOB = "run=*/part-*.parquet"
"""A glob pattern for the parts in a table's directory."""
_PART_NAME = re.compile(r"part-([0-9]{6,18})\.parquet")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_run_id(wall_time_ns: int, *, host_name: str, pid: int) -> str:
    """Returns the ID of a new run, such as `20261120T163000.123456-myhost-4242`.

    Args:
        wall_time_ns: Start time of the recording, in nanoseconds since 1970-01-01T00:00:00Z.
        host_name: Name of the host. Characters other than letters, digits, `.` and `-` become `-`.
        pid: Process ID on this host.
    """
    start = _EPOCH + timedelta(microseconds=wall_time_ns // 1000)
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", host_name)[:64] or "host"
    return f"{start:%Y%m%dT%H%M%S}.{start.microsecond:06d}-{host}-{pid}"


def check_run_id(text: str, *, where: str) -> str:
    """Returns a run ID after checking that it is safe in paths, and that no reader can mistake it for a number.

    Args:
        text: The run ID.
        where: Where the run ID was found. The error message names this place.

    Raises:
        LogdirError: The run ID is not valid. A valid run ID consists of at most 200 letters, digits, `.`, `_` and `-`.
            The ID starts with a letter or digit, and has at least one letter.
    """
    if _RUN_ID.fullmatch(text) is None:
        raise LogdirError(
            f"{where} gives the run id {shown(text)}, expected at most 200 letters, digits, '.', '_' and '-', "
            "with at least one letter, starting with a letter or digit; the logdir is damaged or was not written by "
            "tfdbg_arrow."
        )
    return text


def is_run_id(text: str) -> bool:
    """Returns whether a text is a valid run ID."""
    return _RUN_ID.fullmatch(text) is not None


def is_part_name(name: str) -> bool:
    """Returns whether a file with this name is a part."""
    return _PART_NAME.fullmatch(name) is not None


def part_directory(table_name: str, *, run_id: str) -> str:
    """Returns the directory for the parts of one table and one run."""
    return f"{table_name}/run={run_id}"


def run_of_directory(name: str) -> str | None:
    """Returns the run ID in the name of a directory of parts, without a check; None for other directories."""
    match = _RUN_DIRECTORY.fullmatch(name)
    return None if match is None else match[1]


def run_of_part(path: str) -> str:
    """Returns the run ID in the path of a part."""
    return run_of_directory(path.rsplit("/", 2)[-2]) or ""


def part_files(logdir: Path) -> list[str]:
    """Returns the paths of all files whose names are names of parts, in order."""
    files = (path for path in logdir.glob(f"*/{PART_GLOB}") if is_part_name(path.name))
    return sorted(path.relative_to(logdir).as_posix() for path in files)


def part_path(table_name: str, *, run_id: str, number: int) -> str:
    """Returns the path of a part. In each table of a run, the parts are numbered from 0."""
    return f"{part_directory(table_name, run_id=run_id)}/part-{number:06d}.parquet"


def part_number(path: str) -> int:
    """Returns the number of the part at a path.

    Raises:
        ValueError: The path is not the path of a part.
    """
    match = _PART_NAME.fullmatch(path.rsplit("/", 1)[-1])
    if match is None:
        raise ValueError(f"{path} is not the path of a part, expected one that ends in part-<number>.parquet")
    return int(match[1])


def temporary_path(table_name: str, *, run_id: str, number: int) -> str:
    """Returns the path of a part that is still being written.

    The path is outside the table's directory, because some readers open a table by its path alone, and treat all files
    in this directory as parts.
    """
    return f"{SPOOL_DIRECTORY}/{run_id}.{table_name}.{number:06d}{TEMPORARY_SUFFIX}"


def manifest_path(run_id: str) -> str:
    """Returns the path of a run's manifest."""
    return f"{MANIFEST_DIRECTORY}/{run_id}.jsonl"


@dataclass(frozen=True, kw_only=True)
class SpoolPaths:
    """The paths of the files that hold a run's data until the data is in parts.

    The files exist while the run is recorded. The files remain if the recording process is killed.

    Attributes:
        spool: The events. This file is created last.
        values: The recorded elements of tensors.
        rows: A journal of the rows of tables that do not have events.
        journal: A journal that resolves the numbers in events. This file is locked while the run is recorded, and it is
            removed last.
    """

    spool: Path
    values: Path
    rows: Path
    journal: Path

    def all(self) -> tuple[Path, ...]:
        """Returns the files, in the order in which they must be removed."""
        return self.spool, self.values, self.rows, self.journal


def spool_paths(logdir: Path, *, run_id: str) -> SpoolPaths:
    """Returns the paths of a run's spool files."""
    directory = logdir / SPOOL_DIRECTORY
    return SpoolPaths(
        spool=directory / f"{run_id}.spool",
        values=directory / f"{run_id}.values",
        rows=directory / f"{run_id}.rows",
        journal=directory / f"{run_id}.journal",
    )


def spooled_run_ids(logdir: Path) -> tuple[str, ...]:
    """Returns the IDs of the runs that have files in the spool directory, oldest first.

    Raises:
        LogdirError: The directory cannot be listed.
    """
    names = stems_in(logdir / SPOOL_DIRECTORY, suffix=".journal")
    return tuple(sorted(name for name in names if _RUN_ID.fullmatch(name)))


def stems_in(directory: Path, *, suffix: str) -> list[str]:
    """Returns the names of the files with a given suffix in a directory, without the suffix.

    The result is empty if the directory does not exist.

    Raises:
        LogdirError: The directory cannot be listed.
    """
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LogdirError(f"{directory} cannot be listed ({error.strerror}); check its permissions.") from error
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def shown(value: object) -> str:
    """Returns a value as short text on one line, for a message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


class OwnFiles:
    """Checks that paths are regular files inside a logdir.

    Pipes, devices, directories, and symbolic links that lead out of the logdir are rejected. Reading a pipe would
    block, and reading a device may never end. Each directory is examined only once.

    Args:
        logdir: The logdir.
    """

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._has_link: dict[str, bool] = {}

    def check(self, paths: Iterable[str | Path]) -> None:
        """Checks that files are safe to open. The files are at most two directories deep. Missing files are accepted.

        Raises:
            LogdirError: A path is not a regular file inside the logdir, or cannot be read.
        """
        for given_path in paths:
            path = str(given_path)
            try:
                if os.path.islink(path) or self._leads_on(path):
                    self._check_inside(path)
                mode = os.stat(path).st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                raise LogdirError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
            if not stat.S_ISREG(mode):
                raise LogdirError(
                    f"{path} cannot be read (it is a pipe, a device or a directory, expected a file); restore it."
                )

    def _check_inside(self, path: str) -> None:
        resolved, root = Path(os.path.realpath(path)), os.path.realpath(self._logdir)
        if not resolved.is_relative_to(root):
            raise LogdirError(
                f"{path} leads through a symbolic link to {resolved}, expected a file inside {root}; copy the file "
                "there if you trust it."
            )

    def _leads_on(self, path: str) -> bool:
        directory = os.path.dirname(path)
        for ancestor in (directory, os.path.dirname(directory)):
            if ancestor not in self._has_link:
                self._has_link[ancestor] = os.path.islink(ancestor)
        return self._has_link[directory] or self._has_link[os.path.dirname(directory)]
