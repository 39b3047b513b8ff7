"""Reads the event file of a spool: the header, and the records of a dead process.

`writer/native/spool.h` defines the format of the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.spool.records import RECORD_DTYPE, RECORD_SIZE, SPOOL_VERSION, Kind, Records, is_follower, pick

MAGIC = b"TFDBGSPL"
HEADER_SIZE = 4096
"""Bytes before the first record (`kSpoolHeaderSize`): a page of memory."""
HEADER = struct.Struct("<8sIIQq")
"""(magic, version, record size, capacity in records, process ID)."""
HEAD_WORD, TAIL_WORD, VALUES_TAIL_WORD, ROWS_TAIL_WORD = 64 // 8, 128 // 8, 192 // 8, 200 // 8
"""The positions of the header's counters, as indexes of 64-bit integers.

HEAD is the next event index. TAIL is an event index: all earlier events are in sealed parts. VALUES_TAIL and ROWS_TAIL
are the offsets in the value spool and in the journal of rows that correspond to TAIL.
"""
MAX_CAPACITY = 2**24
"""Maximum capacity, in records, of a spool that can be read. These records take 4 GiB."""
CHUNK_RECORDS = 65_536
"""Number of records that are read at a time."""
_MAX_EVENT_INDEX = 2**62
"""The largest counter. A larger one is damage, and sums with it could exceed int64."""


@dataclass(frozen=True, kw_only=True)
class SpoolHeader:
    """The header of a spool.

    Attributes:
        capacity: Number of records that fit in the file.
        tail: The first event index that may not be in sealed parts.
        values_tail: The first offset of the value spool that was not freed.
        rows_tail: The first offset in the journal of rows that may not be in sealed parts.
    """

    capacity: int
    tail: int
    values_tail: int
    rows_tail: int


def read_header(path: Path) -> SpoolHeader:
    """Reads the header of a spool.

    Raises:
        LogdirError: The file cannot be read, or is not a spool that this version can read.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(HEADER_SIZE)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise LogdirError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    if len(content) < HEADER_SIZE or content[:8] != MAGIC:
        raise _damaged(path, "it is not an event spool of tfdbg_arrow")
    _, version, record_size, capacity, _ = HEADER.unpack_from(content)
    if (version, record_size) != (SPOOL_VERSION, RECORD_SIZE):
        raise _damaged(
            path,
            f"it has version {version} and records of {record_size} bytes, expected version {SPOOL_VERSION} and "
            f"{RECORD_SIZE} bytes",
        )
    if not 0 < capacity <= MAX_CAPACITY or capacity & (capacity - 1) or size != HEADER_SIZE + capacity * RECORD_SIZE:
        raise _damaged(path, f"it has {size} bytes, which does not match its capacity of {capacity} records")
    words = np.frombuffer(content, "<u8")
    tail, values_tail, rows_tail = (int(words[i]) for i in (TAIL_WORD, VALUES_TAIL_WORD, ROWS_TAIL_WORD))
    if max(tail, values_tail, rows_tail) > _MAX_EVENT_INDEX:
        raise _damaged(path, f"its counters are {tail}, {values_tail} and {rows_tail}, which is out of range")
    return SpoolHeader(capacity=capacity, tail=tail, values_tail=values_tail, rows_tail=rows_tail)


def read_committed(path: Path, header: SpoolHeader) -> Iterator[Records]:
    """Yields the committed records from the tail on, in order, at most CHUNK_RECORDS at a time.

    Records that were incomplete when the process died, followers of incomplete records, and records of an unknown kind
    are left out. Records that come after such a record are not left out.

    Raises:
        OSError: The file cannot be read.
    """
    last_whole = -1
    with open(path, "rb", buffering=0) as file:
        for first in range(header.tail, header.tail + header.capacity, CHUNK_RECORDS):
            count = min(CHUNK_RECORDS, header.tail + header.capacity - first)
            records = _read_slots(file.fileno(), header.capacity, first, count)
            expected = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
            kind = records["kind"]
            is_known = (kind >= min(Kind)) & (kind <= max(Kind))
            rows = np.flatnonzero((records["commit"] == expected) & is_known)
            events, follows = rows + first, is_follower(kind[rows])
            before = np.concatenate([[last_whole], events[:-1]])[: len(events)]
            # If the record before a follower is missing, all followers up to the next head are left out.
            is_cut = follows & (before != events - 1)
            number = np.cumsum(~follows | is_cut)
            cut_groups = number[is_cut]
            rows = rows[~(follows & np.isin(number, cut_groups))]
            if len(rows):
                last_whole = int(rows[-1]) + first
                yield pick(records, rows)


def _read_slots(descriptor: int, capacity: int, first: int, count: int) -> Records:
    """Returns the slots of some event indexes without checks. Slots beyond the end of the file are zeros."""
    content = np.zeros(count * RECORD_SIZE, np.uint8)
    done = 0
    while done < count:
        slot = (first + done) % capacity
        length = min(count - done, capacity - slot)
        _read_into(content.data[done * RECORD_SIZE : (done + length) * RECORD_SIZE], descriptor, slot)
        done += length
    records: Records = content.view(RECORD_DTYPE)
    return records


def _read_into(out: memoryview, descriptor: int, slot: int) -> None:
    offset = HEADER_SIZE + slot * RECORD_SIZE
    while len(out):
        got = os.preadv(descriptor, [out], offset)
        if got == 0:
            return
        out, offset = out[got:], offset + got


def _damaged(path: Path, what: str) -> LogdirError:
    return LogdirError(
        f"{path} cannot be recovered: {what}. Use the version of tfdbg_arrow that recorded it, or remove the file: the "
        "parts of the run can be read without it."
    )
