"""The state of a run's remote copy, and the class that updates the copy, one request at a time.

The remote manifest names only parts that are complete at the URL. Each line of the local manifest is one change. The
remote manifest has applied a change completely or not at all. So rows that a reader has found do not vanish while their
merged part is being sent. Changes of parts that were replaced before they were sent are combined, so that only live
parts are sent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.spool.convert import EVENT_TABLES
from tfdbg_arrow.storage.layout import MARKER_NAME, manifest_path
from tfdbg_arrow.storage.location import RemoteDirectory
from tfdbg_arrow.storage.manifest import ManifestEntry, add_line, checksummed
from tfdbg_arrow.storage.marker import marker_text, parse_marker

_PUBLISH_S = 5.0
"""Seconds after which a manifest is written, even if there are always more parts to send."""


def mark_remote(remote: RemoteDirectory) -> None:
    """Marks a URL as a logdir, or checks the marker that is already there.

    Raises:
        LogdirError: The marker at the URL is not the marker of a logdir.
        FormatVersionError: The URL holds a logdir of another MAJOR version.
        Exception: The file system's own error, if the URL cannot be reached.
    """
    try:
        marker = remote.read_bytes(MARKER_NAME)
    except FileNotFoundError:
        remote.write_bytes(MARKER_NAME, marker_text().encode())
    else:
        parse_marker(marker.decode("utf-8", errors="replace"), path=f"{remote}/{MARKER_NAME}")


class Transfer:
    """Updates the remote copy of a run, one request at a time.

    Args:
        run: The state of the copy.
        run_id: The run.
        local: The local logdir.
        remote: The remote logdir, which already has its marker.
        lock: Held while `run` is read or changed.
    """

    def __init__(
        self,
        run: RemoteRun,
        *,
        run_id: str,
        local: Path,
        remote: RemoteDirectory,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._run, self._run_id, self._local, self._remote = run, run_id, local, remote
        self._lock = lock if lock is not None else contextlib.nullcontext()
        self._published_s = time.monotonic()

    def step(self) -> bool:
        """Makes the next request; returns False if there was nothing to do.

        A manifest is written after its parts, and replaced parts are removed after the manifest is written.

        Raises:
            BrokenPartError: The local file of a live part is missing.
            Exception: The file system's own error; the next call retries.
        """
        is_due = time.monotonic() - self._published_s > _PUBLISH_S
        if is_due and self._publish():
            return True
        with self._lock:
            entry = self._run.next_to_send()
        if entry is not None:
            self._send(entry)
            return True
        return self._publish() or self._clean()

    def _send(self, entry: ManifestEntry) -> None:
        try:
            self._remote.upload(self._local / entry.path, entry.path)
        except FileNotFoundError:
            if (self._local / entry.path).exists():
                raise
            with self._lock:
                if self._run.holds(entry):
                    self._run.postpone(entry)
                    raise BrokenPartError(
                        f"{self._local / entry.path} was removed before it was sent to {self._remote}; restore it."
                    ) from None
            return  # replaced in the meantime
        with self._lock:
            self._run.note_sent(entry)

    def _publish(self) -> bool:
        with self._lock:
            manifest = self._run.manifest()
        if manifest is None:
            self._published_s = time.monotonic()
            return False
        text, named = manifest
        try:
            self._remote.write_bytes(manifest_path(self._run_id), text.encode())
        except BaseException:
            with self._lock:
                self._run.note_unpublished()
            raise
        with self._lock:
            self._run.note_published(named)
        self._published_s = time.monotonic()
        return True

    def _clean(self) -> bool:
        with self._lock:
            path = self._run.next_garbage()
        if path is None:
            return False
        self._remote.remove(path)
        with self._lock:
            self._run.note_removed(path)
        return True


@dataclass(kw_only=True, eq=False)
class _Change:
    """New parts that together replace some parts of the remote manifest."""

    removes: dict[str, ManifestEntry] = field(default_factory=dict)
    adds: dict[str, ManifestEntry] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Unsent parts to drop.

    Attributes:
        removed: Parts that were not sent.
        restored: The remote parts that the removed parts had replaced. They become live again.
    """

    removed: tuple[ManifestEntry, ...]
    restored: tuple[ManifestEntry, ...]

    @property
    def lost_rows(self) -> dict[str, int]:
        """Number of lost rows by table."""
        lost: dict[str, int] = {}
        for sign, entries in ((1, self.removed), (-1, self.restored)):
            for entry in entries:
                lost[entry.table] = lost.get(entry.table, 0) + sign * entry.rows
        return {table: rows for table, rows in lost.items() if rows > 0}


