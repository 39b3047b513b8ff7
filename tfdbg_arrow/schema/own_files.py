"""The check that a logdir's files are regular files inside it, so that nothing else is opened in their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tfdbg_arrow.errors import LogdirError


class OwnFiles:
    """Checks that paths are regular files of a logdir.

    It rejects symbolic links that lead out of the logdir, pipes, devices and directories. Reading a pipe would block,
    and reading a device may never end. Each directory is examined once.

    Args:
        logdir: The logdir.
    """

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._has_link: dict[str, bool] = {}

    def check(self, paths: Iterable[str | Path]) -> None:
        """Checks that files at most two directories deep are safe to open; missing files are accepted.

        Raises:
            LogdirError: A path is not a regular file inside the logdir, or cannot be read.
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
                    f"{path} cannot be read (it is a pipe, a device or a directory, expected a file); restore it."
                )

    def _check_inside(self, path: str) -> None:
        resolved, root = Path(os.path.realpath(path)), os.path.realpath(self._logdir)
        if not resolved.is_relative_to(root):
            raise LogdirError(
                f"{path} leads through a symbolic link to {resolved}, expected a file inside {root}; copy the file "
                "there if you trust it."
            )

    def _leads_on(self, path: str) -> bool:
        directory = os.path.dirname(path)
        for each in (directory, os.path.dirname(directory)):
            if each not in self._has_link:
                self._has_link[each] = os.path.islink(each)
        return self._has_link[directory] or self._has_link[os.path.dirname(directory)]
