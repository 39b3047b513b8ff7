"""Replaces attributes of TensorFlow, and restores them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Patch:
    """One replaced attribute."""

    owner: Any
    name: str
    original: Any
    replacement: Any

    def remove(self) -> None:
        """Restores the original, unless someone else replaced our attribute."""
        if getattr(self.owner, self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class Patches:
    """The attributes that one recording has replaced, in order.

    Each original is restored at the end, unless someone else replaced our attribute meanwhile. Then ours stays, and
    passes every call on.
    """

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._then: list[Callable[[], object]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute by the result of `make`, which gets the original."""
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._patches.append(_Patch(owner=owner, name=name, original=original, replacement=replacement))

    def when_removed(self, then: Callable[[], object]) -> None:
        """Adds a function to call when the originals are restored."""
        self._then.append(then)

    def remove(self) -> None:
        """Restores all originals, the last one first."""
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()
        for then in self._then:
            then()
        self._then.clear()
