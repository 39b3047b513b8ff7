"""Compares a part with its manifest and the format."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import FORMAT_VERSION, TABLES, arrow_schema
from tfdbg_arrow.schema.arrow import FIELD_ID_KEY, FORMAT_VERSION_KEY, TABLE_KEY
from tfdbg_arrow.schema.logdir_layout import shown
from tfdbg_arrow.schema.manifest import ManifestEntry, resolve_part
from tfdbg_arrow.schema.version import parse_format_version

_TABLES = {table.name: table for table in TABLES}


def what_is_wrong(logdir: Path, entry: ManifestEntry) -> str | None:
    """Returns what is wrong with a part, to complete a sentence that begins with its path; None if nothing is wrong.

    Args:
        logdir: The logdir.
        entry: The manifest's entry for the part.

    Raises:
        FileNotFoundError: The part does not exist.
    """
    try:
        path = resolve_part(logdir, entry)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != entry.bytes:
                return f"has {size:,} bytes, not {entry.bytes:,}"
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return "does not match its SHA-256"
            return _what_differs(file, entry)
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except LogdirError as error:
        return f"is refused: {error}"


def written_version(logdir: Path, entry: ManifestEntry) -> tuple[int, int] | None:
    """Returns the format version of a part; None if the part does not contain it or cannot be read."""
    try:
        metadata = pq.read_metadata(resolve_part(logdir, entry)).metadata or {}
        return parse_format_version(metadata[FORMAT_VERSION_KEY].decode(), path=entry.path)
    except (OSError, pa.ArrowException, KeyError, ValueError, LogdirError):
        return None


def _what_differs(file: BinaryIO, entry: ManifestEntry) -> str | None:
    """Returns how a part's content differs from the manifest or the format; None if it does not differ."""
    try:
        with pq.ParquetFile(file) as part:
            if part.metadata.num_rows != entry.rows:
                return f"has {part.metadata.num_rows:,} rows, not {entry.rows:,}"
            if entry.table in _TABLES:
                wrong = _wrong_column(part.schema_arrow, entry.table)
                if wrong is not None:
                    return wrong
            found = _event_range(part)
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"cannot be read as Parquet ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
    expected = (entry.min_event_index, entry.max_event_index)
    return None if found == expected else f"has the event indexes {_range(found)}, not {_range(expected)}"


def _wrong_column(schema: pa.Schema, table: str) -> str | None:
    metadata = schema.metadata or {}
    if metadata.get(TABLE_KEY) != table.encode():
        return f"is of the table {shown(metadata.get(TABLE_KEY))}, not {table}"
    declared = arrow_schema(table)
    if schema.equals(declared, check_metadata=True):
        return None
    for column in _TABLES[table].columns:
        index = schema.get_field_index(column.name)
        if index < 0:
            # A part of an older MINOR version lacks the columns that were added later, which are nullable.
            if not column.nullable:
                return f"lacks the column {column.name}"
            continue
        found, expected = schema.field(index), declared.field(column.name)
        if (found.type, _field_id(found)) != (expected.type, _field_id(expected)):
            return f"has a column {column.name} that differs from the format: {found.type}, not {expected.type}"
    unknown = next((name for name in schema.names if declared.get_field_index(name) < 0), None)
    if unknown is not None and metadata.get(FORMAT_VERSION_KEY) == FORMAT_VERSION.encode():
        return f"has the column {shown(unknown)}, which its format does not have"
    return None


def _field_id(field: pa.Field) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID_KEY)
    return found


def _event_range(part: pq.ParquetFile) -> tuple[int | None, int | None]:
    """Returns the least and the greatest event_index, from the statistics if the part has them."""
    metadata = part.metadata
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if metadata.num_rows == 0 or "event_index" not in names:
        return None, None
    index = names.index("event_index")
    groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
    if all(group is not None and group.has_min_max for group in groups):
        return min(group.min for group in groups), max(group.max for group in groups)
    found = pc.min_max(part.read(columns=["event_index"])["event_index"]).as_py()
    return found["min"], found["max"]


def _range(events: tuple[int | None, int | None]) -> str:
    return "none" if events[0] is None else f"{events[0]:,} to {events[1]:,}"
