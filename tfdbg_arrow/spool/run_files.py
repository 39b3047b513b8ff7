"""The journals of a recording, and the check whether its process is alive.

The journal of names is locked while the process lives. The kernel releases the lock when the process dies for any
reason. A forked child shares the `flock`, so it closes its copy of the descriptor first. Another machine may not see
the lock; there, a run counts as possibly alive if its journal was touched recently. The sink touches it regularly.
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
"""How long a process on another machine counts as alive after it last touched its journal."""
_LOCK_PATIENCE_S = 30.0
"""How long to wait for readers, which hold the lock of a dead run while they read its spool."""
_LOCK_POLL_S = 0.02
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class RunFiles:
    """The journals of a recording, which this process creates and locks.

    Args:
        paths: The spool files of the recording.
        run_id: The run.
        host_name: A replacement for the name of this host; None means its real name.
        circular_buffer_size: Setting of the recording; 0 or less means that all events are kept.
        dump_after: Setting of the recording; None means no black box.

    Attributes:
        names: The journal that resolves the numbers in records.
        rows: The journal of rows of the tables that do not hold events.

    Raises:
        OSError: The files cannot be created.
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
            has_lock = _lock(self.names.descriptor, fcntl.LOCK_EX)  # a reader may hold it briefly
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
        """Touches the journal, to show machines that do not see the lock that this process is alive."""
        with contextlib.suppress(OSError):
            os.utime(self.names.descriptor)

    def abandon(self) -> None:
        """Closes the files in a forked child, which must not keep them locked."""
        self.names.abandon()
        self.rows.abandon()

    def close(self) -> None:
        """Closes the files without removing them."""
        self.rows.close()
        self.names.close()

    def remove(self) -> None:
        """Removes the files after their content is in the logdir."""
        self._paths.rows.unlink(missing_ok=True)
        self._paths.journal.unlink(missing_ok=True)
        self.close()


@contextlib.contextmanager
def held_if_dead(journal: Path, *, to_change: bool, other_machines: bool = False) -> Iterator[bool]:
    """Yields whether the process that made a journal is dead, and if so holds its lock during the block.

    Any number of processes may hold a shared lock to read, or one an exclusive lock to change the run. Nobody gets the
    lock while the run's process lives.

    Args:
        journal: The journal of names.
        to_change: Whether to take an exclusive lock.
        other_machines: Whether to treat a process of another machine as dead even if it was active recently.

    Raises:
        OSError: The journal cannot be opened.
    """
    try:
        descriptor = os.open(journal, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not block on a pipe
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
    """Returns whether the lock was acquired on a file that still exists."""
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
    """Takes a shared lock; returns False if another process, the run's own or a recovery, holds it exclusively."""
    try:
        _lock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_known_dead(descriptor: int, journal: Path) -> bool:
    """Returns whether a process that holds no lock is certainly dead."""
    facts = recording_facts(journal)
    if facts.get("has_lock") is True and facts.get("machine") == _machine():
        return True
    return time.time() - os.fstat(descriptor).st_mtime > MAX_SILENCE_S


def recording_facts(journal: Path) -> dict[str, object]:
    """Returns the facts about the recording from the first entry of a journal; empty if that entry is damaged."""
    first = next(JournalReader(journal).entries(), None)
    if first is not None and len(first.data) == 2 and first.data[0] == "recording" and isinstance(first.data[1], dict):
        return first.data[1]
    return {}


def _lock(descriptor: int, kind: int) -> bool:
    """Locks a file; returns False if the file system does not support locks.

    Raises:
        BlockingIOError: Another process holds the lock, and `kind` says not to wait.
    """
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _machine() -> str:
    """Returns an id of this machine since its last boot; an empty string if it is unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
