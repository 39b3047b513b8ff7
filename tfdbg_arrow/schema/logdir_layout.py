"""Names and paths of a logdir, and its marker.

All paths here are relative to the logdir and use `/`. Whatever is read from a logdir is
untrusted: nothing here returns a path that leaves it.

Source: spec/README.md, "Layout of a logdir".
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema.checksum import CHECKSUM_KEY, is_intact, with_checksum
from tfdbg_arrow.schema.tables import FORMAT_VERSION
from tfdbg_arrow.schema.version import check_format_version

FORMAT_NAME = "tfdbg_arrow"
MARKER_NAME = "tfdbg_arrow.json"
"""The file that marks a directory as a logdir."""
MANIFEST_DIRECTORY = "manifest"
SPOOL_DIRECTORY = "spool"
TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that is still being written."""

_RUN_ID = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PART_NAME = re.compile(r"part-([0-9]{6,18})\.parquet")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def make_run_id(wall_time_ns: int, *, host_name: str, pid: int) -> str:
    """Returns the id of a new run, as `20261120T163000.123456-myhost-4242`.

    Args:
        wall_time_ns: When recording starts, in nanoseconds since 1970-01-01T00:00:00Z.
        host_name: Name of the host; characters other than letters, digits, `.` and `-` become `-`.
        pid: Process id on that host.
    """
    start = _EPOCH + timedelta(microseconds=wall_time_ns // 1000)
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", host_name)[:64] or "host"
    return f"{start:%Y%m%dT%H%M%S}.{start.microsecond:06d}-{host}-{pid}"


def check_run_id(text: str, *, where: str) -> str:
    """Returns the run id if it can stand in paths and no reader takes it for a number.

    Args:
        text: The run id.
        where: What names it, for the message.

    Raises:
        LogdirError: It has other characters than letters, digits, `.`, `_` and `-`, starts with
            one of the latter three, has no letter, or is longer than 200.
    """
    if _RUN_ID.fullmatch(text) is None:
        raise LogdirError(
            f"{where} gives the run id {shown(text)}, expected at most 200 letters, digits, '.', '_' and '-', "
            "a letter among them and a letter or digit first; the logdir is damaged or not tfdbg_arrow's."
        )
    return text


def is_run_id(text: str) -> bool:
    """Whether a text can be a run id."""
    return _RUN_ID.fullmatch(text) is not None


def is_part_name(name: str) -> bool:
    """Whether a file of that name is a part."""
    return _PART_NAME.fullmatch(name) is not None


def part_directory(table_name: str, *, run_id: str) -> str:
    """Returns the directory of a run's parts of a table."""
    return f"{table_name}/run_id={run_id}"


def part_path(table_name: str, *, run_id: str, number: int) -> str:
    """Returns the path of a part; numbers count from 0 in each table of a run."""
    return f"{part_directory(table_name, run_id=run_id)}/part-{number:06d}.parquet"


def part_number(path: str) -> int:
    """Returns the number of a part by its path.

    Raises:
        ValueError: It is no part's path.
    """
    match = _PART_NAME.fullmatch(path.rsplit("/", 1)[-1])
    if match is None:
        raise ValueError(f"{path} is no part's path, expected one that ends in part-<number>.parquet")
    return int(match[1])


def temporary_path(table_name: str, *, run_id: str, number: int) -> str:
    """Returns the path of a part that is still being written: outside of the table's directory.

    Readers that open a table by its path alone take every file in there for a part, whatever its name.
    """
    return f"{SPOOL_DIRECTORY}/{run_id}.{table_name}.{number:06d}{TEMPORARY_SUFFIX}"


def manifest_path(run_id: str) -> str:
    """Returns the path of a run's manifest."""
    return f"{MANIFEST_DIRECTORY}/{run_id}.jsonl"


@dataclass(frozen=True, kw_only=True)
class SpoolPaths:
    """The files in which a run waits for its parts. They exist while it records, and after its process was killed.

    Attributes:
        spool: The events; made last.
        values: The elements that tensors keep.
        rows: A journal of the rows of other tables than those of events.
        journal: A journal of what the numbers in events stand for; locked while the run records, and removed last.
    """

    spool: Path
    values: Path
    rows: Path
    journal: Path

    def all(self) -> tuple[Path, ...]:
        """Returns the files, in the order in which they are removed."""
        return self.spool, self.values, self.rows, self.journal


def spool_paths(logdir: Path, *, run_id: str) -> SpoolPaths:
    """Returns the files in which a run waits for its parts."""
    directory = logdir / SPOOL_DIRECTORY
    return SpoolPaths(
        spool=directory / f"{run_id}.spool",
        values=directory / f"{run_id}.values",
        rows=directory / f"{run_id}.rows",
        journal=directory / f"{run_id}.journal",
    )


def spooled_run_ids(logdir: Path) -> tuple[str, ...]:
    """Returns the runs of which files wait in the spool's directory, oldest first.

    Raises:
        LogdirError: The directory cannot be listed.
    """
    names = stems_in(logdir / SPOOL_DIRECTORY, suffix=".journal")
    return tuple(sorted(name for name in names if _RUN_ID.fullmatch(name)))


def stems_in(directory: Path, *, suffix: str) -> list[str]:
    """Returns the names with a suffix in a directory of a logdir, without it; none where there is no such directory.

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


def marker_text() -> str:
    """Returns the content of a new logdir's marker file."""
    return with_checksum(json.dumps({"format": FORMAT_NAME, "format_version": FORMAT_VERSION}) + "\n")


def parse_marker(text: str, *, path: str | PurePath) -> str:
    """Returns the format version that a marker file gives, once it is known to be readable.

    Args:
        text: Content of the marker file.
        path: The marker file, for the message.

    Raises:
        LogdirError: The text is not a marker.
        FormatVersionError: The logdir has another MAJOR version.
    """
    try:
        marker = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LogdirError(
            f"{path} is not JSON ({error}), expected {marker_text().strip()}; the logdir is damaged."
        ) from None
    if not isinstance(marker, dict) or marker.get("format") != FORMAT_NAME:
        raise LogdirError(f"{path} holds {shown(marker)}, expected {marker_text().strip()}; it marks no logdir.")
    version = marker.get("format_version")
    if not isinstance(version, str):
        raise LogdirError(f"{path} has the format_version {shown(version)}, expected a text like {FORMAT_VERSION!r}.")
    check_format_version(version, path=path)
    if CHECKSUM_KEY in marker and not is_intact(text.removesuffix("\n")):
        raise LogdirError(
            f"{path} does not match its {CHECKSUM_KEY}, expected {marker_text().strip()} or the like; it was changed "
            "since it was written: restore it."
        )
    return version


def shown(value: object) -> str:
    """Returns a value as it can stand in a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
