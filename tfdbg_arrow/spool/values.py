"""Reads the recorded elements of tensors in bounded memory, and frees their space."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tfdbg_arrow.spool.batch import Batch, Ints
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.records import Flag, Kind

_MAX_VALUE_BYTES = 2**31 - 1
"""Maximum size of one value of a Parquet BLOB written by Arrow."""
_HOLE_PATIENCE_S = 10.0
"""How long to keep the space of elements that no record refers to, because their record may still arrive."""


class KeptElements(Protocol):
    """The storage of kept elements."""

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns kept elements."""

    def release_values(self, upto: int) -> None:
        """Frees the space of kept elements before an offset."""


class ValueReader:
    """Reads kept elements and frees their space.

    Threads store elements before they commit the record, so records can arrive in another order than their elements.
    Space is freed only up to the first elements that no drained record has referred to yet.

    Args:
        kept: The storage of the elements.
    """

    def __init__(self, kept: KeptElements) -> None:
        self._kept = kept
        self._held: deque[tuple[int, int, int]] = deque()
        """(event index, offset, end) of the elements that have been read, in the order of their events."""
        self._read: list[tuple[int, int]] = []
        """(offset, end) of those elements that are no longer needed."""
        self._released = 0
        self._hole_since: float | None = None

    def read(self, batch: Batch, *, failures: Failures) -> dict[int, bytes]:
        """Returns the elements of a batch's tensors by event_index; unreadable ones are counted as failures."""
        values: dict[int, bytes] = {}
        sizes = _value_bytes(batch)
        rows = np.flatnonzero(sizes >= 0)
        fields = zip(
            batch.event_index[rows].tolist(),
            batch.field("value_offset", rows).tolist(),
            sizes[rows].tolist(),
            ((batch.flags[rows] & Flag.COVERED) != 0).tolist(),
            strict=True,
        )
        for event, offset, size, is_covered in fields:
            if is_covered:
                try:
                    if size > _MAX_VALUE_BYTES:
                        raise ValueError(f"a tensor has {size} bytes, a BLOB holds at most {_MAX_VALUE_BYTES}")
                    values[event] = self._read_value(offset, size) if size else b""
                except Exception as error:
                    failures.add("tensor_value", error, num_events=1)
            if size:
                self._held.append((event, offset, offset + size))
        return values

    def _read_value(self, offset: int, size: int) -> bytes:
        try:
            return self._kept.read_value(offset, size)
        except (OSError, RuntimeError):  # retry once, because there is no later chance
            return self._kept.read_value(offset, size)

    def release(self, upto: int) -> None:
        """Frees the space of the elements of events before an event index."""
        while self._held and self._held[0][0] < upto:
            _, offset, end = self._held.popleft()
            heapq.heappush(self._read, (offset, end))
        before = self._released
        while self._read:
            offset, end = self._read[0]
            if offset > self._released:
                now = time.monotonic()
                self._hole_since = now if self._hole_since is None else self._hole_since
                if now - self._hole_since < _HOLE_PATIENCE_S:
                    break
            self._hole_since = None
            heapq.heappop(self._read)
            self._released = max(self._released, end)
        if self._released > before:
            self._kept.release_values(self._released)


def _value_bytes(batch: Batch) -> Ints:
    """Returns the size in bytes of each tensor's kept elements; -1 if none are kept."""
    wanted = Flag.VALUE | Flag.SHAPE
    rows = np.flatnonzero((batch.kind <= Kind.EXTERNAL_TENSOR) & ((batch.flags & wanted) == wanted))
    sizes = np.full(len(batch), -1, dtype=np.int64)
    sizes[rows] = batch.field("value_bytes", rows)
    return sizes


def split_by_value_bytes(batch: Batch, *, max_bytes: int) -> Iterator[Batch]:
    """Yields the records in batches whose kept elements take about `max_bytes` at most; groups are never split."""
    sizes = np.maximum(_value_bytes(batch), 0)
    if int(sizes.sum()) <= max_bytes:
        yield batch
        return
    number = np.cumsum(sizes) // max_bytes
    number = np.where(batch.heads >= 0, number[batch.heads], number)
    cuts = np.flatnonzero(np.diff(number)) + 1
    for records in np.split(batch.records, cuts):
        yield Batch(records)
