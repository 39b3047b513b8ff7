"""Ending: the end of a recording, which writes what is left, in the calling thread or in another one."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 10.0
"""How many seconds the program waits before a line on stderr says what is being written."""
_LINE_EVERY_S = 0.5


class Ending:
    """The end of one recording.

    Args:
        write: Writes what is left. It calls its argument with the share that is done, from 0 to 1, every second or so.
        what: The recording, for the message to who waits.
    """

    def __init__(self, write: Callable[[Callable[[float], None]], None], *, what: str) -> None:
        self._write, self._what = write, what
        self._thread: threading.Thread | None = None
        self._waits: list[float] = []
        """Since when each of those who wait does so."""
        self._told_at: float | None = None

    def run(self) -> None:
        """Writes in the calling thread."""
        with self._waiting():
            self._do()

    def start(self) -> None:
        """Writes in another thread, for which the end of the process waits."""
        self._thread = threading.Thread(target=self._do, name="tfdbg_arrow-end")
        self._thread.start()

    def is_running(self) -> bool:
        """Returns True while the other thread writes."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the other thread has written everything. That thread itself does not wait."""
        if self._thread is not None and self._thread is not threading.current_thread():
            with self._waiting():
                self._thread.join(timeout_s)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        since = time.monotonic()
        self._waits.append(since)
        try:
            yield
        finally:
            self._waits.remove(since)

    def _do(self) -> None:
        try:
            self._write(self._note)
        finally:
            self._write = lambda on_progress: None  # so that this object does not keep the recording
            if self._told_at is not None and _is_terminal():
                _tell(f"\rtfdbg_arrow: wrote {self._what}.\033[K\n")

    def _note(self, share: float) -> None:
        """Says what somebody waits for, if it takes long: once, or on a terminal again and again in the same line."""
        if self._thread is not None and not self._waits and not threading.main_thread().is_alive():
            self._waits.append(time.monotonic())  # the process ends, and waits for this thread
        now = time.monotonic()
        if not self._waits or now - min(self._waits) < PATIENCE_S:
            return
        if self._told_at is not None and not (_is_terminal() and now - self._told_at >= _LINE_EVERY_S):
            return
        self._told_at = now
        if _is_terminal():
            _tell(f"\rtfdbg_arrow: writing {self._what}: {share:.0%}\033[K")
        else:
            _tell(f"tfdbg_arrow: writing {self._what}; {share:.0%} is done.\n")


def _is_terminal() -> bool:
    with contextlib.suppress(Exception):  # the program may have replaced or closed it
        return sys.stderr.isatty()
    return False


def _tell(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()
