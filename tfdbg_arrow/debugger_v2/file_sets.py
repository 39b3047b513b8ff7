"""The files of a Debugger V2 dump: finds, reads and writes the file sets of a directory.

The files are TFRecord files, which consist of frames. A frame consists of the record's length as 8 little-endian bytes,
the masked CRC32C of these 8 bytes, the record, and the masked CRC32C of the record. A reader finds a written dump only
when the dump is complete.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details", and
tensorflow/core/util/debug_events_writer.cc for the names.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from google_crc32c import value as crc32c

from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent
from tfdbg_arrow.errors import DumpError, LogdirError
from tfdbg_arrow.storage.layout import MARKER_NAME, TEMPORARY_SUFFIX, OwnFiles

FILES = ("metadata", "source_files", "stack_frames", "graphs", "execution", "graph_execution_traces")
"""Suffixes of the files of a dump."""
_NAME = re.compile(rf"(?P<prefix>.+)\.(?P<suffix>{'|'.join(FILES)})", re.DOTALL)
_PREFIX = re.compile(r".*?\.(?P<seconds>\d{1,12})\.(?P<host>.+)", re.DOTALL)
HEADER_BYTES = 12
"""Bytes of a frame's header: the length of the record (8 bytes) and the checksum of the length (4 bytes)."""
FOOTER_BYTES = 4
"""Size in bytes of the checksum behind the record."""
MAX_RECORD_BYTES = 2**31 - 1
"""Maximum size of a protobuf message."""
READ_BYTES = 4 * 2**20
"""Number of bytes that are read at a time: many records, but little memory if a damaged length claims gigabytes."""
_MASK_DELTA = 0xA282EAD8
"""The constant that TensorFlow adds to the checksums of records (`kMaskDelta`)."""
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
METADATA = "metadata"
"""A reader finds the other files through this file, so this file gets its final name last."""


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """The files that one process wrote in one recording.

    Attributes:
        prefix: Common prefix of the file names, without the directory: `tfdbg_events.<seconds>.<host>`.
        seconds: Start of the recording according to the prefix, in seconds since 1970-01-01T00:00:00Z; 0 if unknown.
        host_name: Host according to the prefix; None if unknown.
        paths: Paths of the existing files, by suffix.
        sizes: Sizes in bytes, by suffix.
    """

    prefix: str
    seconds: int
    host_name: str | None
    paths: Mapping[str, Path]
    sizes: Mapping[str, int]

    @property
    def num_bytes(self) -> int:
        """Size of all files in bytes."""
        return sum(self.sizes.values())


