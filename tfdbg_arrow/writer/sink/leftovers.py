"""Files that no manifest tells of: they are removed, so that no reader counts on them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


class Leftovers:
    """Removes files of a logdir, and remembers what could not be removed.

    Args:
        logdir: Where they are.
    """

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._paths: set[str] = set()

    def keep(self, paths: Iterable[str]) -> None:
        """Leaves files, by their paths in the logdir, for the next sweep: a reader may count on them until then."""
        self._paths.update(paths)

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files that may be there; what the file system refuses is left for the next sweep."""
        for path in paths:
            try:
                os.unlink(self._logdir / path)
            except FileNotFoundError:
                continue
            except OSError:
                self._paths.add(path)

    def sweep(self) -> None:
        """Removes what was left."""
        paths, self._paths = self._paths, set()
        self.remove(paths)
