"""The journals of a recording, and what tells whether its process is alive.

The journal of names is locked as long as the process lives: the kernel lets go of the lock when it dies, whatever
killed it. A lock of `flock` is shared with a fork's child, so the child closes its copy of the descriptor first thing.
The lock tells nothing on another machine, to which a file system may not carry it: there, a run whose journal was
touched lately may be alive. The sink touches it all along.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.journal import Journal, JournalReader

MAX_SILENCE_S = 600.0
"""How long a process of another machine may not have touched its journal and still be taken to be alive."""
_LOCK_PATIENCE_S = 30.0
"""How long to wait for readers, who hold the lock of a dead run while they read what it left."""
_LOCK_POLL_S = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunFiles:
    """The journals of a recording, which this process makes and locks.

    Args:
        paths: Where the recording keeps what is not in parts yet.
        run_id: The run.
        host_name: What stands for this host; None: its name.
        circular_buffer_size: Of the recording; 0 or less: all events are kept.
        dump_after: Likewise; None: no black box.

    Attributes:
        names: What the numbers in records stand for.
        rows: Rows of the tables that no events are converted into.

    Raises:
        OSError: They cannot be made.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        *,
        run_id: str,
        host_name: str | None = None,
        circular_buffer_size: int = -1,
        dump_after: int | None = None,
    ) -> None:
        self._paths = paths
        self.names = Journal(paths.journal, is_kept=True)
        try:
            has_lock = _lock(self.names.descriptor, fcntl.LOCK_EX)  # a reader may hold it for a moment
            facts = {
                "run_id": run_id,
                "machine": _machine(),
                "host_name": socket.gethostname() if host_name is None else host_name,
                "pid": os.getpid(),
                "has_lock": has_lock,
                "circular_buffer_size": circular_buffer_size,
                "dump_after": dump_after,
            }
            if not self.names.append("recording", facts):
                raise OSError(f"{paths.journal} cannot be written: {self.names.last_error}")
            self.rows = Journal(paths.rows)
        except BaseException:
            self.names.close()
            with contextlib.suppress(OSError):
                paths.journal.unlink(missing_ok=True)
            raise

    def touch(self) -> None:
        """Shows machines that do not see the lock that this process is alive."""
        with contextlib.suppress(OSError):
            os.utime(self.names.descriptor)

    def abandon(self) -> None:
        """Lets go of the files in a fork's child, which must not keep them locked."""
        self.names.abandon()
        self.rows.abandon()

    def close(self) -> None:
        """Lets go of the files, which stay."""
        self.rows.close()
        self.names.close()

    def remove(self) -> None:
        """Removes the files: all of it is in the logdir."""
        self._paths.rows.unlink(missing_ok=True)
        self._paths.journal.unlink(missing_ok=True)
        self.close()


@contextlib.contextmanager
def held_if_dead(journal: Path, *, to_change: bool, other_machines: bool = False) -> Iterator[bool]:
    """Yields whether the process that made a journal is dead, and holds the journal for the block if so.

    Any number may hold it to read, one to change what it stands for, and nobody while its process lives.

    Args:
        journal: The journal of names.
        to_change: Whether to hold it alone.
        other_machines: Whether to take a process of another machine for dead that has just been heard of.

    Raises:
        OSError: The journal cannot be opened.
    """
    try:
        descriptor = os.open(journal, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe nobody may be waited for
    except FileNotFoundError:
        yield False
        return
    try:
        yield _take(descriptor, journal, to_change=to_change) and (
            other_machines or _is_known_dead(descriptor, journal)
        )
    finally:
        os.close(descriptor)


def _take(descriptor: int, journal: Path, *, to_change: bool) -> bool:
    """Returns whether the lock could be had on a file that is still there."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while to_change:
        try:
            _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline or not _is_readable(descriptor):
                return False
            time.sleep(_LOCK_POLL_S)
    try:
        return (to_change or _is_readable(descriptor)) and os.path.samestat(os.fstat(descriptor), os.stat(journal))
    except FileNotFoundError:
        return False


def _is_readable(descriptor: int) -> bool:
    """Takes a file's lock to read; returns False where another process holds it alone, which lives or recovers it."""
    try:
        _lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_known_dead(descriptor: int, journal: Path) -> bool:
    """Returns whether a process without a lock is dead for sure."""
    facts = recording_facts(journal)
    if facts.get("has_lock") is True and facts.get("machine") == _machine():
        return True
    return time.time() - os.fstat(descriptor).st_mtime > MAX_SILENCE_S


def recording_facts(journal: Path) -> dict[str, object]:
    """Returns what the head of a journal tells of its recording, nothing where it is torn."""
    first = next(JournalReader(journal).entries(), None)
    if first is not None and len(first.data) == 2 and first.data[0] == "recording" and isinstance(first.data[1], dict):
        return first.data[1]
    return {}


def _lock(descriptor: int, kind: int) -> bool:
    """Locks a file; returns False where the file system has no locks.

    Raises:
        BlockingIOError: Another one has it, and `kind` says not to wait.
    """
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _machine() -> str:
    """Returns what tells this machine, since it was started, from others; empty where that is not known."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
