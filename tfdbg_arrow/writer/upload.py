"""The uploader: a thread that copies a run's sealed parts to a URL while they are made.

Nothing here raises into the training or waits for the network on its threads. The spool and the parts are local; what
is there already can go here once merging needs it no more, or once the parts here outgrow their bound.

Source: spec/README.md, "Logdirs in object stores".
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import BrokenPartError, LogdirError, TfdbgArrowError
from tfdbg_arrow.schema.location import RemoteDirectory, described, is_final, reason_of
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME, ManifestEntry, manifest_path, marker_text, parse_marker
from tfdbg_arrow.writer.remote_run import RemoteRun
from tfdbg_arrow.writer.remote_settings import RemoteSettings
from tfdbg_arrow.writer.sink.parts import PartWriter

START_TIMEOUT_S = 10.0
"""How long the start of a recording waits for the store; without an answer it goes on, and tries again."""
_GATHER_S = 1.0
"""Parts are gathered for so long before they are sent, so that one manifest tells of many."""
_PUBLISH_S = 5.0
"""While there are always more parts to send, a manifest is written after so long."""
_BACKOFF_S = (0.5, 30.0)
_CLOSING_BACKOFF_S = 1.0
_TELL_AGAIN_S = 60.0
"""A connection that comes and goes is told of no more often."""


@dataclass(frozen=True, kw_only=True)
class Unsent:
    """What an uploader leaves behind: number of parts that were not sent, their bytes, and where they are kept."""

    num_parts: int
    size_bytes: int
    directory: Path


def mark_remote(remote: RemoteDirectory) -> None:
    """Makes sure that a logdir can be begun or continued at a URL.

    Raises:
        LogdirError: Something else is marked there.
        FormatVersionError: It holds a logdir of another MAJOR version.
        Exception: The file system's own, if it cannot be reached.
    """
    try:
        marker = remote.read_bytes(MARKER_NAME)
    except FileNotFoundError:
        remote.write_bytes(MARKER_NAME, marker_text().encode())
    else:
        parse_marker(marker.decode("utf-8", errors="replace"), path=f"{remote}/{MARKER_NAME}")


class Transfer:
    """Brings the copy of a run up to date, one request at a time.

    Args:
        run: What the copy holds and lacks.
        run_id: The run.
        local: The logdir here.
        remote: The logdir there; it is marked.
        lock: Held where `run` is looked at or changed.
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
        """Does the next thing; returns False if there was nothing to do.

        A manifest is written after its parts, and replaced parts are removed after the manifest.

        Raises:
            BrokenPartError: A part that still holds is not here.
            Exception: The file system's own; the next call tries again.
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
                        f"{self._local / entry.path} is gone before it was sent to {self._remote}; restore it."
                    ) from None
            return  # replaced meanwhile
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


class Uploader:
    """Copies one run to a URL.

    Args:
        settings: Where to, and within which bounds.
        local: The logdir here, which is the uploader's own: it makes it, and removes it when all was sent.
        run_id: The run.
        on_trouble: Told when the store cannot be reached; once until it can be again, and once a minute at most.
    """

    def __init__(
        self, settings: RemoteSettings, *, local: Path, run_id: str, on_trouble: Callable[[str], None]
    ) -> None:
        self._settings, self._local = settings, local
        self._remote, self._on_trouble = settings.directory, on_trouble
        self._condition = threading.Condition()
        self._run = RemoteRun()
        self._transfer = Transfer(self._run, run_id=run_id, local=local, remote=self._remote, lock=self._condition)
        self._local_bytes: dict[str, int] = {}
        self._dropped: dict[str, int] = {}
        self._first_answer = threading.Event()
        self._error: Exception | None = None
        self._is_marked = self._is_closing = self._is_stopped = self._is_urgent = False
        self._lock_file = -1
        self._thread = threading.Thread(target=self._work, name="tfdbg_arrow-upload", daemon=True)

    def start(self) -> None:
        """Makes the logdir here and starts the thread; waits a bounded time for the store's first answer.

        Raises:
            OSError: The logdir here cannot be made.
            LogdirError: The store answered that it will not take the recording.
        """
        os.makedirs(self._local, mode=0o700, exist_ok=True)  # the spool may lie in it already
        self._local.chmod(0o700)
        self._lock_file = lock_directory(self._local)
        self._thread.start()
        self._first_answer.wait(START_TIMEOUT_S)
        error = self._error
        if error is not None and _is_refusal(error):
            self.discard()
            with described(f"{self._remote} cannot be written"):
                raise error

    def note_change(self, removed: Sequence[str], added: Sequence[ManifestEntry]) -> None:
        """Takes a line of the manifest, from the thread that writes it."""
        with self._condition:
            for path in removed:
                self._local_bytes.pop(path, None)
            self._local_bytes.update({entry.path: entry.bytes for entry in added})
            self._run.change(removed, added)
            self._condition.notify_all()

    def make_room(self, parts: PartWriter, *, may_drop: bool) -> None:
        """Removes local files that need not stay, and drops the oldest unsent events beyond the bound.

        Called by the thread that writes the parts. `take_dropped` tells what was dropped.

        Args:
            parts: Their writer.
            may_drop: Whether unsent events may be dropped.

        Raises:
            OSError: The manifest here cannot be written.
        """
        with self._condition:
            named = [path for path in self._run.published if path in self._local_bytes]
            settled = parts.settled()
            released = [path for path in named if path in settled]
            excess = sum(self._local_bytes.values()) - self._settings.max_local_bytes
            excess -= sum(self._local_bytes[path] for path in released)
            for path in named:
                if excess <= 0:
                    break
                if path not in settled:
                    released.append(path)
                    excess -= self._local_bytes[path]
            for path in released:
                del self._local_bytes[path]
        parts.release(frozenset(released))
        while may_drop and excess > 0:
            with self._condition:
                drop = self._run.oldest_drop()
                if drop is None:
                    return
                removed = [entry.path for entry in drop.removed]
                excess -= sum(self._local_bytes.get(path, 0) for path in removed)
            # `note_change` is told of it; what is restored is not here.
            parts.drop(removed, drop.restored)
            with self._condition:
                for entry in drop.restored:
                    self._local_bytes.pop(entry.path, None)
                for table, rows in drop.lost_rows.items():
                    self._dropped[table] = self._dropped.get(table, 0) + rows

    def take_dropped(self, *, last: bool = False) -> dict[str, int]:
        """Returns how many rows were dropped, by table, since it last told.

        Args:
            last: Tell now; else not before the store answers again, lest the telling add to what waits.
        """
        with self._condition:
            if not last and self._error is not None:
                return {}
            dropped, self._dropped = self._dropped, {}
            return dropped

    def hurry(self) -> None:
        """Has what waits sent at once."""
        with self._condition:
            self._is_urgent = True
            self._condition.notify_all()

    def close(self, *, on_wait: Callable[[int, float], None] | None = None) -> Unsent | None:
        """Sends what is left, for a bounded time, and stops; call it after the last part was written.

        Where all was sent, the logdir here is removed.

        Args:
            on_wait: Told after some seconds how many parts are left, and how many seconds it will wait at most.

        Returns:
            What was not sent and stays here; None if all was.
        """
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        timeout_s = self._settings.upload_timeout_s
        first_s = min(timeout_s, 3.0)
        self._thread.join(first_s)
        if self._thread.is_alive() and timeout_s > first_s:
            if on_wait is not None:
                with self._condition:
                    left = len(self._run.unsent())
                on_wait(left, timeout_s - first_s)
            self._thread.join(timeout_s - first_s)
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
            is_complete = self._is_marked and self._run.is_complete
            unsent = self._run.unsent()
        if is_complete:
            shutil.rmtree(self._local, ignore_errors=True)
        self.unlock()
        if is_complete:
            return None
        return Unsent(num_parts=len(unsent), size_bytes=sum(entry.bytes for entry in unsent), directory=self._local)

    def discard(self) -> None:
        """Stops without sending anything more, and removes the logdir here: the recording cannot start."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        shutil.rmtree(self._local, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Lets go of the directory; in a fork's child, which has its parent's lock, this leaves the parent's."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def _work(self) -> None:
        """The thread."""
        num_failures, told_s = 0, -math.inf
        while True:
            try:
                if self._is_stopped:
                    return
                is_busy = self._step()
                num_failures = 0
                self._error = None
                self._first_answer.set()
                if not is_busy and not self._wait_for_work():
                    return
            except Exception as error:
                num_failures += 1
                is_refusal = not self._first_answer.is_set() and _is_refusal(error)  # `start` raises it
                self._error = error
                self._first_answer.set()
                is_new = num_failures == 1 and time.monotonic() - told_s > _TELL_AGAIN_S
                if is_new and not is_refusal:
                    told_s = time.monotonic()
                    with contextlib.suppress(Exception):
                        self._on_trouble(reason_of(error))
                self._back_off(num_failures)

    def _step(self) -> bool:
        if not self._is_marked:
            mark_remote(self._remote)
            self._is_marked = True
            return True
        return self._transfer.step()

    def _wait_for_work(self) -> bool:
        """Waits until there is something to do; returns False if there never will be."""
        with self._condition:
            while self._run.is_complete:
                if self._is_closing or self._is_stopped:
                    return False
                self._condition.wait()
            end = time.monotonic() + _GATHER_S
            while not (self._is_closing or self._is_stopped or self._is_urgent):
                rest = end - time.monotonic()
                if rest <= 0:
                    break
                self._condition.wait(rest)
            self._is_urgent = False
            return True

    def _back_off(self, num_failures: int) -> None:
        first, most = _BACKOFF_S
        delay = min(most, first * 2 ** min(num_failures - 1, 16)) * random.uniform(0.5, 1.0)
        begin = time.monotonic()
        with self._condition:
            while not self._is_stopped:
                rest = begin + (min(delay, _CLOSING_BACKOFF_S) if self._is_closing else delay) - time.monotonic()
                if rest <= 0:
                    return
                self._condition.wait(rest)


def _is_refusal(error: Exception) -> bool:
    """Whether the store answered, and trying again cannot help."""
    return is_final(error) or isinstance(error, TfdbgArrowError)


def lock_directory(directory: Path) -> int:
    """Takes a directory for this process, until the descriptor is closed or the process ends.

    Returns:
        The descriptor.

    Raises:
        LogdirError: Another process has it, or it cannot be opened.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise LogdirError(f"{directory} cannot be opened ({error.strerror}); check its permissions.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LogdirError(
            f"{directory} is in use: a process records to it, or sends it; wait until that has ended."
        ) from None
    except OSError:  # a file system without locks
        return descriptor
    return descriptor


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Holds `lock_directory` for the block."""
    descriptor = lock_directory(directory)
    try:
        yield
    finally:
        os.close(descriptor)
