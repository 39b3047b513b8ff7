"""The data between the spool and the parts: rows that describe the run, rows to be written, and slots to be freed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow as pa

from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.parquet import LONG_TEXTS
from tfdbg_arrow.spool.convert import checked_tables, columns_of_rows, rows_of_columns
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import ValueReader
from tfdbg_arrow.storage.disk import MIN_HOLE_BYTES
from tfdbg_arrow.storage.manifest import ManifestEntry
from tfdbg_arrow.writer.backend import Backend
from tfdbg_arrow.writer.interruptions import at_once
from tfdbg_arrow.writer.rows import Columns
from tfdbg_arrow.writer.sink.parts import PartWriter

_COLUMN_BYTES = 2048
"""Memory that a column takes in addition to its values. This memory matters because a long backlog consists of many
small tables."""
Redact = Callable[[str, Sequence[Mapping[str, object]]], Sequence[Mapping[str, object]]]
"""A function of (table, rows) that returns the rows after redaction."""
OnWritten = Callable[[ManifestEntry], None]
"""Called with a part once it is written."""
_ROWS_AN_ENTRY = 1_000
"""Number of rows per entry of the journal."""
_ORDER = {table.name: number for number, table in enumerate(TABLES)}
"""The place of each table. A table comes after the tables that it refers to."""
_PART_SHARE = 1 / 3
"""Share of the limit for waiting rows that a part with the rows of several items may take. Parquet's writer buffers the
rows of a part."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    """Rows that wait to be written."""

    table: str
    data: pa.Table
    is_event: bool
    spool_upto: int
    on_written: OnWritten | None = None

    @property
    def size_bytes(self) -> int:
        return int(self.data.nbytes + _COLUMN_BYTES * self.data.num_columns)


class Backlog:
    """The waiting rows of one run, in order. Not thread-safe; the caller must serialise calls.

    Rows that could not be written stay for the next attempt. Beyond a limit, the oldest rows are dropped, and the loss
    is recorded in capture_stat.

    Args:
        parts: The run's parts.
        failures: Collects the failures.
        max_bytes: Maximum bytes of waiting events, and of other waiting rows. Beyond this limit, the oldest rows are
            dropped.
    """

    def __init__(self, parts: PartWriter, *, failures: Failures, max_bytes: int) -> None:
        self._parts = parts
        self._failures = failures
        self._max_bytes = max_bytes
        self._waiting: deque[_Waiting] = deque()
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
        """Adds rows that describe the run; `spool_upto` is the offset in the journal of rows where these rows end."""
        self._waiting.append(_Waiting(table=table, data=data, is_event=False, spool_upto=spool_upto))

    def add_events(
        self, tables: Mapping[str, pa.Table], *, spool_upto: int, on_written: OnWritten | None = None
    ) -> None:
        """Adds the rows of a batch of events, by table; `spool_upto` is the event index where the batch ends."""
        for table, data in tables.items():
            item = _Waiting(table=table, data=data, is_event=True, spool_upto=spool_upto, on_written=on_written)
            self._waiting.append(item)

    def write(self) -> set[str]:
        """Writes all rows until a write fails; returns the tables whose rows no longer wait.

        Rows that describe the run are written before events, and each table before the tables that refer to it. So
        rows never refer to rows that a reader does not find. Parts are written together if possible, because that takes
        fewer syncs; if that fails, each part is written alone.
        """
        tables: set[str] = set()
        batches = deque(_batches(self._groups()))
        while batches:
            groups = batches.popleft()
            try:
                self._write_groups(groups)
            except Exception as error:
                if len(groups) > 1:
                    batches.extendleft([group] for group in reversed(groups))
                    continue
                if isinstance(error, OSError):
                    self._failures.add("write", error)
                    break
                num_rows = sum(item.data.num_rows for item in groups[0])
                self._failures.add(f"table {groups[0][0].table}", error, num_events=num_rows)
                self.num_lost += num_rows
            for item in chain.from_iterable(groups):
                self._waiting.remove(item)
                tables.add(item.table)
        return tables

    def _write_groups(self, groups: Sequence[Sequence[_Waiting]]) -> None:
        """Writes one part for each group of waiting rows. The groups have different tables."""
        entries = self._parts.write_tables(
            {items[0].table: pa.concat_tables([item.data for item in items]) for items in groups},
            spool_upto={items[0].table: items[-1].spool_upto for items in groups},
        )
        for items, entry in zip(groups, entries, strict=True):
            if items[0].on_written is not None:
                items[0].on_written(entry)

    def _groups(self) -> list[list[_Waiting]]:
        """Returns the waiting rows in the order in which they are to be written, each group for one part."""
        groups: list[list[_Waiting]] = []
        size_bytes = 0
        for item in sorted(self._waiting, key=_place):
            last = groups[-1][-1] if groups else None
            size_bytes += item.size_bytes
            is_joined = (
                last is not None
                and (last.is_event, last.table) == (item.is_event, item.table)
                and item.on_written is None
                and size_bytes <= self._max_bytes * _PART_SHARE
            )
            if is_joined:
                groups[-1].append(item)
            else:
                groups.append([item])
                size_bytes = item.size_bytes
        return groups

    def bound(self) -> None:
        """Drops the oldest events and the oldest metadata beyond the limit; each of the two has this limit."""
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
        """Reports dropped rows.

        Call this only when parts can be written again; otherwise the reports fill the backlog.
        """
        for table, count in self._evicted.items():
            reason = "Parts could not be written, and the limit for waiting rows was reached."
            self._failures.note("dropped", f"table {table}", reason, count, reason_code="parts_unwritable")
        self._evicted.clear()


def _batches(groups: Sequence[list[_Waiting]]) -> list[list[list[_Waiting]]]:
    """Divides groups into batches of parts that can be written together, in the order of the groups.

    A batch has at most one group of each table. With a limit on the disk space of events, each part must be accounted
    before the next part is written.
    """
    batches: list[list[list[_Waiting]]] = []
    for group in groups:
        is_alone = not batches or any(
            other[0].table == group[0].table or other[0].on_written is not None for other in batches[-1]
        )
        if is_alone or group[0].on_written is not None:
            batches.append([group])
        else:
            batches[-1].append(group)
    return batches


def _place(item: _Waiting) -> tuple[bool, int]:
    """Returns the sort key for the order in which items are written."""
    # With a limit on the disk space of events, a batch must be complete before the next batch.
    return item.is_event, 0 if item.on_written is not None else _ORDER[item.table]


class MetadataQueue:
    """A queue of rows, which are taken out as tables. `append` may be called from any thread.

    Args:
        run_id: The run.
        failures: Supplies rows of capture_stat, and counts rows that are not valid in their table.
        journal: The journal, which keeps the rows if the process dies. Its lock is held while rows are added.
        redact: Changes the rows before anything is written; None means no change.

    Attributes:
        taken_upto: The rows before this offset of the journal have been taken.
    """

    def __init__(self, run_id: str, *, failures: Failures, journal: Journal, redact: Redact | None = None) -> None:
        self._run_id = run_id
        self._failures = failures
        self._redact = redact
        self._journal = journal
        self._columns: list[tuple[str, Columns]] = []
        self.taken_upto = 0

    def append(self, table: str, rows: Sequence[Mapping[str, object]], /, *notes: Callable[[], object]) -> None:
        """Adds rows of a table, and calls the notes (see Append); when this returns, the rows outlive the process.

        The rows are mappings from column name to value, without `run_id`, and without a `wall_time` that follows from
        `wall_time_ns`.
        """
        self.append_columns(table, columns_of_rows(rows), *notes)

    def append_columns(self, table: str, columns: Columns, /, *notes: Callable[[], object]) -> None:
        """Does the same as `append` for many rows, without the cost of one dictionary per row."""
        if self._redact is not None:
            columns = columns_of_rows(self._redact(table, rows_of_columns(columns)))
        with self._journal.lock:
            self._write_journal(table, columns)
            at_once(partial(self._columns.append, (table, columns)), *notes)

    def _write_journal(self, table: str, columns: Columns) -> None:
        """Writes rows to the journal; a row with a long text gets an entry of its own."""
        long_text = next((name for name in columns if name in LONG_TEXTS), None)
        num_rows = _ROWS_AN_ENTRY if long_text is None else 1
        for start in range(0, _num_rows(columns), num_rows):
            piece = {name: values[start : start + num_rows] for name, values in columns.items()}
            if long_text is not None and isinstance(text := piece[long_text][0], str):
                del piece[long_text]
                self._journal.append("columns", table, piece, long_text, text=text)
            else:
                self._journal.append("columns", table, piece)

    def __len__(self) -> int:
        return len(self._columns)

    def take(self, num_events: int) -> Iterator[tuple[str, pa.Table, int]]:
        """Yields the rows added since the last call, as (table name, table, end offset in the journal).

        Args:
            num_events: The event_index for the rows of capture_stat about failures since the last call.

        Raises:
            OSError: The size of the journal cannot be determined; nothing was taken.
        """
        notes = self._failures.take_notes()
        if notes:
            position = {"event_index": num_events, "wall_time_ns": time.time_ns()}
            self.append("capture_stat", [{**position, **note} for note in notes])
        with self._journal.lock:
            self.taken_upto = upto = self._journal.size()
            taken, self._columns = self._columns, []
        by_table: dict[str, list[Columns]] = {}
        for table, columns in taken:
            by_table.setdefault(table, []).append(columns)
        for table, pieces in by_table.items():
            for data in checked_tables(table, _joined(pieces), run_id=self._run_id, failures=self._failures):
                yield table, data, upto


def _num_rows(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _joined(pieces: Sequence[Columns]) -> Columns:
    """Joins the rows of pieces; a column that a piece lacks becomes None in its rows."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {
        name: list(chain.from_iterable(piece[name] if name in piece else [None] * _num_rows(piece) for piece in pieces))
        for name in names
    }


