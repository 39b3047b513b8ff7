"""Which files are a logdir's own: what a stranger put in their place is not opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tfdbg_arrow.errors import LogdirError


class OwnFiles:
    """Refuses what is no file of a logdir: what leads out of it by a symbolic link, a pipe, a device, a directory.

    A pipe would be waited for, a device may never end. Looks at each directory once.

    Args:
        logdir: The logdir.
    """

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._has_link: dict[str, bool] = {}

    def check(self, paths: Iterable[str | Path]) -> None:
        """Makes sure that files, two directories deep at most, may be opened; one that is missing may.

        Raises:
            LogdirError: One may not.
        """
        for each in paths:
            path = str(each)
            try:
                if os.path.islink(path) or self._leads_on(path):
                    self._check_inside(path)
                mode = os.stat(path).st_mode
            except FileNotFoundError:
                continue
            except OSError as error:
                raise LogdirError(f"{path} cannot be read ({error.strerror}); check its permissions.") from error
            if not stat.S_ISREG(mode):
                raise LogdirError(
                    f"{path} cannot be read (a pipe, a device or a directory, expected a file); restore it."
                )

    def _check_inside(self, path: str) -> None:
        resolved, root = Path(os.path.realpath(path)), os.path.realpath(self._logdir)
        if not resolved.is_relative_to(root):
            raise LogdirError(
                f"{path} leads by a symbolic link to {resolved}, expected a file inside {root}; copy the file "
                "there if you trust it."
            )

    def _leads_on(self, path: str) -> bool:
        directory = os.path.dirname(path)
        for each in (directory, os.path.dirname(directory)):
            if each not in self._has_link:
                self._has_link[each] = os.path.islink(each)
        return self._has_link[directory] or self._has_link[os.path.dirname(directory)]
