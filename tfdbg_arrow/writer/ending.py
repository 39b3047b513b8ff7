"""Ending: ends a recording, and writes the remaining events in a separate thread."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdbg_arrow.writer.recording.recording import Recording

PATIENCE_S = 10.0
"""How many seconds the program waits before a line on stderr says what is being written."""
_LINE_EVERY_S = 0.5
"""Seconds between two updates of the line on a terminal, so that it can be read."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.0005, 0.02


class Ending:
    """Ends one recording, in a separate thread.

    start() starts the thread early, because no thread can be started while the process exits. If a thread that calls
    begin() or wait() is interrupted, the end continues.

    Args:
        recording: The recording.

    Attributes:
        recording: As given; None when everything is written.
        run_id: The recorded run.
        may_have_bad_values: False if everything is written, and no tensor has a NaN or an infinity.
        has_begun: Whether the end has begun, so that nothing more is recorded.
        outlived_program: Whether the program ended before everything was written.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording: Recording | None = recording
        self.run_id = recording.run_id
        self.may_have_bad_values = True
        self.has_begun = self.outlived_program = False
        self._what = f"the recording to {recording.settings.shown_logdir}"
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a signal handler may interrupt put()
        self._are_hooks_removed = self._is_stopped = self._is_over = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tfdbg_arrow-end", daemon=True)
        self._waits: list[float] = []
        """The start times of the current waits."""
        self._told_at: float | None = None

    def start(self) -> None:
        """Starts the thread, which waits for begin() or cancel()."""
        self._thread.start()

    def begin(self) -> None:
        """Begins the end, unless it has already begun."""
        self._orders.put(True)
        self.has_begun = True

    def cancel(self) -> None:
        """Ends the thread, because the recording did not begin."""
        self._orders.put(False)

    @property
    def active(self) -> Recording | None:
        """The recording, unless its end has begun."""
        return None if self.has_begun else self.recording

    def is_running(self) -> bool:
        """Returns True from begin() until everything is written."""
        return self.has_begun and not self._is_over

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until everything is written. Raises the error of the end, but only once."""
        with self._waiting():
            self._wait(lambda: self._is_over, timeout_s)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until_stopped(self) -> None:
        """Waits until nothing more is recorded."""
        self._wait(lambda: self._is_stopped, None)

    def wait_for_hooks(self) -> None:
        """Waits until the hooks are removed. Their removal never waits for the calling thread."""
        self._wait(lambda: self._are_hooks_removed, None)

    def outlast(self) -> None:
        """Waits until everything is written, even if the calling thread is interrupted."""
        while self.is_running():
            with contextlib.suppress(BaseException):
                self.wait()

    def _wait(self, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        """Waits by sleeping: if an error interrupts Thread.join(), Python assumes that the thread ended (bpo-45274)."""
        if self._thread is threading.current_thread():
            return
        since, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while self.has_begun and not is_done():
            if timeout_s is not None and time.monotonic() - since >= timeout_s:
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LAST_PAUSE_S)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        since = time.monotonic()
        self._waits.append(since)
        try:
            yield
        finally:
            self._waits.remove(since)

    def _run(self) -> None:
        """Runs the thread."""
        try:
            if self._orders.get():
                self.has_begun = True
                self._write()
        except BaseException as error:
            self._error = error  # wait() raises this error
        finally:
            self.recording = None
            self.outlived_program |= not threading.main_thread().is_alive()
            self._are_hooks_removed = self._is_stopped = self._is_over = True

    def _write(self) -> None:
        recording = self.recording
        if recording is None:
            return
        with ExitStack() as steps:  # runs each step, the last one first, even if a step fails
            steps.callback(recording.write_rest, self._note)
            steps.callback(setattr, self, "_is_stopped", True)
            steps.callback(recording.stop_recording)
            steps.callback(setattr, self, "_are_hooks_removed", True)
            steps.callback(recording.remove_hooks)
        self.may_have_bad_values = recording.may_have_bad_values
        if self._told_at is not None and _is_terminal():
            _tell(f"\rtfdbg_arrow: wrote {self._what}.\033[K\n")

    def _note(self, share: float) -> None:
        """If a wait takes long, prints what is being written: once or, on a terminal, as a line that is updated."""
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
    with contextlib.suppress(Exception):  # the program may have replaced or closed stderr
        return sys.stderr.isatty()
    return False


def _tell(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()
