"""Observes the operations that write files to disk, or makes these operations fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bytes | None]]:
    """Returns a list to which each later `os.fsync` adds the file and its content, or None for a directory."""
    real, seen = os.fsync, []

    def noting(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        seen.append((path, None if path.is_dir() else path.read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return seen


def failing(
    times: int = 1, *, after: int = 0, code: int = errno.ENOSPC, instead_of: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a function that raises the error of a full disk in `times` calls after the first `after` calls.

    All other calls are passed to `instead_of`.
    """
    calls = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if after < calls <= after + times:
            raise OSError(code, os.strerror(code))
        return None if instead_of is None else instead_of(*args, **kwargs)

    return called


def num_descriptors() -> int:
    """Returns the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
