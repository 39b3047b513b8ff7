"""Limits of what is kept: a number of bytes on disk, or the content of a circular buffer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tfdbg_arrow.spool.convert import EVENT_TABLES, Converter
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.records import Batch, Kind, pick
from tfdbg_arrow.spool.ring import Ring, bad_positions
from tfdbg_arrow.storage.manifest import ManifestEntry
from tfdbg_arrow.writer.sink.parts import PartWriter

NUM_GRAINS = 16
"""Number of pieces into which a budget is divided; segments are merged up to the size of one piece."""
_MAX_SMALL = 32
"""If there are more small segments than this, neighbouring ones are merged."""
_REST = 10
"""After a snapshot, the next one for a bad value waits this many times as long as the snapshot took."""


@dataclass(frozen=True, kw_only=True)
class _Segment:
    first_event: int
    last_event: int
    parts: dict[str, tuple[ManifestEntry, ...]]
    """Parts by table."""
    is_pinned: bool

    @property
    def size_bytes(self) -> int:
        return sum(entry.bytes for entries in self.parts.values() for entry in entries)


class Budget:
    """Keeps the parts of events of one run within a number of bytes.

    A segment consists of the parts of one batch of events. The first segments, up to half of the budget, are kept, and
    so are the last ones. If the sum grows too large, the oldest segment between them is dropped, with its parts of all
    tables at once. Segments that hold a first bad value are also kept. Neighbouring small segments are merged.

    Args:
        parts: The run's parts.
        max_bytes: The limit.
    """

    def __init__(self, parts: PartWriter, *, max_bytes: int) -> None:
        self._parts = parts
        self.max_bytes = max_bytes
        self._grain = max_bytes // NUM_GRAINS
        self._segments: list[_Segment] = []
        self._seen_kinds: set[str] = set()
        self._dropped: list[tuple[int, int]] = []
        self._dropped_rows: dict[str, int] = {}

    @property
    def has_dropped(self) -> bool:
        """Whether any segment has been dropped."""
        return bool(self._dropped)

    def is_too_large(self, tables: Mapping[str, pa.Table]) -> bool:
        """Returns whether a batch of events must be split before it is written."""
        return bool(sum(table.nbytes for table in tables.values()) > self._grain)

    def holds_first_bad(self, batch: Batch) -> bool:
        """Returns whether a batch holds the first infinity or the first NaN; call it once for each batch."""
        kinds = {kind for kind, positions in bad_positions(batch).items() if len(positions)}
        is_first = bool(kinds - self._seen_kinds)
        self._seen_kinds |= kinds
        return is_first

    def add(self, entries: Sequence[ManifestEntry], *, first_event: int, last_event: int, is_pinned: bool) -> None:
        """Adds the parts of one batch of events, and drops and merges segments as needed.

        Args:
            entries: The parts, at most one for each table.
            first_event: The smallest event_index of the batch.
            last_event: The largest event_index of the batch.
            is_pinned: Whether the parts are kept regardless of the sum.

        Raises:
            OSError: The manifest or a merged part cannot be written.
            BrokenPartError: A part was changed after it was written.
        """
        parts: dict[str, tuple[ManifestEntry, ...]] = {entry.table: (entry,) for entry in entries}
        self._segments.append(
            _Segment(first_event=first_event, last_event=last_event, parts=parts, is_pinned=is_pinned)
        )
        self._enforce()
        self._merge_small()

    def summary(self) -> list[tuple[str, str, int]]:
        """Returns (table, reason, number of rows) for each table with dropped rows."""
        ranges = ", ".join(f"{first} to {last}" for first, last in _joined(self._dropped))
        reason = f"To stay within max_bytes={self.max_bytes}, the middle of the run was dropped: the events {ranges}."
        return [(table, reason, rows) for table, rows in self._dropped_rows.items()]

    def _enforce(self) -> None:
        """Drops segments beyond the limit; two grains stay free for the next writes and merges."""
        total = sum(segment.size_bytes for segment in self._segments)
        while total > self.max_bytes - 2 * self._grain:
            segment = self._least_wanted()
            if segment is None:
                return
            total -= segment.size_bytes
            self._drop(segment)

    def _least_wanted(self) -> _Segment | None:
        """Returns the segment to drop next, or None if nothing is left to drop.

        This is the oldest segment after the first half of the budget or, if there is none, another segment.
        """
        head, num_head = 0, 0
        for segment in self._segments:
            head += segment.size_bytes
            is_behind = bool(self._dropped) and segment.first_event > min(self._dropped)[0]
            if is_behind or head > self.max_bytes // 2:
                break
            num_head += 1
        middle = [*self._segments[num_head:-1], *reversed(self._segments[:num_head]), *self._segments[-1:]]
        loose = next((segment for segment in middle if not segment.is_pinned), None)
        if loose is not None:
            return loose
        # Pinned segments lose their elements last; they are kept for their health rows.
        return next((_only(segment, "tensor_value") for segment in middle if "tensor_value" in segment.parts), None)

    def _drop(self, segment: _Segment) -> None:
        self._parts.drop([entry.path for entries in segment.parts.values() for entry in entries])
        self._dropped.append((segment.first_event, segment.last_event))
        for table, entries in segment.parts.items():
            rows = sum(entry.rows for entry in entries)
            self._dropped_rows[table] = self._dropped_rows.get(table, 0) + rows
        self._segments = [left for each in self._segments if (left := _without(each, segment)).parts]

    def _merge_small(self) -> None:
        """Merges neighbouring segments up to the size of a grain, if there are many small ones."""
        small = [segment for segment in self._segments if not segment.is_pinned and segment.size_bytes < self._grain]
        if len(small) <= _MAX_SMALL:
            return
        merged: list[_Segment] = []
        group: list[_Segment] = []
        size = 0
        for segment in self._segments:
            fits = segment in small and size + segment.size_bytes <= self._grain
            if group and not fits:
                merged.append(self._merge(group))
                group, size = [], 0
            if segment in small:
                group.append(segment)
                size += segment.size_bytes
            else:
                merged.append(segment)
        if group:
            merged.append(self._merge(group))
        self._segments = merged

    def _merge(self, group: Sequence[_Segment]) -> _Segment:
        if len(group) == 1:
            return group[0]
        parts = {}
        for table in EVENT_TABLES:
            entries = tuple(entry for segment in group for entry in segment.parts.get(table, ()))
            if entries:
                parts[table] = self._parts.merge(table, [entry.path for entry in entries])
        return _Segment(first_event=group[0].first_event, last_event=group[-1].last_event, parts=parts, is_pinned=False)


class Snapshot:
    """A circular buffer and the parts with its last written content. Not thread-safe; the caller must serialise calls.

    Args:
        size: Number of executions, and number of graph tensors, that the buffer holds.
        parts: The run's parts.
        converter: Converts the content of the buffer into tables.

    Attributes:
        has_changed: Whether the content of the buffer differs from the parts.
    """

    def __init__(self, size: int, *, parts: PartWriter, converter: Converter) -> None:
        self._ring = Ring(size)
        self._parts, self._converter = parts, converter
        self._paths: list[str] = []
        self.has_changed = False
        self._next_s = 0.0

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> None:
        """Adds complete groups of records, with the elements by event_index."""
        self._ring.add(batch, values=values)
        self.has_changed = True

    @property
    def is_due(self) -> bool:
        """Whether the last snapshot was long enough ago to write another one for a bad value."""
        return time.monotonic() >= self._next_s

    def write(self, *, spool_upto: int, describe: Callable[[Batch], None]) -> None:
        """Writes the content of the buffer, if it has changed.

        Args:
            spool_upto: The event index after all events that were added.
            describe: Called to write the rows that the events refer to.

        Raises:
            OSError: The parts cannot be written; then those of the last snapshot remain live.
        """
        if not self.has_changed:
            return
        begin = time.monotonic()
        records, values = self._ring.content()
        batch = Batch(records)
        describe(batch)
        tables = self._converter.tables(batch, values=values)
        made = self._parts.replace(
            self._paths, {name: [table] for name, table in tables.items()}, spool_upto=spool_upto
        )
        self._paths = [entry.path for entry in made]
        self.has_changed = False
        self._next_s = time.monotonic() + _REST * (time.monotonic() - begin)

    def note_overwritten(self, failures: Failures) -> None:
        """Reports, at the end, the events that the buffer did not keep."""
        reason = "The circular buffer kept only the last ones, as requested."
        for subject, count in (
            ("execution", self._ring.num_overwritten_executions),
            ("graph tensor", self._ring.num_overwritten_graph_tensors),
        ):
            if count:
                failures.note("dropped", subject, reason, count, reason_code="circular_buffer")


def split_in_two(batch: Batch) -> list[Batch]:
    """Splits a batch into two halves of complete groups of records; returns an empty list for a batch of one group.

    If the batch has several executions, the split is between executions.
    """
    heads = np.flatnonzero(batch.heads == np.arange(len(batch)))
    if len(heads) < 2:
        return []
    kinds = batch.kind[heads]
    begins = np.isin(kinds[1:], (Kind.EXECUTION, Kind.EXTERNAL_TENSOR)) & (kinds[:-1] != Kind.EXTERNAL_TENSOR)
    choices = heads[1:][begins] if begins.any() else heads[1:]
    cut = int(choices[np.abs(choices - len(batch) // 2).argmin()])
    return [Batch(pick(batch.records, np.arange(cut))), Batch(pick(batch.records, np.arange(cut, len(batch))))]


def _only(segment: _Segment, table: str) -> _Segment:
    return replace(segment, parts={table: segment.parts[table]})


def _without(segment: _Segment, dropped: _Segment) -> _Segment:
    gone = {entry.path for entries in dropped.parts.values() for entry in entries}
    kept = {table: tuple(e for e in entries if e.path not in gone) for table, entries in segment.parts.items()}
    return replace(segment, parts={table: entries for table, entries in kept.items() if entries})


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ranges in order, with adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
