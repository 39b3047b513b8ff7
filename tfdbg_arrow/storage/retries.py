"""Repeats actions after temporary errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_RANDOM = random.SystemRandom()
"""A separate generator. A draw from the generator that the program seeds would change the training."""


def repeated(
    action: Callable[[], _T], *, attempts: int, may_pass: Callable[[Exception], bool], first_pause_s: float = 0.0
) -> _T:
    """Calls an action and returns its result; repeats the call after temporary errors.

    Args:
        action: The action.
        attempts: The maximum number of calls.
        may_pass: A function that returns whether another call can succeed after an error. If necessary, it prepares
            that call.
        first_pause_s: Seconds before the second call; each further pause is twice as long.

    Raises:
        Exception: The error of the last call.
    """
    for number in range(attempts - 1):
        try:
            return action()
        except Exception as error:
            if not may_pass(error):
                raise
        if first_pause_s:
            time.sleep(jittered(first_pause_s * 2**number))
    return action()


def jittered(delay_s: float) -> float:
    """Returns a random delay between half and all of `delay_s`, so that many clients do not retry at the same time."""
    return delay_s * _RANDOM.uniform(0.5, 1.0)
