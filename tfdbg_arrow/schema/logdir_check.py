"""The check that a path is a readable logdir."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME, parse_marker
from tfdbg_arrow.schema.own_files import OwnFiles


def check_logdir(path: Path) -> None:
    """Raises an error if a path is not a logdir of a readable format.

    Raises:
        LogdirError: The path does not exist, is a file, an empty directory or another kind of directory, or its marker
            is a symbolic link to a file outside it.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
    """
    try:
        if not path.exists():
            raise LogdirError(f"{path} does not exist; give the directory that a recording wrote.")
        if not path.is_dir():
            raise LogdirError(f"{path} is a file; give the directory that a recording wrote.")
        marker = path / MARKER_NAME
        if marker.is_file():
            OwnFiles(path).check([marker])
            parse_marker(marker.read_text(encoding="utf-8", errors="replace"), path=marker)
            return
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise LogdirError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    if not names:
        raise LogdirError(f"{path} is an empty directory; give the directory that a recording wrote.")
    if any(name.startswith("tfdbg_events.") and name.endswith(".metadata") for name in names):
        raise LogdirError(
            f"{path} holds dumps of TensorFlow's Debugger V2 (tfdbg_events.* files), which are not a logdir of "
            f"tfdbg_arrow; convert them with `tfdbg-arrow import {path} LOGDIR`."
        )
    raise LogdirError(
        f"{path} is not a logdir of tfdbg_arrow: it has no {MARKER_NAME}; give the directory that a recording wrote."
    )
