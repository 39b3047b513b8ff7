"""Export as Parquet for BI tools: one flat file a table and view, snappy, PLAIN, TIMESTAMP columns.

A logdir is Parquet already; this is its most conservative sort, which tools read that know neither zstd, nor
DELTA_BINARY_PACKED, nor lists. DOUBLE columns have no statistics, as in a logdir: readers lose NaN by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.query.exports.flat import flat_rows
from tfdbg_arrow.query.exports.relations import Relation
from tfdbg_arrow.schema.parquet import ROW_GROUP_ROWS

_ROW_GROUP_BYTES = 64 * 2**20


class ParquetExport:
    """Writes `<name>.parquet` files into a directory.

    Args:
        path: The directory; it is made.
    """

    suffix: ClassVar[str | None] = ".parquet"
    keeps_views: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file, in the place of one of that name.

        Args:
            relation: The table or view.
            rows: Its rows.
            advance: Told of so many rows more.

        Raises:
            OSError: It cannot be written.
            pa.ArrowException: A value does not fit.
        """
        flat = flat_rows(rows.schema)
        schema = flat.schema
        options = {
            "compression": "snappy",
            "use_dictionary": False,
            "write_statistics": [
                field.name for field in schema if not pa.types.is_floating(field.type) and field.type != pa.binary()
            ],
            "store_schema": False,
        }
        with pq.ParquetWriter(self._path / f"{relation.name}.parquet", schema, **options) as writer:
            for group in _row_groups(map(flat.convert, rows), advance):
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=ROW_GROUP_ROWS)

    def add_view(self, relation: Relation) -> bool:
        """Returns whether a view can be kept as a view: never."""
        return False

    def close(self) -> None:
        """Does nothing: each file is whole."""


def _row_groups(batches: Iterator[pa.RecordBatch], advance: Callable[[int], None]) -> Iterator[list[pa.RecordBatch]]:
    """Yields batches that make one row group, bounded in rows and bytes."""
    group: list[pa.RecordBatch] = []
    num_rows = num_bytes = 0
    for batch in batches:
        if group and (num_rows + batch.num_rows > ROW_GROUP_ROWS or num_bytes + batch.nbytes > _ROW_GROUP_BYTES):
            yield group
            group, num_rows, num_bytes = [], 0, 0
        group.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        advance(batch.num_rows)
    if group:
        yield group
