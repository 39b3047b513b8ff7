"""Test `tfdbg-arrow import` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..query.builder import RunBuilder
from ..writer.debugger_v2.building import small_dump, write_dump


def run(*command: object) -> str:
    words = [sys.executable, "-m", "tfdbg_arrow", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_an_import_is_reported_and_a_second_one_is_skipped(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump", small_dump())
    next(dump.glob("*.stack_frames")).unlink()
    first = json.loads(run("import", dump, tmp_path / "logdir", "--json"))
    (made,) = first["runs"]
    assert first["num_events"] == made["num_events"] == 18
    assert made["is_new"] is True
    assert {name: made["rows"][name] for name in ("run", "execution", "tensor_health", "graph_op")} == {
        "run": 1,
        "execution": 4,
        "tensor_health": 8,
        "graph_op": 5,
    }
    assert [(stat["subject"], stat["num_events"]) for stat in made["dropped"]] == [
        ("file stack_frames", None),
        ("stack frame", 18),
    ]
    assert first["seconds"] > 0
    second = json.loads(run("import", dump, tmp_path / "logdir", "--json"))
    assert second["num_events"] == 0
    assert {**second["runs"][0], "is_new": True} == made
    text = run("import", dump, tmp_path / "logdir")
    assert "is already in the logdir, with 18 records; skipped" in text
    assert made["run_id"] in text
    assert made["run_id"] in run("info", tmp_path / "logdir")


@pytest.mark.slow
def test_other_runs_of_the_logdir_stay(tmp_path: Path) -> None:
    logdir = RunBuilder("run-a").write(tmp_path / "logdir")
    run("import", write_dump(tmp_path / "dump", small_dump()), logdir)
    assert [made["run_id"] for made in json.loads(run("info", logdir, "--json"))["runs"]].count("run-a") == 1
    assert len(json.loads(run("info", logdir, "--json"))["runs"]) == 2
