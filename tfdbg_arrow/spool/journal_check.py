"""The check that a journal consists only of complete entries; recovery, in contrast, skips incomplete ones."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.spool.journal import MAGIC, MAX_ENTRY_BYTES

_HEAD = struct.Struct("<4sII")
_PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class BrokenEntry:
    """An incomplete or changed entry of a journal.

    Attributes:
        offset: Offset of the entry.
        is_cut: Whether the file ends within the entry at a page boundary, where the kernel cuts the write of a killed
            process.
    """

    offset: int
    is_cut: bool


def first_broken_entry(path: Path, *, start: int = 0) -> BrokenEntry | None:
    """Returns the first broken entry of a journal; None if all entries are complete.

    Memory is limited to the size of an entry.

    Args:
        path: The file.
        start: Offset of the entry to begin with.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = start
        file.seek(offset)
        while offset < size:
            head = file.read(_HEAD.size)
            if not MAGIC.startswith(head[: len(MAGIC)]):
                return BrokenEntry(offset=offset, is_cut=False)
            length, crc = _HEAD.unpack(head)[1:] if len(head) == _HEAD.size else (size, 0)
            if offset + _HEAD.size + length > size:
                return BrokenEntry(offset=offset, is_cut=size % _PAGE_BYTES == 0)
            if not 0 < length <= MAX_ENTRY_BYTES or zlib.crc32(file.read(length)) != crc:
                return BrokenEntry(offset=offset, is_cut=False)
            offset += _HEAD.size + length
    return None
