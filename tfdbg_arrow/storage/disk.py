"""Operations on local files: atomic writes, syncing, locking, and freeing disk blocks."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from io import RawIOBase
from pathlib import Path

from tfdbg_arrow.errors import LogdirError

MIN_HOLE_BYTES = 1 << 20
"""Minimum number of bytes that are freed at a time. Smaller ranges are freed later, together with the next range."""
_PUNCH_HOLE_KEEPING_SIZE = 0x02 | 0x01
"""Linux's FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE, which Python does not define."""


@contextlib.contextmanager
def written_together(temporaries: Mapping[Path, Path]) -> Iterator[None]:
    """Syncs files after the block has written them under temporary names, and renames them to their final names.

    All files are synced before the first file is renamed. One file at a time would take a journal commit of the file
    system for each file.

    Args:
        temporaries: The temporary path of each final path, on the same file system. An existing file is replaced.

    Raises:
        OSError: A file cannot be written. The temporary files are removed, unless the removal also fails. Some final
            files may exist.
    """
    try:
        yield
        for temporary in temporaries.values():
            sync(temporary)
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
        for directory in dict.fromkeys(path.parent for path in temporaries):
            sync(directory)
    except BaseException:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path for a file or a directory. If the block succeeds, syncs it and renames it to `path`.

    Args:
        path: The final path. A file replaces a file, and a directory replaces a directory with all its files.

    Raises:
        OSError: The path cannot be written, or a file would replace a directory. The temporary file is removed, unless
            its removal also fails.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        for file in (temporary, *temporary.rglob("*")):
            sync(file)
        _replace(temporary, path)
        sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            for leftover in temporary.parent.iterdir():
                if leftover.name.startswith(temporary.name):  # a database can have more files that begin with this name
                    _remove(leftover)


def _replace(temporary: Path, path: Path) -> None:
    if not (temporary.is_dir() and path.is_dir() and any(path.iterdir())):
        os.replace(temporary, path)  # fails if a file would replace a directory
        return
    before = path.with_name(f"{temporary.name}.before")
    os.replace(path, before)
    try:
        os.replace(temporary, path)
    except BaseException:
        os.replace(before, path)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_whole(file: RawIOBase, data: bytes | memoryview) -> None:
    """Writes all data to an unbuffered file. A single write to such a file may write only a part of the data.

    Raises:
        OSError: The data cannot be written completely.
    """
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in lower-case hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Syncs the content of a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int, kind: int) -> bool:
    """Locks a file or directory until the descriptor is closed. Returns False if the file system has no locks.

    Args:
        descriptor: The open file.
        kind: The operation for `fcntl.flock`.

    Raises:
        BlockingIOError: Another process holds the lock, and `kind` contains `fcntl.LOCK_NB`.
    """
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def lock_directory(directory: Path) -> int:
    """Locks a directory for this process. The lock is held until the descriptor is closed or the process ends.

    Returns:
        The descriptor.

    Raises:
        LogdirError: Another process holds the lock, or the directory cannot be opened.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise LogdirError(f"{directory} cannot be opened ({error.strerror}); check its permissions.") from error
    try:
        lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LogdirError(
            f"{directory} is in use: a process records to it or uploads it; wait until that process has ended."
        ) from None
    return descriptor


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Holds the lock of `lock_directory` during the block."""
    descriptor = lock_directory(directory)
    try:
        yield
    finally:
        os.close(descriptor)


def punch_hole(descriptor: int, start: int, end: int) -> None:
    """Frees the disk blocks between two offsets. The bytes between the offsets become zeros.

    If the file system does not support this, the blocks are freed only when the file is removed.
    """
    if _fallocate is not None:
        _fallocate(descriptor, _PUNCH_HOLE_KEEPING_SIZE, start, end - start)


def _find_fallocate() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find_fallocate()
