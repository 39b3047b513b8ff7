"""Functions for actions that an interruption must not leave half done.

A signal handler can raise an error at any line of the main thread.
"""

from __future__ import annotations

import _thread
import operator
import time
from collections import deque
from collections.abc import Callable

_PAUSE_S = 0.0005
"""Seconds between two checks whether the action is over. The calling thread waits at most this much too long."""


def at_once(*actions: Callable[[], object]) -> None:
    """Calls C functions one after the other. Nothing interrupts them, because Python runs no line between them.

    Args:
        *actions: Functions such as methods of lists and dictionaries, or partials of them. They must not fail.
    """
    deque(map(operator.call, actions), maxlen=0)


def finish(action: Callable[[], object]) -> None:
    """Runs an action to its end in another thread, and waits for it.

    If an error interrupts the calling thread meanwhile, or if the action fails, the error is raised afterwards.
    """
    raised: list[BaseException] = []
    started: list[int] = []
    is_over: list[bool] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)
        finally:
            is_over.append(True)

    while not is_over:
        try:
            if not started:  # one C call starts the thread and notes the start, so the thread never starts twice
                started.extend(map(_thread.start_new_thread, [run], [()]))
            time.sleep(_PAUSE_S)
        except RuntimeError as error:
            if started:
                raised.append(error)
            else:  # the process can have no more threads
                run()
        except BaseException as error:
            raised.append(error)
    if raised:
        raise raised[0]
