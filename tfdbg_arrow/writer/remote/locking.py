"""Locks on the local directory of a recording to a URL, so that only one process uploads its content."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tfdbg_arrow.errors import LogdirError


def lock_directory(directory: Path) -> int:
    """Locks a directory for this process, until the descriptor is closed or the process ends.

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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LogdirError(
            f"{directory} is in use: a process records to it or uploads it; wait until that process has ended."
        ) from None
    except OSError:  # a file system without locks
        return descriptor
    return descriptor


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Holds the lock of `lock_directory` during the block."""
    descriptor = lock_directory(directory)
    try:
        yield
    finally:
        os.close(descriptor)
