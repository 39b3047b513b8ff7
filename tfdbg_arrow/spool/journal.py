"""The journals of a recording: append-only files that outlive the process that writes them.

An entry consists of `MAGIC`, the length of the payload, the CRC-32 of the payload, and the payload. The length and the
CRC-32 are little-endian 32-bit integers. The first byte of the payload is the kind of the entry: `s` for an interned
string, `j` for JSON, or `t` for JSON with a long text. An interned string is a 32-bit ID and a text in UTF-8. The JSON
is an array that begins with a word. A long text follows the JSON and a newline in UTF-8, because to escape the texts of
source files would take more time than to read these files. This module writes JSON, and the native core writes strings
(`writer/native/journal.h`).

Readers skip an entry that is cut off or changed, and continue at the next `MAGIC`.

The process holds a lock on the journal of names. When the process dies for any reason, the kernel releases the lock. A
forked child shares the `flock`, so it closes its copy of the descriptor first. Another machine may not see the lock. A
process on such a machine assumes that the run may be alive if the run's journal was touched recently. The sink touches
the journal regularly.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tfdbg_arrow.safe_text import parse_json
from tfdbg_arrow.storage.disk import MIN_HOLE_BYTES, lock_file, punch_hole
from tfdbg_arrow.storage.layout import SpoolPaths

if TYPE_CHECKING:
    from tfdbg_arrow.spool.circular_buffer import Retention  # this module imports NumPy

MAGIC = b"\xf0TJ1"
MAX_ENTRY_BYTES = 16 * 2**20
"""Maximum size of an entry. Longer entries are neither written nor accepted."""
MAX_JOURNAL_BYTES = 512 * 2**20
"""Maximum number of bytes that are read from a journal."""
_MAX_KEPT_BYTES = 64 * 2**20
"""Maximum bytes of entries that are kept until the disk accepts them. Further entries are lost, and counted."""
_ATTEMPTS = 2
"""Number of attempts to write an entry. A reader skips an entry that was partly written."""
_HEAD = struct.Struct("<4sII")
_STRING_ID = struct.Struct("<I")
_READ_BYTES = 1 << 16
"""Size of the read buffer, and of the pieces in which the next entry is searched."""
_MIN_BUDGET = 1 << 24
"""Bytes that may be read in vain in any journal: the size of the largest entry."""
_PAGE_BYTES = 4096
"""Size of a page of memory. The kernel cuts an interrupted write at such a boundary."""
MAX_SILENCE_S = 600.0
"""Time for which a process on another machine counts as alive after it last touched its journal."""
_LOCK_PATIENCE_S = 30.0
"""Maximum time to wait for readers. Readers hold the lock of a dead run while they read its spool."""
_LOCK_POLL_S = 0.02
"""Seconds between two attempts to get the lock. A short pause delays a recovery little."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Journal:
    """A new journal that any thread can append to.

    An entry that cannot be written is counted in `num_unwritten`. Such an entry raises no error.

    Args:
        path: The file, which must not exist. A missing directory is created.
        is_kept: Whether entries that could not be written are stored and written later. If entries are written later,
            their order must not matter.
        lock: Held while an entry is written; see `lock` below. None creates a lock.

    Attributes:
        lock: The lock of a recording: held by a thread of the program while it adds something to the run. It is
            reentrant: while a thread holds it, Python's garbage collector can run a finalizer, which may execute an op
            or call a function, and so add something, too. All objects that such a thread uses share this lock. With
            two locks, two threads could wait for each other.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(
        self, path: Path, *, is_kept: bool = False, lock: AbstractContextManager[object] | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.lock: AbstractContextManager[object] = threading.RLock() if lock is None else lock
        self.last_error: Exception | None = None
        """The last error. It is an OSError if an entry could not be written, or another error for an invalid entry."""
        self._is_kept = is_kept
        self._kept: deque[bytes] = deque()
        self._kept_bytes = self._num_lost = 0
        self._released = 0

    @property
    def num_unwritten(self) -> int:
        """Number of entries that could not be written."""
        return self._num_lost + len(self._kept)

    def append(self, *entry: object, text: str | None = None) -> bool:
        """Appends a word and its plain data, and a long text if there is one. Returns whether the entry was written."""
        try:
            data = _JSON.encode(entry).encode()
            payload = b"j" + data if text is None else b"t" + data + b"\n" + text.encode(errors="surrogatepass")
        except (TypeError, ValueError, RecursionError) as error:
            self._fail(error)
            return False
        if len(payload) > MAX_ENTRY_BYTES:
            self._fail(ValueError(f"an entry has {len(payload)} bytes, expected at most {MAX_ENTRY_BYTES}"))
            return False
        entry_bytes = _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload
        with self.lock:
            if self.descriptor < 0:
                return False
            if self._write(entry_bytes):
                return True
            if self._is_kept and self._kept_bytes + len(entry_bytes) <= _MAX_KEPT_BYTES:
                self._kept.append(entry_bytes)
                self._kept_bytes += len(entry_bytes)
            else:
                self._num_lost += 1
            return False

    def write_kept(self) -> None:
        """Appends the stored entries, until an entry cannot be written."""
        with self.lock:
            while self._kept and self._write(self._kept[0]):
                self._kept_bytes -= len(self._kept.popleft())

    def size(self) -> int:
        """Returns the size of the file in bytes, which is the offset of the next entry.

        Raises:
            OSError: The size cannot be determined.
        """
        with self.lock:
            return 0 if self.descriptor < 0 else os.fstat(self.descriptor).st_size

    def release(self, upto: int) -> None:
        """Frees the disk blocks before an offset, if they are large enough and the file system supports this."""
        if upto - self._released >= MIN_HOLE_BYTES and self.descriptor >= 0:
            punch_hole(self.descriptor, self._released, upto)
            self._released = upto

    def close(self) -> None:
        """Closes the file, which also releases the lock."""
        with self.lock:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def abandon(self) -> None:
        """Closes the file in a forked child. A thread of the parent may have held the thread lock."""
        self.lock = threading.RLock()
        self.close()

    def _write(self, entry: bytes) -> bool:
        """Writes an entry in one call, because other code also appends to the file. Repeats a failed write once."""
        for _ in range(_ATTEMPTS):
            try:
                written = os.write(self.descriptor, entry)
            except OSError as error:
                self.last_error = error
                continue
            if written == len(entry):
                return True
            self.last_error = OSError(f"only {written} of {len(entry)} bytes could be written")
        return False

    def _fail(self, error: Exception) -> None:
        self._num_lost += 1
        self.last_error = error


def _plain(value: Any) -> object:
    """Converts a NumPy scalar to a Python object, and other values to text.

    The check of the rows rejects such text later.
    """
    return value.item() if hasattr(value, "item") else str(value)


_JSON = json.JSONEncoder(separators=(",", ":"), default=_plain)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a journal.

    Attributes:
        offset: Offset of the entry in the file.
        string: The ID and the text of an interned string; None for other entries.
        data: The JSON array, which begins with a word; empty for a string. A long text is the last item.
    """

    offset: int
    string: tuple[int, str] | None = None
    data: Sequence[Any] = ()


