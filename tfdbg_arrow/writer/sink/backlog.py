"""The backlog: rows that wait to be written as parts.

What the disk refuses stays for the next time, and beyond a bound the oldest rows are dropped, and told of.
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
"""What a column takes beside its values: what waits long is many small tables."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitingBatch:
    """What rows that wait are made of, where a budget looks after their parts.

    Attributes:
        first_event: Its first event_index.
        last_event: Its last event_index.
        is_pinned: Whether it holds a first bad value, and is never dropped.
        written: The parts that it has so far.
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
    """Rows that wait, in order, for one run. Not thread-safe: its caller serialises.

    Args:
        parts: The run's parts.
        budget: Looks after the parts of events; None: no bound is set for them.
        failures: What went wrong.
        max_bytes: Bytes of events that wait while parts cannot be written, and of other rows; beyond it the oldest are
            dropped.
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
        """Rows that were dropped so far."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_evicted(self) -> bool:
        """Whether rows were dropped of which nothing was told yet."""
        return bool(self._evicted)

    def add_metadata(self, table: str, data: pa.Table, *, spool_upto: int) -> None:
        """Takes rows that describe the run, which come from the journal of rows up to an offset."""
        self._waiting.append(_Waiting(table=table, data=data, is_event=False, spool_upto=spool_upto))

    def add_events(self, tables: Mapping[str, pa.Table], *, spool_upto: int, batch: WaitingBatch | None) -> None:
        """Takes the rows of a batch of events, by table, which come from the spool up to an event index."""
        for table, data in tables.items():
            self._waiting.append(_Waiting(table=table, data=data, is_event=True, spool_upto=spool_upto, batch=batch))

    def write(self) -> set[str]:
        """Writes all in order, until the disk refuses; returns the tables of what does not wait any more."""
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
        if self._unfinished:  # what came behind in a batch may have been dropped
            self._keep_budget()
        return tables

    def _keep_budget(self) -> None:
        """Hands over batches of which no part is still to be written."""
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
            reason = f"Beyond max_bytes={self._budget.max_bytes} the middle of the run is dropped from here on."
            self._failures.note("dropped", "events", reason, None)

    def bound(self) -> None:
        """Drops the oldest events, and the oldest metadata, beyond the bound that holds for each."""
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
        """Tells of dropped rows; not before parts can be written again, lest the telling fill the backlog."""
        for table, count in self._evicted.items():
            reason = "Parts could not be written, and no more rows could wait."
            self._failures.note("dropped", f"table {table}", reason, count)
        self._evicted.clear()
