"""Rows of the tables that describe a run, on their way to its parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.writer.sink.failures import Failures


class MetadataQueue:
    """Rows that were given, until they are taken as tables. `append` may be called from any thread.

    Args:
        run_id: The run.
        failures: Keeps rows of capture_stat, and counts the rows that are no rows of their table.
    """

    def __init__(self, run_id: str, *, failures: Failures) -> None:
        self._run_id = run_id
        self._failures = failures
        self._rows: list[tuple[str, Mapping[str, object]]] = []
        self._lock = threading.Lock()

    def append(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Takes rows of a table."""
        with self._lock:
            self._rows.extend((table, row) for row in rows)

    def take(self, num_events: int) -> Iterator[tuple[str, pa.Table]]:
        """Yields what was given since the last call, by table.

        Args:
            num_events: The event_index of what went wrong meanwhile.
        """
        with self._lock:
            taken, self._rows = self._rows, []
        taken += [("capture_stat", _stat_row(*note, num_events)) for note in self._failures.take_notes()]
        by_table: dict[str, list[Mapping[str, object]]] = {}
        for table, row in taken:
            by_table.setdefault(table, []).append(row)
        for table, rows in by_table.items():
            for data in self._tables(table, rows):
                yield table, data

    def _tables(self, table: str, rows: list[Mapping[str, object]]) -> Iterator[pa.Table]:
        try:
            yield metadata_table(table, rows, run_id=self._run_id)
        except Exception as error:
            if len(rows) == 1:
                self._failures.add(f"table {table}", error, num_events=1)
                return
            for row in rows:  # keep the good ones
                yield from self._tables(table, [row])


def _stat_row(stat: str, subject: str, reason: str, num_events: int | None, event_index: int) -> dict[str, object]:
    return {
        "event_index": event_index,
        "wall_time_ns": time.time_ns(),
        "stat": stat,
        "subject": subject,
        "reason": reason,
        "num_events": num_events,
    }


def metadata_table(name: str, rows: Sequence[Mapping[str, object]], *, run_id: str) -> pa.Table:
    """Makes a table of rows given as mappings.

    Args:
        name: Name of the table.
        rows: Column name to value; `run_id` is set here, `wall_time` is made of `wall_time_ns`
            where it is missing, another missing column is NULL.
        run_id: The run.

    Raises:
        ValueError: A column does not exist, or NULL stands where the declaration has none.
        pa.ArrowException: A value is not of its column's type.
    """
    schema = arrow_schema(name)
    unknown = sorted({key for row in rows for key in row} - set(schema.names))
    if unknown:
        raise ValueError(f"rows for table {name} have the columns {unknown}, expected among {schema.names}")
    arrays = []
    for field in schema:
        values: list[object] = [row.get(field.name) for row in rows]
        if field.name == "run_id":
            values = [run_id] * len(rows)
        elif field.name == "wall_time":
            times = [row.get("wall_time_ns") for row in rows]
            cut = [time // 1000 if isinstance(time, int) else None for time in times]
            values = [given if given is not None else us for given, us in zip(values, cut, strict=True)]
        array = pa.array(values, type=field.type)
        if array.null_count and not field.nullable:
            raise ValueError(f"rows for table {name} have NULL in {field.name}, expected a value in each row")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)
