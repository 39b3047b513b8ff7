"""Export as Parquet for BI tools: one flat file per table and view, with snappy, PLAIN encoding and TIMESTAMP columns.

A logdir already consists of Parquet files. This export is for tools that support neither zstd, nor DELTA_BINARY_PACKED,
nor lists. As in a logdir, DOUBLE columns have no statistics, because they make readers lose NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.query.exports.directory import DirectoryExport
from tfdbg_arrow.query.exports.flat import flat_rows
from tfdbg_arrow.query.exports.relations import Relation
from tfdbg_arrow.schema.parquet import ROW_GROUP_ROWS

_ROW_GROUP_BYTES = 64 * 2**20


class ParquetExport(DirectoryExport):
    """Writes `<name>.parquet` files into a directory."""

    suffix: ClassVar[str | None] = ".parquet"

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes a file; see DirectoryExport."""
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
        with pq.ParquetWriter(self.file_of(relation), schema, **options) as writer:
            for group in _row_groups(map(flat.convert, rows), advance):
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=ROW_GROUP_ROWS)


def _row_groups(batches: Iterator[pa.RecordBatch], advance: Callable[[int], None]) -> Iterator[list[pa.RecordBatch]]:
    """Yields the batches of one row group at a time, bounded in rows and bytes."""
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
