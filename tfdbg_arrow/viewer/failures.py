"""Errors of pages, and the HTTP status of each error."""

from __future__ import annotations

from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError, TfdbgArrowError
from tfdbg_arrow.query.sandbox import SandboxBusyError


class NoSuchPageError(TfdbgArrowError):
    """A URL names something that is not in the logdir, or a page that does not exist."""


class TookTooLongError(TfdbgArrowError):
    """A page's queries were stopped because they took too long."""


class NoAnswerError(TfdbgArrowError):
    """A helper process of a page ended without an answer."""


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
