"""What lies at a path: whether it is a logdir, and which parts of it hold."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.logdir_layout import (
    MANIFEST_DIRECTORY,
    MARKER_NAME,
    check_run_id,
    parse_marker,
    read_live_parts,
    resolve_part,
    run_ids,
)


def check_logdir(path: Path) -> None:
    """Refuses a path that is not a logdir of a format that can be read.

    Raises:
        LogdirError: The path does not exist, is a file, is empty, or is another kind of directory.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
    """
    try:
        if not path.exists():
            raise LogdirError(f"{path} does not exist; give the directory that a recording wrote.")
        if not path.is_dir():
            raise LogdirError(f"{path} is a file; give the directory that a recording wrote.")
        marker = path / MARKER_NAME
        if marker.is_file():
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
            f"tfdbg_arrow; make one of them with `tfdbg-arrow import {path} LOGDIR`."
        )
    raise LogdirError(
        f"{path} is not a logdir of tfdbg_arrow: it has no {MARKER_NAME}; give the directory that a recording wrote."
    )


def list_parts(path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the parts that hold now, as paths to open, by table.

    The manifests say which. A logdir without any manifest is taken to hold every part that lies in it.

    Raises:
        LogdirError: A manifest is damaged, or a part leads out of the logdir.
    """
    check_logdir(path)
    parts: dict[str, list[str]] = {}
    if (path / MANIFEST_DIRECTORY).is_dir():
        for run_id in run_ids(path):
            for entry in read_live_parts(path, run_id=run_id):
                resolve_part(path, entry)
                parts.setdefault(entry.table, []).append(str(path / entry.path))
    if not parts:
        parts = _found_parts(path)
    return {table: tuple(paths) for table, paths in parts.items()}


def _found_parts(path: Path) -> dict[str, list[str]]:
    root = path.resolve()
    found: dict[str, list[str]] = {}
    for table in TABLES:
        for part in sorted((path / table.name).glob("run_id=*/part-*.parquet")):
            check_run_id(part.parent.name.removeprefix("run_id="), where=str(part))
            if not part.resolve().is_relative_to(root):
                raise LogdirError(f"{part} leads by a symbolic link out of the logdir, expected a file inside {root}.")
            found.setdefault(table.name, []).append(str(part))
    return found
