"""Test that questions about a logdir of millions of tensors give the right answers within the limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MAX_CPU_S = 6
"""For each million rows: eight times the CPU time of the slowest question. A join without a key takes more."""


@pytest.mark.parametrize("num_millions", [2, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_questions_to_millions_of_tensors(num_millions: int, tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    generate = [
        sys.executable,
        BENCHMARKS / "generate_logdir.py",
        logdir,
        "--rows",
        f"{num_millions}000000",
        "--runs",
        "2",
    ]
    subprocess.run(generate, check=True)
    output = subprocess.check_output([sys.executable, BENCHMARKS / "query_scale.py", "--ask", logdir], timeout=600)
    measured = json.loads(output.splitlines()[-1])
    cpu_s = {name: max(times["cpu_s"]) for name, times in measured.items() if isinstance(times, dict)}
    assert cpu_s.keys() >= {"first_nonfinite, cold", "provenance, cold", "alerts, cold"}
    assert max(cpu_s.values()) < MAX_CPU_S * num_millions, cpu_s
