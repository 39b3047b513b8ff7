"""Writes the marker that makes a directory a logdir."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tfdbg_arrow.schema.logdir_layout import MARKER_NAME, marker_text, parse_marker


def mark_logdir(logdir: Path, run_id: str) -> None:
    """Makes a directory a logdir, if it is not one yet.

    Args:
        logdir: The directory; it is created if missing.
        run_id: The run that is about to be written.

    Raises:
        LogdirError: The directory is a logdir of another format version, or its marker is damaged.
        OSError: The marker cannot be written.
    """
    logdir.mkdir(parents=True, exist_ok=True)
    marker = logdir / MARKER_NAME
    try:
        parse_marker(marker.read_text(encoding="utf-8", errors="replace"), path=marker)
    except FileNotFoundError:
        temporary = marker.with_name(f".{MARKER_NAME}.{run_id}")
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(marker_text())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, marker)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
