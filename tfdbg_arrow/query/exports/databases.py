"""Export as a database: the tables as tables, and the public views as views.

DuckDB writes its own format: a DuckDB database has the types of the logdir, and comments. In a SQLite database, a view
becomes a table if SQLite would return different rows for it. Every table has an index on its key, because SQLite needs
indexes for joins. SQLite has these types:

| column | in SQLite |
|---|---|
| BIGINT, INTEGER, HUGEINT | INTEGER |
| DOUBLE | DOUBLE (a REAL); SQLite has no -0.0, which becomes 0.0, and no NaN, which becomes the text `NaN` |
| VARCHAR | TEXT |
| BOOLEAN | BOOLEAN (0 or 1) |
| TIMESTAMP | TIMESTAMP (text, as `2026-01-31 12:00:00.000001`, in UTC; SQLite's time functions accept it) |
| BLOB | BLOB |
| BIGINT[] | TEXT, a JSON array that `json_each` accepts |

NULL stays NULL.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import ClassVar

import duckdb

from tfdbg_arrow.query.database import open_database
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.exports.flat_files import FLAT
from tfdbg_arrow.query.exports.table_writer import Relation, Rows, TableWriter

_ATTACHED = "tfdbg_arrow_export"
"""The name of the written database on the connection of the logdir."""
_NOT_THE_SAME = frozenset({"alert"})
"""Views for which SQLite and DuckDB return different rows, because SQLite's division of integers returns integers."""
_SQLITE = {
    **FLAT,
    "TIMESTAMP": "strftime({}, '%Y-%m-%d %H:%M:%S.%f')",
}
_NAN = (
    "CASE WHEN isnan({0}) THEN CAST('NaN' AS UNION(number DOUBLE, text VARCHAR)) "
    "ELSE CAST({0} AS UNION(number DOUBLE, text VARCHAR)) END"
)
"""The conversion of a DOUBLE column with a NaN.

Python takes twice as long to read converted columns as to read numbers.
"""
_SQLITE_TYPES = {"BIGINT": "INTEGER", "HUGEINT": "INTEGER", "VARCHAR": "TEXT", "BIGINT[]": "TEXT"}
"""The types that have a different name in SQLite."""
_BATCH_ROWS = 16_384
"""Number of rows that are in memory at a time, as Python objects."""
_BATCH_ROWS_WITH_BLOBS = 256
"""Number of rows with elements of tensors that are in memory at a time. One row may have many MiB."""


class DuckDBExport(TableWriter):
    """Writes a DuckDB database."""

    keeps_views: ClassVar[bool] = True

    def __init__(self, path: Path, *, final: Path) -> None:
        self._path = path
        self._statements: list[str] = []

    def write(self, relation: Relation, rows: Rows) -> int:
        """Creates a table; see TableWriter."""
        # The database is attached for each table, because the logdir opens a new connection after some errors in parts.
        rows.connection.execute(f"ATTACH {sql_literal(self._path)} AS {_ATTACHED}")
        try:
            create = f'CREATE OR REPLACE TABLE {_ATTACHED}."{relation.name}" AS {rows.select({})}'
            ((num_rows,),) = rows.connection.execute(create).fetchall()
        finally:
            with contextlib.suppress(duckdb.FatalException):  # after a fatal error, DuckDB refuses every statement
                rows.connection.execute(f"DETACH {_ATTACHED}")
        self._comment("TABLE", relation)
        if relation.table is not None:
            for column in relation.table.columns:
                if column.name in rows.types:
                    name = f'"{relation.name}"."{column.name}"'
                    self._statements.append(f"COMMENT ON COLUMN {name} IS {sql_literal(column.doc)}")
        return int(num_rows)

    def add_view(self, relation: Relation) -> bool:
        """Creates a view, and returns True."""
        self._statements.append(_create_view(relation))
        self._comment("VIEW", relation)
        return True

    def complete(self) -> None:
        """Creates the views and comments."""
        with open_database(str(self._path)) as connection:
            for statement in self._statements:
                connection.execute(statement)

    def _comment(self, kind: str, relation: Relation) -> None:
        self._statements.append(f'COMMENT ON {kind} "{relation.name}" IS {sql_literal(relation.description)}')


class SQLiteExport(TableWriter):
    """Writes a SQLite database."""

    keeps_views: ClassVar[bool] = True

    def __init__(self, path: Path, *, final: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        # No process reads the file before it is complete.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")

    def write(self, relation: Relation, rows: Rows) -> int:
        """Creates a table; see TableWriter."""
        definitions = ", ".join(f'"{name}" {_SQLITE_TYPES.get(type_, type_)}' for name, type_ in rows.types.items())
        self._connection.execute(f'DROP TABLE IF EXISTS "{relation.name}"')
        self._connection.execute(f'CREATE TABLE "{relation.name}" ({definitions})')
        insert = f'INSERT INTO "{relation.name}" VALUES ({", ".join("?" * len(rows.types))})'
        batch_rows = _BATCH_ROWS_WITH_BLOBS if rows.has_blobs else _BATCH_ROWS
        num_rows = 0
        select = rows.select(_SQLITE | dict.fromkeys(_columns_with_nan(relation, rows), _NAN))
        cursor = rows.connection.execute(select)
        try:
            while batch := cursor.fetchmany(batch_rows):
                self._connection.execute("BEGIN")
                self._connection.executemany(insert, batch)
                self._connection.execute("COMMIT")
                num_rows += len(batch)
        except BaseException:
            cursor.abort()  # otherwise the connection accepts no other statement
            raise
        if relation.table is not None and rows.types.keys() >= set(relation.table.key):
            key = ", ".join(f'"{name}"' for name in relation.table.key)
            self._connection.execute(f'CREATE INDEX "{relation.name}_key" ON "{relation.name}" ({key})')
        return num_rows

    def add_view(self, relation: Relation) -> bool:
        """Creates a view.

        Returns False, without a view, if SQLite cannot run it or returns different rows than DuckDB.
        """
        if relation.name in _NOT_THE_SAME:
            return False
        try:
            self._connection.execute(_create_view(relation))
            self._connection.execute(f'SELECT * FROM "{relation.name}" LIMIT 0')
        except sqlite3.OperationalError:  # an older SQLite
            self._connection.execute(f'DROP VIEW IF EXISTS "{relation.name}"')
            return False
        return True

    def complete(self) -> None:
        """Creates the statistics that SQLite uses to plan queries."""
        self._connection.execute("PRAGMA analysis_limit = 1000")
        self._connection.execute("ANALYZE")

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def _columns_with_nan(relation: Relation, rows: Rows) -> list[str]:
    """Returns the columns of a table that have a NaN, or the columns of a view that may have a NaN.

    To find out which columns of a view have a NaN would take long, because the view has to be computed.
    """
    names = [name for name, type_ in rows.types.items() if type_ == "DOUBLE"]
    if not names or relation.table is None:
        return names
    questions = ", ".join(f'bool_or(isnan("{name}"))' for name in names)
    (have_nan,) = rows.connection.execute(f'SELECT {questions} FROM "{rows.source}"').fetchall()
    return [name for name, has in zip(names, have_nan, strict=True) if has]


def _create_view(relation: Relation) -> str:
    assert relation.view is not None
    return f'CREATE VIEW "{relation.name}" AS {relation.view.select}'
