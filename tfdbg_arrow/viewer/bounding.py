"""Bounded: queries that are ended where they take too long."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.failures import TookTooLongError

_INTERRUPT_EVERY_S = 0.05


@contextlib.contextmanager
def bounded(logdir: Logdir, timeout_s: float) -> Iterator[None]:
    """Ends every query of the logdir that runs after so many seconds.

    Args:
        logdir: The logdir; it is asked in one thread at a time.
        timeout_s: How long its queries may take together.

    Raises:
        TookTooLongError: They took longer.
    """
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        if is_done.wait(timeout_s):
            return
        is_late.set()
        # A page asks many queries one after the other; an interrupt ends the one that runs.
        while not is_done.wait(_INTERRUPT_EVERY_S):
            logdir.interrupt()

    watcher = threading.Thread(target=watch, daemon=True, name="tfdbg_arrow-viewer-timeout")
    watcher.start()
    try:
        yield
    except QueryError as error:
        if is_late.is_set():
            raise TookTooLongError(
                f"this took longer than {timeout_s:g} seconds and was ended; narrow it down by run, step or op."
            ) from error
        raise
    finally:
        is_done.set()
        watcher.join()
