"""A flood of events takes no more memory than the recording was given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = Path(__file__).parents[2] / "benchmarks" / "memory.py"
SECONDS = "4"
BOUND_MIB = 256
MARGIN = 1.1
"""What the most memory of a process differs by from one to the next."""

pytestmark = pytest.mark.slow


def peak_mib(mode: str, bound_mib: int, disk: str) -> float:
    """Returns the most memory that a process of the benchmark's had."""
    command = [sys.executable, str(MEMORY), "--measure", mode, str(bound_mib), disk, SECONDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout.splitlines()[-1])["peak_mib"])


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "FULL_TENSOR"])
def test_a_flood_takes_no_more_than_it_may(mode: str) -> None:
    without = peak_mib(mode, 0, "takes all")
    took = {disk: peak_mib(mode, BOUND_MIB, disk) - without for disk in ("takes all", "refuses all")}
    assert max(took.values()) < MARGIN * BOUND_MIB, took
    assert min(took.values()) > 0.1 * BOUND_MIB, took
