"""TableWriter: the interface that each export format implements. DuckDB reads the rows and converts them in SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import duckdb

from tfdbg_arrow.query.logdir.public_views import View, public_views
from tfdbg_arrow.schema import TABLES, Table


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One table or public view; exactly one of `table` and `view` is set.

    Attributes:
        name: Its name.
        table: Its declaration.
        view: Its SQL.
        columns: The columns to export; empty means all.
    """

    name: str
    table: Table | None = None
    view: View | None = None
    columns: frozenset[str] = frozenset()

    @property
    def description(self) -> str:
        """The meaning of one row."""
        if self.table is not None:
            return self.table.row
        assert self.view is not None
        return self.view.comment


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a table or view.

    Attributes:
        connection: The connection for statements that read the rows.
        source: The name of the table or view.
        types: The columns, and their types in DuckDB.
    """

    connection: duckdb.DuckDBPyConnection
    source: str
    types: Mapping[str, str] = field(repr=False)

    def select(self, conversions: Mapping[str, str], *, with_timestamps: bool = False) -> str:
        """Returns the SELECT of the converted rows.

        Args:
            conversions: The expression to write instead of a column, keyed by the type or the name of the column. In
                the expression, `{}` stands for the column.
            with_timestamps: Whether to add a TIMESTAMP column for each column of nanoseconds that has no TIMESTAMP
                column.
        """
        columns = []
        for name, type_ in self.types.items():
            column = f'"{name}"'
            columns.append(f"{conversions.get(name, conversions.get(type_, '{}')).format(column)} AS {column}")
            timestamp = name.removesuffix("_ns")
            if with_timestamps and name.endswith("wall_time_ns") and timestamp not in self.types:
                columns.append(f'make_timestamp({column} // 1000) AS "{timestamp}"')
        return f'SELECT {", ".join(columns)} FROM "{self.source}"'

    @property
    def has_blobs(self) -> bool:
        """Whether a column is a BLOB, so that few rows may need much memory."""
        return "BLOB" in self.types.values()

    def copy(self, select: str, path: Path, options: str) -> int:
        """Writes the rows of a SELECT to a file with DuckDB's COPY, and returns the number of rows."""
        # Without a fixed order, a row group of Parquet can end once it has a certain number of bytes. Each thread holds
        # BLOBs in memory, so only one thread is used.
        statement = f"COPY ({select}) TO $path ({options}, PRESERVE_ORDER {not self.has_blobs})"
        if self.has_blobs:
            self.connection.execute("SET threads = 1")
        try:
            ((num_rows,),) = self.connection.execute(statement, {"path": str(path)}).fetchall()
        finally:
            if self.has_blobs:
                self.connection.execute("RESET threads")
        return int(num_rows)


class TableWriter(ABC):
    """Writes tables one by one in one format.

    Args:
        path: The file or directory to create.
        final: The path that the export gets when it is complete.

    Attributes:
        content: What an export contains, if the format is a directory; None if it is a single file.
        keeps_views: Whether the format can keep a view as a view.
    """

    content: ClassVar[str | None] = None
    keeps_views: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, path: Path, *, final: Path) -> None: ...

    @classmethod
    def holds(cls, entry: Path) -> bool:
        """Returns whether an entry of a directory belongs to an export."""
        return False

    @abstractmethod
    def write(self, relation: Relation, rows: Rows) -> int:
        """Writes the rows of a table or view, replacing earlier rows, and returns the number of rows.

        Raises:
            OSError: The file cannot be written.
            duckdb.Error: The rows cannot be read or written.
            sqlite3.Error: The SQLite database cannot be written.
        """

    def add_view(self, relation: Relation) -> bool:
        """Creates a view. Returns False, without a view, if the format cannot keep it as a view."""
        return False

    def complete(self) -> None:  # noqa: B027 - the files of a directory are complete already
        """Completes the export after all tables and views. Raises the same as `write`."""

    def close(self) -> None:  # noqa: B027 - see above
        """Closes the files of the export, even if the export failed."""


def relations() -> tuple[Relation, ...]:
    """Returns all tables and public views, each view after the relations that it reads."""
    return (
        *(Relation(name=table.name, table=table) for table in TABLES),
        *(Relation(name=view.name, view=view) for view in public_views()),
    )


def relation_names() -> tuple[str, ...]:
    """Returns the names of all tables and public views, each view after the relations that it reads."""
    return tuple(relation.name for relation in relations())
