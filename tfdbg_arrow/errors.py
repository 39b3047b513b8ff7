"""Every error that tfdbg_arrow raises on purpose.

Each message says what is wrong, the value, what was expected and what to do next.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdbg_arrow.query import NonFinite


class TfdbgArrowError(Exception):
    """Base class of all errors that the package raises on purpose."""


class SettingError(TfdbgArrowError, ValueError):
    """A recording setting has a value that cannot be used."""


class RecordingError(TfdbgArrowError, RuntimeError):
    """Recording cannot start, or is in a state in which the call makes no sense."""


class NonFiniteError(TfdbgArrowError, ArithmeticError):
    """A recording with `on_nonfinite="raise"` stopped the program: a NaN or an infinity came up.

    Attributes:
        nonfinite: The origin, as first_nonfinite() describes one; None where it could not be looked up.
        logdir: The logdir that holds the recording, a URL as text.
    """

    def __init__(self, message: str, *, nonfinite: NonFinite | None = None, logdir: Path | str | None = None) -> None:
        super().__init__(message)
        self.nonfinite = nonfinite
        self.logdir = logdir


class LogdirError(TfdbgArrowError):
    """A path is not a logdir that can be read or written."""


class FormatVersionError(LogdirError):
    """A logdir was written in a MAJOR format version that this package does not read."""


class BrokenPartError(LogdirError):
    """A file of a logdir cannot be read; the message names it."""


class MissingDependencyError(TfdbgArrowError, ImportError):
    """An optional dependency is not installed; the message gives the pip command."""


class QueryError(TfdbgArrowError):
    """A SQL text or a parameter of a query was refused."""


class MemoryLimitError(QueryError):
    """A query needs more memory than the logdir's memory limit allows."""


class TimeLimitError(QueryError):
    """Queries were stopped because they took longer than the time that they were given."""


class ExportError(TfdbgArrowError):
    """An export cannot be written to where it is to go."""


class DumpError(TfdbgArrowError):
    """A path is not a dump of Debugger V2 that can be read."""
