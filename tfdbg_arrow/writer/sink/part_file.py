"""Writes the file of a part under a temporary name, syncs it to disk, and renames it.

Source: spec/README.md, "Layout of a logdir".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfdbg_arrow.schema import ROW_GROUP_ROWS, arrow_schema, parquet_options
from tfdbg_arrow.schema.logdir_layout import part_path, temporary_path
from tfdbg_arrow.schema.manifest import ManifestEntry
from tfdbg_arrow.writer.sink.manifest_file import sync_directory

_BUFFER_BYTES = 1 << 16
"""Size of the write buffer, because Parquet is written in many small pieces."""


def seal_part(
    logdir: Path,
    table: str,
    data: Iterable[pa.Table],
    *,
    run_id: str,
    number: int,
    max_bytes: int | None = None,
    on_piece: Callable[[pa.Table], None] | None = None,
) -> ManifestEntry:
    """Writes and renames a part, but does not add it to the manifest.

    Args:
        logdir: The logdir.
        table: Name of the table.
        data: The rows.
        run_id: The run.
        number: The part's number.
        max_bytes: The part ends with the piece at which its file reaches this size; None means no limit.
        on_piece: Called with each piece of the rows, if given.

    Returns:
        The manifest entry of the part.

    Raises:
        OSError: The part cannot be written; its file and the temporary file may remain.
    """
    name = part_path(table, run_id=run_id, number=number)
    path = logdir / name
    temporary = logdir / temporary_path(table, run_id=run_id, number=number)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.parent.mkdir(exist_ok=True)
    rows = 0
    events = _EventRange()
    with _HashingFile(temporary) as file:
        with pq.ParquetWriter(file, arrow_schema(table), **parquet_options(table)) as writer:
            for piece in data:
                writer.write_table(piece, row_group_size=ROW_GROUP_ROWS)
                rows += piece.num_rows
                events.add(piece)
                if on_piece is not None:
                    on_piece(piece)
                del piece  # frees its memory before the next one is read
                if max_bytes is not None and file.size >= max_bytes:
                    break
        file.sync()
    os.rename(temporary, path)
    sync_directory(path.parent)
    return ManifestEntry(
        table=table,
        path=name,
        rows=rows,
        bytes=file.size,
        sha256=file.sha256,
        min_event_index=events.first,
        max_event_index=events.last,
    )


class _HashingFile:
    """A new file that computes the SHA-256 of the data written to it."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self._file.write(view)
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Does nothing, because `sync` flushes."""

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self.closed = True

    def __enter__(self) -> _HashingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


class _EventRange:
    """The smallest and the largest event_index seen; None if there was none."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None

    def add(self, data: pa.Table) -> None:
        if "event_index" not in data.schema.names or data.num_rows == 0:
            return
        found = pc.min_max(data["event_index"]).as_py()
        self.first = found["min"] if self.first is None else min(self.first, found["min"])
        self.last = found["max"] if self.last is None else max(self.last, found["max"])
