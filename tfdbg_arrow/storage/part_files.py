"""Writes and reads the files of parts. spec/README.md, "Layout of a logdir", defines how a part is written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema import ROW_GROUP_ROWS, arrow_schema, parquet_options
from tfdbg_arrow.storage.disk import file_sha256, written_together
from tfdbg_arrow.storage.layout import part_path, temporary_path
from tfdbg_arrow.storage.manifest import ManifestEntry

_BUFFER_BYTES = 1 << 16
"""Size of the write buffer. The buffer is needed because Parquet is written in many small pieces."""
_READ_ROWS = 8_192
"""Maximum number of rows that are read at a time. Rows with equal values are smaller in the file than in memory."""
_READ_BYTES = 2**20
"""Number of bytes that are read at a time. The row group needs memory in addition to these bytes."""


def seal_parts(
    logdir: Path,
    tables: Mapping[str, Iterable[pa.Table] | None],
    *,
    run_id: str,
    numbers: Mapping[str, int],
    max_bytes: int | None = None,
) -> list[ManifestEntry]:
    """Writes one part per table under a temporary name, and renames the files. Does not add them to the manifest.

    Args:
        logdir: The logdir.
        tables: The rows by table name. None means no rows.
        run_id: The run.
        numbers: The number of each part, by table name.
        max_bytes: A part ends after the first piece of its rows that makes its file at least this large. None means no
            limit.

    Returns:
        The manifest entries of the parts, in the order of `tables`.

    Raises:
        OSError: A part cannot be written. Files of parts, or temporary files, may remain.
    """
    names = {table: part_path(table, run_id=run_id, number=numbers[table]) for table in tables}
    temporaries = {table: logdir / temporary_path(table, run_id=run_id, number=numbers[table]) for table in tables}
    for path in (*(logdir / name for name in names.values()), *temporaries.values()):
        path.parent.mkdir(parents=True, exist_ok=True)
    with written_together({logdir / name: temporaries[table] for table, name in names.items()}):
        return [
            _write_part(temporaries[table], table, data, name=names[table], max_bytes=max_bytes)
            for table, data in tables.items()
        ]


def _write_part(
    path: Path, table: str, data: Iterable[pa.Table] | None, *, name: str, max_bytes: int | None
) -> ManifestEntry:
    """Writes the file of a part; returns the manifest entry of the part, whose final name is `name`."""
    rows = 0
    events = _EventRange()
    with _HashingFile(path) as file:
        if data is None:
            file.write(_part_without_rows(table))
        else:
            with _parquet_writer(file, table) as writer:
                for piece in data:
                    writer.write_table(piece, row_group_size=ROW_GROUP_ROWS)
                    rows += piece.num_rows
                    events.add(piece)
                    del piece  # free the memory of this piece before the next piece is read
                    if max_bytes is not None and file.size >= max_bytes:
                        break
    return ManifestEntry(
        table=table,
        path=name,
        rows=rows,
        bytes=file.size,
        sha256=file.sha256,
        min_event_index=events.first,
        max_event_index=events.last,
    )


def _parquet_writer(file: IO[bytes] | _HashingFile, table: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(file, arrow_schema(table), **parquet_options(table))


@cache
def _part_without_rows(table: str) -> bytes:
    """Returns the content of a part without rows, which is the same for all runs. Each run begins with such parts."""
    file = BytesIO()
    with _parquet_writer(file, table) as writer:
        writer.write_table(arrow_schema(table).empty_table(), row_group_size=ROW_GROUP_ROWS)
    return file.getvalue()


class _HashingFile:
    """A new file that computes the SHA-256 of the data that is written to the file."""

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
        """Does nothing, because `close` flushes."""

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
    """The smallest and the largest event_index of the added tables; None if these tables have no event_index."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None

    def add(self, data: pa.Table) -> None:
        if "event_index" not in data.schema.names or data.num_rows == 0:
            return
        # NumPy, because importing pyarrow.compute would add 40 ms to every recorded program.
        event_indices = data["event_index"].to_numpy()
        first, last = int(event_indices.min()), int(event_indices.max())
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)


class RowGroups:
    """The rows of many tables, combined into row groups.

    Args:
        tables: The rows, in order.
        max_bytes: A row group ends early if it has this number of Arrow bytes. This limits the memory for merging.
    """

    def __init__(self, tables: Iterator[pa.Table], *, max_bytes: int) -> None:
        self._tables = tables
        self._max_bytes = max_bytes
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._done = False

    @property
    def has_more(self) -> bool:
        """Whether rows are left."""
        self._fill()
        return self._rows > 0

    def part(self, max_rows: int) -> Iterator[pa.Table]:
        """Yields row groups with at most `max_rows` rows in total. Each group is read only when it is requested."""
        dealt = 0
        while dealt < max_rows and self.has_more:
            group = self._take(min(ROW_GROUP_ROWS, max_rows - dealt))
            dealt += group.num_rows
            yield group
            del group  # free the memory of this group before the next group is read

    def _take(self, max_rows: int) -> pa.Table:
        whole = pa.concat_tables(self._held)
        group = whole.slice(0, max_rows)
        rest = whole.slice(group.num_rows)
        self._held = [rest] if rest.num_rows else []
        self._rows, self._bytes = rest.num_rows, rest.nbytes
        return group

    def _fill(self) -> None:
        while not self._done and self._rows < ROW_GROUP_ROWS and self._bytes < self._max_bytes:
            table = next(self._tables, None)
            if table is None:
                self._done = True
            elif table.num_rows:
                self._held.append(table)
                self._rows += table.num_rows
                self._bytes += table.nbytes


def check_part(path: Path, entry: ManifestEntry) -> None:
    """Checks that the file of a part matches its entry in the manifest.

    Raises:
        BrokenPartError: The part was changed after it was written.
        OSError: The file cannot be read.
    """
    sha256 = file_sha256(path)
    if sha256 != entry.sha256:
        raise BrokenPartError(
            f"{path} has the SHA-256 {sha256}, expected {entry.sha256} as in the manifest: it was changed after it was "
            "written; restore it."
        )


def read_rows(logdir: Path, entries: Iterable[ManifestEntry]) -> Iterator[pa.Table]:
    """Yields the rows of parts in pieces that are smaller than row groups, with the columns of the current format.

    Raises:
        BrokenPartError: A part was changed after it was written.
    """
    for entry in entries:
        path = logdir / entry.path
        check_part(path, entry)
        # With pre_buffer, pyarrow reads a whole row group in advance, in threads that do not free their memory.
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            for group in range(file.num_row_groups):  # read one group at a time to save memory
                row_group = file.metadata.row_group(group)
                row_bytes = max(1, row_group.total_byte_size // max(1, row_group.num_rows))
                rows = max(1, min(_READ_ROWS, _READ_BYTES // row_bytes))
                for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                    yield _conformed(pa.Table.from_batches([batch]), arrow_schema(entry.table))


def _conformed(data: pa.Table, schema: pa.Schema) -> pa.Table:
    """Converts rows of an older format version to the columns of the current format. Missing columns become NULL."""
    if data.schema.equals(schema, check_metadata=True):
        return data
    columns = [
        data[field.name].cast(field.type) if field.name in data.schema.names else pa.nulls(len(data), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
