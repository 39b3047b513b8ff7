"""The exceptions of tfdbg_arrow.

Each message states the problem, the wrong value, the expected value, and what the user can do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


class TfdbgArrowError(Exception):
    """The base class of all exceptions of this package."""


class SettingError(TfdbgArrowError, ValueError):
    """A recording setting has an invalid value."""


class RecordingError(TfdbgArrowError, RuntimeError):
    """Recording cannot start, or the call is not valid in the current state of the recording."""


class NonFiniteError(TfdbgArrowError, ArithmeticError):
    """A recording with `on_nonfinite="raise"` stopped the program because of a NaN or an infinity.

    Attributes:
        nonfinite: The origin as a `NonFinite`, as first_nonfinite() returns it; None if the origin could not be found.
        logdir: The logdir of the recording: a Path, or a str if it is a URL.
    """

    def __init__(self, message: str, *, nonfinite: Any = None, logdir: Path | str | None = None) -> None:
        super().__init__(message)
        self.nonfinite = nonfinite
        self.logdir = logdir


class LogdirError(TfdbgArrowError):
    """A path is not a logdir that can be read or written."""


class NoLogdirError(LogdirError):
    """A directory is not a logdir. The message names the logdirs below the directory.

    Attributes:
        reason: The reason why the directory is not a logdir. It has no advice.
        below: The logdirs below the directory, as a `LogdirsBelow` of `tfdbg_arrow.storage.search`.
    """

    def __init__(self, message: str, *, reason: str, below: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.below = below


class FormatVersionError(LogdirError):
    """A logdir has a MAJOR format version that this package cannot read."""


class BrokenPartError(LogdirError):
    """A file of a logdir cannot be read. The message names the file."""


class MissingDependencyError(TfdbgArrowError, ImportError):
    """An optional dependency is not installed. The message gives the pip command that installs it."""


class QueryError(TfdbgArrowError):
    """A SQL statement or a parameter of a query is not valid."""


class MemoryLimitError(QueryError):
    """A query needs more memory than the logdir's memory limit allows."""


class TimeLimitError(QueryError):
    """Queries were stopped because they reached their time limit."""


class ReproError(TfdbgArrowError):
    """No script can run the op that made a bad value. The message states the reason and what to record."""


class ExportError(TfdbgArrowError):
    """An export cannot be written to its target."""


class DumpError(TfdbgArrowError):
    """A path is not a readable dump of Debugger V2."""


def install_command(extra: str, *more: str) -> str:
    """Returns the pip command that installs the packages of an extra.

    The command names the packages instead of the extra, so it works for an installation from a clone or from a wheel.

    Args:
        extra: The extra of pyproject.toml, such as `viewer`.
        *more: Further packages.
    """
    import shlex
    from importlib import metadata

    packages = []
    for requirement in metadata.requires("tfdbg-arrow") or ():
        package, _, marker = requirement.partition(";")
        if f"extra == '{extra}'" in marker.replace('"', "'"):
            packages.append(package.strip())
    return "pip install " + " ".join(shlex.quote(package) for package in [*packages, *more])
