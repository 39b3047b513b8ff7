"""Deviation: one difference between a logdir and what was written."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_KEPT = 1000
"""Number of deviations per kind that are kept; the others are only counted."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One file, or piece of a file, that is not as it was written or cannot be checked.

    Attributes:
        kind: `changed`, `missing` and `extra` are damage. `leftover` is data that a killed process left. `unchecked` is
            data for which the logdir holds no checksum.
        path: The file, relative to the logdir.
        run_id: The run that it belongs to; None if it belongs to no run.
        what: What is wrong. It completes a sentence that begins with the path.
    """

    kind: str
    path: str
    run_id: str | None
    what: str

    @property
    def is_damage(self) -> bool:
        """Whether data is changed, missing or extra."""
        return self.kind in _DAMAGE


_DAMAGE = ("changed", "missing", "extra")
_KINDS = (*_DAMAGE, "leftover", "unchecked")


class Deviations:
    """Collects deviations in bounded memory.

    Attributes:
        num_damaged: How many of them are damage.
    """

    def __init__(self) -> None:
        self.num_damaged = 0
        self._kept: dict[str, list[Deviation]] = {kind: [] for kind in _KINDS}

    def add(self, kind: str, path: str, what: str, *, run_id: str | None = None) -> None:
        """Adds a deviation. The arguments are the attributes of Deviation."""
        deviation = Deviation(kind=kind, path=path, run_id=run_id, what=what)
        self.num_damaged += deviation.is_damage
        if len(self._kept[kind]) < _MAX_KEPT:
            self._kept[kind].append(deviation)

    def all(self) -> tuple[Deviation, ...]:
        """Returns the deviations that were kept, damage first."""
        return tuple(deviation for kind in _KINDS for deviation in self._kept[kind])
