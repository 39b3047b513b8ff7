"""The manifest file, in which each line is written completely or not at all.

Source: spec/README.md, "Manifest".
"""

from __future__ import annotations

import contextlib
import os
import zlib
from io import RawIOBase
from pathlib import Path

from tfdbg_arrow.schema.manifest import checksummed, whole_lines


class ManifestFile:
    """Appends lines to the manifest of one run. Not thread-safe; the caller must serialise calls.

    Args:
        path: Path of the manifest.

    Attributes:
        has_leftover: Whether readers may see a line whose append failed and could not be undone. The next line
            overwrites it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = self._crc = 0
        self._lead = b""
        self.has_leftover = False

    def create(self) -> None:
        """Creates an empty manifest.

        Raises:
            OSError: The file cannot be created, or already exists.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "xb") as file:
            os.fsync(file.fileno())
        sync_directory(self.path.parent)

    def resume(self) -> str:
        """Continues after the last complete line that a dead process left; returns the text up to that line.

        The file does not change until the next line is appended, because the caller may find that the text is damaged.

        Raises:
            OSError: The file cannot be read.
        """
        content = whole_lines(self.path.read_bytes())
        self._size, self._crc = len(content), zlib.crc32(content)
        self._lead = b"" if content.endswith(b"\n") or not content else b"\n"
        return content.decode("utf-8", errors="replace")

    def append(self, line: str) -> None:
        """Appends a line with its checksum.

        Args:
            line: A line as returned by `add_line` or `replace_line`.

        Raises:
            OSError: The line cannot be written. Readers do not see it, unless `has_leftover` is True.
        """
        data = self._lead + checksummed([line], before=zlib.crc32(self._lead, self._crc)).encode()
        with open(self.path, "r+b", buffering=0) as file:  # unbuffered, because closing the file would write a buffer
            try:
                file.truncate(self._size)  # remove what a failed append left
                file.seek(self._size)
                self.has_leftover = True
                write_whole(file, data)
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(self._size)
                    self.has_leftover = False
                raise
        self.has_leftover = False
        self._size += len(data)
        self._crc = zlib.crc32(data, self._crc)
        self._lead = b""


def write_whole(file: RawIOBase, data: bytes | memoryview) -> None:
    """Writes all data to an unbuffered file, which may accept only a part at a time.

    Raises:
        OSError: The data cannot be written completely.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def sync_directory(path: Path) -> None:
    """Syncs the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
