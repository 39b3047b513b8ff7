"""Runs a check in its own process, until the process ends or the time limit is reached."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.gpu.machine import REPOSITORY, environment
from tools.gpu.results import CheckResult, Result

_NUM_LOG_LINES = 8


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check.

    Attributes:
        function: Module and name of a generator function of Results, which takes the argument `is_cpu`.
        limit_s: Time limit of the check's process in seconds. The limit stops a process that hangs, but is long enough
            for slow machines.
    """

    function: str
    limit_s: float


def run_check(name: str, check: Check, *, is_cpu: bool, log: Path) -> CheckResult:
    """Runs a check.

    If the process of the check fails or takes too long, a wrong result is added to the results of the check.

    Args:
        name: Name of the check.
        check: The check.
        is_cpu: Whether the check runs without a GPU.
        log: The file for the output of the check's processes.
    """
    start = time.monotonic()
    failure = None
    with tempfile.TemporaryDirectory(prefix="tfdbg_arrow_gpu_") as directory, log.open("wb") as log_file:
        answers = Path(directory, "results.jsonl")
        answers.touch()
        command = [sys.executable, "-m", "tools.gpu.processes", check.function, str(answers), str(int(is_cpu))]
        # Temporary files of a killed process are removed with the directory.
        variables = {**environment(is_cpu=is_cpu), "TMPDIR": directory}
        # The process gets its own session, so that the processes that it starts are killed with it.
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=variables, stdout=log_file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            if process.wait(check.limit_s) != 0:
                failure = f"ended with exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            failure = f"took more than {check.limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # no process is left after a normal end
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # The last line of a killed process may be cut off.
        lines = [line for line in answers.read_text().splitlines(keepends=True) if line.endswith("\n")]
    results = [Result(**json.loads(line)) for line in lines]
    if failure is None and not results:
        failure = "gave no result"
    if failure is not None:
        last_lines = log.read_text(errors="replace").splitlines()[-_NUM_LOG_LINES:]
        told = "\n".join([f"{failure}; {log} has its output, which ends with:", *last_lines])
        results.append(Result(item="process", is_right=False, told=told))
    return CheckResult(check=name, seconds=round(time.monotonic() - start, 1), results=tuple(results))


def _main(function: str, answers: str, is_cpu: str) -> None:
    """Runs the function of a check in this process, and writes each result at once, as a line of JSON."""
    module, _, name = function.rpartition(".")
    with open(answers, "a") as file:
        for result in getattr(importlib.import_module(module), name)(is_cpu=bool(int(is_cpu))):
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
