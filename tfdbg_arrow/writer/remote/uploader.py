"""The uploader: a thread that copies a run's sealed parts to a URL while they are written.

The uploader never raises an error into the training, and never waits for the network on the training's threads. The
spool and the parts are local. Parts that are already at the URL can be removed locally once merging no longer needs
them, or once the local parts exceed their limit.

Source: spec/README.md, "Logdirs in object stores".
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.errors import LogdirError, SettingError, TfdbgArrowError
from tfdbg_arrow.storage.disk import lock_directory
from tfdbg_arrow.storage.location import RemoteDirectory, RemoteLocation, described, is_final, reason_of
from tfdbg_arrow.storage.manifest import ManifestEntry
from tfdbg_arrow.storage.retries import jittered
from tfdbg_arrow.writer.remote.transfer import RemoteRun, Transfer, mark_remote

if TYPE_CHECKING:
    from tfdbg_arrow.writer.sink.parts import PartWriter


START_TIMEOUT_S = 10.0
"""How many seconds the start of a recording waits for the store. If the store does not answer, the recording starts,
and the uploader retries later."""

_GATHER_S = 1.0
"""How many seconds parts are collected before they are sent, so that one manifest names many of them."""

_BACKOFF_S = (0.5, 30.0)

_CLOSING_BACKOFF_S = 1.0
"""Maximum pause in seconds while the recording ends, because the program waits for the last uploads."""

_TELL_AGAIN_S = 60.0
"""Minimum time between two reports of an unstable connection."""
LOCAL_DIR_VARIABLE = "TFDBG_ARROW_LOCAL_DIR"
DEFAULT_UPLOAD_TIMEOUT_S = 60.0
"""Default number of seconds that the end of a recording waits for the last uploads. The files stay on the disk."""
DEFAULT_MAX_LOCAL_BYTES = 1 << 30
"""Default maximum bytes of parts on the local disk while the store cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class RemoteSettings:
    """Settings of a recording to a URL.

    Attributes:
        directory: The remote directory.
        upload_timeout_s: How long the end of the recording waits for the last uploads.
        max_local_bytes: Maximum bytes of parts that are kept locally.
    """

    directory: RemoteDirectory
    upload_timeout_s: float
    max_local_bytes: int


def check_remote(
    location: Path | RemoteLocation,
    *,
    storage_options: Mapping[str, Any] | None,
    local_dir: str | os.PathLike[str] | None,
    upload_timeout_s: float,
    max_local_bytes: int,
) -> RemoteSettings | None:
    """Returns the settings of a recording to a URL; None if the logdir is a path.

    The function does not contact the store. The arguments have the same meaning as those of enable().

    Raises:
        SettingError: A value is not valid.
        LogdirError: The URL or the directory for local files cannot be used.
        MissingDependencyError: A package that is needed to open the URL is not installed.
    """
    timeout_s, max_bytes = upload_timeout_s, max_local_bytes
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 <= timeout_s < math.inf:
        raise SettingError(f"upload_timeout_s is {timeout_s!r}; expected seconds, 0 or more")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1 << 20:
        raise SettingError(f"max_local_bytes is {max_bytes!r}; expected at least 1048576 (1 MiB)")
    if not isinstance(location, RemoteLocation):
        for name, value in (("storage_options", storage_options), ("local_dir", local_dir)):
            if value is not None:
                raise SettingError(
                    f"{name} is given, but the logdir {location} is a local directory; expected a URL such as "
                    "s3://bucket/path, or remove this setting"
                )
        return None
    options = storage_options
    if options is not None and not isinstance(options, Mapping):
        raise SettingError(f"storage_options is a {type(options).__name__}; expected a dict of fsspec's arguments")
    _check_local_dir(_local_dir(local_dir))
    return RemoteSettings(
        directory=location.open(options), upload_timeout_s=float(timeout_s), max_local_bytes=max_bytes
    )


def local_logdir(local_dir: str | os.PathLike[str] | None) -> Path:
    """Returns a new path for the local logdir of a recording to a URL, in the directory that the user chose."""
    return _local_dir(local_dir) / f"tfdbg_arrow-{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True)
class Unsent:
    """The parts that an uploader did not send: their number, their size in bytes, and their local directory."""

    num_parts: int
    size_bytes: int
    directory: Path


