"""Rows of tables of which a run has few, as dictionaries, and what is kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

Row = dict[str, object]

Columns = Mapping[str, Sequence[object]]
"""Rows as columns of equal length, one or more, by name."""

AppendColumns = Callable[[str, Columns], None]
"""`(table, columns)`: takes rows to write."""

Append = Callable[[str, Sequence[Row]], None]
"""`(table, rows)`: takes rows to write."""


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str)


def to_json(value: object) -> str:
    """Returns compact JSON; what JSON has no word for is given as text."""
    return _JSON.encode(value)
