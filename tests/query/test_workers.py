"""Test replicas and workers: if a collective op receives a bad value, the worker that computed the value is blamed."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tfdbg_arrow.cli import app
from tfdbg_arrow.query import first_nonfinite, nonfinite, open_logdir

from .builder import CLEAN, INF, START_NS, RunBuilder


def worker(index: int, *, is_bad: bool, late_ns: int = 0) -> RunBuilder:
    """Returns the run of one worker.

    The step of this run computes a gradient. The reduced gradient of all workers is infinite.
    """
    run = RunBuilder(f"run-{index}", worker=f"worker:{index}", wall_time_ns=START_NS + late_ns)
    graph = run.graph("step").op("x", "Placeholder").op("gradient", "Log", ["x"])
    graph.op("reduced", "CollectiveReduceV2", ["gradient"])
    execution = run.execution("__step", graph=graph)
    run.tensors(graph, {"x": CLEAN, "gradient": INF if is_bad else CLEAN, "reduced": INF}, execution=execution)
    return run


def test_the_worker_with_the_origin_is_named_even_if_its_clock_is_late(tmp_path: Path) -> None:
    worker(0, is_bad=False).write(tmp_path)
    worker(1, is_bad=True, late_ns=5_000_000).write(tmp_path)
    found = first_nonfinite(tmp_path)
    assert (found.run_id, found.worker, found.op_name, found.is_origin) == ("run-1", "worker:1", "gradient", True)
    result = CliRunner().invoke(app, ["first-nonfinite", str(tmp_path)])
    assert "  worker  worker:1" in result.stdout.splitlines()


def test_a_value_received_from_another_worker_is_not_a_proven_origin(tmp_path: Path) -> None:
    worker(0, is_bad=False).write(tmp_path)
    worker(1, is_bad=True).write(tmp_path)
    found = first_nonfinite(tmp_path, run_id="run-0")
    assert (found.worker, found.op_name, found.is_origin) == ("worker:0", "reduced", False)
    with open_logdir(tmp_path) as opened:
        assert [run.worker for run in opened.runs()] == ["worker:0", "worker:1"]
        assert opened.info().runs == opened.runs()
    lines = CliRunner().invoke(app, ["info", str(tmp_path)]).stdout.splitlines()
    assert [line.strip() for line in lines if line.startswith("  worker ")] == ["worker worker:0", "worker worker:1"]


def test_the_origin_in_another_replica_of_the_same_process(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("step").op("x", "Placeholder")
    for replica in ("", "replica_1/"):
        graph.op(f"{replica}Log", "Log", ["x"])
        graph.op(f"{replica}Reduce", "CollectiveReduceV2", [f"{replica}Log"])
    execution = run.execution("__step", graph=graph)
    run.tensor(graph, "x", CLEAN, execution=execution)
    run.tensor(graph, "Log", CLEAN, execution=execution)
    run.tensor(graph, "Reduce", INF, execution=execution)  # recorded before the culprit
    run.tensor(graph, "replica_1/Log", INF, execution=execution)
    run.tensor(graph, "replica_1/Reduce", INF, execution=execution)
    run.write(tmp_path)
    assert first_nonfinite(tmp_path).op_name == "replica_1/Log"
    assert [(row.op_name, row.is_origin) for row in nonfinite(tmp_path)] == [
        ("Reduce", False),
        ("replica_1/Log", True),
        ("replica_1/Reduce", False),
    ]
