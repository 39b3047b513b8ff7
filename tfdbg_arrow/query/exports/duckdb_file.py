"""Export as a DuckDB database: the tables as tables and the public views as views, with comments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import duckdb
import pyarrow as pa

from tfdbg_arrow.query.exports.relations import Relation

_MEMORY_LIMIT = "512MiB"
"""The limit for writing. The logdir's own limit applies to reading."""


class DuckDBExport:
    """Writes a database file.

    Args:
        path: The file to create.
    """

    suffix: ClassVar[str | None] = None
    keeps_views: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        self._connection = duckdb.connect(
            str(path),
            config={
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "memory_limit": _MEMORY_LIMIT,
            },
        )
        self._connection.execute("SET enable_progress_bar = false")

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Creates a table, replacing one of the same name.

        Args:
            relation: The table.
            rows: Its rows.
            advance: Called with the number of rows written since the last call.

        Raises:
            duckdb.Error: The table cannot be written.
        """

        def counted() -> pa.RecordBatchReader:
            for batch in rows:
                yield batch
                advance(batch.num_rows)

        source = pa.RecordBatchReader.from_batches(rows.schema, counted())
        self._connection.register("source_rows", source)
        try:
            self._connection.execute(f'CREATE OR REPLACE TABLE "{relation.name}" AS SELECT * FROM source_rows')
        finally:
            self._connection.unregister("source_rows")
        if relation.table is not None:
            self._connection.execute(f'COMMENT ON TABLE "{relation.name}" IS {_literal(relation.table.row)}')
            for column in relation.table.columns:
                self._connection.execute(
                    f'COMMENT ON COLUMN "{relation.name}"."{column.name}" IS {_literal(column.doc)}'
                )

    def add_view(self, relation: Relation) -> bool:
        """Creates a view, and returns True."""
        assert relation.view is not None
        self._connection.execute(f'CREATE VIEW "{relation.name}" AS {relation.view.select}')
        self._connection.execute(f'COMMENT ON VIEW "{relation.name}" IS {_literal(relation.view.comment)}')
        return True

    def close(self) -> None:
        """Closes the file, which is complete then."""
        self._connection.close()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
