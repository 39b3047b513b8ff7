"""Journals: append-only files that outlive the process that writes them.

An entry consists of `MAGIC`, the length and the CRC-32 of its payload as little-endian 32-bit integers, and the
payload. The first byte of the payload is its kind. A string (`s`) consists of its 32-bit id and UTF-8. Everything else
is JSON (`j`), an array that begins with a word. The native core writes the same format (`writer/native/journal.h`).

Readers skip an entry that is cut off or changed, and continue at the next `MAGIC`.
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
"""Longer entries are neither written nor accepted."""
MAX_JOURNAL_BYTES = 512 * 2**20
"""Only this many bytes of a longer journal are read."""
_MAX_KEPT_BYTES = 64 * 2**20
_ATTEMPTS = 2
_HEAD = struct.Struct("<4sII")
_STRING_ID = struct.Struct("<I")
_READ_BYTES = 1 << 16
_MIN_BUDGET = 1 << 24


class Journal:
    """A new journal that any thread can append to.

    Entries that could not be written are counted in `num_unwritten` and raise no error.

    Args:
        path: The file, which must not exist; its directory is created if missing.
        is_kept: Whether entries that could not be written are kept to be written later, which is possible if the order
            of the entries does not matter.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path, *, is_kept: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Reentrant, because a finalizer that also appends can interrupt the thread that holds it.
        self._lock = threading.RLock()
        self.last_error = ""
        self._is_kept = is_kept
        self._kept: deque[bytes] = deque()
        self._kept_bytes = self._num_lost = 0
        self._released = 0

    @property
    def num_unwritten(self) -> int:
        """Number of entries that could not be written."""
        return self._num_lost + len(self._kept)

    def append_string(self, number: int, text: str) -> bool:
        """Appends an interned string; returns whether it was written."""
        return self._append(b"s" + _STRING_ID.pack(number) + text.encode("utf-8", errors="backslashreplace"))

    def append(self, *entry: object) -> bool:
        """Appends a word and its plain data; returns whether the entry was written."""
        try:
            payload = b"j" + _JSON.encode(entry).encode()
        except (TypeError, ValueError, RecursionError) as error:
            self._fail(error)
            return False
        return self._append(payload)

    def write_kept(self) -> None:
        """Appends the entries that could not be written before, as far as possible."""
        with self._lock:
            while self._kept and self._write(self._kept[0]):
                self._kept_bytes -= len(self._kept.popleft())

    def size(self) -> int:
        """Returns the size of the file in bytes, which is the offset of the next entry.

        Raises:
            OSError: The size cannot be determined.
        """
        with self._lock:
            return 0 if self.descriptor < 0 else os.fstat(self.descriptor).st_size

    def release(self, upto: int) -> None:
        """Frees the disk blocks before an offset, if there are enough of them and the file system supports it."""
        from tfdbg_arrow.spool.holes import MIN_HOLE_BYTES, punch_hole

        if upto - self._released >= MIN_HOLE_BYTES and self.descriptor >= 0:
            punch_hole(self.descriptor, self._released, upto)
            self._released = upto

    def close(self) -> None:
        """Closes the file and releases the lock on it."""
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)

    def abandon(self) -> None:
        """Closes the file in a forked child, where a thread of the parent may have held the thread lock."""
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
        """Writes an entry in one call, because others also append to the file; retries a partial write once."""
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
    """Returns a NumPy scalar as a Python object, and anything else as text, which the check of the rows rejects."""
    return value.item() if hasattr(value, "item") else str(value)


_JSON = json.JSONEncoder(separators=(",", ":"), default=_plain)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a journal.

    Attributes:
        offset: Offset of the entry in the file.
        string: The id and the text of an interned string; None for other entries.
        data: The JSON array, which begins with a word; empty for a string.
    """

    offset: int
    string: tuple[int, str] | None = None
    data: Sequence[Any] = ()


class JournalReader:
    """Reads a journal, which may be incomplete or have any other content.

    Args:
        path: The file.
        start: Offset of the entry to begin with.

    Attributes:
        num_torn: How often bytes that are not a complete entry were found so far.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        self._path, self._start = path, start
        self.num_torn = 0

    def entries(self) -> Iterator[Entry]:
        """Yields the complete entries in order.

        It takes time in proportion to the size of the file, and memory in proportion to the size of an entry.

        Raises:
            OSError: The file cannot be read.
        """
        with open(self._path, "rb", buffering=_READ_BYTES) as file:
            size = min(os.fstat(file.fileno()).st_size, self._start + MAX_JOURNAL_BYTES)
            # Each attempt to read an entry where there is none costs up to its length; this limits the total.
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
    """Returns the offset at which the next entry may begin; the file's size if there is none."""
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
