"""Types for rows that are passed as dictionaries or columns, and the conversion of values to JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

Row = dict[str, object]

Columns = Mapping[str, Sequence[object]]
"""Rows as one or more columns of equal length, by name."""

AppendColumns = Callable[[str, Columns], None]
"""A function of (table, columns) that adds rows to write."""

Append = Callable[[str, Sequence[Row]], None]
"""A function of (table, rows) that adds rows to write."""


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str)


def to_json(value: object) -> str:
    """Returns compact JSON; values that JSON cannot represent become text."""
    return _JSON.encode(value)
