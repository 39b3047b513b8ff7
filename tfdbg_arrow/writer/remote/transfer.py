"""Updates the remote copy of a run, one request at a time."""

from __future__ import annotations

import contextlib
import random
import time
from contextlib import AbstractContextManager
from pathlib import Path

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema.location import RemoteDirectory
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME, manifest_path, marker_text, parse_marker
from tfdbg_arrow.schema.manifest import ManifestEntry
from tfdbg_arrow.writer.remote.run import RemoteRun

_PUBLISH_S = 5.0
"""While there are always more parts to send, a manifest is written this often."""

_RANDOM = random.SystemRandom()
"""A separate generator, because a draw from the one that the program seeds would change the training."""


def jittered(delay_s: float) -> float:
    """Returns a random delay between half and all of `delay_s`, so that many clients do not retry at the same time."""
    return delay_s * _RANDOM.uniform(0.5, 1.0)


def mark_remote(remote: RemoteDirectory) -> None:
    """Marks a URL as a logdir, or checks the marker that is already there.

    Raises:
        LogdirError: The marker is not that of a logdir.
        FormatVersionError: The URL holds a logdir of another MAJOR version.
        Exception: The file system's own error, if it cannot be reached.
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

        A manifest is written after its parts, and replaced parts are removed after the manifest.

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
            made = self._run.manifest()
        if made is None:
            self._published_s = time.monotonic()
            return False
        text, named = made
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