class JournalReader:
    """Reads a journal. The journal may be incomplete, or contain arbitrary bytes.

    Args:
        path: The file.
        start: Offset of the first entry to read.

    Attributes:
        num_torn: Number of damaged entries that were found so far.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path, self._start = path, start
        self.num_torn = 0

    def entries(self) -> Iterator[Entry]:
        """Yields the complete entries in order.

        The time is proportional to the size of the file. The memory is proportional to the size of an entry.

        Raises:
            OSError: The file cannot be read.
        """
        with open(self._path, "rb", buffering=_READ_BYTES) as file:
            size = min(os.fstat(file.fileno()).st_size, self._start + MAX_JOURNAL_BYTES)
            for offset, _, payload in _pieces(file, self._start, size):
                entry = _parse(payload, offset) if payload else None
                if entry is not None:
                    yield entry
                elif payload or offset + _HEAD.size <= size:
                    self.num_torn += 1


def _pieces(file: BinaryIO, start: int, size: int) -> Iterator[tuple[int, int, bytes]]:
    """Yields the offset, the end and the payload of each entry; where no complete entry begins, an empty payload.

    The end of a piece without a payload is the place where the next entry may begin.
    """
    # Bytes that look like the start of an entry can claim a great length, which is read in vain. The budget limits the
    # total of these reads.
    budget = 4 * size + _MIN_BUDGET
    offset = start
    while offset < size and budget > 0:
        file.seek(offset)
        magic, length, crc = _HEAD.unpack(file.read(_HEAD.size).ljust(_HEAD.size, b"\0"))
        payload = b""
        if magic == MAGIC and length <= min(MAX_ENTRY_BYTES, size - offset - _HEAD.size):
            payload = file.read(length)
        end = offset + _HEAD.size + length
        if zlib.crc32(payload) != crc or not payload:
            end = _find_magic(file, offset + 1, size)
            budget -= len(payload) + max(end - offset, _READ_BYTES)
            payload = b""
        yield offset, end, payload
        offset = end


def _find_magic(file: Any, start: int, size: int) -> int:
    """Returns the offset at which the next entry may begin; the size of the file if no entry follows."""
    offset = start
    while offset < size:
        file.seek(offset)
        piece = file.read(_READ_BYTES)
        magic_offset = piece.find(MAGIC)
        if magic_offset >= 0:
            return offset + int(magic_offset)
        if len(piece) < len(MAGIC):
            return size
        offset += len(piece) - len(MAGIC) + 1
    return size


def _parse(payload: bytes, offset: int) -> Entry | None:
    kind, body = payload[:1], payload[1:]
    if kind == b"s" and len(body) >= _STRING_ID.size:
        (number,) = _STRING_ID.unpack_from(body)
        return Entry(offset=offset, string=(number, body[_STRING_ID.size :].decode("utf-8", errors="replace")))
    if kind in (b"j", b"t"):
        encoded, _, text = body.partition(b"\n") if kind == b"t" else (body, b"", b"")
        try:
            data = parse_json(encoded)
            texts = [text.decode(errors="surrogatepass")] if kind == b"t" else []
        except ValueError:
            return None
        if isinstance(data, list) and data and isinstance(data[0], str):
            return Entry(offset=offset, data=data + texts)
    return None


@dataclass(frozen=True, kw_only=True)
class BrokenEntry:
    """An incomplete or changed entry of a journal.

    Attributes:
        offset: Offset of the entry.
        is_cut: Whether the entry ends too early, at a page boundary where the file ends or the next entry begins. If
            the process is killed or the disk is full, the kernel ends a write at a page boundary.
    """

    offset: int
    is_cut: bool


def broken_entries(path: Path, *, start: int = 0) -> Iterator[BrokenEntry]:
    """Yields the cut entries of a journal in order, up to and including the first entry that is broken in another way.

    The function needs memory only for one entry.

    Args:
        path: The file.
        start: Offset of the first entry to check.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        for offset, end, payload in _pieces(file, start, os.fstat(file.fileno()).st_size):
            if not payload:
                is_cut = _is_cut(file, offset, end)
                yield BrokenEntry(offset=offset, is_cut=is_cut)
                if not is_cut:
                    return


