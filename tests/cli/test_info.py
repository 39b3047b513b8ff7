"""Test `tfdbg-arrow info`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tfdbg_arrow.query import LogdirInfo

from ..query.builder import START_NS, RunBuilder
from .commands import run_cli


class TestInfo:
    def test_json(self, bad: Path) -> None:
        result = run_cli("info", bad, "--json")
        assert result.exit_code == 0
        found = json.loads(result.stdout)
        assert list(found) == [field.name for field in dataclasses.fields(LogdirInfo)]
        assert (found["num_tensors"], found["num_nonfinite"]) == (2, 1)
        assert found["runs"][0]["run_id"] == "run-a"

    def test_text(self, bad: Path) -> None:
        result = run_cli("info", bad)
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[0] == str(bad)
        assert "2 tensors, 1 of them bad" in lines[1]
        rows = {line.split()[0]: line.split()[1:3] for line in lines if line.startswith(("tensor_health", "graph_op "))}
        assert rows == {"tensor_health": ["2", "1"], "graph_op": ["2", "1"]}

    def test_the_name_the_tags_and_the_notes_of_a_run(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", run_name="warm \x1b[31mstart", tags='["a", "lr=0.1"]', notes="one\ntwo")
        RunBuilder("run-b", wall_time_ns=START_NS + 1, tags="no JSON").write(run.write(tmp_path))
        lines = run_cli("info", tmp_path).stdout.splitlines()
        first = lines.index("run run-a warm \\x1b[31mstart")
        assert lines[first + 1 : first + 3] == ["  tags: a, lr=0.1", "  notes: one\\ntwo"]
        runs = json.loads(run_cli("info", tmp_path, "--json").stdout)["runs"]
        assert [(each["run_name"], each["tags"], each["notes"]) for each in runs] == [
            ("warm \x1b[31mstart", ["a", "lr=0.1"], "one\ntwo"),
            (None, [], None),
        ]
