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
        id: The Parquet field ID. The ID is unique within the table, and is never reused for another column.
        name: The name in SQL.
        type: The type of the values.
        doc: One line that says what the value is, and what NULL means if NULL is allowed.
        nullable: Whether the column can be NULL.
        unit: The unit of the value; None if the value has no unit.
        references: The column that the value refers to within the same run, as `table.column`, or None.
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
        name: The name in SQL, which is also the name of the table's directory in a logdir.
        row: A sentence that says what one row is.
        columns: All columns, in the order in which they are in the files.
        key: The names of the columns that together identify a row.
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
