"""Reads row groups of parts and combines them into new row groups."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema import ROW_GROUP_ROWS
from tfdbg_arrow.schema.manifest import ManifestEntry

_READ_ROWS = 8_192
_READ_BYTES = 2**20
"""Number of bytes that are read at a time; bytes beyond a row group also take memory."""


class RowGroups:
    """The rows of many tables, combined into row groups.

    Args:
        tables: The rows, in order.
        max_bytes: Number of Arrow bytes at which a row group is closed early, so that merging takes bounded memory.
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
        """Yields row groups up to a total of `max_rows` rows; each is read only when it is requested."""
        dealt = 0
        while dealt < max_rows and self.has_more:
            group = self._take(min(ROW_GROUP_ROWS, max_rows - dealt))
            dealt += group.num_rows
            yield group
            del group  # frees its memory before the next one is read

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


def read_rows(logdir: Path, entries: Iterable[ManifestEntry]) -> Iterator[pa.Table]:
    """Yields the rows of parts, in pieces of row groups.

    Raises:
        BrokenPartError: A part was changed after it was written.
    """
    for entry in entries:
        path = logdir / entry.path
        with open(path, "rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != entry.sha256:
            raise BrokenPartError(
                f"{path} has the SHA-256 {found}, expected {entry.sha256} as in the manifest: it was changed after it "
                "was written; restore it."
            )
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):  # one at a time, to hold only one in memory
                found = file.metadata.row_group(group)
                row_bytes = max(1, found.total_byte_size // max(1, found.num_rows))
                rows = max(1, min(_READ_ROWS, _READ_BYTES // row_bytes))
                for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                    yield pa.Table.from_batches([batch])
