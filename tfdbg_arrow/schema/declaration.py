"""The classes that declare tables: types, columns and tables."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

MAX_INT64 = 2**63 - 1
"""The greatest number in a column of type BIGINT. As a bound of such numbers, it means that there is no bound."""


class Type(StrEnum):
    """A column type, named as in DuckDB's SQL."""

    BIGINT = "BIGINT"
    INTEGER = "INTEGER"
    DOUBLE = "DOUBLE"
    VARCHAR = "VARCHAR"
    BOOLEAN = "BOOLEAN"
    TIMESTAMP = "TIMESTAMP"
    BLOB = "BLOB"
    BIGINT_LIST = "BIGINT[]"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        id: Parquet field id, unique within its table and never reused.
        name: Name in SQL.
        type: Type of a value.
        doc: One line that says what the value is, and what NULL means if NULL is allowed.
        nullable: Whether the column can be NULL.
        unit: Unit of the value; None if it has none.
        references: `table.column` that the value refers to within the same run, or None.
    """

    id: int
    name: str
    type: Type
    doc: str
    _: KW_ONLY
    nullable: bool = False
    unit: str | None = None
    references: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        name: Name in SQL and directory name in the logdir.
        row: What one row is.
        columns: All columns, in the order of the file.
        key: Names of the columns that identify a row.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def column(self, name: str) -> Column:
        """Returns the column with the given name.

        Raises:
            KeyError: The table has no such column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name!r}")