class SpoolUse:
    """Frees slots and the space of values and rows. Not thread-safe; the caller must serialise calls.

    Args:
        recorder: The recorder that owns the slots.
        rows: The journal of rows. The journal also stores the state of freed events that later events need.
        values: Frees the elements of tensors.
        is_lazy: Whether events may stay in memory for a long time before they are in parts, as with a circular buffer.
            With `is_lazy`, as many slots as possible are kept, so that the last events are in the spool if the process
            dies.
    """

    def __init__(self, recorder: Backend, rows: Journal, *, values: ValueReader, is_lazy: bool) -> None:
        self._recorder, self._rows, self._values = recorder, rows, values
        self._is_lazy = is_lazy
        self._capacity = recorder.capacity()
        self._taken: deque[tuple[int, dict[str, object]]] = deque()
        """For each batch, the event index at its end, and the state of the call join at that point."""
        self._newest = 0
        self._tail: tuple[int, dict[str, object]] = (0, {})
        self._has_new_tail = False
        self._state_offset = self._rows_upto = 0

    def take(self, upto: int, state: dict[str, object]) -> None:
        """Registers a batch that ends before an event index, with the state of the call join at that point."""
        self._newest = upto
        self._taken.append((upto, state))

    def release(self, *, rows_upto: int, is_all_written: bool) -> None:
        """Frees slots and space that are no longer needed.

        Args:
            rows_upto: The rows before this offset of the journal have been taken.
            is_all_written: Whether everything that was taken is in sealed parts. If not, a write failed: the data stays
                in memory, and slots are freed only if few are free, so that the program does not have to wait.

        Raises:
            OSError: The size of the journal cannot be determined; nothing was freed.
        """
        if is_all_written:
            self._rows_upto = rows_upto
        limit = self._limit(is_all_written=is_all_written)
        while self._taken and self._taken[0][0] <= limit:
            self._tail, self._has_new_tail = self._taken.popleft(), True
        self._values.release(self._newest if self._is_lazy else self._tail[0])
        if self._has_new_tail or rows_upto - self._state_offset >= MIN_HOLE_BYTES:
            # The state comes first, then the tail, then the rows, so that the tail's state exists whenever the process
            # dies.
            offset = self._rows.size()
            if self._rows.append("tail", *self._tail):
                self._state_offset = offset
                self._has_new_tail = False
            elif not self._is_short():
                return
        rows_end = min(self._rows_upto, self._state_offset)
        self._recorder.release(self._tail[0], rows_end)
        self._rows.release(rows_end)

    def _is_short(self) -> bool:
        return self._recorder.num_free() < self._capacity // 4

    def _limit(self, *, is_all_written: bool) -> int:
        """Returns the event index before which all slots are freed."""
        if self._is_short():
            return self._newest
        if not is_all_written:
            return 0
        return self._newest - self._capacity // 2 if self._is_lazy else self._newest
