from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.logdir.statements import with_values

from .builder import CLEAN, NAN, RunBuilder


def test_noted_queries_can_be_run_again_with_the_same_answer(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Log")
    run.tensor(graph, "x", CLEAN)
    run.tensor(graph, "x", NAN)
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        query = "SELECT event_index, '?' AS mark FROM tensor_health WHERE run_id = ? AND num_nan >= ? -- so ?"
        with logdir.questions.noted() as questions:
            first = logdir.rows(query, ["run-a", 1])
            assert logdir.rows(query, ["run-a", 0]) != first
            logdir.of_run("run-a").rows("SELECT count(*) FROM graph")
            logdir.rows("SELECT 1")  # this query is not noted, because it reads no table
        assert [question.number for question in questions] == [2, 1]
        assert logdir.rows(questions[0].query) == first
        assert questions[1].query == "SELECT count(*) FROM graph"
        logdir.rows("SELECT count(*) FROM graph")
        assert len(questions) == 2


def test_parameters_become_literals() -> None:
    values = [None, True, -1.5, 7, b"\x00\xff", ["a'b", 2], float("nan")]
    assert with_values("SELECT " + ", ".join("?" for _ in values), values) == (
        "SELECT NULL, true, CAST('-1.5' AS DOUBLE), 7, from_hex('00ff'), ['a''b', 2], CAST('nan' AS DOUBLE)"
    )
    with pytest.raises(ValueError, match="too few"):
        with_values("SELECT ?, ?", [1])
