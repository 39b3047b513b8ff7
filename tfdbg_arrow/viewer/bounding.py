"""A time limit for queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdbg_arrow.errors import TimeLimitError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.failures import TookTooLongError


@contextlib.contextmanager
def bounded(logdir: Logdir, timeout_s: float) -> Iterator[None]:
    """Limits the time of the logdir's queries in the body.

    Args:
        logdir: The logdir; only one thread may use it at a time.
        timeout_s: Time limit for all queries together, in seconds.

    Raises:
        TookTooLongError: The queries took longer.
    """
    try:
        with logdir.within(timeout_s):
            yield
    except TimeLimitError as error:
        raise TookTooLongError(
            f"this took longer than {timeout_s:g} seconds and was stopped; narrow it down by run, step or op."
        ) from error
