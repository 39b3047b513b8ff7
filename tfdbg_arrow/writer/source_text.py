"""Reads the source code of the program's files, and names the cells of notebooks."""

from __future__ import annotations

import linecache
import os
import stat
import sys
import tokenize
from collections.abc import Sequence
from functools import lru_cache
from typing import overload

import numpy as np

_MAX_SOURCE_BYTES = 8 << 20
"""Larger files are not read, because no person writes such files. The recording keeps the text in memory, and stores it
in the logdir."""
_MAX_TEXTS = 512
"""Maximum number of texts that are kept for the next recording of the process. A training with Keras has the texts of
about 100 files, with 4 MB."""


class SourceText(Sequence[str]):
    """The lines of a source file, with their line ends.

    A list of the lines of TensorFlow's and Keras's files would take twice the memory of their text.

    Attributes:
        text: The text of the file.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        characters = (
            np.frombuffer(text.encode("ascii"), "u1")
            if text.isascii()
            else np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        )
        ends = np.flatnonzero(characters == ord("\n")) + 1
        has_open_end = bool(text) and not text.endswith("\n")
        self._ends = (np.append(ends, len(text)) if has_open_end else ends).astype(np.uint32)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[line] for line in range(*index.indices(len(self)))]
        line = range(len(self))[index]
        return self.text[int(self._ends[line - 1]) if line else 0 : int(self._ends[line])]


def cell_name(path: str) -> str | None:
    """Returns the name of a notebook's cell, such as `Cell In[2]`, as in IPython's tracebacks; None for other code.

    Args:
        path: The file's name in a code object. IPython makes up such a name for each cell.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    label = None if name_of is None else name_of(path)
    return None if label is None else " ".join(label)


def source_text(path: str) -> SourceText:
    """Returns the lines of a source file; no lines if it cannot be read.

    linecache holds the cells of notebooks and other code that is in no file. linecache is not used to read files:
    reading a pipe could wait forever, or take data that the program is about to read.

    Args:
        path: The file's name in a code object. As in a traceback, a relative name is also sought in `sys.path`.
    """
    cached = linecache.cache.get(path)
    if cached is not None and len(cached) == 4:
        return SourceText("".join(cached[2]))
    directories = () if os.path.isabs(path) else sys.path
    for candidate in (path, *(os.path.join(directory, path) for directory in directories)):
        try:
            status = os.stat(candidate)
        except (OSError, ValueError):  # ValueError: the name has a null character
            continue
        # A file of /proc is regular, but has no size, and may have no end.
        if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _MAX_SOURCE_BYTES:
            return SourceText("")
        version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        return _text_of_version(candidate, status.st_size, version)
    # Only the loader of a module knows its text, e.g. if the module is in a zip file.
    return SourceText("" if cached is None else "".join(linecache.getlines(path)))


@lru_cache(maxsize=_MAX_TEXTS)
def _text_of_version(path: str, num_bytes: int, version: tuple[int, ...]) -> SourceText:
    """Returns the text of a file. A changed file has another version, which its size and times and its inode tell."""
    try:
        with tokenize.open(path) as file:
            return SourceText(file.read(num_bytes))
    except (OSError, UnicodeDecodeError, SyntaxError):
        return SourceText("")
