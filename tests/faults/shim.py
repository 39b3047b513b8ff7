"""Python interface of the library that makes file operations fail."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

FOR_EVER = 2**62
"""A value of `end`: all operations from `first` on fail."""
SHORT = 0
"""A value of `error`: writes are cut short, and other operations succeed."""
_SOURCE = Path(__file__).with_name("shim.c")


def compile_shim(directory: Path) -> Path:
    """Compiles the library and returns its path, for LD_PRELOAD."""
    library = directory / "shim.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-w", "-O1", "-shared", "-fPIC", str(_SOURCE), "-o", str(library), "-ldl"], check=True)
    return library


class Shim:
    """The preloaded library of this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.faults_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int)
        self._library.faults_disarm.restype = ctypes.c_long
        self._library.faults_name.argtypes = (ctypes.c_long,)
        self._library.faults_name.restype = ctypes.c_char_p

    def arm(self, below: Path, *, first: int, end: int, error: int) -> None:
        """Makes operations below a directory fail, with numbers from `first` to `end` (excluded), counted from 0."""
        self._library.faults_arm(os.fsencode(below), first, end, error)

    def disarm(self) -> list[str]:
        """Stops the failures. Returns the names of the operations that were counted."""
        return [self._library.faults_name(number).decode() for number in range(self._library.faults_disarm())]
