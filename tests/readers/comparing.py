"""Compares the rows that other programs read with those of the query layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.schema.declaration import Type

CONDITIONS = ("num_nan > 0", "isnan(max_finite)", "min_finite > 100")
"""Conditions on rows of tensor_health, as DuckDB and DataFusion read them."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What a reader does to values of every file, whoever wrote it.

    Attributes:
        null_is_nan: It shows NULL as NaN in columns of floats.
        null_list_is_empty: It shows a list that is NULL as an empty list.
        nan_is_greatest: In comparisons, NaN is greater than all numbers, as in DuckDB; otherwise they are false.
    """

    null_is_nan: bool = False
    null_list_is_empty: bool = False
    nan_is_greatest: bool = True


def rows_of_logdir(logdir: Path) -> dict[str, pa.Table]:
    """Returns the rows of each table, as the query layer reads them."""
    with open_logdir(logdir) as opened:
        return {table.name: opened.arrow(f'SELECT * FROM "{table.name}"') for table in TABLES}


def num_rows(logdir: Path, condition: str, habits: Habits) -> int:
    """Returns how many rows of tensor_health meet one of the conditions."""
    if condition == "isnan(max_finite)" and habits.null_is_nan:
        condition = "isnan(max_finite) OR max_finite IS NULL"
    if condition == "min_finite > 100" and not habits.nan_is_greatest:
        condition = "min_finite > 100 AND NOT isnan(min_finite)"
    with open_logdir(logdir) as opened:
        ((number,),) = opened.rows(f"SELECT count(*) FROM tensor_health WHERE {condition}")
    return int(number)


def assert_same_rows(found: pa.Table | pd.DataFrame, expected: pa.Table, of: Table, habits: Habits) -> None:
    """Checks that a reader returns the rows of a table, in any order.

    Integers of a column with NULLs may be floats, if these are the nearest: pandas does so.
    """
    found_columns, expected_columns = [], []
    for column in of.columns:
        read = [_plain(value, column.type, habits) for value in _values(found, column.name)]
        stored = [_plain(value, column.type, habits) for value in expected.column(column.name).to_pylist()]
        if column.type is Type.BIGINT and any(isinstance(value, float) for value in read):
            stored = [None if value is None else float(value) for value in stored]
        found_columns.append(read)
        expected_columns.append(stored)
    assert _sorted(found_columns) == _sorted(expected_columns), of.name


def _values(data: pa.Table | pd.DataFrame, name: str) -> list[Any]:
    if isinstance(data, pd.DataFrame):
        return data[name].tolist()
    column = data.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    return column.to_pylist()


def _plain(value: Any, type_: Type, habits: Habits) -> Any:
    if type_ is Type.BIGINT_LIST:
        if value is None or (isinstance(value, float) and value != value):
            return () if habits.null_list_is_empty else None
        return tuple(int(number) for number in value)
    if value is None or value is pd.NaT or value is pd.NA:
        return "NaN" if type_ is Type.DOUBLE and habits.null_is_nan else None
    if isinstance(value, float) and value != value:
        return "NaN" if type_ is Type.DOUBLE else None
    if type_ is Type.TIMESTAMP:
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if type_ is Type.BLOB:
        return bytes(value) if not isinstance(value, str) else value.encode()
    return bool(value) if type_ is Type.BOOLEAN else value


def _sorted(columns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return sorted(zip(*columns, strict=True), key=repr)
