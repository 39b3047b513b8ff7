"""Engine: the interface that the queries of this package need from a SQL engine.

`Logdir` is the engine on DuckDB, and `tfdbg_arrow.query.spark.SparkLogdir` is the engine on Spark. Both engines run the
same SQL text. Therefore, the views, the rules and all queries of this package use only SQL that DuckDB 2.0 and Spark 4
both run with equal results:

* Parameters are written as `?`. Each value is a number, a text, a boolean or None.
* `ORDER BY` says `NULLS FIRST` or `NULLS LAST` for each column that can be NULL.
* A sum is cast to BIGINT, and `LIMIT` is at most MAX_ROWS.

DuckDB and Spark have no common syntax for some operations. Each engine defines functions for them:

* `blob_prefix(value, n)` returns the first n bytes of a BLOB.
* `list_places(list)` returns the list of the indexes of a list's elements, from 0.
* `list_at(list, place)` returns the element at an index.
* `explode(list)` makes one row for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from tfdbg_arrow.storage.location import RemoteLocation

_Kept = TypeVar("_Kept")
MAX_ROWS = 2**31 - 1
"""The greatest LIMIT. A LIMIT in Spark is an INTEGER."""


@runtime_checkable
class Engine(Protocol):
    """A logdir whose tables and public views can be queried in SQL.

    Attributes:
        path: The logdir.
    """

    path: Path | RemoteLocation

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs SQL over the tables and public views and returns every row.

        The values are Python objects: a BIGINT[] is a list, a BLOB is bytes, a TIMESTAMP is a naive datetime, and a
        NULL is None.

        Args:
            query: One SELECT.
            parameters: Values for `?`, in order.

        Raises:
            QueryError: The statement or a parameter is refused.
            BrokenPartError: A part cannot be read.
        """

    def of_run(self, run_id: str) -> Engine:
        """Returns an engine for queries about one run.

        The engine may also show other runs, so queries must still name the run.
        """

    def kept(self, client: str, key: Hashable, make: Callable[[], _Kept]) -> _Kept:
        """Returns the value that `make` returns. An engine may cache the value until the parts change.

        Args:
            client: What the value is for. Each client has a cache of its own.
            key: The key of the value in this cache.
            make: Computes the value from the rows.
        """
        return make()

    def kept_rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the same as `rows`. An engine may cache the result until the parts change.

        Use this method only for results of at most a few thousand rows.
        """
        return self.rows(query, parameters)

    def check_time(self) -> None:
        """Raises TimeLimitError if the time limit for queries is exceeded.

        Long loops without queries call this method.
        """

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns the size of a table: number of rows, number of parts, bytes of the parts."""


def sql_literal(value: object) -> str:
    """Returns a Python value as a literal in DuckDB's SQL. Values of types that SQL does not have become text."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(sql_literal, value))}]"
    return "'" + str(value).replace("'", "''") + "'"
