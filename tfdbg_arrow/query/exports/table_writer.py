"""TableWriter: what each format of an export implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tfdbg_arrow.query.logdir.public_views import View, public_views
from tfdbg_arrow.schema import TABLES, Table


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One table or public view; exactly one of the two is set.

    Attributes:
        name: Its name.
        table: Its declaration.
        view: Its SQL.
    """

    name: str
    table: Table | None = None
    view: View | None = None


class TableWriter(ABC):
    """Writes tables one by one in one format.

    Args:
        path: The file or directory to create.
        final: The path that it gets when it is complete.

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

    @staticmethod
    def names() -> frozenset[str]:
        """Returns the names of all tables and public views."""
        return frozenset(relation_names())

    @abstractmethod
    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None:
        """Writes the rows of a table or view, replacing earlier ones.

        Args:
            relation: The table or view.
            rows: Its rows.
            advance: Called with the number of rows written since the last call.

        Raises:
            OSError: The file cannot be written.
            duckdb.Error: The DuckDB database cannot be written.
            sqlite3.Error: The SQLite database cannot be written.
            pa.ArrowException: The format cannot represent a value.
        """

    def add_view(self, relation: Relation) -> bool:
        """Creates a view. Returns False, without a view, if the format cannot keep it as a view."""
        return False

    def close(self) -> None:  # noqa: B027 - the files of a directory are complete already
        """Completes the export."""


def relations() -> tuple[Relation, ...]:
    """Returns all tables and public views, each view after the relations that it reads."""
    return (
        *(Relation(name=table.name, table=table) for table in TABLES),
        *(Relation(name=view.name, view=view) for view in public_views()),
    )


def relation_names() -> tuple[str, ...]:
    """Returns the names of all tables and public views, each view after the relations that it reads."""
    return tuple(relation.name for relation in relations())
