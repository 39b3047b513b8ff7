"""Searches directories for logdirs in the background, so that nobody waits for a slow disk."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.storage.search import LogdirsBelow, find_logdirs

_LOG = logging.getLogger(__name__)
_EVERY_S = 10.0
"""Seconds for which a result is valid. One search of a directory may take 5 seconds (`MAX_S`)."""


@dataclass(frozen=True, kw_only=True)
class FoundLogdirs:
    """The logdirs that were found.

    Attributes:
        searches: The results for each directory.
        paths: The logdirs, by key. The key of a logdir is computed from its path, and can be part of an address.
        state: A hash of the results; it changes when a logdir appears, disappears or changes.
    """

    searches: tuple[LogdirsBelow, ...]
    paths: dict[str, Path]
    state: str

    @classmethod
    def of(cls, searches: Sequence[LogdirsBelow]) -> FoundLogdirs:
        """Returns the logdirs that the searches found."""
        facts = [(str(one.path), one.num_runs, one.wall_time_ns) for search in searches for one in search.logdirs]
        return cls(
            searches=tuple(searches),
            paths={key_of(one.path): one.path for search in searches for one in search.logdirs},
            state=_hash(repr(facts)),
        )


class LogdirSearch:
    """Finds the logdirs below directories. A background thread searches at most once in `every_s` seconds.

    Args:
        directories: The directories.
        every_s: How long a result is valid, in seconds.
        find: Searches one directory.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        every_s: float = _EVERY_S,
        find: Callable[[Path], LogdirsBelow] = find_logdirs,
    ) -> None:
        self.directories = tuple(dict.fromkeys(directories))
        self._every_s = every_s
        self._find = find
        self._lock = threading.Lock()
        self._result = FoundLogdirs.of(())
        self._end_s: float | None = None  # when the last search ended
        self._running: threading.Event | None = None

    def result(self, *, patience_s: float) -> FoundLogdirs:
        """Returns the newest results, and starts a search if they are too old.

        Args:
            patience_s: How long to wait for a running search, in seconds. After this time, the method returns the older
                results, which are empty if no search has ended.
        """
        running = self._start()
        if running is not None and patience_s > 0:
            running.wait(patience_s)
        with self._lock:
            return self._result

    def _start(self) -> threading.Event | None:
        """Starts a search if one is due. Returns the event that the search sets at its end; None if no search runs."""
        with self._lock:
            is_due = self._end_s is None or time.monotonic() - self._end_s >= self._every_s
            if self._running is None and is_due:
                self._running = threading.Event()
                threading.Thread(
                    target=self._search, args=(self._running,), name="tfdbg_arrow logdirs", daemon=True
                ).start()
            return self._running

    def _search(self, ended: threading.Event) -> None:
        try:
            found_logdirs = FoundLogdirs.of([self._find(directory) for directory in self.directories])
            with self._lock:
                self._result = found_logdirs
        except Exception:
            _LOG.exception("the search for logdirs failed; the earlier results stay")
        finally:
            with self._lock:
                self._end_s = time.monotonic()
                self._running = None
            ended.set()


def key_of(logdir: Path) -> str:
    """Returns the key of a logdir."""
    return _hash(str(logdir))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
