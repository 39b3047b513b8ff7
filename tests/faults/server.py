"""A process that runs jobs under faults, each in its own fork, so that slow imports happen only once.

The process reads jobs as lines of JSON. For each job, it prints a line of JSON: the job's result, its output on stderr,
and the exit status of its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Job = Callable[[Mapping[str, Any]], Mapping[str, object]]


def serve(do: Job) -> None:
    """Runs the jobs from stdin until there are no more jobs."""
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                os.dup2(errors.fileno(), 2)
                _do(do, json.loads(line), answer)
            _, status = os.waitpid(child, 0)
            answer.seek(0)
            errors.seek(0)
            found = json.loads(answer.read() or "null")
            done = {"answer": found, "stderr": errors.read(), "status": os.waitstatus_to_exitcode(status)}
        print(json.dumps(done), flush=True)


def _do(do: Job, job: Mapping[str, Any], answer: Any) -> None:
    code = 1
    try:
        json.dump(do(job), answer)
        answer.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


class Server:
    """Controls the process of this module from another process.

    Args:
        module: The module to run. It calls `serve`.
        shim: The library that makes operations fail.
    """

    def __init__(self, module: str, *, shim: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "always", "-m", module],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "LD_PRELOAD": str(shim), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, **job: object) -> Done:
        """Runs a job and waits for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job, default=str) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate(timeout=60)


class Done:
    """The result of a job."""

    def __init__(self, *, answer: Any, stderr: str, status: int) -> None:
        self.answer, self.stderr, self.status = answer, stderr, status

    @property
    def warnings(self) -> list[str]:
        """The warnings that the job wrote to stderr."""
        return [line for line in self.stderr.splitlines() if line.startswith("tfdbg_arrow") or "Warning:" in line]
