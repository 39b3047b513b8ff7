"""Frees the slots of a spool once their content is in sealed parts, and not earlier."""

from __future__ import annotations

from collections import deque

from tfdbg_arrow.spool.holes import MIN_HOLE_BYTES
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.values import ValueReader
from tfdbg_arrow.writer.recorder import Recorder


class SpoolUse:
    """Frees slots and the space of values and rows. Not thread-safe; the caller must serialise calls.

    Args:
        recorder: The recorder that owns the slots.
        rows: The journal of rows, which stores the state that later events need from events that were freed.
        values: Frees the elements of tensors.
        is_lazy: Whether events may stay in memory long before they are in parts, as with a circular buffer. Then as
            many slots as possible are kept, so that the last events are in the spool if the process dies.
    """

    def __init__(self, recorder: Recorder, rows: Journal, *, values: ValueReader, is_lazy: bool) -> None:
        self._recorder, self._rows, self._values = recorder, rows, values
        self._is_lazy = is_lazy
        self._capacity = recorder.capacity()
        self._taken: deque[tuple[int, dict[str, object]]] = deque()
        """For each batch, the event index after it and the state of the call join at that point."""
        self._newest = 0
        self._tail: tuple[int, dict[str, object]] = (0, {})
        self._has_new_tail = False
        self._state_offset = self._rows_upto = 0

    def take(self, upto: int, state: dict[str, object]) -> None:
        """Registers a batch that ends before an event index, with the state of the call join at that point."""
        self._newest = upto
        self._taken.append((upto, state))

    def release(self, *, rows_upto: int, is_all_written: bool) -> None:
        """Frees what is no longer needed.

        Args:
            rows_upto: Offset in the journal up to which the rows have been taken.
            is_all_written: Whether everything taken is in sealed parts. If not, a write failed: the data stays in
                memory, and slots are freed only if few are free, so that the program does not have to wait.

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
        """Returns the event index up to which slots are freed."""
        if self._is_short():
            return self._newest
        if not is_all_written:
            return 0
        return self._newest - self._capacity // 2 if self._is_lazy else self._newest
