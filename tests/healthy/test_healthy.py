"""Healthy programs: every command exits with 0, and `alerts` has at most one warning and no error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.healthy.programs import PROGRAMS

REPOSITORY = Path(__file__).resolve().parents[2]
FAST = ("hand_written_attention_with_a_large_mask", "sparse_relu_network")


def answers(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.healthy.record", *arguments]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def check(found: list[dict[str, Any]], names: list[str]) -> None:
    wrong = [each for each in found if each["exit_codes"] or each["warnings"]]
    assert [each["name"] for each in found] == names
    assert wrong == [], json.dumps(wrong, indent=2)


def test_there_are_thirty_programs() -> None:
    assert len(PROGRAMS) >= 30


def test_no_answer_reports_a_sample_of_healthy_programs_under_op_determinism() -> None:
    check(answers("--deterministic", *FAST), list(FAST))


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [[], ["--deterministic"]], ids=["default", "deterministic"])
def test_no_answer_reports_a_healthy_program(options: list[str]) -> None:
    check(answers(*options), list(PROGRAMS))
