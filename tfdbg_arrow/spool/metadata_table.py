"""Converts rows, given as mappings or columns, into tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.spool.failures import Failures


def checked_tables(
    name: str, rows: Sequence[Mapping[str, object]], *, run_id: str, failures: Failures
) -> Iterator[pa.Table]:
    """Yields tables of the valid rows; invalid rows are counted as failures.

    The arguments are those of `metadata_table`.
    """
    if not rows:
        return
    try:
        yield metadata_table(name, rows, run_id=run_id)
    except Exception as error:
        if len(rows) == 1:
            failures.add(f"table {name}", error, num_events=1)
            return
        for row in rows:  # keep the valid ones
            yield from checked_tables(name, [row], run_id=run_id, failures=failures)


def checked_column_tables(
    name: str, columns: Mapping[str, Sequence[object]], *, run_id: str, failures: Failures
) -> Iterator[pa.Table]:
    """Does the same as `checked_tables` for rows that are given as columns of equal length."""
    try:
        table = column_table(name, columns, run_id=run_id)
    except Exception:
        yield from checked_tables(name, rows_of_columns(columns), run_id=run_id, failures=failures)
    else:
        yield table


def rows_of_columns(columns: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Converts columns into rows; returns an empty list if they are not columns of equal length."""
    lists = [values for values in columns.values() if isinstance(values, (list, tuple))]
    if len(lists) < len(columns) or len({len(values) for values in lists}) != 1:
        return []
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


def column_table(name: str, columns: Mapping[str, Sequence[object]], *, run_id: str) -> pa.Table:
    """Makes a table from columns of equal length; the arguments and errors are those of `metadata_table`."""
    schema = arrow_schema(name)
    unknown = sorted(columns.keys() - set(schema.names))
    if unknown:
        raise ValueError(f"rows for table {name} have the columns {unknown}, expected among {schema.names}")
    num_rows = len(next(iter(columns.values()), ()))
    arrays = []
    for field in schema:
        values = columns.get(field.name, [None] * num_rows)
        if field.name == "run_id":
            values = [run_id] * num_rows
        elif field.name == "wall_time":
            times = columns.get("wall_time_ns", values)
            cut = [time // 1000 if isinstance(time, int) else None for time in times]
            values = [given if given is not None else us for given, us in zip(values, cut, strict=True)]
        array = pa.array(values, type=field.type)
        if array.null_count and not field.nullable:
            raise ValueError(f"rows for table {name} have NULL in {field.name}, expected a value in each row")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def metadata_table(name: str, rows: Sequence[Mapping[str, object]], *, run_id: str) -> pa.Table:
    """Makes a table from rows given as mappings.

    Args:
        name: Name of the table.
        rows: Mappings from column name to value. This function sets `run_id`, and computes a missing
            `wall_time` from `wall_time_ns`; other missing columns become NULL.
        run_id: The run.

    Raises:
        ValueError: A column does not exist, or a column that is not nullable is NULL.
        pa.ArrowException: A value does not have the type of its column.
    """
    names = {key for row in rows for key in row}
    if not names:
        names = {"run_id"}  # the length of a column gives the number of rows
    return column_table(name, {key: [row.get(key) for row in rows] for key in names}, run_id=run_id)
