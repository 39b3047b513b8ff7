"""Rows of the tables that describe a run, on their way to its parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.metadata_table import metadata_table


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
