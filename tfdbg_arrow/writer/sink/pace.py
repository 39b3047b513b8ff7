"""Decides when the sink's thread writes."""

from __future__ import annotations

import enum
import threading
import time

from tfdbg_arrow.writer.backend import Backend

_PAUSE_S = 0.05
"""Seconds between two checks during a pause whether the spool fills up."""
_WAIT_SLICE_S = 0.2
"""Maximum number of seconds of one wait in the native core, because a wake-up can be missed."""


class Wake(enum.Enum):
    """Why the sink's thread wakes up."""

    INTERVAL = enum.auto()
    """The flush interval has passed, or the sink is closed."""
    ENOUGH_RECORDS = enum.auto()
    """Enough records wait for a write."""
    BAD_VALUE = enum.auto()


class Pace:
    """Waits between two writes; returns soon after `stop` is set.

    Args:
        recorder: The source of the events.
        stop: Set when the sink is closed.
        flush_interval_s: Seconds after which waiting events are written.
        flush_rows: If this many records wait, they are written earlier.
    """

    def __init__(self, recorder: Backend, *, stop: threading.Event, flush_interval_s: float, flush_rows: int) -> None:
        self._recorder, self._stop = recorder, stop
        self._flush_interval_s, self._flush_rows = flush_interval_s, flush_rows

    def wait(self) -> Wake:
        """Waits until it is time to write; returns the reason."""
        end = time.monotonic() + self._flush_interval_s
        while not self._stop.is_set() and (rest := end - time.monotonic()) > 0:
            begin, timeout_s = time.monotonic(), min(rest, _WAIT_SLICE_S)
            if self._recorder.wait(timeout_s, self._flush_rows):
                return Wake.BAD_VALUE
            if time.monotonic() - begin < timeout_s / 2:  # the wait ended early because enough records wait
                return Wake.ENOUGH_RECORDS
        return Wake.INTERVAL

    def pause(self) -> None:
        """Waits a flush interval after an urgent flush; returns earlier if the spool fills up."""
        end, num_free = time.monotonic() + self._flush_interval_s, self._recorder.num_free()
        while not self._stop.is_set() and (rest := end - time.monotonic()) > 0:
            self._stop.wait(min(rest, _PAUSE_S))
            if num_free - self._recorder.num_free() >= min(self._flush_rows, num_free // 2):
                return
