"""Calls functions where little of Python's stack is left, as in a recursive program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def at_end_of_stack(action: Callable[[], _T], *, expected: _T) -> None:
    """Calls an action with every number of frames left, and checks that it returns a value or raises RecursionError."""

    def descend() -> bool:
        """Returns whether the action has succeeded in a call below this one."""
        try:
            if descend():
                return True
        except RecursionError:
            pass
        try:
            found = action()
        except RecursionError:
            return False
        assert found == expected
        return True

    assert descend()
