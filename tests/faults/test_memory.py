"""Test that a flood of events takes no more memory than the recording is allowed to use."""

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
"""Allows for the variation of the peak memory from one process to the next."""

pytestmark = pytest.mark.slow


def peak_mib(mode: str, bound_mib: int, disk: str) -> float:
    """Returns the peak memory of a process of the benchmark."""
    command = [sys.executable, str(MEMORY), "--measure", mode, str(bound_mib), disk, SECONDS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout.splitlines()[-1])["peak_mib"])


@pytest.mark.parametrize("mode", ["FULL_HEALTH", pytest.param("FULL_TENSOR", marks=pytest.mark.exhaustive)])
def test_a_flood_of_events_stays_within_the_memory_bound(mode: str) -> None:
    without = peak_mib(mode, 0, "takes all")
    took = {disk: peak_mib(mode, BOUND_MIB, disk) - without for disk in ("takes all", "refuses all")}
    assert max(took.values()) < MARGIN * BOUND_MIB, took
    assert min(took.values()) > 0.1 * BOUND_MIB, took
