"""The interface through which this package queries the tables of a run. Queries return rows as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
"""Columns by name: int64 (-1 for NULL), bool (false for NULL), or objects (text or None)."""


class Tables(Protocol):
    """The tables of one run."""

    def columns(self, query: str, parameters: Sequence[object] = ()) -> Columns:
        """Returns the rows of a SELECT."""

    def run(self, statement: str, parameters: Sequence[object] = ()) -> None:
        """Runs a statement that returns nothing, such as one that creates a temporary table."""


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    """Returns the rows of columns as tuples of Python's types."""
    return list(zip(*(column.tolist() for column in columns.values()), strict=True))


def listed(tables: Tables, name: str, **columns: tuple[str, Sequence[object] | NDArray[np.int64]]) -> None:
    """Creates a temporary table with the given columns: SQL type and values by name."""
    selected = ", ".join(f"unnest(CAST(? AS {kind}[])) AS {column}" for column, (kind, _) in columns.items())
    values = [list(values) for _, values in columns.values()]
    tables.run(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {selected}", values)
