"""Reports what was not recorded, as rows of capture_stat and as warnings."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfdbg_arrow.writer.rows import Append, Row
from tfdbg_arrow.writer.stacks import as_utf8
from tfdbg_arrow.writer.warning import warn


class CaptureStats:
    """Reports what one recording left out or changed.

    Args:
        append: Takes rows for a table.
        num_events: Returns the number of events so far.
    """

    def __init__(self, append: Append, *, num_events: Callable[[], int]) -> None:
        self._append = append
        self._num_events = num_events
        self._warned: set[str] = set()

    def add(self, stat: str, subject: str, reason: str) -> None:
        """Adds a row to capture_stat."""
        row: Row = {"stat": stat, "subject": as_utf8(subject), "reason": as_utf8(reason), "num_events": None}
        self._append("capture_stat", [{"event_index": self._num_events(), "wall_time_ns": time.time_ns(), **row}])

    def note(self, stat: str, subject: str, reason: str) -> None:
        """Adds a row to capture_stat, and warns once for each stat and reason."""
        self.add(stat, subject, reason)
        self.warn_once(f"{stat}: {subject}: {reason}", key=f"{stat}: {reason}")

    def note_failure(self, what: str, error: object) -> None:
        """Notes that something failed; `error` is the exception or a description."""
        self.note("failed", what, sentence_of(error))

    def warn_once(self, message: str, *, key: str | None = None) -> None:
        """Warns once for each message, or once for each key if a key is given."""
        if (key or message) not in self._warned:
            self._warned.add(key or message)
            warn(message)


def sentence_of(error: object) -> str:
    """Returns the class and message of an exception, or the text of anything else."""
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
