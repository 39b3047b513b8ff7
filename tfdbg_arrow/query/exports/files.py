"""The target of an export: it appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tfdbg_arrow.errors import ExportError
from tfdbg_arrow.query.exports.relations import relation_names
from tfdbg_arrow.schema.location import RemoteLocation, parse_location
from tfdbg_arrow.schema.logdir_layout import MARKER_NAME


def check_target(target: str | Path, *, suffix: str | None, overwrite: bool) -> Path:
    """Returns the path to write an export to.

    Args:
        target: The given path.
        suffix: The suffix of the files, such as `.csv`, if the format is a directory; None if it is a single file.
        overwrite: Whether an existing export may be replaced.

    Raises:
        ExportError: The path cannot be written, or something exists there that must not be replaced.
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
        if not os.path.lexists(path) or (suffix is not None and path.is_dir() and not any(path.iterdir())):
            return path
        if not overwrite:
            raise ExportError(f"{path} already exists; give another path, or --overwrite to replace it.")
        if suffix is None and not path.is_file():
            raise ExportError(f"{path} is not a file and will not be replaced; give another path.")
        if suffix is not None and not _is_export(path, suffix):
            raise ExportError(
                f"{path} will not be replaced, as it is not a directory with only the *{suffix} files of an export; "
                "give another path."
            )
    except OSError as error:
        raise ExportError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
    return path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or a directory, and renames it to `path` if the block succeeds.

    Args:
        path: The final path. An existing file or directory is replaced.

    Raises:
        OSError: The path cannot be written. Nothing is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        for file in (temporary, *temporary.glob("*")):
            _sync(file)
        _replace(temporary, path)
    finally:
        _remove(temporary)
        for left in path.parent.glob(f"{temporary.name}*"):  # additional files of a database
            _remove(left)


def size_of(path: Path) -> int:
    """Returns the number of bytes of a file, or of all files in a directory."""
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.iterdir())


def _is_export(path: Path, suffix: str) -> bool:
    names = {f"{name}{suffix}" for name in relation_names()}
    return path.is_dir() and not path.is_symlink() and all(entry.name in names for entry in path.iterdir())


def _replace(temporary: Path, path: Path) -> None:
    if not (path.is_dir() and any(path.iterdir())):
        os.replace(temporary, path)
        return
    before = path.with_name(f"{temporary.name}.before")
    os.rename(path, before)
    try:
        os.rename(temporary, path)
    except BaseException:
        os.rename(before, path)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
