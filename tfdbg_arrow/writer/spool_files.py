"""What becomes of a recording's files in the spool at its end."""

from __future__ import annotations

import contextlib
from typing import Protocol

from tfdbg_arrow.schema.logdir_layout import SpoolPaths
from tfdbg_arrow.spool.run_files import RunFiles

_ATTEMPTS = 2


class EventFiles(Protocol):
    """Events, and the elements of their tensors."""

    def remove_files(self) -> None:
        """Removes the files."""

    def close(self) -> None:
        """Writes nothing from here on; the files stay."""


def remove_spool_files(events: EventFiles, files: RunFiles, *, is_all_written: bool) -> str | None:
    """Removes the files of a recording that has ended, if all of it is in parts, and lets go of them.

    What stays, whatever the reason, recover() makes parts of, or removes.

    Returns:
        Why they could not be removed; None where they are gone, or are to stay.
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
    """Removes the files of a recording that could not begin, as far as they can be removed."""
    for path in paths.all():
        with contextlib.suppress(OSError):
            path.unlink()
    files.close()
