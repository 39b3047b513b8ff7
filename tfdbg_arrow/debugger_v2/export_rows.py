"""Reads the rows of a run in order. DuckDB sorts them, so that memory stays bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from tfdbg_arrow.query.database import hide_progress_bar
from tfdbg_arrow.query.engine import sql_literal

_BATCH_ROWS = 4096
"""Number of rows that are in memory at a time."""

Row = tuple[Any, ...]


class RunRows:
    """The rows of one run.

    Args:
        connection: A connection to the tables of the run.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        ((self._schema,),) = connection.execute("SELECT current_schema()").fetchall()

    def rows(self, query: str, *, advance: Callable[[int], None] = lambda num_rows: None) -> Iterator[Row]:
        """Yields the rows of a SELECT while DuckDB computes them. Several results can be read at the same time.

        Args:
            query: The SELECT.
            advance: Called regularly with the number of rows that were yielded since the last call.
        """
        with contextlib.closing(self._connection.cursor()) as cursor:
            hide_progress_bar(cursor)
            cursor.execute(f"SET schema = {sql_literal(self._schema)}")
            cursor.execute(query)
            while batch := cursor.fetchmany(_BATCH_ROWS):
                yield from batch
                advance(len(batch))

    def count(self, rows: str) -> int:
        """Returns the number of rows of a table, which may be followed by a WHERE clause."""
        ((num_rows,),) = self.rows(f"SELECT count(*) FROM {rows}")
        return int(num_rows)


class Groups:
    """Sorted rows in groups with the same value in the first column.

    Args:
        rows: The rows, by ascending values of the first column.
    """

    def __init__(self, rows: Iterator[Row]) -> None:
        self._groups = groupby(rows, key=itemgetter(0))
        self._next = next(self._groups, None)

    def of(self, key: int) -> list[Row]:
        """Returns the rows with a value, without this value. Call it with ascending values."""
        while self._next is not None and self._next[0] < key:
            self._next = next(self._groups, None)
        return [row[1:] for row in self._next[1]] if self._next is not None and self._next[0] == key else []
