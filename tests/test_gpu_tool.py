"""Test the checks of `make gpu` without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu import __main__ as tool
from tools.gpu.machine import advice
from tools.gpu.processes import Check
from tools.gpu.results import Machine

ROOT = Path(__file__).resolve().parents[1]
MACHINE = Machine(device=None, driver=None, tensorflow="2.21.0", cuda=None, python="3.11.2", num_cpus=2)
CHECKS = """
    import time

    from tools.gpu.results import Result

    def right(*, is_cpu):
        yield Result(item="first", is_right=is_cpu, told="[as] it should be", facts={"count": 1})

    def wrong(*, is_cpu):
        yield from right(is_cpu=is_cpu)
        yield Result(item="second", is_right=False, told="not as it should be")

    def failing(*, is_cpu):
        yield from right(is_cpu=is_cpu)
        raise RuntimeError("no such kernel")

    def hanging(*, is_cpu):
        yield from right(is_cpu=is_cpu)
        time.sleep(600)

    def silent(*, is_cpu):
        yield from ()
"""
"""Checks that need no TensorFlow."""
WRONG_RECORD = """
    from tools.gpu import record as module

    module.OP_TYPES[module.logarithm] = "Sqrt"  # it is a Log
    module.PROGRAMS = module.PROGRAMS[:1]
    record = module.record
"""
SOME_RECORDS = """
    from tools.gpu import record as module

    module.PROGRAMS = module.PROGRAMS[::5]
    record = module.record
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `--cpu --only record` in this process, with another function as the check; returns exit code and JSON."""

    def run_tool(code: str, function: str, limit_s: float = 600.0) -> tuple[int, dict[str, Any]]:
        (tmp_path / "gpu_checks.py").write_text("\n".join(line.removeprefix("    ") for line in code.splitlines()))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        check = Check(function=f"gpu_checks.{function}", limit_s=limit_s)
        monkeypatch.setitem(tool.CHECKS, "record", check)
        monkeypatch.setattr(tool, "find_machine", lambda *, is_cpu: MACHINE)
        output = tmp_path / "new" / "gpu.json"
        exit_code = tool.main(["--cpu", "--only", "record", "--output", str(output)])
        return exit_code, json.loads(output.read_text())

    return run_tool


def test_a_right_result_passes(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, written = run(CHECKS, "right")
    assert exit_code == 0
    (check,) = written["checks"]
    result = {"item": "first", "is_right": True, "told": "[as] it should be", "facts": {"count": 1}}
    assert (written["is_passed"], check["is_passed"], check["results"]) == (True, True, [result])
    assert written["machine"]["tensorflow"] == "2.21.0"
    assert "[as] it should be" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "told"), [("wrong", "not as it should be"), ("failing", "RuntimeError: no such kernel")]
)
def test_a_wrong_result_gives_exit_code_1_and_keeps_those_before(run: Any, function: str, told: str) -> None:
    exit_code, written = run(CHECKS, function)
    assert exit_code == 1
    (check,) = written["checks"]
    assert (written["is_passed"], check["is_passed"]) == (False, False)
    right, wrong = check["results"]
    assert (right["item"], right["is_right"], wrong["is_right"]) == ("first", True, False)
    assert told in wrong["told"]


def test_a_check_that_takes_too_long_is_killed_and_wrong(run: Any) -> None:
    exit_code, written = run(CHECKS, "hanging", limit_s=1.0)
    assert exit_code == 1
    assert "took more than 1 s" in written["checks"][0]["results"][-1]["told"]


def test_a_check_without_results_is_wrong(run: Any) -> None:
    exit_code, written = run(CHECKS, "silent")
    assert exit_code == 1
    assert "gave no result" in written["checks"][0]["results"][0]["told"]


@pytest.mark.slow
def test_a_wrong_answer_of_a_recording_gives_exit_code_1(run: Any) -> None:
    exit_code, written = run(WRONG_RECORD, "record")
    assert exit_code == 1
    (result,) = written["checks"][0]["results"]
    assert not result["is_right"]
    assert "Log, line" in result["told"]
    assert "instead of Sqrt, line" in result["told"]


@pytest.mark.slow
def test_some_answers_are_right_without_a_gpu(run: Any) -> None:
    exit_code, written = run(SOME_RECORDS, "record")
    assert exit_code == 0
    results = written["checks"][0]["results"]
    assert len(results) > 3
    assert all(result["is_right"] for result in results)


@pytest.mark.exhaustive
def test_the_answers_are_right_without_a_gpu(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "tools.gpu", "--cpu", "--only", "record", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(output.read_text())
    (check,) = written["checks"]
    assert written["is_passed"]
    assert check["check"] == "record"
    assert len(check["results"]) > 20
    for result in check["results"]:
        assert result["is_right"]
        assert result["facts"]["health_backend"] == "tensorflow"
        assert sum(result["facts"]["num_tensors"].values()) > 0
    assert "record: passed" in done.stdout


@pytest.mark.slow
def test_a_machine_without_a_gpu_gives_exit_code_2_and_says_what_to_install() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "tools.gpu"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Install tensorflow[and-cuda]" in done.stderr


def test_the_advice_depends_on_what_is_missing() -> None:
    assert "no kernels for GPUs" in advice(MACHINE)
    fields = {"device": None, "tensorflow": "2.21.0", "cuda": "12.5.1", "python": "3.11.2", "num_cpus": 2}
    assert "NVIDIA's driver is missing" in advice(Machine(driver=None, **fields))
    assert "A library of CUDA may be missing" in advice(Machine(driver="580.1", **fields))


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_of_tool:
        tool.main(["--cpu", "--only", "record,speed"])
    assert exit_of_tool.value.code == 2
    assert "no check is named 'speed'" in capsys.readouterr().err
