"""Limits: the memory and time that the queries of a logdir may use."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator

from tfdbg_arrow.errors import QueryError, TimeLimitError

DEFAULT_MEMORY_LIMIT = 2 << 30
"""In bytes."""
MEMORY_LIMIT_VARIABLE = "TFDBG_ARROW_MEMORY_LIMIT"
_LEAST_MEMORY_LIMIT = 32_000_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB|TB|KIB|MIB|GIB|TIB)?", re.IGNORECASE)
_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_INTERRUPT_EVERY_S = 0.05


def memory_limit_bytes(given: int | str | None) -> int:
    """Returns a memory limit in bytes.

    Args:
        given: Bytes, or a size such as `500MB` or `2GiB`. None means the environment variable TFDBG_ARROW_MEMORY_LIMIT,
            or DEFAULT_MEMORY_LIMIT if the variable is not set.

    Raises:
        QueryError: The value is not a size, or is less than 32 MB.
    """
    source = "memory_limit"
    if given is None:
        given = os.environ.get(MEMORY_LIMIT_VARIABLE, "") or DEFAULT_MEMORY_LIMIT
        source = MEMORY_LIMIT_VARIABLE
    match = _SIZE.fullmatch(str(given).strip())
    size = 0 if match is None else int(float(match[1]) * _UNITS[(match[2] or "B").lower()])
    if size < _LEAST_MEMORY_LIMIT:
        raise QueryError(f"{source} is {given!r}; expected a size of at least 32MB, such as 500MB or 2GiB.")
    return size


class TimeLimit:
    """The time until which the queries of a logdir may run. Only one thread at a time may set it."""

    def __init__(self) -> None:
        self._end: float | None = None
        self._seconds = 0.0

    @property
    def is_over(self) -> bool:
        """Whether there is a limit and its time is over."""
        return self._end is not None and time.monotonic() >= self._end

    def check(self) -> None:
        """Raises TimeLimitError if the time is over."""
        if self.is_over:
            raise TimeLimitError(f"the queries took longer than {self._seconds:g} seconds and were stopped.")

    @contextlib.contextmanager
    def within(self, seconds: float, *, interrupt: Callable[[], None]) -> Iterator[None]:
        """Limits the time of the block. A limit within another one cannot extend it.

        Args:
            seconds: The maximum time.
            interrupt: Ends the running query.
        """
        outer_end, outer_seconds = self._end, self._seconds
        end = time.monotonic() + seconds
        if outer_end is None or end < outer_end:
            self._end, self._seconds = end, seconds
        is_done = threading.Event()

        def watch() -> None:
            # Many queries may follow each other, and an interrupt ends only the running one.
            wait_s = seconds
            while not is_done.wait(wait_s):
                interrupt()
                wait_s = _INTERRUPT_EVERY_S

        # A daemon thread does not keep the process alive.
        watcher = threading.Thread(target=watch, daemon=True, name="tfdbg_arrow-time-limit")
        watcher.start()
        try:
            yield
        finally:
            is_done.set()
            watcher.join()
            self._end, self._seconds = outer_end, outer_seconds
