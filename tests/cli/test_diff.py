"""Test `tfdbg-arrow diff`: exit codes, JSON and text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..query.builder import CLEAN, RunBuilder, counts
from .commands import run_cli


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


@pytest.mark.slow
def test_equal_runs_give_exit_code_0(healthy: Path) -> None:
    result = run_cli("diff", healthy, healthy)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Nothing diverges: 1 pair of tensors was compared in 1 pair of executions." in result.stdout


@pytest.mark.slow
def test_a_divergence_gives_exit_code_1_and_shows_both_sides(healthy: Path, other: Path) -> None:
    result = run_cli("diff", healthy, other)
    assert result.exit_code == 1
    assert "The first divergence: x:0 (Mul) has different NaN or infinities.\n" in result.stdout
    assert "     float32 [2]: 1 NaN, 1 positive of 2 elements\n" in result.stdout
    assert "  tensorflow_version: 2.21.0  |  2.17.0\n" in result.stdout


@pytest.mark.slow
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


def layers(path: Path, run_id: str, *, changed_from: int) -> Path:
    """Writes a run of 20 layers over 5 steps; their values are other ones from a step on."""
    run = RunBuilder(run_id, tensor_debug_mode="FULL_NUMERICS")
    graph = run.graph("step")
    for number in range(20):
        graph.op(f"x{number}", "Mul", layer=f"net/layer{number}", role="forward")
    for step in range(5):
        for number in range(20):
            value = 3.1e8 if step >= changed_from else 3.1
            numbers = {"max_abs_finite": value, "mean_finite": value, "stddev_finite": 0.0, "size": 4}
            run.tensor(graph, f"x{number}", {**CLEAN, **numbers, "step": step})
    return run.write(path)


@pytest.mark.slow
def test_the_layer_that_parted_first(tmp_path: Path) -> None:
    a, b = layers(tmp_path / "a", "run-a", changed_from=9), layers(tmp_path / "b", "run-b", changed_from=3)
    sentence = "The layer net/layer0 parted first, in step 3: largest magnitude 3.1 in A against 3.1e+08 in B."
    text = run_cli("diff", a, b).stdout
    assert sentence in text
    table = text[text.index("\nlayer ") + 1 :].splitlines()
    assert table[0].split() == ["layer", "side", "apart", "from", "step", "measure", "A", "B"]
    assert table[1].split() == ["net/layer0", "forward", "3", "largest", "magnitude", "3.1", "3.1e+08"]
    assert table[11] == "… and 10 layers more"
    found = json.loads(run_cli("diff", a, b, "--json").stdout)["layers"]
    place = {
        "layer": "net/layer0", "kind": "layer", "side": "forward", "first": 3, "last": 3, "measure": "max_abs",
        "a": 3.1, "b": 3.1e8, "num_bad_a": 0, "num_bad_b": 0,
    }  # fmt: skip
    assert (found["sentence"], found["first_parting"], found["large_parting"]) == (sentence, place, place)
    assert (len(found["partings"]), found["axis"], found["range_a"]) == (20, "step", [0, 4])
    early = json.loads(run_cli("diff", a, b, "--last-step", "2", "--json").stdout)["layers"]
    assert early["sentence"] == "No layer parted in steps 0 to 2: all measures agree within 1.9e-06."
    loose = json.loads(run_cli("diff", a, b, "--rtol", "1", "--json").stdout)["layers"]
    assert loose["sentence"] == "No layer parted in steps 0 to 4: all measures agree within 1."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing"], "nothing does not exist"),
        (["s3://a/b"], "s3://a/b is a URL; the viewer compares two logdirs only if both are directories."),
        (["other", "--run", "run-a"], "--run needs one logdir; leave out other."),
    ],
)
def test_view_of_two_logdirs_says_what_it_needs(healthy: Path, arguments: list[str], text: str) -> None:
    result = run_cli("view", healthy, *arguments, "--no-open")
    assert result.exit_code == 2
    assert text in result.stderr
