"""Whether every byte of a journal is that of a whole entry; recovery reads on where one is not."""

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
    """Where a journal is no sequence of whole entries.

    Attributes:
        offset: Where the entry begins.
        is_cut: Whether it is the last one, and cut where the kernel cuts what a killed process writes: at a page.
    """

    offset: int
    is_cut: bool


def first_broken_entry(path: Path, *, start: int = 0) -> BrokenEntry | None:
    """Returns the first entry of a journal that is not whole; None: all are. Memory is that of an entry.

    Args:
        path: The file.
        start: Where to begin: an offset where an entry begins.

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
