"""The file or directory that an export is written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tfdbg_arrow.errors import ExportError
from tfdbg_arrow.storage.layout import MARKER_NAME
from tfdbg_arrow.storage.location import RemoteLocation, parse_location


def check_target(target: str | Path, *, content: str | None, holds: Callable[[Path], bool], overwrite: bool) -> Path:
    """Returns the path to write an export to.

    Args:
        target: The given path.
        content: What an export contains, if it is a directory; None if it is a single file.
        holds: Returns whether an entry of a directory belongs to an export.
        overwrite: Whether an existing export may be replaced.

    Raises:
        ExportError: The path cannot be written, or there is a file or directory that must not be replaced.
    """
    location = parse_location(target)
    if isinstance(location, RemoteLocation):
        raise ExportError(f"{location} is a URL; export to a local path, and copy the result to the URL.")
    path = location.absolute()
    try:
        inside = next((parent for parent in (path, *path.parents) if (parent / MARKER_NAME).exists()), None)
        if inside is not None:
            where = "is" if inside == path else f"is inside {inside},"
            raise ExportError(f"{path} {where} a logdir of tfdbg_arrow; give a path outside of the logdir.")
        if not os.path.lexists(path) or (content is not None and path.is_dir() and not any(path.iterdir())):
            return path
        if not overwrite:
            raise ExportError(f"{path} already exists; give another path, or --overwrite to replace it.")
        if content is None and not path.is_file():
            raise ExportError(f"{path} is not a file and will not be replaced; give another path.")
        if content is not None and not (path.is_dir() and not path.is_symlink() and all(map(holds, path.iterdir()))):
            raise ExportError(
                f"{path} will not be replaced, as it is not a directory with only the {content} of an export; "
                "give another path."
            )
    except OSError as error:
        raise ExportError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    return path


def size_of(path: Path) -> int:
    """Returns the number of bytes of a file, or of all files in a directory."""
    return (
        path.stat().st_size
        if path.is_file()
        else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    )
