"""Reads and writes TFRecord files, which consist of frames.

A frame is the length as 8 bytes little-endian, the masked CRC32C of these 8 bytes, the record, and its masked CRC32C.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from google_crc32c import value as crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 2**31 - 1
"""Maximum size of a protobuf message."""
READ_BYTES = 4 * 2**20
_MASK_DELTA = 0xA282EAD8
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """The reason why reading stopped before the end of a file.

    Attributes:
        offset: Offset of the damage in bytes; everything before it was read.
        num_bytes: Number of unread bytes from there on; None if unknown.
        reason: The problem, as a part of a sentence.
        is_torn: Whether the file merely ends inside a frame, for example because its writer was killed or is still
            writing.
    """

    offset: int
    num_bytes: int | None
    reason: str
    is_torn: bool


def masked_crc(data: bytes) -> int:
    """Returns the checksum of some bytes in the form used by frames."""
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Returns the frame of a record."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _CRC.pack(masked_crc(length)), record, _CRC.pack(masked_crc(record))))


def write_record(file: BinaryIO, record: bytes) -> None:
    """Appends one frame.

    Raises:
        OSError: The file cannot be written.
    """
    file.write(frame(record))


class RecordReader:
    """Reads a TFRecord file one record at a time, until its end or the first damage.

    It does not search for further frames after a damaged one, because the content of a tensor can look like a frame.
    Not thread-safe.

    Args:
        file: The file, open for reading bytes, at the start of a frame.
        offset: Offset of that frame in the file.

    Attributes:
        offset: Offset of the next frame in bytes.
        damage: The reason why reading stopped; None before that, and if the file is complete.
    """

    def __init__(self, file: BinaryIO, *, offset: int = 0) -> None:
        self._file = file
        self._buffer = b""
        self._start = 0
        self.offset = offset
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Returns the next record.

        Raises:
            StopIteration: There is no further complete record; `damage` is None if the file is complete.
            OSError: The file cannot be read.
        """
        record = self._next() if self.damage is None else None
        if record is None:
            raise StopIteration
        return record

    def _next(self) -> bytes | None:
        if not self._fill(HEADER_BYTES):
            left = len(self._buffer) - self._start
            if left:
                self._damage("the file ends inside a frame's length", left=left, is_torn=True)
            return None
        start = self._start
        length, length_crc = _HEADER.unpack_from(self._buffer, start)
        if masked_crc(self._buffer[start : start + 8]) != length_crc:
            self._damage("the checksum of a frame's length does not match")
            return None
        if length > MAX_RECORD_BYTES:
            self._damage(f"a frame claims {length} bytes, more than a message can have")
            return None
        size = HEADER_BYTES + length + FOOTER_BYTES
        if not self._fill(size):
            self._damage("the file ends inside a record", left=len(self._buffer) - self._start, is_torn=True)
            return None
        start = self._start
        record = self._buffer[start + HEADER_BYTES : start + HEADER_BYTES + length]
        (crc,) = _CRC.unpack_from(self._buffer, start + HEADER_BYTES + length)
        if masked_crc(record) != crc:
            self._damage("the checksum of a record does not match")
            return None
        self._start += size
        self.offset += size
        return record

    def _fill(self, size: int) -> bool:
        """Reads until `size` bytes are in the buffer; returns whether there are that many."""
        have = len(self._buffer) - self._start
        if have >= size:
            return True
        pieces = [self._buffer[self._start :]]
        while have < size:
            # A damaged length can claim gigabytes, so read in pieces.
            piece = self._file.read(READ_BYTES)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        self._buffer, self._start = b"".join(pieces), 0
        return have >= size

    def _damage(self, reason: str, *, left: int | None = None, is_torn: bool = False) -> None:
        self.damage = Damage(offset=self.offset, num_bytes=left, reason=reason, is_torn=is_torn)
