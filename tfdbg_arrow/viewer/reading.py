"""Reader: a logdir as a server reads it, by many requests at once, each bounded in time and memory."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.query.limits import memory_limit_bytes
from tfdbg_arrow.query.strange_rows import strange_rows_told
from tfdbg_arrow.schema.logdir_layout import MANIFEST_DIRECTORY
from tfdbg_arrow.viewer.bounding import bounded
from tfdbg_arrow.viewer.failures import TookTooLongError

_Result = TypeVar("_Result")

_NUM_CONNECTIONS = 2
_MAX_CACHED = 64
_REMOTE_REFRESH_S = 30.0


class Reader:
    """Opens a logdir as often as requests need it at once, and remembers answers until the logdir changes.

    Args:
        path: The logdir's path or URL.
        timeout_s: Seconds after which the queries of one request are ended.
        memory_limit: What the queries of all requests together may take of memory, as in `open_logdir`.
        storage_options: fsspec's arguments for a URL.
        skip_broken: Whether to leave out parts that are broken.

    Raises:
        LogdirError: The path is not a logdir that can be read.
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
        self._timeout_s = timeout_s
        self._memory_limit = memory_limit_bytes(memory_limit) // _NUM_CONNECTIONS
        self._storage_options = storage_options
        self._spill = tempfile.TemporaryDirectory(prefix="tfdbg_arrow_view_")
        self._slots = threading.BoundedSemaphore(_NUM_CONNECTIONS)
        self._lock = threading.Lock()
        self._cache: OrderedDict[Hashable, Any] = OrderedDict()
        self._cached_state: Hashable = None
        try:
            # What cannot be opened is told before a server starts.
            self._idle: list[tuple[Logdir, Hashable]] = [(self._open(), self._state())]
        except BaseException:
            self._spill.cleanup()
            raise

    def close(self) -> None:
        """Closes the logdir; requests that still run end with an error."""
        with self._lock:
            idle, self._idle = self._idle, []
        for logdir, _ in idle:
            logdir.close()
        self._spill.cleanup()

    def read(self, key: Hashable, compute: Callable[[Logdir], _Result]) -> _Result:
        """Returns what a function reads out of the logdir, as it is now.

        Args:
            key: Names the answer: where it was given before and the logdir has not changed, it is given again.
            compute: Reads it.

        Raises:
            TookTooLongError: It took longer than the timeout, or all others did who were before it.
        """
        state = self._state()
        with self._lock:
            if state != self._cached_state:
                self._cache.clear()
                self._cached_state = state
            if key in self._cache:
                self._cache.move_to_end(key)
                answer: _Result = self._cache[key]
                return answer
        with self._borrowed(state) as logdir, bounded(logdir, self._timeout_s), strange_rows_told(logdir.path):
            answer = compute(logdir)
        with self._lock:
            if state == self._cached_state:
                self._cache[key] = answer
                while len(self._cache) > _MAX_CACHED:
                    self._cache.popitem(last=False)
        return answer

    def state(self) -> str:
        """Returns a name of what the logdir holds now: another one, once it holds something else."""
        return hashlib.sha256(repr(self._state()).encode()).hexdigest()[:16]

    def check_run(self, run_id: str) -> None:
        """Makes sure that the logdir holds a run.

        Raises:
            QueryError: It does not; the message names those that it holds.
        """
        known = [run.run_id for run in self.read("runs", lambda logdir: logdir.runs())]
        if run_id not in known:
            raise QueryError(f"run {run_id!r} is not in {self.path}; it holds {', '.join(known) or 'no run'}.")

    @contextlib.contextmanager
    def _borrowed(self, state: Hashable) -> Iterator[Logdir]:
        if not self._slots.acquire(timeout=self._timeout_s):
            raise TookTooLongError("other pages are still being read; try again, or ask them for less.")
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
                    self._idle.append((logdir, state))
        finally:
            self._slots.release()

    def _open(self) -> Logdir:
        logdir = open_logdir(
            self.path,
            storage_options=self._storage_options,
            skip_broken=self._skip_broken,
            memory_limit=self._memory_limit,
        )
        # One in a directory of its own, lest a page's spill be written where the program was started.
        logdir.sql("SET temp_directory = '" + self._spill.name.replace("'", "''") + "'")
        return logdir

    def _state(self) -> Hashable:
        """What changes when the logdir does: its manifests, by size and time; for a URL, the time."""
        if "://" in str(self.path):
            return int(time.monotonic() / _REMOTE_REFRESH_S)
        try:
            files = sorted((Path(self.path) / MANIFEST_DIRECTORY).iterdir())
            facts = [(file.name, file.stat()) for file in files]
        except OSError:
            return None
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in facts)
