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

_ROW_GROUP_BYTES = 64 * 2**20
"""Arrow bytes at which a row group is closed early, so that merging large values takes bounded memory."""


class RowGroups:
    """Rows of many tables, dealt out as row groups.

    Args:
        tables: The rows, in order.
    """

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
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
        return group.combine_chunks()

    def _fill(self) -> None:
        while not self._done and self._rows < ROW_GROUP_ROWS and self._bytes < _ROW_GROUP_BYTES:
            table = next(self._tables, None)
            if table is None:
                self._done = True
            elif table.num_rows:
                self._held.append(table)
                self._rows += table.num_rows
                self._bytes += table.nbytes


def read_row_groups(logdir: Path, entries: Iterable[ManifestEntry]) -> Iterator[pa.Table]:
    """Yields the row groups of parts; a part that changed since it was sealed must not get a new hash."""
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
            for group in range(file.num_row_groups):
                yield file.read_row_group(group)
