"""Collects the rows of an imported run."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.spool.convert import arrow_table, metadata_table
from tfdbg_arrow.writer.sink.parts import PartWriter

MAX_ROWS = 262_144
"""Maximum number of buffered rows of one table. A part has this number of rows."""
MAX_BYTES = 32 * 2**20
"""Maximum number of buffered Arrow bytes of one table."""
_MAX_LOOSE = 4096
"""Maximum number of rows of one table that are Python objects, which take more memory than Arrow rows."""
_MAX_LOOSE_BYTES = 4 * 2**20
"""Rows are first held as Python objects. This is the maximum number of bytes of their large texts and contents, for one
table."""


class RowBuffer:
    """Collects rows and writes them as parts of a suitable size.

    Args:
        parts: The run's part writer, already started.
        run_id: The run.
    """

    def __init__(self, parts: PartWriter, run_id: str) -> None:
        self._parts = parts
        self._run_id = run_id
        self._unwritten: dict[str, list[pa.Table]] = {table.name: [] for table in TABLES}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._loose: dict[str, list[Mapping[str, object]]] = {}
        self._loose_bytes: dict[str, int] = {}
        self.num_rows: dict[str, int] = dict.fromkeys((table.name for table in TABLES), 0)

    def add_row(self, table: str, row: Mapping[str, object], *, num_bytes: int = 0) -> None:
        """Adds one row, without `run_id` and `wall_time`.

        Args:
            table: Name of the table.
            row: Mapping from column name to value.
            num_bytes: Size of the row's text or content in bytes, if it is large.
        """
        rows = self._loose.setdefault(table, [])
        rows.append(row)
        size = self._loose_bytes[table] = self._loose_bytes.get(table, 0) + num_bytes
        if len(rows) >= _MAX_LOOSE or size >= _MAX_LOOSE_BYTES:
            self._pack(table)

    def add(self, table: str, columns: Mapping[str, pa.Array], *, num_rows: int) -> None:
        """Adds rows given as columns, and adds `run_id` and `wall_time` to them. A missing column becomes NULL."""
        if num_rows == 0:
            return
        self._take(table, arrow_table(table, columns, num_rows=num_rows, run_id=self._run_id))

    def flush(self) -> None:
        """Writes all buffered rows.

        Raises:
            OSError: A part cannot be written.
        """
        for table in list(self._loose):
            self._pack(table)
        for table in self._unwritten:
            self._write(table)

    def _pack(self, table: str) -> None:
        rows = self._loose.pop(table, [])
        self._loose_bytes.pop(table, None)
        if rows:
            self._take(table, metadata_table(table, rows, run_id=self._run_id))

    def _take(self, table: str, data: pa.Table) -> None:
        rows, size = self._sizes.get(table, (0, 0))
        self._unwritten[table].append(data)
        self._sizes[table] = (rows + data.num_rows, size + data.nbytes)
        self.num_rows[table] += data.num_rows
        if rows + data.num_rows >= MAX_ROWS or size + data.nbytes >= MAX_BYTES:
            self._write(table)

    def _write(self, table: str) -> None:
        tables, self._unwritten[table] = self._unwritten[table], []
        self._sizes.pop(table, None)
        if tables:
            self._parts.write(table, pa.concat_tables(tables).combine_chunks())
            self._parts.merge_small(table)
