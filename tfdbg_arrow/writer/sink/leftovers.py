"""Removes files that no manifest names, so that readers do not use them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class Leftovers:
    """Removes files of a logdir, and remembers those that could not be removed.

    Args:
        logdir: The logdir.
    """

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._paths: set[str] = set()

    def keep(self, paths: Iterable[str]) -> None:
        """Keeps files, given by their paths in the logdir, until the next sweep, because readers may use them."""
        self._paths.update(paths)

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files if they exist; files that cannot be removed are left for the next sweep."""
        for path in paths:
            try:
                os.unlink(self._logdir / path)
            except FileNotFoundError:
                continue
            except OSError:
                self._paths.add(path)

    def sweep(self) -> None:
        """Removes the files that were kept or could not be removed."""
        paths, self._paths = self._paths, set()
        self.remove(paths)
