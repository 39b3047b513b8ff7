"""Attributes of TensorFlow that a recording replaces and puts back."""

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
        """Puts the original back, unless somebody else replaced ours."""
        if getattr(self.owner, self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)


class Patches:
    """What one recording has replaced, in order.

    Each original is put back in the end, unless somebody else replaced ours meanwhile: then ours stays and passes
    every call on.
    """

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._then: list[Callable[[], object]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replaces an attribute by what `make` makes of it."""
        original = getattr(owner, name)
        replacement = make(original)
        setattr(owner, name, replacement)
        self._patches.append(_Patch(owner=owner, name=name, original=original, replacement=replacement))

    def when_removed(self, then: Callable[[], object]) -> None:
        """Asks for a call once the originals are back."""
        self._then.append(then)

    def remove(self) -> None:
        """Puts all originals back, the last first."""
        for patch in reversed(self._patches):
            patch.remove()
        self._patches.clear()
        for then in self._then:
            then()
        self._then.clear()
