"""Removes a recording's spool files at its end."""

from __future__ import annotations

import contextlib
from typing import Protocol

from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.run_files import RunFiles

_ATTEMPTS = 2


class EventFiles(Protocol):
    """The files of events and of the elements of their tensors."""

    def remove_files(self) -> None:
        """Removes the files."""

    def close(self) -> None:
        """Stops writing; the files stay."""


def remove_spool_files(events: EventFiles, files: RunFiles, *, is_all_written: bool) -> str | None:
    """Closes the files of a recording that has ended, and removes them if everything is in parts.

    recover() later converts files that remain for any reason, or removes them.

    Returns:
        The reason why the files could not be removed; None if they were removed or must stay.
    """
    reason = None
    for _ in range(_ATTEMPTS if is_all_written else 0):
        try:
            events.remove_files()
            files.remove()
        except OSError as error:
            reason = str(error)
        else:
            return None
    events.close()
    files.close()
    return reason


def discard_spool_files(paths: SpoolPaths, files: RunFiles) -> None:
    """Removes the files of a recording that could not begin, as far as possible."""
    for path in paths.all():
        with contextlib.suppress(OSError):
            path.unlink()
    files.close()
