"""Test readers that stop at the first rows against readers of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.query.bad_runs import BadRuns
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.flow.graph_rows import CallReader
from tfdbg_arrow.query.recorded import KINDS, Context, GraphTensor

from .builder import CLEAN, INF, NAN, RunBuilder


def test_the_sinks_of_each_execution_are_complete_and_in_order(tmp_path: Path) -> None:
    """One execution has more sinks than the search for the first executions reads rows."""
    num_sinks = [1, 70, 0, 70, 3, 70, 1]
    run = RunBuilder("run-a")
    graph = run.graph("train")
    for number in range(max(num_sinks)):
        graph.op(f"variable_{number}", "Placeholder", dtypes=["resource"]).op(f"update_{number}", "Mul")
        graph.op(f"write_{number}", "AssignAddVariableOp", [f"variable_{number}", f"update_{number}"], dtypes=[])
    expected = []
    for num_bad in num_sinks:
        call = run.execution("train", graph=graph)
        healths = [NAN] * num_bad + [CLEAN] * (max(num_sinks) - num_bad)
        events = [
            run.tensor(graph, f"update_{number}", health, execution=call, step=call)
            for number, health in enumerate(healths)
        ]
        expected.append(events[:num_bad])
    with open_logdir(run.write(tmp_path / "logdir", parts=3)) as logdir:
        sinks = BadTensorReader(logdir, run_id="run-a", kinds=KINDS).sinks
        batches = [[row.event_index for row in batch] for batch in sinks.batches("variable")]
    assert batches == [events for events in expected if events]


@pytest.mark.parametrize("num_uses", [0, 2, 3, 5])
def test_the_first_uses_of_a_tensor_are_followed_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_uses: int
) -> None:
    monkeypatch.setattr("tfdbg_arrow.query.flow.events._MAX_USES", 2)
    monkeypatch.setattr("tfdbg_arrow.query.flow.events._FIRST_USES", 2)
    run = RunBuilder("run-a")
    run.eager_op("Mul", NAN, tensor_id=0)
    for tensor_id in range(1, 1 + num_uses):
        run.eager_op("Mul", NAN, tensor_id=tensor_id, inputs=[0])
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        events = BadTensorReader(logdir, run_id="run-a", kinds=KINDS).flow.events
        uses = list(events.iter_uses(0))
        assert uses == list(events.uses(0))
    assert len(uses) == num_uses


@pytest.mark.parametrize("max_rows", [3, 1000])
def test_the_rows_of_several_steps_that_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    """Each row is found, whether the steps have too many rows to read them at once or not."""
    monkeypatch.setattr("tfdbg_arrow.query.flow.graph_rows._MAX_CALL_ROWS", max_rows)
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Log").op("y", "Neg", ["x"])
    expected = {}
    for step in (10, 20, 30):
        for name in ("x", "y") if step < 30 else ():
            context = Context(step, None, "", 0, 0)
            expected[GraphTensor(context, graph.graph_id, name, 0, 100)] = run.tensor(graph, name, NAN, step=step)
    call = run.execution("f", graph=graph)
    run.tensor(graph, "x", NAN, execution=call, step=20)
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        reader = CallReader(logdir, run_id="run-a")
        reader.read_steps([10, 20, 30, 10])
        num_statements = 0

        def counted(query: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
            nonlocal num_statements
            num_statements += 1
            return rows(query, parameters)

        rows = logdir.rows
        monkeypatch.setattr(logdir, "rows", counted)
        events = {place: reader.graph_tensor(place) for place in expected}
        assert {place: event and event.event_index for place, event in events.items()} == expected
        missing = GraphTensor(Context(30, None, "", 0, 0), graph.graph_id, "x", 0, 100)
        assert reader.graph_tensor(missing) is None
        assert (num_statements == 0) == (max_rows == 1000)


def plain_bad_runs(logdir: Logdir) -> dict[str, tuple[object, ...]]:
    rows = logdir.rows(
        "SELECT run_id, count(*) FILTER (WHERE has_inf_or_nan), min(event_index) FILTER (WHERE has_inf_or_nan), "
        "min_by(step, event_index) FILTER (WHERE has_inf_or_nan AND step IS NOT NULL), "
        "min_by(wall_time_ns, event_index) FILTER (WHERE has_inf_or_nan), "
        "min(wall_time_ns) FILTER (WHERE num_nan > 0), min(wall_time_ns) FILTER (WHERE num_pos_inf > 0) "
        "FROM tensor_health GROUP BY run_id HAVING bool_or(has_inf_or_nan)"
    )
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("max_read_singly", [0, 16])
def test_the_bad_tensors_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_read_singly: int) -> None:
    monkeypatch.setattr("tfdbg_arrow.query.bad_runs._MAX_READ_SINGLY", max_read_singly)
    for number, healths in enumerate([[CLEAN], [CLEAN, INF, NAN], [], [NAN, CLEAN, NAN]]):
        run = RunBuilder(f"run-{number}")
        graph = run.graph("f").op("x", "Log")
        for place, health in enumerate(healths):
            run.tensor(graph, "x", {**health, "step": place if number == 1 else None})
        run.write(tmp_path / "logdir")
    with open_logdir(tmp_path / "logdir") as logdir:
        expected = plain_bad_runs(logdir)
        reader = logdir.lasting(BadRuns)
        for run_ids in (["run-1"], logdir.run_ids()):
            found = {
                run_id: (
                    bad.num_bad,
                    bad.first_event_index,
                    bad.first_step,
                    bad.first_wall_time_ns,
                    bad.first_times.get(("nan",)),
                    bad.first_times.get(("inf",)),
                )
                for run_id, bad in reader.bad_runs(run_ids).items()
            }
            assert found == {run_id: bad for run_id, bad in expected.items() if run_id in run_ids}
        assert logdir.of_run("run-3").lasting(BadRuns) is reader
    assert sorted(expected) == ["run-1", "run-3"]
