"""Decides when the sink writes next."""

from __future__ import annotations

import threading
import time

from tfdbg_arrow.writer.recorder import Recorder

_PAUSE_S = 0.05
_WAIT_SLICE_S = 0.2


class Pace:
    """Waits between two writes; returns soon after `stop` is set.

    Args:
        recorder: The source of the events.
        stop: Set when the sink is closed.
        flush_interval_s: Seconds after which waiting events are written.
        flush_rows: Number of waiting records after which they are written earlier.
    """

    def __init__(self, recorder: Recorder, *, stop: threading.Event, flush_interval_s: float, flush_rows: int) -> None:
        self._recorder, self._stop = recorder, stop
        self._flush_interval_s, self._flush_rows = flush_interval_s, flush_rows

    def wait(self) -> bool:
        """Waits until it is time to write; returns whether a bad value occurred."""
        end = time.monotonic() + self._flush_interval_s
        while not self._stop.is_set() and (rest := end - time.monotonic()) > 0:
            begin, timeout_s = time.monotonic(), min(rest, _WAIT_SLICE_S)
            if self._recorder.wait(timeout_s, self._flush_rows):
                return True
            if time.monotonic() - begin < timeout_s / 2:  # it returned early because enough records wait
                return False
        return False

    def pause(self) -> None:
        """Waits a flush interval after an urgent flush; returns earlier if the spool fills up."""
        end, num_free = time.monotonic() + self._flush_interval_s, self._recorder.num_free()
        while not self._stop.is_set() and (rest := end - time.monotonic()) > 0:
            self._stop.wait(min(rest, _PAUSE_S))
            if num_free - self._recorder.num_free() >= min(self._flush_rows, num_free // 2):
                return
