"""Raises an error at a line of the package.

The handler of a signal can raise an error at any line of the main thread.
"""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType
from typing import Any

import tfdbg_arrow

_PACKAGE = os.path.join(os.path.dirname(tfdbg_arrow.__file__), "")

Line = tuple[str, int]
"""File path relative to the package, and line number."""


class Interruption(BaseException):
    """The error that is raised. A KeyboardInterrupt would stop pytest."""


class Lines:
    """Collects the lines of the package that the calling thread runs in the block, and raises an error at one line.

    Args:
        target: The line at which to raise one Interruption. None means no line.

    Attributes:
        seen: The lines that ran, in order of their first run.
        has_raised: Whether the target was reached.
    """

    def __init__(self, target: Line | None = None, *, error: type[BaseException] = Interruption) -> None:
        self._target, self._error = target, error
        self.seen: dict[Line, None] = {}
        self.has_raised = False

    def __enter__(self) -> Lines:
        sys.settrace(self._on_call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._on_line if frame.f_code.co_filename.startswith(_PACKAGE) else None

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename.removeprefix(_PACKAGE), frame.f_lineno)
            self.seen.setdefault(line)
            if line == self._target and not self.has_raised:
                self.has_raised = True
                raise self._error(f"at {line[0]}:{line[1]}")
        return self._on_line
