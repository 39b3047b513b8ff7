"""Tells errors of the recorder from those of the program that arrive while the recorder runs."""

from __future__ import annotations

import functools
import signal
from types import CodeType


def pass_on(error: object) -> None:
    """Raises an error again if it belongs to the program; otherwise does nothing.

    Python runs the program's signal handlers wherever the main thread is, also in the recorder. What a handler raises
    there must reach the program: KeyboardInterrupt, the TimeoutError of an alarm, or an exception of its own. An
    exception that another thread sends comes without frames of a handler; of these, TimeoutError is recognized, because
    one that the system raises has an errno.

    Args:
        error: An exception that the recorder caught; anything else is ignored.
    """
    if isinstance(error, BaseException) and _is_of_program(error):
        raise error


def _is_of_program(error: BaseException) -> bool:
    if not isinstance(error, Exception):
        return True
    if isinstance(error, TimeoutError) and error.errno is None:
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__ if handlers else None
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    """Returns the code that a signal handler runs; None if it is not Python code."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    call = getattr(type(handler), "__call__", None)  # noqa: B004 - its code is needed, not whether it exists
    for function in (handler, getattr(handler, "__func__", None), call):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
