"""A logdir of this machine: the parts that hold, and what processes that died had not made parts of."""

from __future__ import annotations

from pathlib import Path

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query.logdir.broken_parts import BrokenParts
from tfdbg_arrow.query.logdir.opening import list_parts
from tfdbg_arrow.query.logdir.recovered_parts import RecoveredParts

_MAX_ATTEMPTS = 20
"""Listings of the parts, each made because a run was recovered during the one before."""


class LocalSource:
    """Lists parts.

    Args:
        path: The logdir.
        broken: Told of what is broken, which is left out; None: all is listed.
    """

    def __init__(self, path: Path, *, broken: BrokenParts | None = None) -> None:
        self._path, self._broken = path, broken
        self._recovered = RecoveredParts(path, broken=broken)

    def refresh(self) -> dict[str, tuple[str, ...]]:
        """Reads the manifests again.

        Returns:
            Paths by table.

        Raises:
            LogdirError: It is no longer a logdir, cannot be read, or a manifest is damaged.
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
                    f"{error.filename or self._path} cannot be looked at ({error.strerror or error}); check the "
                    "permissions, and the disk."
                ) from error
            if recovered is not None:
                return {table: (*parts.get(table, ()), *recovered.get(table, ())) for table in {*parts, *recovered}}
        raise LogdirError(f"{self._path} is being recovered over and over; open it again when that has ended.")