class Uploader:
    """Copies one run to a URL.

    Args:
        settings: The remote directory and the limits.
        local: The local logdir. The uploader creates it, and removes it when everything was sent.
        run_id: The run.
        on_trouble: Called when the store becomes unreachable, at most once a minute.
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
        """Creates the local logdir and starts the thread; waits a limited time for the store's first answer.

        Raises:
            OSError: The local logdir cannot be created.
            LogdirError: The store refuses the recording.
        """
        os.makedirs(self._local, mode=0o700, exist_ok=True)  # the spool may already be in the directory
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
        """Adds a line of the local manifest; called by the thread that writes the manifest."""
        with self._condition:
            for path in removed:
                self._local_bytes.pop(path, None)
            self._local_bytes.update({entry.path: entry.bytes for entry in added})
            self._run.change(removed, added)
            self._condition.notify_all()

    def make_room(self, parts: PartWriter) -> None:
        """Removes local files that are no longer needed, and drops the oldest unsent events beyond the limit.

        Called by the thread that writes the parts. `take_dropped` returns the dropped rows.

        Args:
            parts: The writer of the parts.

        Raises:
            OSError: The local manifest cannot be written.
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
        while excess > 0:
            with self._condition:
                drop = self._run.oldest_drop()
                if drop is None:
                    return
                removed = [entry.path for entry in drop.removed]
                excess -= sum(self._local_bytes.get(path, 0) for path in removed)
            # drop() calls `note_change`. The files of restored parts are not local.
            parts.drop(removed, drop.restored)
            with self._condition:
                for entry in drop.restored:
                    self._local_bytes.pop(entry.path, None)
                for table, rows in drop.lost_rows.items():
                    self._dropped[table] = self._dropped.get(table, 0) + rows

    def take_dropped(self, *, last: bool = False) -> dict[str, int]:
        """Returns the number of dropped rows by table, since the last call that returned any numbers.

        Args:
            last: Whether to return the numbers now. Otherwise the result is empty until the store answers again,
                because a report would add to the waiting parts.
        """
        with self._condition:
            if not last and self._error is not None:
                return {}
            dropped, self._dropped = self._dropped, {}
            return dropped

    def hurry(self) -> None:
        """Makes the thread send the waiting parts at once."""
        with self._condition:
            self._is_urgent = True
            self._condition.notify_all()

    def close(self, *, on_wait: Callable[[int, float], None] | None = None) -> Unsent | None:
        """Sends the remaining parts for a limited time and stops; call it after the last part was written.

        If everything was sent, the local logdir is removed.

        Args:
            on_wait: Called after some seconds with the number of remaining parts and the maximum number of seconds that
                close() will still wait.

        Returns:
            The parts that were not sent and remain local; None if everything was sent.
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
                    num_left = len(self._run.unsent())
                on_wait(num_left, timeout_s - first_s)
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
        """Stops without sending anything more, and removes the local logdir, because the recording cannot start."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        shutil.rmtree(self._local, ignore_errors=True)
        self.unlock()

    def unlock(self) -> None:
        """Closes the lock's descriptor; if a forked child does this, its parent keeps the lock."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def _work(self) -> None:
        """Runs the uploader's thread."""
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
                is_refusal = not self._first_answer.is_set() and _is_refusal(error)  # `start` raises the error
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
        """Waits until there is something to do; returns False if there will be no more work."""
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
    """Returns whether an error is a final answer of the store, so that a retry would not help."""
    return is_final(error) or isinstance(error, TfdbgArrowError)


def _local_dir(local_dir: str | os.PathLike[str] | None) -> Path:
    chosen = local_dir if local_dir is not None else os.environ.get(LOCAL_DIR_VARIABLE) or tempfile.gettempdir()
    return Path(chosen).expanduser().absolute()


def _check_local_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogdirError(
            f"the directory {path} for local files cannot be created: {error.strerror or error}; choose another one "
            f"with local_dir= or the environment variable {LOCAL_DIR_VARIABLE}"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LogdirError(
            f"the directory {path} for local files cannot be written; choose another one with local_dir= or the "
            f"environment variable {LOCAL_DIR_VARIABLE}"
        )
