"""Test `tfdbg-arrow diff`: exit codes, JSON and text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tfdbg_arrow.cli import app

from ..query.builder import CLEAN, RunBuilder, counts


def run_cli(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul").function("__inference_f_1")
    run.tensor(graph, "x", CLEAN, execution=run.execution("__inference_f_1", graph=graph))
    return run.write(tmp_path / "healthy")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    run = RunBuilder("run-b", tensorflow_version="2.17.0")
    graph = run.graph("f").op("x", "Mul").function("__inference_f_1")
    run.tensor(graph, "x", counts(nan=1, pos=1), execution=run.execution("__inference_f_1", graph=graph))
    return run.write(tmp_path / "other")


def test_equal_runs_give_exit_code_0(healthy: Path) -> None:
    result = run_cli("diff", healthy, healthy)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Nothing diverges: 1 tensor pair(s) were compared in 1 execution pair(s)." in result.stdout


def test_a_divergence_gives_exit_code_1_and_shows_both_sides(healthy: Path, other: Path) -> None:
    result = run_cli("diff", healthy, other)
    assert result.exit_code == 1
    assert "The first divergence: x:0 (Mul) has different NaN or infinities.\n" in result.stdout
    assert "     float32 [2]: 1 NaN, 1 positive of 2 elements\n" in result.stdout
    assert "  tensorflow_version: 2.21.0  |  2.17.0\n" in result.stdout


def test_json(healthy: Path, other: Path) -> None:
    result = run_cli("diff", healthy, other, "--json")
    found = json.loads(result.stdout)["diff"]
    assert result.exit_code == 1
    assert (found["run_a"], found["run_b"], found["divergence"]["kind"]) == ("run-a", "run-b", "nonfinite")
    assert found["divergence"]["b"]["num_nan"] == 1


def test_an_unknown_run_gives_exit_code_2(healthy: Path) -> None:
    result = run_cli("diff", healthy, healthy, "--run-a", "run-z")
    assert result.exit_code == 2
    assert "run-z" in result.stderr
