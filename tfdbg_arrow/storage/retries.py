"""Repeats actions after temporary errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_RANDOM = random.SystemRandom()
"""A separate generator. Random numbers from the generator that the program seeds would change the training."""


def repeated(
    action: Callable[[], _T], *, attempts: int, may_pass: Callable[[Exception], bool], first_pause_s: float = 0.0
) -> _T:
    """Calls an action and returns its result. Repeats the call after temporary errors.

    Args:
        action: The action.
        attempts: The maximum number of calls.
        may_pass: A function that returns whether another call can succeed after an error. If necessary, the function
            prepares this call.
        first_pause_s: The pause before the second call, in seconds. Each further pause is twice as long.

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
    """Returns a random delay between half of `delay_s` and `delay_s`. Many clients then retry at different times."""
    return delay_s * _RANDOM.uniform(0.5, 1.0)
