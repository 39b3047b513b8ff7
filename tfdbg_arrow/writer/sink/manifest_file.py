"""The manifest as a file: a line is there whole or not at all.

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
    """Appends lines to the manifest of one run. Not thread-safe: its caller serialises.

    Args:
        path: Where it is.

    Attributes:
        has_leftover: Whether readers may see a line that could not be appended, nor taken back. The next one takes its
            place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = self._crc = 0
        self._lead = b""
        self.has_leftover = False

    def create(self) -> None:
        """Makes it, empty.

        Raises:
            OSError: It cannot be made, or exists already.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "xb") as file:
            os.fsync(file.fileno())
        sync_directory(self.path.parent)

    def resume(self) -> str:
        """Goes on after the last whole line that a dead process left; returns the text up to there.

        Nothing is written before the next line is: whoever reads the text may find it damaged.

        Raises:
            OSError: It cannot be read.
        """
        content = whole_lines(self.path.read_bytes())
        self._size, self._crc = len(content), zlib.crc32(content)
        self._lead = b"" if content.endswith(b"\n") or not content else b"\n"
        return content.decode("utf-8", errors="replace")

    def append(self, line: str) -> None:
        """Appends a line with its checksum.

        Args:
            line: What `add_line` or `replace_line` returns.

        Raises:
            OSError: It cannot be written; then readers see nothing of it, unless `has_leftover` says so.
        """
        data = self._lead + checksummed([line], before=zlib.crc32(self._lead, self._crc)).encode()
        with open(self.path, "r+b", buffering=0) as file:  # a buffer would be written when the file is closed
            try:
                file.truncate(self._size)  # what a failed append left
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
    """Writes to an unbuffered file, which may take less at a time.

    Raises:
        OSError: Not all of it can be written.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def sync_directory(path: Path) -> None:
    """Brings the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
