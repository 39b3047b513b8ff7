"""Export as a database: the tables as tables, and the public views as views.

A DuckDB database has the types of the logdir, and comments. In a SQLite database, a view for which SQLite would return
other rows is a table, and every table has an index on its key, because SQLite needs indexes for joins:

| column | in SQLite |
|---|---|
| BIGINT, INTEGER | INTEGER |
| DOUBLE | DOUBLE (a REAL); SQLite has no -0.0, which becomes 0.0, and no NaN, which becomes the text `NaN` |
| VARCHAR | TEXT |
| BOOLEAN | BOOLEAN (0 or 1) |
| TIMESTAMP | TIMESTAMP (text, as `2026-01-31 12:00:00.000001`, in UTC; SQLite's time functions accept it) |
| BLOB | BLOB |
| BIGINT[] | TEXT, a JSON array that `json_each` accepts |

NULL stays NULL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tfdbg_arrow.query.database import open_database
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.exports.flat_files import FlatColumn, FlatRows, flat_rows
from tfdbg_arrow.query.exports.table_writer import Relation, TableWriter

_MEMORY_LIMIT = "512MiB"
"""The limit for writing. The logdir's own limit applies to reading."""
_NOT_THE_SAME = frozenset({"alert"})
"""Views for which SQLite returns other rows than DuckDB, because its division of integers returns integers."""
_TYPES = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_integer, "INTEGER"),
    (pa.types.is_floating, "DOUBLE"),
    (pa.types.is_timestamp, "TIMESTAMP"),
    (pa.types.is_binary, "BLOB"),
)


class DuckDBExport(TableWriter):
    """Writes a DuckDB database."""

    keeps_views: ClassVar[bool] = True

    def __init__(self, path: Path, *, final: Path) -> None:
        self._connection = open_database(str(path), memory_limit=_MEMORY_LIMIT)

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Creates a table; see TableWriter."""

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
            self._connection.execute(f'COMMENT ON TABLE "{relation.name}" IS {sql_literal(relation.table.row)}')
            for column in relation.table.columns:
                self._connection.execute(
                    f'COMMENT ON COLUMN "{relation.name}"."{column.name}" IS {sql_literal(column.doc)}'
                )

    def add_view(self, relation: Relation) -> bool:
        """Creates a view, and returns True."""
        assert relation.view is not None
        self._connection.execute(f'CREATE VIEW "{relation.name}" AS {relation.view.select}')
        self._connection.execute(f'COMMENT ON VIEW "{relation.name}" IS {sql_literal(relation.view.comment)}')
        return True

    def close(self) -> None:
        """Closes the file, which is complete then."""
        self._connection.close()


class SQLiteExport(TableWriter):
    """Writes a SQLite database."""

    keeps_views: ClassVar[bool] = True

    def __init__(self, path: Path, *, final: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        # No one reads the file before it is complete.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Creates a table; see TableWriter."""
        columns = flat_rows(rows.schema, with_timestamps=False).columns
        flat = FlatRows(tuple(_without_timestamps(column) for column in columns))
        definitions = ", ".join(
            f'"{column.name}" {_sqlite_type(rows.schema.field(column.source).type)}' for column in columns
        )
        places = ", ".join("?" * len(columns))
        self._connection.execute(f'DROP TABLE IF EXISTS "{relation.name}"')
        self._connection.execute(f'CREATE TABLE "{relation.name}" ({definitions})')
        for batch in rows:
            self._connection.execute("BEGIN")
            values = [_values(array) for array in flat.convert(batch).columns]
            self._connection.executemany(f'INSERT INTO "{relation.name}" VALUES ({places})', zip(*values, strict=True))
            self._connection.execute("COMMIT")
            advance(batch.num_rows)
        if relation.table is not None:
            key = ", ".join(f'"{name}"' for name in relation.table.key)
            self._connection.execute(f'CREATE INDEX "{relation.name}_key" ON "{relation.name}" ({key})')

    def add_view(self, relation: Relation) -> bool:
        """Creates a view. Returns False, without a view, if SQLite cannot run it or returns other rows than DuckDB."""
        assert relation.view is not None
        if relation.name in _NOT_THE_SAME:
            return False
        try:
            self._connection.execute(f'CREATE VIEW "{relation.name}" AS {relation.view.select}')
            self._connection.execute(f'SELECT * FROM "{relation.name}" LIMIT 0')
        except sqlite3.OperationalError:  # an older SQLite
            self._connection.execute(f'DROP VIEW IF EXISTS "{relation.name}"')
            return False
        return True

    def close(self) -> None:
        """Closes the file, which is complete then."""
        self._connection.execute("PRAGMA analysis_limit = 1000")
        self._connection.execute("ANALYZE")
        self._connection.close()


def _sqlite_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return "INTEGER"
    return next((name for is_it, name in _TYPES if is_it(type_)), "TEXT")


def _without_timestamps(column: FlatColumn) -> FlatColumn:
    if not pa.types.is_timestamp(column.type):
        return column
    return column.then(pa.string(), lambda array: pc.strftime(array, format="%Y-%m-%d %H:%M:%S"))


def _values(array: pa.Array) -> Sequence[Any]:
    values: list[Any] = array.to_pylist()
    if pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py():
        return ["NaN" if value != value else value for value in values]
    return values
