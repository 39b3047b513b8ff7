"""Bounded: queries that are ended where they take too long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdbg_arrow.errors import TimeLimitError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.failures import TookTooLongError


@contextlib.contextmanager
def bounded(logdir: Logdir, timeout_s: float) -> Iterator[None]:
    """Ends every query of the logdir that runs after so many seconds.

    Args:
        logdir: The logdir; it is asked in one thread at a time.
        timeout_s: How long its queries may take together.

    Raises:
        TookTooLongError: They took longer.
    """
    try:
        with logdir.within(timeout_s):
            yield
    except TimeLimitError as error:
        raise TookTooLongError(
            f"this took longer than {timeout_s:g} seconds and was ended; narrow it down by run, step or op."
        ) from error
