"""Test that programs with third-party libraries give the same results with and without recording, and no bad value.

Each program in `programs` is healthy, and prints every bit of its results. `make third-party` runs these tests in an
environment that contains the libraries.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_DIRECTORY = Path(__file__).parent / "programs"
_PROGRAMS = sorted(path.stem for path in _DIRECTORY.glob("*.py") if path.stem != "healthy")
# Functions of these programs request XLA, which rounds differently. In a recording, they run without XLA and warn.
_USE_XLA = {"phasespace_decay"}
_XLA_TOLERANCE = 1e-12
_TIMEOUT_S = 600


def _run(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs this Python with the arguments, in a new directory."""
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


def _results(process: subprocess.CompletedProcess[str]) -> dict[str, float]:
    """Returns the numbers that `healthy.report` printed."""
    lines = [line.split() for line in process.stdout.splitlines() if line.startswith("result ")]
    return {name: float.fromhex(number) for _, name, number, _ in lines}


def _warnings(process: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the lines of stderr with a tfdbg_arrow warning, without the command's closing summary."""
    return [line for line in process.stderr.splitlines() if "tfdbg_arrow: " in line]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_recorded_program_computes_the_same_results_without_bad_values(program: str, tmp_path: Path) -> None:
    path = str(_DIRECTORY / f"{program}.py")
    logdir = str(tmp_path / "logdir")
    plain = _run(path, directory=tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    assert _results(plain)

    recorded = _run("-m", "tfdbg_arrow", "run", "--logdir", logdir, path, directory=tmp_path / "recorded")
    assert recorded.returncode == 0, recorded.stderr
    if program in _USE_XLA:
        assert _results(recorded) == pytest.approx(_results(plain), rel=_XLA_TOLERANCE)
        assert ["runs without XLA" in line for line in _warnings(recorded)] == [True]
    else:
        assert _results(recorded) == _results(plain)
        assert _warnings(recorded) == []

    answer = _run("-m", "tfdbg_arrow", "first-nonfinite", logdir, directory=tmp_path / "answer")
    assert answer.returncode == 0, answer.stdout
