"""The uploader: a thread that copies a run's sealed parts to a URL while they are made.

Nothing here raises into the training or waits for the network on its threads. The spool and the parts are local; what
is there already can go here once merging needs it no more, or once the parts here outgrow their bound.

Source: spec/README.md, "Logdirs in object stores".
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.schema.location import described, is_final, reason_of
from tfdbg_arrow.schema.manifest import ManifestEntry
from tfdbg_arrow.writer.remote.locking import lock_directory
from tfdbg_arrow.writer.remote.run import RemoteRun
from tfdbg_arrow.writer.remote.settings import RemoteSettings
from tfdbg_arrow.writer.remote.transfer import Transfer, jittered, mark_remote
from tfdbg_arrow.writer.sink.parts import PartWriter

START_TIMEOUT_S = 10.0
"""How long the start of a recording waits for the store; without an answer it goes on, and tries again."""

_GATHER_S = 1.0
"""Parts are gathered for so long before they are sent, so that one manifest tells of many."""

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
        delay = jittered(min(most, first * 2 ** min(num_failures - 1, 16)))
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