def find_file_sets(dump: str | os.PathLike[str]) -> tuple[FileSet, ...]:
    """Returns the file sets in a directory, by prefix.

    Raises:
        DumpError: The path is not a readable directory, contains no files of a dump, or contains a link that leads out
            of the directory.
    """
    directory = Path(dump)
    if not directory.exists():
        raise DumpError(f"the dump {directory} does not exist; give the dump_root that Debugger V2 wrote to")
    if not directory.is_dir():
        raise DumpError(f"the dump {directory} is a file; give the directory that Debugger V2 wrote to")
    if (directory / MARKER_NAME).exists():
        raise DumpError(
            f"{directory} is a logdir of tfdbg_arrow, not a dump of Debugger V2; it can be read without an import"
        )
    files_of_prefix: dict[str, dict[str, tuple[Path, int]]] = {}
    own_files = OwnFiles(directory)
    try:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            match = _NAME.fullmatch(entry.name)
            if match is not None and entry.is_file():
                own_files.check([entry.path])
                file = Path(entry.path), entry.stat().st_size
                files_of_prefix.setdefault(match["prefix"], {})[match["suffix"]] = file
    except LogdirError as error:
        raise DumpError(str(error)) from error
    except OSError as error:
        raise DumpError(
            f"the dump {directory} cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    if not files_of_prefix:
        raise DumpError(
            f"{directory} holds no dump of Debugger V2, expected files such as tfdbg_events.<seconds>.<host>.metadata; "
            "give the dump_root of the recording"
        )
    return tuple(_file_set(prefix, files) for prefix, files in sorted(files_of_prefix.items()))


def _file_set(prefix: str, files: Mapping[str, tuple[Path, int]]) -> FileSet:
    """Returns the file set, given the path and the size of each file."""
    match = _PREFIX.fullmatch(prefix)
    return FileSet(
        prefix=prefix,
        seconds=0 if match is None else int(match["seconds"]),
        host_name=None if match is None else match["host"],
        paths={suffix: files[suffix][0] for suffix in FILES if suffix in files},
        sizes={suffix: files[suffix][1] for suffix in FILES if suffix in files},
    )


@dataclass(frozen=True, kw_only=True)
class Damage:
    """The reason why reading stopped before the end of a file.

    Attributes:
        offset: Offset of the damage in bytes; all records before it were read.
        reason: The problem, as a part of a sentence.
    """

    offset: int
    reason: str


def masked_crc(data: bytes) -> int:
    """Returns the checksum of some bytes, in the form that frames use."""
    crc: int = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Returns the frame of a record."""
    return b"".join((_frame_header(len(record)), record, _CRC.pack(masked_crc(record))))


@lru_cache(maxsize=1024)
def _frame_header(num_bytes: int) -> bytes:
    length = _LENGTH.pack(num_bytes)
    return length + _CRC.pack(masked_crc(length))


class RecordReader:
    """Reads a TFRecord file one record at a time, until its end or the first damage.

    The reader does not search for further frames after a damaged frame, because the content of a tensor can look like a
    frame. Not thread-safe.

    Args:
        file: The file, open for reading bytes, at the start of a frame.
        offset: Offset of this first frame in the file.

    Attributes:
        offset: Offset of the next frame in bytes.
        damage: The reason why reading stopped before the end of the file; None if no damage was found so far.
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
            if self._start < len(self._buffer):
                self._damage("the file ends inside a frame's length")
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
            self._damage("the file ends inside a record")
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
        """Reads until `size` bytes are in the buffer; returns False if the file has fewer bytes."""
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

    def _damage(self, reason: str) -> None:
        self.damage = Damage(offset=self.offset, reason=reason)


def check_dump(path: Path) -> None:
    """Checks that a dump can be written to a path.

    Raises:
        DumpError: The path is a file or a logdir, or already holds a dump.
    """
    try:
        if path.exists() and not path.is_dir():
            raise DumpError(f"{path} is a file; give a directory to write the dump to.")
        if (path / MARKER_NAME).exists():
            raise DumpError(f"{path} is a logdir of tfdbg_arrow; give another directory to write the dump to.")
        if any(path.glob(f"*.{METADATA}")):
            raise DumpError(
                f"{path} already holds a dump (*.{METADATA} files), and Debugger V2 reads one dump per directory; give "
                "another directory."
            )
    except OSError as error:
        raise DumpError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error


def file_prefix(wall_time_ns: int, *, host_name: str) -> str:
    """Returns the prefix of the names of a file set, such as `tfdbg_events.1795192200.myhost`."""
    return f"tfdbg_events.{wall_time_ns // 1_000_000_000:010d}.{host_name.replace('/', '-') or 'localhost'}"


class DumpFiles:
    """The files of one dump, open for writing; they get their final names when all records are written.

    Use this class in a `with` statement: an exception in the block removes the files.

    Args:
        directory: The directory of the dump; it is created if missing.
        prefix: The prefix of the names.

    Attributes:
        num_records: Number of records written to each file.
        size_bytes: Size of all files so far.

    Raises:
        OSError: A file cannot be created.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._paths = {suffix: directory / f"{prefix}.{suffix}" for suffix in FILES}
        self._files: dict[str, BinaryIO] = {}
        self._created: list[Path] = []
        self._last_times_ns: dict[str, int] = {}
        self.num_records = dict.fromkeys(FILES, 0)
        self.size_bytes = 0

    def __enter__(self) -> DumpFiles:
        try:
            missing = self._directory
            while not missing.exists():
                self._created.append(missing)
                missing = missing.parent
            self._directory.mkdir(parents=True, exist_ok=True)
            for suffix, path in self._paths.items():
                self._files[suffix] = open(_temporary(path), "wb", buffering=2**20)
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, suffix: str, event: DebugEvent, wall_time_ns: int) -> None:
        """Appends a record to one of the files. The wall times in a file never decrease, as readers expect.

        Args:
            suffix: The file.
            event: The record. Its time is set.
            wall_time_ns: The time of the record, in nanoseconds since 1970-01-01T00:00:00Z. If the previous record has
                a later time, the new record gets that time.

        Raises:
            OSError: The record cannot be written.
        """
        self._last_times_ns[suffix] = max(self._last_times_ns.get(suffix, wall_time_ns), wall_time_ns)
        event.wall_time = self._last_times_ns[suffix] / 1_000_000_000
        self._files[suffix].write(frame(event.SerializeToString()))
        self.num_records[suffix] += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._discard()
            return
        try:
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
                self.size_bytes += file.tell()
                file.close()
            for suffix in sorted(self._paths, key=lambda name: name == METADATA):
                os.rename(_temporary(self._paths[suffix]), self._paths[suffix])
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        for suffix, file in self._files.items():
            with contextlib.suppress(OSError):
                file.close()
            for path in (_temporary(self._paths[suffix]), self._paths[suffix]):
                with contextlib.suppress(OSError):
                    path.unlink()
        for directory in self._created:
            with contextlib.suppress(OSError):
                directory.rmdir()


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY_SUFFIX)
