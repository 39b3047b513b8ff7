"""Test examples/trackers.py with stand-ins for Weights & Biases and MLflow, which record what is logged."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdbg_arrow.query import distributions, training_curves

from .query.builder import RunBuilder, counts

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "trackers.py"
ELEMENTS = {"histogram_exponent": 0, "histogram_negative": [0, 1], "histogram_positive": [2, 0]}

pytestmark = pytest.mark.slow


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The script, which TensorBoard serves without TensorFlow."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    spec = importlib.util.spec_from_file_location("trackers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul", layer="enc")
    for step in range(3):
        run.tensor(graph, "x", {**counts(neg=1, pos=2), **ELEMENTS, "step": step})
        run.add("mark", event_index=step, step=step, label="rate (%)", value=str(1 / (1 + step)))
    return run.write(tmp_path / "logdir")


class Run:
    """A run of either tracker."""

    info = types.SimpleNamespace(run_id="1")

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, values: dict[str, Any], *, step: int) -> None:
        self.logged.append((step, values))

    def log_batch(self, run_id: str, metrics: list[Any]) -> None:
        assert run_id == "1"
        self.logged.append((metrics[0][3], {key: value for key, value, _, _ in metrics}))


def rates(logdir: Path) -> list[np.float32]:
    curves = training_curves(logdir)
    assert curves is not None
    (rate,) = (curve for curve in curves.curves if curve.name == "rate (%)")
    return [np.float32(value or 0) for value in rate.values]


def test_wandb(trackers: types.ModuleType, logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    wandb = types.SimpleNamespace(init=lambda project: run, Histogram=lambda np_histogram: np_histogram)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    trackers.to_wandb(str(logdir), str(tmp_path / "events"))
    assert [step for step, _ in run.logged] == [0, 1, 2]
    assert [values["training/rate (%)"] for _, values in run.logged] == rates(logdir)
    number, edges = run.logged[0][1]["distribution/forward/enc"]
    assert (number.tolist(), edges.tolist()) == ([1, 0, 0, 2], [-4, -2, -1, 1, 2])
    wanted = distributions(logdir, layer="enc", side="forward")
    assert wanted is not None
    assert number.sum() == wanted.num_elements(0)


def test_mlflow(trackers: types.ModuleType, logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    mlflow = types.SimpleNamespace(MlflowClient=lambda: run, start_run=lambda: run)
    entities = types.SimpleNamespace(Metric=lambda *facts: facts)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    trackers.to_mlflow(str(logdir), str(tmp_path / "events"))
    assert [step for step, _ in run.logged] == [0, 1, 2]
    assert [values["training/rate ___"] for _, values in run.logged] == rates(logdir)
