"""Journals: append-only files that outlive the process that writes them.

An entry is `MAGIC`, the length and the CRC-32 of its payload as little-endian 32-bit integers, then the payload: one
byte for its kind and the rest. A string (`s`) is its id, 32 bits, and UTF-8; all else is JSON (`j`), an array that
begins with a word. The native core writes the same (`writer/native/journal.h`).

An entry that was cut off, or changed, is left out; what is behind it is found by the next `MAGIC`.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"\xf0TJ1"
MAX_ENTRY_BYTES = 16 * 2**20
"""Longer entries are not written, and not believed."""
MAX_JOURNAL_BYTES = 512 * 2**20
"""Of a longer journal the rest is not read."""
_MAX_KEPT_BYTES = 64 * 2**20
_ATTEMPTS = 2
_HEAD = struct.Struct("<4sII")
_STRING_ID = struct.Struct("<I")
_READ_BYTES = 1 << 16
_MIN_BUDGET = 1 << 24


class Journal:
    """Appends to a new journal; any thread may.

    What could not be written is counted in `num_unwritten`, and raises nothing.

    Args:
        path: The file, which must not exist; its directory is made if missing.
        is_kept: Whether what could not be written is kept to be written later, as it may be where the order of the
            entries does not matter.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, path: Path, *, is_kept: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Whoever holds it may be interrupted by a finalizer that appends, too.
        self._lock = threading.RLock()
        self.last_error = ""
        self._is_kept = is_kept
        self._kept: deque[bytes] = deque()
        self._kept_bytes = self._num_lost = 0
        self._released = 0

    @property
    def num_unwritten(self) -> int:
        """How many entries are not there that should be."""
        return self._num_lost + len(self._kept)

    def append_string(self, number: int, text: str) -> bool:
        """Appends an interned string; returns whether it is there."""
        return self._append(b"s" + _STRING_ID.pack(number) + text.encode("utf-8", errors="backslashreplace"))

    def append(self, *entry: object) -> bool:
        """Appends a word and what belongs to it, plain data; returns whether it is there."""
        try:
            payload = b"j" + _JSON.encode(entry).encode()
        except (TypeError, ValueError, RecursionError) as error:
            self._fail(error)
            return False
        return self._append(payload)

    def write_kept(self) -> None:
        """Appends what could not be written before, as far as it can be now."""
        with self._lock:
            while self._kept and self._write(self._kept[0]):
                self._kept_bytes -= len(self._kept.popleft())

    def size(self) -> int:
        """Returns how many bytes there are: where the next entry begins.

        Raises:
            OSError: The file system does not say.
        """
        with self._lock:
            return 0 if self.descriptor < 0 else os.fstat(self.descriptor).st_size

    def release(self, upto: int) -> None:
        """Gives the disk blocks before an offset back, where there are enough of them and the file system can."""
        from tfdbg_arrow.spool.holes import MIN_HOLE_BYTES, punch_hole

        if upto - self._released >= MIN_HOLE_BYTES and self.descriptor >= 0:
            punch_hole(self.descriptor, self._released, upto)
            self._released = upto

    def close(self) -> None:
        """Lets go of the file, and of the lock on it."""
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def abandon(self) -> None:
        """Lets go of the file in a fork's child, where another thread may have held what guards it."""
        self._lock = threading.RLock()
        self.close()

    def _append(self, payload: bytes) -> bool:
        if len(payload) > MAX_ENTRY_BYTES:
            self._fail(ValueError(f"an entry has {len(payload)} bytes, expected at most {MAX_ENTRY_BYTES}"))
            return False
        entry = _HEAD.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload
        with self._lock:
            if self.descriptor < 0:
                return False
            if self._write(entry):
                return True
            if self._is_kept and self._kept_bytes + len(entry) <= _MAX_KEPT_BYTES:
                self._kept.append(entry)
                self._kept_bytes += len(entry)
            else:
                self._num_lost += 1
            return False

    def _write(self, entry: bytes) -> bool:
        """Writes an entry all at once, as others append to the file, too; what is torn is tried once more."""
        for _ in range(_ATTEMPTS):
            try:
                written = os.write(self.descriptor, entry)
            except OSError as error:
                self.last_error = f"{type(error).__name__}: {error}"
                continue
            if written == len(entry):
                return True
            self.last_error = f"only {written} of {len(entry)} bytes could be written"
        return False

    def _fail(self, error: Exception) -> None:
        self._num_lost += 1
        self.last_error = f"{type(error).__name__}: {error}"


def _plain(value: Any) -> object:
    """Returns a NumPy scalar as Python's own, anything else as text: what checks the rows will say so."""
    return value.item() if hasattr(value, "item") else str(value)


_JSON = json.JSONEncoder(separators=(",", ":"), default=_plain)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a journal.

    Attributes:
        offset: Where it begins.
        string: The id and the text of an interned string; None for other entries.
        data: What the JSON holds, a word first; empty for a string.
    """

    offset: int
    string: tuple[int, str] | None = None
    data: Sequence[Any] = ()


class JournalReader:
    """Reads a journal, which may be torn or anything else.

    Args:
        path: The file.
        start: Where to begin: an offset where an entry begins.

    Attributes:
        num_torn: How often bytes were found so far that are no whole entry.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path, self._start = path, start
        self.num_torn = 0

    def entries(self) -> Iterator[Entry]:
        """Yields the whole entries, in order. Takes time in proportion to the file, and memory to an entry.

        Raises:
            OSError: The file cannot be read.
        """
        with open(self._path, "rb", buffering=_READ_BYTES) as file:
            size = min(os.fstat(file.fileno()).st_size, self._start + MAX_JOURNAL_BYTES)
            # Each try to read an entry where there is none costs up to its length: together no more than this.
            budget = 4 * size + _MIN_BUDGET
            offset = self._start
            while offset + _HEAD.size <= size and budget > 0:
                file.seek(offset)
                magic, length, crc = _HEAD.unpack(file.read(_HEAD.size))
                payload = b""
                if magic == MAGIC and length <= min(MAX_ENTRY_BYTES, size - offset - _HEAD.size):
                    payload = file.read(length)
                if payload and zlib.crc32(payload) == crc:
                    entry = _parse(payload, offset)
                    if entry is not None:
                        yield entry
                    else:
                        self.num_torn += 1
                    offset += _HEAD.size + length
                    continue
                self.num_torn += 1
                found = _find_magic(file, offset + 1, size)
                budget -= len(payload) + max(found - offset, _READ_BYTES)
                offset = found


def _find_magic(file: Any, start: int, size: int) -> int:
    """Returns where the next entry may begin; the file's size if there is none."""
    offset = start
    while offset < size:
        file.seek(offset)
        piece = file.read(_READ_BYTES)
        found = piece.find(MAGIC)
        if found >= 0:
            return offset + int(found)
        if len(piece) < len(MAGIC):
            return size
        offset += len(piece) - len(MAGIC) + 1
    return size


def _parse(payload: bytes, offset: int) -> Entry | None:
    kind, body = payload[:1], payload[1:]
    if kind == b"s" and len(body) >= _STRING_ID.size:
        (number,) = _STRING_ID.unpack_from(body)
        return Entry(offset=offset, string=(number, body[_STRING_ID.size :].decode("utf-8", errors="replace")))
    if kind == b"j":
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if isinstance(data, list) and data and isinstance(data[0], str):
            return Entry(offset=offset, data=data)
    return None
