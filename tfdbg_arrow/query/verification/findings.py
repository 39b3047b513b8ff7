"""Deviation: one thing in a logdir that is not as it was written."""

from __future__ import annotations

from dataclasses import dataclass

_MAX_KEPT = 1000
"""Deviations of a kind that are kept; the others are counted."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """One file, or piece of a file, that is not as it was written, or of which that cannot be said.

    Attributes:
        kind: `changed`, `missing` or `extra`: damage. `leftover`: what a killed process leaves. `unchecked`: nothing in
            the logdir says what it should be.
        path: The file, relative to the logdir.
        run_id: The run that it belongs to; None: none.
        what: What is wrong, as the end of a sentence that begins with the path.
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
    """Collects deviations; the memory for them is bounded.

    Attributes:
        num_damaged: How many were damage.
    """

    def __init__(self) -> None:
        self.num_damaged = 0
        self._kept: dict[str, list[Deviation]] = {kind: [] for kind in _KINDS}

    def add(self, kind: str, path: str, what: str, *, run_id: str | None = None) -> None:
        """Takes one; the arguments are the attributes of Deviation."""
        deviation = Deviation(kind=kind, path=path, run_id=run_id, what=what)
        self.num_damaged += deviation.is_damage
        if len(self._kept[kind]) < _MAX_KEPT:
            self._kept[kind].append(deviation)

    def all(self) -> tuple[Deviation, ...]:
        """Returns those that were kept, damage first."""
        return tuple(deviation for kind in _KINDS for deviation in self._kept[kind])
