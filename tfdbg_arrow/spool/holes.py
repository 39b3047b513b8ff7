"""Frees disk blocks of a file without changing its offsets, by punching holes."""

from __future__ import annotations

import ctypes
import sys

MIN_HOLE_BYTES = 1 << 20
"""Minimum size of a hole; smaller ranges are collected first."""
_PUNCH_HOLE_KEEPING_SIZE = 0x02 | 0x01


def punch_hole(descriptor: int, start: int, end: int) -> None:
    """Frees the disk blocks between two offsets, which read as zeros from then on.

    This is best effort: if the file system does not support it, the blocks are freed when the file is removed.
    """
    if _fallocate is not None:
        _fallocate(descriptor, _PUNCH_HOLE_KEEPING_SIZE, start, end - start)


def _find_fallocate() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find_fallocate()
