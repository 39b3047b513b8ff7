"""Healthy programs: every command exits with 0, and `alerts` has at most one warning and no error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.healthy.programs import PROGRAMS
from tests.programs.running import run_to_end

REPOSITORY = Path(__file__).resolve().parents[2]


def answers(*arguments: str) -> list[dict[str, Any]]:
    process = run_to_end("-m", "tests.healthy.record", *arguments, cwd=REPOSITORY, timeout_s=3600)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


def check(names: list[str], *options: str, tmp_path: Path) -> None:
    """Checks what the answers say about recordings in one process, and about those that `tfdbg-arrow run` makes."""
    found = answers(*options, *names)
    wrong = [each for each in found if each["exit_codes"] or each["warnings"]]
    assert [each["name"] for each in found] == names
    assert wrong == [], json.dumps(wrong, indent=2)
    for name in names:
        program = ("-m", "tests.healthy.programs", *options, name)
        # In a process of its own, because a recording begins when the program imports TensorFlow.
        command = [sys.executable, "-m", "tfdbg_arrow", "run", "--logdir", str(tmp_path / name), *program]
        process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
        assert process.returncode == 0, (name, process.stderr)
        assert (tmp_path / name / "manifest").is_dir()


def test_there_are_thirty_programs() -> None:
    assert len(PROGRAMS) >= 30


@pytest.mark.slow
def test_no_answer_reports_a_healthy_program_under_op_determinism(tmp_path: Path) -> None:
    check(["hand_written_attention_with_a_large_mask"], "--deterministic", tmp_path=tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [[], ["--deterministic"]], ids=["default", "deterministic"])
def test_no_answer_reports_a_healthy_program(options: list[str], tmp_path: Path) -> None:
    check(list(PROGRAMS), *options, tmp_path=tmp_path)
