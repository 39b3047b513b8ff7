"""Rows of tables of which a run has few, as dictionaries: their times, and what is kept as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

Row = dict[str, object]

Columns = Mapping[str, Sequence[object]]
"""Rows as columns of equal length, one or more, by name."""

AppendColumns = Callable[[str, Columns], None]
"""`(table, columns)`: takes rows to write."""

Append = Callable[[str, Sequence[Row]], None]
"""`(table, rows)`: takes rows to write."""


def wall_time_columns(wall_time_ns: int) -> Row:
    """Returns the two time columns of a row."""
    return {"wall_time_ns": wall_time_ns, "wall_time": wall_time_ns // 1000}


def now_columns() -> Row:
    """Returns the two time columns of a row that is made now."""
    return wall_time_columns(time.time_ns())


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str)


def to_json(value: Mapping[str, object] | Sequence[object]) -> str:
    """Returns compact JSON; what JSON has no word for is given as text."""
    return _JSON.encode(value)
