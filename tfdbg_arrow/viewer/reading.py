"""Lets concurrent requests of a server read a logdir, with limits on time and memory."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.query.asked_runs import ALL_RUNS, find_run
from tfdbg_arrow.query.integrity.damage import damage_told
from tfdbg_arrow.query.logdir.statements import memory_limit_bytes
from tfdbg_arrow.storage.layout import MANIFEST_DIRECTORY
from tfdbg_arrow.viewer.background import Background, bounded
from tfdbg_arrow.viewer.page import TookTooLongError

_Result = TypeVar("_Result")
_NUM_CONNECTIONS = 2
"""Maximum number of requests that read the logdir at the same time. They share the memory limit."""
_USUAL_MEMORY = 160_000_000
"""Bytes of memory that DuckDB uses for each of these requests, unless a query needs more. With two requests and Python,
the server then usually has less than 512 MB."""
_MAX_CACHED = 64
"""Maximum number of answers that are kept until the logdir changes. Bounds the memory."""
_REMOTE_REFRESH_S = 30.0
"""Seconds for which answers about a logdir at a URL are kept, because each reading costs requests."""


class Reader:
    """Opens a logdir for concurrent requests and caches answers until the logdir changes.

    Args:
        path: The logdir's path or URL.
        timeout_s: Time limit for the queries of one request, in seconds.
        memory_limit: Memory limit for the queries of all requests together, as in `open_logdir`.
        storage_options: fsspec's arguments for a URL.
        skip_broken: Whether to skip broken parts.

    Attributes:
        timeout_s: The time limit.
        background: Computes answers in a thread.

    Raises:
        LogdirError: The path is not a readable logdir.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        timeout_s: float = 20.0,
        memory_limit: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        skip_broken: bool = False,
    ) -> None:
        self.path = path
        self._skip_broken = skip_broken
        self.timeout_s = timeout_s
        self._memory_limit = memory_limit_bytes(memory_limit) // _NUM_CONNECTIONS
        self._storage_options = storage_options
        self._slots = threading.BoundedSemaphore(_NUM_CONNECTIONS)
        self._lock = threading.Lock()
        self._cache: OrderedDict[Hashable, Any] = OrderedDict()
        self._cached_state: Hashable = None
        self._is_closed = False
        self.background = Background(self.read, self.state)
        # Open the logdir now, so that errors are raised before the server starts.
        self._idle: list[tuple[Logdir, Hashable]] = [(self._open(), state_of(self.path))]

    def close(self) -> None:
        """Closes the logdir. Requests that are still running end with an error."""
        self.background.close()
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for logdir, _ in idle:
            logdir.close()

    def read(self, key: Hashable, compute: Callable[[Logdir], _Result]) -> _Result:
        """Returns what a function reads from the current logdir.

        Args:
            key: Identifies the answer. If it is cached and the logdir has not changed, the cached answer is returned.
            compute: The function that reads the answer.

        Raises:
            TookTooLongError: The function took longer than the timeout, or no connection became free in that time.
        """
        state = state_of(self.path)
        with self._lock:
            if state != self._cached_state:
                self._cache.clear()
                self._cached_state = state
            if key in self._cache:
                self._cache.move_to_end(key)
                answer: _Result = self._cache[key]
                return answer
        with self._borrowed(state) as logdir, bounded(logdir, self.timeout_s), damage_told(logdir):
            answer = compute(logdir)
        with self._lock:
            if state == self._cached_state:
                self._cache[key] = answer
                while len(self._cache) > _MAX_CACHED:
                    self._cache.popitem(last=False)
        return answer

    def state(self) -> str:
        """Returns a hash of the logdir's current state; it changes when the logdir changes."""
        return hashlib.sha256(repr(state_of(self.path)).encode()).hexdigest()[:16]

    def find_run(self, run: str) -> str:
        """Returns the ID of a run, given its ID or its name; returns "all" for "all".

        Raises:
            QueryError: The logdir does not have the run, or several runs have the name.
        """
        return run if run == ALL_RUNS else self.read(("run", run), lambda logdir: find_run(logdir, run))

    @contextlib.contextmanager
    def _borrowed(self, state: Hashable) -> Iterator[Logdir]:
        if not self._slots.acquire(timeout=self.timeout_s):
            raise TookTooLongError("other pages are still being read; try again later.")
        try:
            with self._lock:
                logdir, seen = self._idle.pop() if self._idle else (None, None)
            if logdir is None:
                logdir = self._open()
            elif seen != state:
                logdir.refresh()
            try:
                yield logdir
            finally:
                with self._lock:
                    is_closed = self._is_closed
                    if not is_closed:
                        self._idle.append((logdir, state))
                if is_closed:
                    logdir.close()
        finally:
            self._slots.release()

    def _open(self) -> Logdir:
        logdir = open_logdir(
            self.path,
            storage_options=self._storage_options,
            skip_broken=self._skip_broken,
            memory_limit=self._memory_limit,
        )
        logdir.save_memory(_USUAL_MEMORY)
        return logdir


def state_of(path: str | Path) -> Hashable:
    """Returns the sizes and times of a logdir's manifests. For a URL, returns a value that changes every 30 s."""
    if "://" in str(path):
        return int(time.monotonic() / _REMOTE_REFRESH_S)
    try:
        files = sorted((Path(path) / MANIFEST_DIRECTORY).iterdir())
        facts = [(file.name, file.stat()) for file in files]
    except OSError:
        return None
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in facts)
