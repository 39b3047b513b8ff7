"""Row groups of parts, read and dealt out anew."""

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
"""What is read of a part at a time: what is read beyond a row group takes memory too."""


class RowGroups:
    """Rows of many tables, dealt out as row groups.

    Args:
        tables: The rows, in order.
        max_bytes: Arrow bytes at which a row group is closed early, so that merging takes bounded memory.
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
        """Yields row groups until they have `max_rows`; the next is read when one is asked for, and not before."""
        dealt = 0
        while dealt < max_rows and self.has_more:
            group = self._take(min(ROW_GROUP_ROWS, max_rows - dealt))
            dealt += group.num_rows
            yield group
            del group  # else it is held while the next one is read

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
    """Yields the rows of parts, some of a row group at a time; one that changed since it was sealed is not read."""
    for entry in entries:
        path = logdir / entry.path
        with open(path, "rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != entry.sha256:
            raise BrokenPartError(
                f"{path} has the SHA-256 {found}, expected {entry.sha256} as in the manifest: it was changed since it "
                "was written; restore it."
            )
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):  # a batch of several would hold more than one of them
                found = file.metadata.row_group(group)
                row_bytes = max(1, found.total_byte_size // max(1, found.num_rows))
                rows = max(1, min(_READ_ROWS, _READ_BYTES // row_bytes))
                for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                    yield pa.Table.from_batches([batch])
