"""Divides the processor time of a process into phases, for whole_runs.py."""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

ANSWER = "WHOLE_RUNS_ANSWER"
"""The environment variable with the path of the file that gets the phases of the process and its peak memory."""

_seconds: dict[str, float] = {}
_current = "import"
_begin_s = 0.0


def begin(phase: str) -> str:
    """Begins a phase, ends the previous phase, and returns the name of the previous phase."""
    global _current, _begin_s
    now_s = time.process_time()
    _seconds[_current] = _seconds.get(_current, 0.0) + now_s - _begin_s
    previous, _current, _begin_s = _current, phase, now_s
    return previous


def at_step(step: int) -> None:
    """Ends the phase in which functions are traced. The argument is the number of steps so far."""
    if step == 1:
        begin("steps")


def time_calls(module: ModuleType, name: str, phase: str) -> None:
    """Makes the calls of a module's function a separate phase. The surrounding phase continues after each call."""
    function: Callable[..., object] = getattr(module, name)

    @functools.wraps(function)
    def timed(*args: object, **settings: object) -> object:
        outer = begin(phase)
        try:
            return function(*args, **settings)
        finally:
            begin(outer)

    setattr(module, name, timed)


def _write() -> None:
    begin("exit")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Path(os.environ[ANSWER]).write_text(json.dumps({"phase_s": _seconds, "peak_mib": peak_mib}))


if ANSWER in os.environ:
    atexit.register(_write)
