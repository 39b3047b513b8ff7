"""Lists the files of a logdir, and compares each part with its manifest and the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import FORMAT_VERSION, TABLES_BY_NAME, arrow_schema
from tfdbg_arrow.schema.parquet import FIELD_ID_KEY, FORMAT_VERSION_KEY, TABLE_KEY
from tfdbg_arrow.storage.disk import file_sha256
from tfdbg_arrow.storage.layout import (
    MANIFEST_DIRECTORY,
    SPOOL_DIRECTORY,
    is_part_name,
    is_run_id,
    run_of_directory,
    run_of_part,
    shown,
)
from tfdbg_arrow.storage.manifest import ManifestEntry, read_live_parts, resolve_part

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MISSING = "is missing"
"""The reason for a part that does not exist."""
_MANIFEST = ".jsonl"


@dataclass
class LogdirFiles:
    """The files of a logdir, as paths relative to it. Directories that are not part of the format are ignored.

    Attributes:
        strays: The files that are neither parts nor manifests, but lie in directories for parts and manifests.
    """

    strays: list[str] = field(default_factory=list)
    _parts: dict[str, list[str]] = field(default_factory=dict)
    _manifests: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, logdir: Path) -> LogdirFiles:
        """Lists the files of a logdir.

        Raises:
            OSError: A directory cannot be read.
        """
        files = cls()
        for table in _entries(logdir):
            if table.name == MANIFEST_DIRECTORY:
                for entry in _entries(logdir / MANIFEST_DIRECTORY):
                    files._add_manifest(entry.name)
            elif table.name != SPOOL_DIRECTORY and table.is_dir(follow_symlinks=False):
                runs = _entries(logdir / table.name)
                if table.name in TABLES_BY_NAME or any(run_of_directory(run.name) for run in runs):
                    for run in runs:
                        files._add_run(logdir, table.name, run)
        return files

    def of_run(self, run_id: str) -> Sequence[str]:
        """Returns the parts in the directories of a run."""
        return self._parts.get(run_id, ())

    def run_ids(self) -> tuple[str, ...]:
        """Returns the runs that have a manifest or parts, oldest first."""
        return tuple(sorted({*self._manifests, *self._parts}))

    def _add_manifest(self, name: str) -> None:
        run_id = name.removesuffix(_MANIFEST)
        if name.endswith(_MANIFEST) and is_run_id(run_id):
            self._manifests.add(run_id)
        else:
            self.strays.append(f"{MANIFEST_DIRECTORY}/{name}")

    def _add_run(self, logdir: Path, table: str, run: os.DirEntry[str]) -> None:
        run_id = run_of_directory(run.name)
        if run_id is None or not is_run_id(run_id) or not run.is_dir(follow_symlinks=False):
            self.strays.append(f"{table}/{run.name}")
            return
        for part in _entries(logdir / table / run.name):
            path = f"{table}/{run.name}/{part.name}"
            if is_part_name(part.name) and not part.is_dir(follow_symlinks=False):
                self._parts.setdefault(run_id, []).append(path)
            else:
                self.strays.append(path)


def examined_parts(
    logdir: Path, entries: Iterable[ManifestEntry], *, advance: Callable[[int], None]
) -> Iterator[tuple[ManifestEntry, str | None]]:
    """Yields (part, problem) for each live part of a run. The problem is the result of `what_is_wrong`.

    A missing part has no problem if the manifest no longer names it, because a running recording replaces parts.

    Args:
        logdir: The logdir.
        entries: The manifest's entries for the parts.
        advance: Called with the number of bytes of each part after it was read.
    """
    for entry in entries:
        reason = what_is_wrong(logdir, entry)
        advance(entry.bytes)
        yield entry, None if reason == MISSING and not _is_live(logdir, entry) else reason


def what_is_wrong(logdir: Path, entry: ManifestEntry) -> str | None:
    """Returns the problem of a part, as the end of a sentence that begins with its path; None if there is none."""
    try:
        path = resolve_part(logdir, entry)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                return f"has {size:,} bytes, not {entry.bytes:,}"
            if file_sha256(path) != entry.sha256:
                return "does not match its SHA-256"
            return _what_differs(file, entry)
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except LogdirError as error:
        return f"is refused: {error}"


def file_identity(path: str | Path) -> tuple[int, ...] | None:
    """Returns a value that changes when a file changes; None if the file cannot be examined."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_live(logdir: Path, entry: ManifestEntry) -> bool:
    run_id = run_of_part(entry.path)
    try:
        return entry in read_live_parts(logdir, run_id=run_id)
    except LogdirError:
        return True


def _what_differs(file: BinaryIO, entry: ManifestEntry) -> str | None:
    """Returns how a part's content differs from the manifest or the format; None if it does not differ."""
    import pyarrow as pa  # imported here, because most commands open a logdir without checking its parts
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as part:
            if part.metadata.num_rows != entry.rows:
                return f"has {part.metadata.num_rows:,} rows, not {entry.rows:,}"
            if entry.table in TABLES_BY_NAME:
                wrong = _wrong_column(part.schema_arrow, entry.table)
                if wrong is not None:
                    return wrong
            event_range = _event_range(part)
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"cannot be read as Parquet ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    expected = (entry.min_event_index, entry.max_event_index)
    return None if event_range == expected else f"has the event indexes {_range(event_range)}, not {_range(expected)}"


def _wrong_column(schema: pa.Schema, table: str) -> str | None:
    metadata = schema.metadata or {}
    if metadata.get(TABLE_KEY) != table.encode():
        return f"is of the table {shown(metadata.get(TABLE_KEY))}, not {table}"
    declared = arrow_schema(table)
    if schema.equals(declared, check_metadata=True):
        return None
    for column in TABLES_BY_NAME[table].columns:
        index = schema.get_field_index(column.name)
        if index < 0:
            # A part of an older MINOR version lacks the columns that were added later, which are nullable.
            if not column.nullable:
                return f"lacks the column {column.name}"
            continue
        actual, expected = schema.field(index), declared.field(column.name)
        if (actual.type, _field_id(actual)) != (expected.type, _field_id(expected)):
            return f"has a column {column.name} that differs from the format: {actual.type}, not {expected.type}"
    unknown = next((name for name in schema.names if declared.get_field_index(name) < 0), None)
    if unknown is not None and metadata.get(FORMAT_VERSION_KEY) == FORMAT_VERSION.encode():
        return f"has the column {shown(unknown)}, which its format does not have"
    return None


def _field_id(field: pa.Field) -> bytes | None:
    field_id: bytes | None = (field.metadata or {}).get(FIELD_ID_KEY)
    return field_id


def _event_range(part: pq.ParquetFile) -> tuple[int | None, int | None]:
    """Returns the least and the greatest event_index, from the statistics if the part has statistics."""
    metadata = part.metadata
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if metadata.num_rows == 0 or "event_index" not in names:
        return None, None
    index = names.index("event_index")
    groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    if all(group is not None and group.has_min_max for group in groups):
        return min(group.min for group in groups), max(group.max for group in groups)
    import pyarrow.compute as pc

    extremes = pc.min_max(part.read(columns=["event_index"])["event_index"]).as_py()
    return extremes["min"], extremes["max"]


def _range(events: tuple[int | None, int | None]) -> str:
    return "none" if events[0] is None else f"{events[0]:,} to {events[1]:,}"


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return sorted(entries, key=lambda entry: entry.name)