class RemoteRun:
    """The state of one run's remote copy. Not thread-safe.

    Args:
        named: The parts that the remote manifest already names.
    """

    def __init__(self, named: Iterable[ManifestEntry] = ()) -> None:
        self._named = {entry.path: entry for entry in named}
        self._published = dict(self._named)
        self._pending: list[_Change] = []
        self._tried: set[str] = set()
        self._sent: set[str] = set()
        self._condemned: dict[str, None] = {}
        self._garbage: dict[str, None] = {}
        self._is_dirty = not self._named  # the first manifest can be empty

    def change(self, removed: Sequence[str], added: Sequence[ManifestEntry]) -> None:
        """Applies a line of the local manifest."""
        gone = frozenset(removed)
        touched = [change for change in self._pending if not gone.isdisjoint(change.adds)]
        merged = _Change()
        for change in touched:
            self._pending.remove(change)
            merged.removes.update(change.removes)
            merged.adds.update(change.adds)
        for path in removed:
            if merged.adds.pop(path, None) is not None:
                self._sent.discard(path)
                if path in self._tried:
                    self._condemn(path)
            elif path in self._named:
                merged.removes[path] = self._named[path]
        for entry in added:
            if merged.removes.pop(entry.path, None) is None and self._named.get(entry.path) != entry:
                merged.adds[entry.path] = entry
        if merged.removes or merged.adds:
            self._pending.append(merged)
        self._settle()

    def next_to_send(self) -> ManifestEntry | None:
        """Returns the next part to send, or None; from now on the part may be partly at the URL."""
        for change in self._pending:
            for entry in change.adds.values():
                if entry.path not in self._sent:
                    self._tried.add(entry.path)
                    return entry
        return None

    def note_sent(self, entry: ManifestEntry) -> None:
        """Registers that a part is complete at the URL."""
        if self.holds(entry):
            self._sent.add(entry.path)
            self._settle()
        else:  # the part was replaced while it was being sent
            self._condemn(entry.path)

    def postpone(self, entry: ManifestEntry) -> None:
        """Moves a part that cannot be sent behind all other parts."""
        self._pending.sort(key=lambda change: entry.path in change.adds)

    def holds(self, entry: ManifestEntry) -> bool:
        """Returns whether a part still waits to be sent."""
        return any(entry.path in change.adds for change in self._pending)

    def manifest(self) -> tuple[str, dict[str, ManifestEntry]] | None:
        """Returns the remote manifest to write and the parts that it names; None if nothing changed."""
        if not self._is_dirty:
            return None
        self._is_dirty = False
        return checksummed(map(add_line, self._named.values())), dict(self._named)

    def note_published(self, named: dict[str, ManifestEntry]) -> None:
        """Registers that the remote manifest was written; parts that it does not name can be removed.

        Args:
            named: The parts that `manifest` returned together with this manifest.
        """
        self._published = named
        for path in [path for path in self._condemned if path not in named]:
            del self._condemned[path]
            self._garbage[path] = None

    def note_unpublished(self) -> None:
        """Registers that writing the remote manifest failed."""
        self._is_dirty = True

    def next_garbage(self) -> str | None:
        """Returns the path of an unneeded remote file, or None."""
        return next(iter(self._garbage), None)

    def note_removed(self, path: str) -> None:
        """Registers that a remote file was removed."""
        self._garbage.pop(path, None)

    @property
    def published(self) -> Mapping[str, ManifestEntry]:
        """The parts that the remote manifest names, oldest first."""
        return self._published

    @property
    def is_complete(self) -> bool:
        """Whether the remote copy equals the local run."""
        return not (self._pending or self._is_dirty or self._garbage or self._condemned)

    def unsent(self) -> tuple[ManifestEntry, ...]:
        """Returns the parts that have not been sent."""
        return tuple(
            entry for change in self._pending for entry in change.adds.values() if entry.path not in self._sent
        )

    def oldest_drop(self) -> Drop | None:
        """Returns the oldest unsent parts of events that can be dropped; None if there are none."""
        for change in self._pending:
            entries = change.adds.values()
            if any(entry.rows and entry.path not in self._sent for entry in entries) and all(
                entry.table in EVENT_TABLES for entry in entries
            ):
                return Drop(removed=tuple(entries), restored=tuple(change.removes.values()))
        return None

    def _settle(self) -> None:
        """Applies the changes whose parts are all at the URL."""
        for change in list(self._pending):
            if self._sent.issuperset(change.adds):
                self._pending.remove(change)
                self._sent.difference_update(change.adds)
                self._tried.difference_update(change.adds)
                for path in change.removes:
                    self._named.pop(path, None)
                    self._condemn(path)
                self._named.update(change.adds)
                self._is_dirty = True

    def _condemn(self, path: str) -> None:
        """Schedules a file for removal, once a remote manifest that does not name it is written."""
        self._tried.discard(path)
        self._condemned[path] = None
        self._is_dirty = True
