"""Gives disk blocks of a file back while its offsets stay: holes."""

from __future__ import annotations

import ctypes
import sys

MIN_HOLE_BYTES = 1 << 20
"""Where little is given back at a time, it is gathered up to this."""
_PUNCH_HOLE_KEEPING_SIZE = 0x02 | 0x01


def punch_hole(descriptor: int, start: int, end: int) -> None:
    """Gives back what lies between two offsets, which reads as zeros from then on.

    Best effort: where the file system cannot do it, the blocks come back when the file is removed.
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
