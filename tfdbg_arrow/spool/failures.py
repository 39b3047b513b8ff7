"""Failures: collects failures of the recorder, as rows of capture_stat."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Failures:
    """Counts failures, reports the first failure of each kind, and keeps rows for capture_stat."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._on_failure = on_failure
        self._repeats: dict[tuple[str, str], int] = {}
        self._lost: dict[tuple[str, str], int] = {}
        self._has_told_of_disk = False
        self._notes: dict[tuple[str, str, str, str | None], int | None] = {}
        """The number of events by stat, subject, reason and reason code."""
        self._lock = threading.RLock()  # a finalizer may note something while the same thread does

    @contextlib.contextmanager
    def caught(self, where: str) -> Iterator[None]:
        """Catches an exception of the block, and counts it as a failure."""
        try:
            yield
        except Exception as error:
            self.add(where, error)

    def add(self, where: str, error: Exception, *, num_events: int | None = None) -> None:
        """Counts a failure. Reports the first failure of each kind, but only one OSError."""
        kind = (where, type(error).__name__)
        if kind in self._repeats:
            self._repeats[kind] += 1
            self._lost[kind] += num_events or 0
            return
        self._repeats[kind] = self._lost[kind] = 0
        reason = f"{type(error).__name__}: {error}"
        self.note("failed", where, reason, num_events)
        if isinstance(error, OSError):
            if self._has_told_of_disk:
                return
            self._has_told_of_disk = True
        with contextlib.suppress(Exception):
            self._on_failure(f"could not record everything ({where}): {reason}")

    def note(
        self, stat: str, subject: str, reason: str, num_events: int | None = 1, *, reason_code: str | None = None
    ) -> None:
        """Keeps a row for capture_stat; the numbers of events of equal rows are added, if they are known."""
        key = (stat, subject, reason, reason_code)
        with self._lock:
            before = self._notes.get(key)
            self._notes[key] = num_events if before is None else before + (num_events or 0)

    def note_repeats(self) -> None:
        """Stores a row for each kind of failure that occurred again after its first failure was reported."""
        for (where, name), count in self._repeats.items():
            if count:
                lost = self._lost[where, name]
                self.note("failed", f"{where} (again)", f"Further errors of type {name}: {count}.", lost or None)
        self._repeats = dict.fromkeys(self._repeats, 0)
        self._lost = dict.fromkeys(self._lost, 0)

    @property
    def has_notes(self) -> bool:
        """Whether there are rows that have not been taken yet."""
        return bool(self._notes)

    def take_notes(self) -> list[dict[str, object]]:
        """Returns the rows kept since the last call."""
        with self._lock:
            notes, self._notes = self._notes, {}
        names = ("stat", "subject", "reason", "reason_code")
        return [{**dict(zip(names, key, strict=True)), "num_events": count} for key, count in notes.items()]
