"""What a page cannot do, and the HTTP status that says so."""

from __future__ import annotations

from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError, TfdbgArrowError
from tfdbg_arrow.query.sandbox import SandboxBusyError


class NoSuchPageError(TfdbgArrowError):
    """What a URL names is not in the logdir, or is no page."""


class TookTooLongError(TfdbgArrowError):
    """A page's queries were ended because they took too long."""


class NoAnswerError(TfdbgArrowError):
    """A process that works for a page ended without an answer."""


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NoSuchPageError, 404),
    (TookTooLongError, 503),
    (SandboxBusyError, 503),
    (QueryError, 400),
    (BrokenPartError, 500),
    (LogdirError, 500),
)


def status_of(error: Exception) -> int:
    """Returns the HTTP status for an error of the package."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
