"""The backlog, which holds rows until they are written as parts.

Rows that could not be written stay for the next attempt. Beyond a limit, the oldest rows are dropped, and the loss is
recorded in capture_stat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tfdbg_arrow.schema.manifest import ManifestEntry
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.writer.sink.budget import Budget
from tfdbg_arrow.writer.sink.parts import PartWriter

_COLUMN_BYTES = 2048
"""Memory that a column takes in addition to its values, which matters because long backlogs are many small tables."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitingBatch:
    """A batch of events whose rows wait, used if a budget limits the parts of events.

    Attributes:
        first_event: The first event_index of the batch.
        last_event: The last event_index of the batch.
        is_pinned: Whether the batch holds a first bad value, and must not be dropped.
        written: The parts of the batch that have been written so far.
    """

    first_event: int
    last_event: int
    is_pinned: bool
    written: list[ManifestEntry] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    """Rows that wait to be written."""

    table: str
    data: pa.Table
    is_event: bool
    spool_upto: int
    batch: WaitingBatch | None = None

    @property
    def size_bytes(self) -> int:
        return int(self.data.nbytes + _COLUMN_BYTES * self.data.num_columns)


class Backlog:
    """The rows of one run that wait, in order. Not thread-safe; the caller must serialise calls.

    Args:
        parts: The run's parts.
        budget: Limits the parts of events; None means no limit.
        failures: Collects what went wrong.
        max_bytes: Maximum bytes of waiting events, and of other waiting rows. Beyond it, the oldest are dropped.
    """

    def __init__(self, parts: PartWriter, *, budget: Budget | None, failures: Failures, max_bytes: int) -> None:
        self._parts = parts
        self._budget = budget
        self._failures = failures
        self._max_bytes = max_bytes
        self._waiting: deque[_Waiting] = deque()
        self._unfinished: list[WaitingBatch] = []
        self._evicted: dict[str, int] = {}
        self.num_lost = 0
        """Number of rows dropped so far."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_evicted(self) -> bool:
        """Whether rows were dropped and not yet reported."""
        return bool(self._evicted)

    def add_metadata(self, table: str, data: pa.Table, *, spool_upto: int) -> None:
        """Adds rows that describe the run; `spool_upto` is the offset in the journal of rows up to which they come."""
        self._waiting.append(_Waiting(table=table, data=data, is_event=False, spool_upto=spool_upto))

    def add_events(self, tables: Mapping[str, pa.Table], *, spool_upto: int, batch: WaitingBatch | None) -> None:
        """Adds the rows of a batch of events, by table; `spool_upto` is the event index up to which they come."""
        for table, data in tables.items():
            self._waiting.append(_Waiting(table=table, data=data, is_event=True, spool_upto=spool_upto, batch=batch))

    def write(self) -> set[str]:
        """Writes all rows in order until a write fails; returns the tables whose rows no longer wait."""
        tables = set()
        while self._waiting:
            item = self._waiting[0]
            try:
                entry = self._parts.write(item.table, item.data, spool_upto=item.spool_upto)
                if item.batch is not None:
                    if not item.batch.written:
                        self._unfinished.append(item.batch)
                    item.batch.written.append(entry)
            except OSError as error:
                self._failures.add("write", error)
                break
            except Exception as error:
                self._failures.add(f"table {item.table}", error, num_events=item.data.num_rows)
                self.num_lost += item.data.num_rows
            self._waiting.popleft()
            tables.add(item.table)
            if item.batch is not None and (not self._waiting or self._waiting[0].batch is not item.batch):
                self._keep_budget()
        if self._unfinished:  # the rest of a batch may have been dropped
            self._keep_budget()
        return tables

    def _keep_budget(self) -> None:
        """Passes batches whose parts are all written to the budget."""
        if self._budget is None:
            return
        waiting = {id(item.batch) for item in self._waiting}
        had_dropped = self._budget.has_dropped
        for batch in [batch for batch in self._unfinished if id(batch) not in waiting]:
            self._unfinished.remove(batch)
            with self._failures.caught("max_bytes"):
                self._budget.add(
                    batch.written,
                    first_event=batch.first_event,
                    last_event=batch.last_event,
                    is_pinned=batch.is_pinned,
                )
        if self._budget.has_dropped and not had_dropped:
            reason = (
                f"To stay within max_bytes={self._budget.max_bytes}, the middle of the run is dropped from here on."
            )
            self._failures.note("dropped", "events", reason, None)

    def bound(self) -> None:
        """Drops the oldest events and the oldest metadata beyond the limit, which applies to each of them."""
        for is_event in (True, False):
            waiting = [item for item in self._waiting if item.is_event is is_event]
            size = sum(item.size_bytes for item in waiting)
            for item in waiting:
                if size <= self._max_bytes:
                    break
                self._waiting.remove(item)
                size -= item.size_bytes
                self.num_lost += item.data.num_rows
                self._evicted[item.table] = self._evicted.get(item.table, 0) + item.data.num_rows

    def note_evicted(self) -> None:
        """Reports dropped rows. Call this only when parts can be written again, or the reports fill the backlog."""
        for table, count in self._evicted.items():
            reason = "Parts could not be written, and the limit for waiting rows was reached."
            self._failures.note("dropped", f"table {table}", reason, count)
        self._evicted.clear()
