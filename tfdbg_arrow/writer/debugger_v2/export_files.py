"""Writes the six files of a Debugger V2 dump so that a reader finds the complete dump or none.

Source: tensorflow/core/util/debug_events_writer.cc for the names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from tfdbg_arrow.errors import DumpError
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME
from tfdbg_arrow.writer.debugger_v2.records import FILES
from tfdbg_arrow.writer.debugger_v2.tfrecord import write_record

METADATA = "metadata"
"""The file by which a reader finds the others, which gets its final name last."""
_TEMPORARY_SUFFIX = ".tmp"


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
    """The files of one dump, open for writing; they get their final names when everything is written.

    Use it in a `with` statement: an exception removes the files.

    Args:
        directory: The directory of the dump; it is created if missing.
        prefix: The prefix of the names.
        suffixes: The suffixes of the files to write, without a dot.

    Attributes:
        num_records: Number of records written to each file.
        size_bytes: Size of all files so far.

    Raises:
        OSError: A file cannot be created.
    """

    def __init__(
        self,
        directory: Path,
        prefix: str,
        *,
        suffixes: Sequence[str] = FILES,
    ) -> None:
        self._directory = directory
        self._paths = {suffix: directory / f"{prefix}.{suffix}" for suffix in suffixes}
        self._files: dict[str, BinaryIO] = {}
        self._made: list[Path] = []
        self.num_records = dict.fromkeys(suffixes, 0)
        self.size_bytes = 0

    def __enter__(self) -> DumpFiles:
        try:
            missing = self._directory
            while not missing.exists():
                self._made.append(missing)
                missing = missing.parent
            self._directory.mkdir(parents=True, exist_ok=True)
            for suffix, path in self._paths.items():
                self._files[suffix] = open(_temporary(path), "wb", buffering=2**20)
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, suffix: str, record: bytes) -> None:
        """Appends a record to one of the files.

        Raises:
            OSError: The record cannot be written.
        """
        write_record(self._files[suffix], record)
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
        for directory in self._made:
            with contextlib.suppress(OSError):
                directory.rmdir()


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + _TEMPORARY_SUFFIX)
