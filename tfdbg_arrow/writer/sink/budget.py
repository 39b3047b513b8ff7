"""The limit `max_bytes`: how many bytes of events a run keeps on disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from tfdbg_arrow.spool.circular_buffer import bad_positions
from tfdbg_arrow.spool.convert import EVENT_TABLES
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.records import Batch, Kind, pick
from tfdbg_arrow.storage.manifest import ManifestEntry
from tfdbg_arrow.writer.sink.backlog import OnWritten
from tfdbg_arrow.writer.sink.parts import PartWriter

NUM_GRAINS = 16
"""A budget is divided into this many pieces; segments are merged up to the size of one piece."""
_MAX_SMALL = 32
"""If there are more small segments than this, neighbouring ones are merged."""


@dataclass(kw_only=True, eq=False)
class _Segment:
    first_event: int
    last_event: int
    is_pinned: bool
    parts: dict[str, list[ManifestEntry]] = field(default_factory=dict)
    """Parts by table."""

    @property
    def size_bytes(self) -> int:
        return sum(entry.bytes for entries in self.parts.values() for entry in entries)


class Budget:
    """Keeps the parts of events of one run within a number of bytes.

    A segment consists of the parts of one batch of events. The first segments, up to half of the budget, and the last
    segments are kept. If the sum grows too large, the oldest segment in the middle is dropped, with its parts of all
    tables. Segments that hold a first bad value are also kept. Neighbouring small segments are merged.

    A budget and a circular buffer cannot replace each other. The buffer counts events before they are written, and
    holds them in memory. The compressed size of events is known only once their parts are on disk, and the parts may be
    too large for memory.

    Args:
        parts: The run's parts.
        failures: Reports the dropped rows.
        max_bytes: The limit.
    """

    def __init__(self, parts: PartWriter, *, failures: Failures, max_bytes: int) -> None:
        self._parts, self._failures, self._max_bytes = parts, failures, max_bytes
        self._grain = max_bytes // NUM_GRAINS
        self._segments: list[_Segment] = []
        self._seen_kinds: set[str] = set()
        self._dropped: list[tuple[int, int]] = []
        self._dropped_rows: dict[str, int] = {}

    def is_too_large(self, tables: Mapping[str, pa.Table]) -> bool:
        """Returns whether a batch of events must be split before it is written."""
        return bool(sum(table.nbytes for table in tables.values()) > self._grain)

    def segment(self, batch: Batch) -> OnWritten:
        """Returns the function to call with each part of a batch of events; call this once for each batch, in order."""
        kinds = {kind for kind, positions in bad_positions(batch).items() if len(positions)}
        is_pinned = bool(kinds - self._seen_kinds)
        self._seen_kinds |= kinds
        first, last = int(batch.event_index[0]), int(batch.event_index[-1])
        return partial(self._add, _Segment(first_event=first, last_event=last, is_pinned=is_pinned))

    def note_dropped(self) -> None:
        """Reports, at the end, the number of dropped rows of each table."""
        ranges = ", ".join(f"{first} to {last}" for first, last in _joined(self._dropped))
        reason = f"To stay within max_bytes={self._max_bytes}, the middle of the run was dropped: the events {ranges}."
        for table, rows in self._dropped_rows.items():
            self._failures.note("dropped", f"table {table}", reason, rows, reason_code="max_bytes")

    def _add(self, segment: _Segment, entry: ManifestEntry) -> None:
        """Adds a part, and drops and merges segments as needed."""
        if segment not in self._segments:
            self._segments.append(segment)
        segment.parts.setdefault(entry.table, []).append(entry)
        with self._failures.caught("max_bytes"):
            self._enforce()
            self._merge_small()

    def _enforce(self) -> None:
        """Drops segments beyond the limit; two grains stay free for the next writes and merges."""
        while sum(segment.size_bytes for segment in self._segments) > self._max_bytes - 2 * self._grain:
            segments = self._least_wanted_first()
            if loose := next((segment for segment in segments if not segment.is_pinned), None):
                self._drop(loose, tuple(loose.parts))
            # Pinned segments lose their elements last; they are kept for their health rows.
            elif pinned := next((segment for segment in segments if "tensor_value" in segment.parts), None):
                self._drop(pinned, ["tensor_value"])
            else:
                return

    def _least_wanted_first(self) -> list[_Segment]:
        """Returns the segments in the order of dropping: the oldest segment after the first half comes first."""
        head, num_head = 0, 0
        for segment in self._segments:
            head += segment.size_bytes
            is_behind = bool(self._dropped) and segment.first_event > min(self._dropped)[0]
            if is_behind or head > self._max_bytes // 2:
                break
            num_head += 1
        return [*self._segments[num_head:-1], *reversed(self._segments[:num_head]), *self._segments[-1:]]

    def _drop(self, segment: _Segment, tables: Collection[str]) -> None:
        self._parts.drop([entry.path for table in tables for entry in segment.parts[table]])
        if not self._dropped:
            reason = f"To stay within max_bytes={self._max_bytes}, the middle of the run is dropped from here on."
            self._failures.note("dropped", "events", reason, None, reason_code="max_bytes")
        self._dropped.append((segment.first_event, segment.last_event))
        for table in tables:
            rows = sum(entry.rows for entry in segment.parts.pop(table))
            self._dropped_rows[table] = self._dropped_rows.get(table, 0) + rows
        self._segments = [left for left in self._segments if left.parts]

    def _merge_small(self) -> None:
        """Merges neighbouring segments up to the size of a grain, if there are many small ones."""
        # The last segment may still get parts.
        small = [
            segment for segment in self._segments[:-1] if not segment.is_pinned and segment.size_bytes < self._grain
        ]
        if len(small) <= _MAX_SMALL:
            return
        groups: list[list[_Segment]] = [[]]
        for segment in self._segments[:-1]:
            size = sum(member.size_bytes for member in [*groups[-1], segment])
            if segment not in small or size > self._grain:
                groups.append([])
            if segment in small:
                groups[-1].append(segment)
        for group in groups:
            if len(group) > 1:
                self._merge(group)

    def _merge(self, group: Sequence[_Segment]) -> None:
        """Merges the parts of segments into the first segment."""
        first, *others = group
        first.last_event = group[-1].last_event
        for table in EVENT_TABLES:
            entries = [entry for segment in group for entry in segment.parts.get(table, ())]
            if entries:
                is_one = len(entries) == 1
                first.parts[table] = entries if is_one else [*self._parts.merge(table, [e.path for e in entries])]
                for segment in others:
                    segment.parts.pop(table, None)
        self._segments = [segment for segment in self._segments if segment not in others]


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


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns ranges in order, with adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
