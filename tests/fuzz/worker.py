"""A process that tests inputs.

Each input line gives the number of an input. The process answers each line with a line of JSON.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import resource
import shutil
import sys
import time
from pathlib import Path

from .asking import failures, is_asked_all
from .cheaper import SharedDatabase
from .inputs import Inputs

MAX_ADDRESS_SPACE = 6 << 30
"""Bytes of address space. Threads and allocators reserve far more than they use."""


def max_rss_bytes() -> int:
    """Returns the peak memory of this process. (The value of getrusage includes the peak of the parent process.)"""
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(kilobytes)


def main(directory: Path, kinds: tuple[str, ...]) -> None:
    """Answers each line until there are no more lines."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output to stdout goes to stderr
    faulthandler.enable()
    inputs = Inputs(directory, kinds=kinds)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write("ready\n")
    database = SharedDatabase()
    for line in sys.stdin:
        begin = time.process_time()
        given = inputs.make(int(line))
        found = list(failures(given, directory, database))
        seconds = time.process_time() - begin
        with contextlib.suppress(OSError):
            shutil.rmtree(directory / "imported")
        if is_asked_all(given.number):
            inputs.discard()
        answer = {
            "number": given.number,
            "kind": given.kind,
            "what": given.what,
            "seconds": seconds,
            "max_rss_bytes": max_rss_bytes(),
            "failures": found,
        }
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2].split(",")))
