"""Test `tfdbg-arrow repro`: the text, the JSON and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tfdbg_arrow
from tests.cli.commands import run_cli
from tests.query.builder import CLEAN, RunBuilder
from tests.reproduction.logdirs import VALUES, logdir_of


def test_a_script_is_written_and_named(tmp_path: Path) -> None:
    logdir, script = logdir_of(tmp_path / "logdir", "Log\x1b[31m", values=VALUES), tmp_path / "repro.py"
    result = run_cli("repro", logdir, "-o", script)
    assert result.exit_code == 0
    assert "wrote " + str(script) + ", which runs 1 op: Log" in result.stdout
    assert "x0          float32 [2]  made by Softmax (in-Log\\x1b[31m)" in result.stdout
    assert "\x1b" not in result.stdout
    assert script.exists()
    assert script.with_suffix(".npz").exists()


def test_json_has_the_repro(tmp_path: Path) -> None:
    logdir = logdir_of(tmp_path / "logdir", values=VALUES)
    result = run_cli("repro", logdir, "-o", tmp_path / "repro.py", "--event", "1", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 0
    assert told["repro"]["op_types"] == ["Log"]
    assert told["repro"]["nonfinite"]["event_index"] == 1
    assert told["repro"]["inputs"] == [{"name": "x0", "dtype": "float32", "shape": [2], "made_by": "Softmax (in-Log)"}]
    assert told["repro"]["fixes"] == []


def test_missing_elements_and_healthy_runs_are_errors(tmp_path: Path) -> None:
    result = run_cli("repro", logdir_of(tmp_path / "logdir"), "-o", tmp_path / "repro.py", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["type"] == "NotRecordedError"
    assert "FULL_TENSOR" in result.stderr
    run = RunBuilder("run-a")
    run.tensor(run.graph("f").op("x", "Mul"), "x", CLEAN)
    result = run_cli("repro", run.write(tmp_path / "healthy"), "-o", tmp_path / "repro.py")
    assert result.exit_code == 2
    assert "holds an infinity or a NaN" in result.stderr


def test_a_tensor_from_outside_has_no_op_to_run(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    call = run.execution("Neg", inputs=[7], outputs={8: "float32"})
    bad = {"has_inf_or_nan": True, "num_nan": 1, "num_neg_inf": 0, "num_pos_inf": 0, "size": 1, "shape": [1]}
    run.external(7, bad, execution=call)
    run.eager(call, bad, tensor_id=8)
    with pytest.raises(tfdbg_arrow.errors.ReproError, match="came from outside"):
        tfdbg_arrow.write_repro(run.write(tmp_path / "logdir"), tmp_path / "repro.py")
