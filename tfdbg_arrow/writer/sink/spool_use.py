"""When the sink gives the slots of a spool back: once what they held is in sealed parts, and no sooner."""

from __future__ import annotations

from collections import deque

from tfdbg_arrow.spool.holes import MIN_HOLE_BYTES
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.values import ValueReader
from tfdbg_arrow.writer.recorder import Recorder


class SpoolUse:
    """Gives slots, and the space of values and rows, back. Not thread-safe: its caller serialises.

    Args:
        recorder: Whose slots they are.
        rows: Takes what is to be known of events that were given back, of those that come later.
        values: Gives back the elements of tensors.
        is_lazy: Whether events may be held in memory long before they are in parts, as a circular buffer does: then
            as many slots as can be spared are kept, so that the last events are in the spool when the process dies.
    """

    def __init__(self, recorder: Recorder, rows: Journal, *, values: ValueReader, is_lazy: bool) -> None:
        self._recorder, self._rows, self._values = recorder, rows, values
        self._is_lazy = is_lazy
        self._capacity = recorder.capacity()
        self._taken: deque[tuple[int, dict[str, object]]] = deque()
        """For each batch: the event index behind it, and what the call join knows by then."""
        self._newest = 0
        self._tail: tuple[int, dict[str, object]] = (0, {})
        self._has_new_tail = False
        self._state_offset = self._rows_upto = 0

    def take(self, upto: int, state: dict[str, object]) -> None:
        """Notes that a batch was taken, which ends before an event index, and what the call join knows by then."""
        self._newest = upto
        self._taken.append((upto, state))

    def release(self, *, rows_upto: int, is_all_written: bool) -> None:
        """Gives back what is not needed any more.

        Args:
            rows_upto: Up to which offset the rows were taken.
            is_all_written: Whether all that was taken is in sealed parts. If not, the disk refuses them: they are kept
                in memory, and the slots are given back only when few are free, lest the program has to wait.

        Raises:
            OSError: It is not known how long the journal is; then nothing was given back.
        """
        if is_all_written:
            self._rows_upto = rows_upto
        limit = self._limit(is_all_written=is_all_written)
        while self._taken and self._taken[0][0] <= limit:
            self._tail, self._has_new_tail = self._taken.popleft(), True
        self._values.release(self._newest if self._is_lazy else self._tail[0])
        if self._has_new_tail or rows_upto - self._state_offset >= MIN_HOLE_BYTES:
            # First the state, then the tail, then the rows: whenever the process dies, the tail's state is there.
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
        """Returns up to which event index slots are given back."""
        if self._is_short():
            return self._newest
        if not is_all_written:
            return 0
        return self._newest - self._capacity // 2 if self._is_lazy else self._newest
