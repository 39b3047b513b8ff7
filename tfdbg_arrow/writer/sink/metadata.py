"""The queue of rows of the tables that describe a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.metadata_table import checked_column_tables, checked_tables, rows_of_columns
from tfdbg_arrow.writer.rows import Columns

Redact = Callable[[str, Sequence[Mapping[str, object]]], Sequence[Mapping[str, object]]]
"""A function of (table, rows) that returns the rows after redaction."""

_T = TypeVar("_T")

_ROWS_AN_ENTRY = 1_000
"""Number of rows per entry of the journal."""


class MetadataQueue:
    """A queue of rows, which are taken out as tables. `append` may be called from any thread.

    Args:
        run_id: The run.
        failures: Supplies rows of capture_stat, and counts rows that are not valid in their table.
        journal: The journal in which the rows outlive the process.
        redact: Changes the rows before anything is written; None means no change.

    Attributes:
        taken_upto: Offset of the journal up to which the rows have been taken.
    """

    def __init__(self, run_id: str, *, failures: Failures, journal: Journal, redact: Redact | None = None) -> None:
        self._run_id = run_id
        self._failures = failures
        self._redact = redact
        self._journal = journal
        self._rows: list[tuple[str, Mapping[str, object]]] = []
        self._columns: list[tuple[str, Columns]] = []
        self.taken_upto = 0
        # Reentrant, because a finalizer may append while the same thread does.
        self._lock = threading.RLock()

    def append(self, table: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Adds rows of a table; when this returns, the rows outlive the process."""
        if self._redact is not None:
            rows = self._redact(table, rows)
        with self._lock:
            for start in range(0, len(rows), _ROWS_AN_ENTRY):
                self._journal.append(*_journal_entry(table, rows[start : start + _ROWS_AN_ENTRY]))
            self._rows.extend((table, row) for row in rows)

    def append_columns(self, table: str, columns: Columns) -> None:
        """Does the same as `append` for many rows, without the cost of one dictionary per row."""
        num_rows = len(next(iter(columns.values())))
        if self._redact is not None:
            self.append(table, rows_of_columns(columns))
            return
        with self._lock:
            for start in range(0, num_rows, _ROWS_AN_ENTRY):
                piece = {name: values[start : start + _ROWS_AN_ENTRY] for name, values in columns.items()}
                self._journal.append("columns", table, piece)
            self._columns.append((table, columns))

    def __len__(self) -> int:
        return len(self._rows) + len(self._columns)

    def take(self, num_events: int) -> Iterator[tuple[str, pa.Table, int]]:
        """Yields the rows added since the last call, as (table name, table, end offset in the journal).

        Args:
            num_events: The event_index for the rows of capture_stat about failures since the last call.

        Raises:
            OSError: The size of the journal cannot be determined; nothing was taken.
        """
        notes = self._failures.take_notes()
        if notes:
            self.append("capture_stat", [_stat_row(*note, num_events) for note in notes])
        with self._lock:
            self.taken_upto = upto = self._journal.size()
            taken, self._rows = self._rows, []
            taken_columns, self._columns = self._columns, []
        for table, pieces in _grouped(taken_columns).items():
            joined = {name: list(chain.from_iterable(piece[name] for piece in pieces)) for name in pieces[0]}
            for data in checked_column_tables(table, joined, run_id=self._run_id, failures=self._failures):
                yield table, data, upto
        for table, rows in _grouped(taken).items():
            for data in checked_tables(table, rows, run_id=self._run_id, failures=self._failures):
                yield table, data, upto


def _journal_entry(table: str, rows: Sequence[Mapping[str, object]]) -> tuple[str, str, object]:
    """Returns the journal entry for rows: as columns, which are shorter, if all rows have the same columns."""
    names = rows[0].keys()
    if len(rows) == 1 or any(row.keys() != names for row in rows):
        return "rows", table, rows
    return "columns", table, {name: [row[name] for row in rows] for name in names}


def _grouped(entries: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    by_table: dict[str, list[_T]] = {}
    for table, entry in entries:
        by_table.setdefault(table, []).append(entry)
    return by_table


def _stat_row(stat: str, subject: str, reason: str, num_events: int | None, event_index: int) -> dict[str, object]:
    return {
        "event_index": event_index,
        "wall_time_ns": time.time_ns(),
        "stat": stat,
        "subject": subject,
        "reason": reason,
        "num_events": num_events,
    }
