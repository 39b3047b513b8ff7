"""A logdir on this machine: its live parts, and the rows that dead processes left in its spool."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.logdir.broken_parts import BrokenParts
from tfdbg_arrow.query.logdir.opening import list_parts
from tfdbg_arrow.query.logdir.recovered_parts import RecoveredParts

_MAX_ATTEMPTS = 20
"""How often to list the parts again because a run was recovered in the meantime."""


class LocalSource:
    """Lists parts.

    Args:
        path: The logdir.
        broken: Leaves out and records broken files; None lists all parts.
    """

    def __init__(self, path: Path, *, broken: BrokenParts | None = None) -> None:
        self._path, self._broken = path, broken
        self._recovered = RecoveredParts(path, broken=broken)

    def refresh(self) -> dict[str, tuple[str, ...]]:
        """Reads the manifests again.

        Returns:
            Paths by table.

        Raises:
            LogdirError: The path is no longer a logdir or cannot be read, or a manifest is damaged.
        """
        for _ in range(_MAX_ATTEMPTS):
            if self._broken is not None:
                self._broken.begin()
            self._recovered.refresh()
            try:
                parts = list_parts(self._path, is_checked=False, broken=self._broken)
                recovered = self._recovered.parts()
            except OSError as error:
                raise LogdirError(
                    f"{error.filename or self._path} cannot be read ({error.strerror or error}); check the "
                    "permissions and the disk."
                ) from error
            if recovered is not None:
                return {table: (*parts.get(table, ()), *recovered.get(table, ())) for table in {*parts, *recovered}}
        raise LogdirError(f"{self._path} is being recovered repeatedly; open it again when that has ended.")