def _is_cut(file: BinaryIO, offset: int, end: int) -> bool:
    """Returns whether the incomplete entry between two offsets was cut at a page boundary.

    The next entry is where the next MAGIC is, because the payload is UTF-8, and therefore never contains MAGIC.
    """
    if end % _PAGE_BYTES:
        return False
    file.seek(offset)
    head = file.read(min(_HEAD.size, end - offset))
    if len(head) < _HEAD.size:
        return MAGIC.startswith(head[: len(MAGIC)])
    magic, length, _ = _HEAD.unpack(head)
    return bool(magic == MAGIC and length <= MAX_ENTRY_BYTES and end < offset + _HEAD.size + length)


class RunFiles:
    """The journals of a recording. This process creates and locks them.

    Args:
        paths: The spool files of the recording.
        run_id: The run.
        host_name: A replacement for the name of this host; None means the real name.
        retention: The events that the recording keeps; None means all events.

    Attributes:
        names: The journal that resolves the numbers in records.
        rows: The journal that holds the rows of tables without events.
        lock: The lock of the recording, which both journals share; see Journal.

    Raises:
        OSError: The files cannot be created.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        *,
        run_id: str,
        host_name: str | None = None,
        retention: Retention | None = None,
    ) -> None:
        self._paths = paths
        self.names = Journal(paths.journal, is_kept=True)
        self.lock = self.names.lock
        try:
            has_lock = lock_file(self.names.descriptor, fcntl.LOCK_EX)  # a reader may hold the lock briefly
            facts = {
                "run_id": run_id,
                "machine": _machine(),
                "host_name": socket.gethostname() if host_name is None else host_name,
                "pid": os.getpid(),
                "has_lock": has_lock,
                "retention": None if retention is None else asdict(retention),
            }
            if not self.names.append("recording", facts):
                raise OSError(f"{paths.journal} cannot be written: {self.names.last_error}")
            self.rows = Journal(paths.rows, lock=self.names.lock)
        except BaseException:
            self.names.close()
            with contextlib.suppress(OSError):
                paths.journal.unlink(missing_ok=True)
            raise

    def is_in_place(self) -> bool:
        """Returns whether the journal of names is still at its path. Without it, the run cannot be recovered."""
        try:
            return os.path.samestat(os.fstat(self.names.descriptor), os.stat(self._paths.journal))
        except OSError:
            return False

    @property
    def num_unwritten(self) -> int:
        """Number of entries that the journals lack, because they could not be written."""
        return self.names.num_unwritten + self.rows.num_unwritten

    def touch(self) -> None:
        """Touches the journal. Machines that cannot see the lock then know that this process is alive."""
        with contextlib.suppress(OSError):
            os.utime(self.names.descriptor)

    def abandon(self) -> None:
        """Closes the files in a forked child. The child must not hold the locks."""
        self.names.abandon()
        self.rows.abandon()

    def close(self) -> None:
        """Closes the files without removing them."""
        self.rows.close()
        self.names.close()

    def remove(self) -> None:
        """Removes the files. Call this after the content of the files is in parts."""
        self._paths.rows.unlink(missing_ok=True)
        self._paths.journal.unlink(missing_ok=True)
        self.close()


@contextlib.contextmanager
def held_if_dead(journal: Path, *, to_change: bool, other_machines: bool = False) -> Iterator[bool]:
    """Yields whether the process that made a journal is dead.

    If the process is dead, the function holds the journal's lock during the block.

    Either several processes hold a shared lock to read the run, or one process holds an exclusive lock to change the
    run. No other process gets the lock while the run's own process lives.

    Args:
        journal: The journal of names.
        to_change: Whether to take an exclusive lock.
        other_machines: Whether to treat a process on another machine as dead even if it was active recently.

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
    """Takes the lock. Returns whether this succeeded and the journal still exists."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while to_change:
        try:
            lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    """Takes a shared lock. Returns False if the run's own process or a recovery holds an exclusive lock."""
    try:
        lock_file(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_known_dead(descriptor: int, journal: Path) -> bool:
    """Returns whether it is certain that a process without a lock is dead."""
    facts = recording_facts(journal)
    if facts.get("has_lock") is True and facts.get("machine") == _machine():
        return True
    return time.time() - os.fstat(descriptor).st_mtime > MAX_SILENCE_S


def recording_facts(journal: Path) -> dict[str, object]:
    """Returns the facts about the recording in the first entry of a journal; empty if that entry is damaged."""
    first = next(JournalReader(journal).entries(), None)
    if first is not None and len(first.data) == 2 and first.data[0] == "recording" and isinstance(first.data[1], dict):
        return first.data[1]
    return {}


def _machine() -> str:
    """Returns an ID of this machine that is valid until the next boot; an empty string if the ID is unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
