"""Programs over third-party libraries run under recording as they run without it, and none is reported as bad.

Each program in `programs` is healthy, and prints every bit of its results. `make third-party` runs these tests in an
environment that holds the libraries.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_DIRECTORY = Path(__file__).parent / "programs"
_PROGRAMS = sorted(path.stem for path in _DIRECTORY.glob("*.py") if path.stem != "healthy")
_TIMEOUT_S = 600


def _run(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run this Python with the arguments, in a directory of its own."""
    directory.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TFDBG_ARROW")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


def _results(process: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that `healthy.report` printed."""
    return [line for line in process.stdout.splitlines() if line.startswith("result ")]


def _said_by_us(process: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of stderr that tfdbg_arrow wrote, but for its closing summary."""
    lines = [line for line in process.stderr.splitlines() if "tfdbg" in line]
    return [line for line in lines if not line.startswith("tfdbg-arrow: recorded")]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_recorded_program_computes_the_same_and_nothing_is_bad(program: str, tmp_path: Path) -> None:
    path = str(_DIRECTORY / f"{program}.py")
    logdir = str(tmp_path / "logdir")
    plain = _run(path, directory=tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    assert _results(plain)

    recorded = _run("-m", "tfdbg_arrow", "run", "--logdir", logdir, path, directory=tmp_path / "recorded")
    assert recorded.returncode == 0, recorded.stderr
    assert _results(recorded) == _results(plain)
    assert _said_by_us(recorded) == []

    answer = _run("-m", "tfdbg_arrow", "first-nonfinite", logdir, directory=tmp_path / "answer")
    assert answer.returncode == 0, answer.stdout
