"""Hides our frames from the program: they are not in its tracebacks, and do not limit its recursion depth."""

from __future__ import annotations

import os
import sys
from types import TracebackType

PACKAGE_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The directory of this package, as its code objects spell it."""
_OURS, _ALL = 2, 7
"""At most 2 of 7 frames are ours: each nested layer of Keras has two frames of ours and five other frames."""
_ROOM = 100
"""Additional frames for the recorder itself, which describes graphs and imports modules."""
_MAX_LIMIT = 2**31 - 1
"""The greatest limit that Python accepts."""


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback that starts at the outermost frame that is not ours; None if all frames are ours."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(PACKAGE_DIRECTORY):
        traceback = traceback.tb_next
    return traceback


def leave_out_own_frames(error: BaseException) -> None:
    """Removes the frames of a hook from the traceback of an exception that passes through the hook.

    Call it in the hook, before a bare `raise`, which adds no frame. An exception that we raised keeps its traceback.
    """
    error.__traceback__ = without_own_frames(error.__traceback__) or error.__traceback__


class _OwnFramesLeftOut:
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            leave_out_own_frames(error)


own_frames_left_out = _OwnFramesLeftOut()
"""A context manager that calls leave_out_own_frames() for exceptions that leave its block. It adds no frame."""


class RecursionRoom:
    """Raises Python's recursion limit during a recording, so that the program can recurse as deep as before."""

    def __init__(self) -> None:
        self._before = sys.getrecursionlimit()
        self._raised = min(_MAX_LIMIT, self._before * _ALL // (_ALL - _OURS) + _ROOM)

    def take(self) -> None:
        """Raises the limit."""
        sys.setrecursionlimit(self._raised)

    def give_back(self) -> None:
        """Restores the limit, unless the program changed it or its recursion is now deeper than the old limit."""
        if sys.getrecursionlimit() == self._raised:
            try:
                sys.setrecursionlimit(self._before)
            except RecursionError:
                return
