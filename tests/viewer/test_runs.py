"""Test the page of runs: the run that went bad first, and all runs along one axis."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.query import FunctionCall, Run, open_logdir
from tfdbg_arrow.viewer import naming
from tfdbg_arrow.viewer.background import InTurn
from tfdbg_arrow.viewer.naming import run_labels
from tfdbg_arrow.viewer.page import parameters_of
from tfdbg_arrow.viewer.pages import runs as runs_page
from tfdbg_arrow.viewer.pages.overview import read_overview
from tfdbg_arrow.viewer.pages.runs import RunFacts, RunsPage, complete_runs, read_runs
from tfdbg_arrow.viewer.strips import AlignedStrips

from ..query.builder import CLEAN, NAN, START_NS, RunBuilder, counts
from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, serving

pytestmark = pytest.mark.slow

SECOND = 10**9


def worker(path: Path, index: int, *, bad: tuple[int, ...] = (), late_s: int = 0, has_steps: bool = True) -> Path:
    """Writes the run of a worker that records one tensor in each of ten steps, one second apart."""
    start = START_NS + late_s * SECOND
    run = RunBuilder(f"run-{index}", worker=f"worker:{index}", wall_time_ns=start)
    graph = run.graph("f").op("x", "Mul")
    for step in range(10):
        time = {"wall_time_ns": start + step * SECOND}
        run.tensor(graph, "x", {**(NAN if step in bad else CLEAN), **time, "step": step if has_steps else None})
    return run.write(path)


def runs(path: Path, *, budget_s: float = 1000, **arguments: Any) -> RunsPage:
    with open_logdir(path) as logdir:
        return complete_runs(InTurn(logdir, budget_s=budget_s), read_runs(logdir, parameters_of(**arguments)))


def shape(strips: AlignedStrips) -> dict[str, list[tuple[int, int, int]]]:
    return {
        run_id: [(part.first, part.num_buckets, part.num_bad) for part in strip]
        for run_id, strip in strips.strips.items()
    }


def test_the_first_bad_run_by_training_step_is_named_regardless_of_clocks(tmp_path: Path) -> None:
    worker(tmp_path, 0, bad=(6, 7))
    worker(tmp_path, 1, bad=(4,), late_s=3600)
    worker(tmp_path, 2)
    worker(tmp_path, 3, bad=(4,), late_s=3605)
    page = runs(tmp_path)
    assert page.headline == "worker:1 went bad first, in step 4; 3 of 4 runs are bad."
    assert [(row.is_first_bad, row.verdict) for row in page.rows] == [
        (False, "2 steps later"),
        (False, "not bad"),
        (True, "went bad first"),
        (False, "in the same step, 5.0 s later by the clock"),
    ]
    assert page.compared == ("run-2", "run-1")
    assert (page.strips.axis, page.strips.low, page.strips.high, page.strips.num_buckets) == ("step", 0, 9, 10)
    assert shape(page.strips) == {
        "run-0": [(0, 6, 0), (6, 1, 1), (7, 1, 1), (8, 2, 0)],
        "run-1": [(0, 4, 0), (4, 1, 1), (5, 5, 0)],
        "run-2": [(0, 10, 0)],
        "run-3": [(0, 4, 0), (4, 1, 1), (5, 5, 0)],
    }


def test_without_training_steps_the_clock_decides(tmp_path: Path) -> None:
    worker(tmp_path, 0, bad=(6,), has_steps=False)
    worker(tmp_path, 1, bad=(4,), late_s=5, has_steps=False)
    page = runs(tmp_path, order="bad")
    assert page.headline == "worker:0 went bad first; 2 of 2 runs are bad."
    assert [row.verdict for row in page.rows] == ["went bad first", "3.0 s later by the clock"]
    assert (page.strips.axis, page.strips.low, page.strips.high) == ("time", START_NS, START_NS + 14 * SECOND)
    assert [one[0] for one in shape(page.strips)["run-1"] if one[2]] == [64]


def test_a_run_without_steps_among_others_has_a_verdict_but_no_strip(tmp_path: Path) -> None:
    worker(tmp_path, 0)
    worker(tmp_path, 1, bad=(4,), has_steps=False)
    page = runs(tmp_path)
    assert list(page.strips.strips) == ["run-0"]
    assert [row.verdict for row in page.rows] == ["not bad", "the only bad run"]
    with serving(tmp_path) as served:
        assert "no training step marked" in served.ask("/runs").text


def test_tensors_before_the_first_step_are_shown(tmp_path: Path) -> None:
    run = RunBuilder("run-0")
    graph = run.graph("f").op("x", "Mul")
    run.tensor(graph, "x", NAN)
    run.tensor(graph, "x", {**CLEAN, "step": 5})
    run.tensor(graph, "x", {**CLEAN, "step": 6})
    assert shape(runs(run.write(tmp_path)).strips) == {"run-0": [(0, 1, 1), (1, 1, 0)]}


def test_many_runs_are_shown_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_page, "LIMIT", 2)
    for index in range(5):
        worker(tmp_path, index, bad=(2,) if index == 4 else (), late_s=index)
    page = runs(tmp_path, first=2)
    assert [row.summary.run.run_id for row in page.rows] == ["run-2", "run-3"]
    assert (page.num_runs, page.num_bad, list(page.strips.strips)) == (5, 1, ["run-2", "run-3"])
    assert page.headline == "worker:4 went bad first, in step 2; 1 of 5 runs is bad."
    assert [row.summary.run.run_id for row in runs(tmp_path, order="bad").rows] == ["run-4", "run-0"]


def test_runs_that_recorded_nothing(tmp_path: Path) -> None:
    RunBuilder("run-0", tensor_debug_mode="NO_TENSOR", is_clean_end=False).write(tmp_path)
    page = runs(tmp_path)
    assert (page.headline, page.rows[0].verdict) == ("The run is not known to be bad.", "not measured")
    assert (page.strips.low, page.compared) == (None, None)
    with serving(tmp_path) as served:
        text = served.ask("/runs").text
    assert "nothing recorded" in text
    assert "still running, or did not end cleanly" in text


def test_keyboard_navigation_to_the_first_bad_run_and_the_comparison(tmp_path: Path) -> None:
    with serving(logdirs.two_runs(tmp_path)) as served, chromium() as browser, watched_page(browser) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.keyboard.press("g")
        page.keyboard.press("u")
        page.wait_for_url("**/runs")
        page.keyboard.press("n")
        expect(page.locator(":focus")).to_have_text("call 1 of f")
        page.get_by_role("button", name="Compare").click()
        page.wait_for_url("**/diff?run=run-a&other=run-b")
        expect(page.locator("main")).to_contain_text("The first divergence: Square:0", timeout=60_000)
        expect(page.locator("a[rel=next]")).to_have_attribute("href", "/diff?run=run-a&other=run-b&known=Square")
        page.locator("a[data-item][href='/tensor?run=run-a&event=2']").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/tensor?run=run-a&event=2")


def losing(run_id: str, values: tuple[float, ...], **settings: Any) -> RunBuilder:
    """Returns a run whose loss has a value in each step; a NaN comes from a logarithm."""
    run = RunBuilder(run_id, **settings)
    graph = run.graph("f").op("Log", "Log").op("loss", "Mean", ["Log"], role="loss")
    run.rows["graph_op_output"][-1]["static_shape"] = []
    for step, value in enumerate(values):
        health = NAN if math.isnan(value) else CLEAN
        run.tensor(graph, "Log", {**health, "step": step})
        run.tensor(graph, "loss", {**health, "step": step, "scalar_value": value, "size": 1, "rank": 0, "shape": []})
    return run


def test_names_culprits_and_last_losses_of_runs(tmp_path: Path) -> None:
    losing("run-0", (2.0, 1.5), run_name="baseline", tags='["lr=0.1"]', notes="as in July").write(tmp_path)
    losing("run-1", (3.0, math.nan, math.nan), wall_time_ns=START_NS + 60 * SECOND).write(tmp_path)
    page = runs(tmp_path)
    facts = [row.facts for row in page.rows]
    assert facts[0] == RunFacts(
        last_loss=1.5,
        last_position=1,
        headline=None,
        culprit_event_index=None,
        culprit_step=None,
        culprit_wall_time_ns=None,
        is_harmless=False,
    )
    assert facts[1] is not None
    assert (facts[1].headline, facts[1].last_position) == ("NaN came up in Log:0, in the function f, in step 1.", 2)
    assert math.isnan(facts[1].last_loss or 0.0)
    assert (page.num_pending, page.num_unread) == (0, 0)
    hurried = runs(tmp_path, budget_s=0.0)
    assert ([row.facts for row in hurried.rows], hurried.num_unread) == ([None, None], 2)
    with serving(tmp_path) as served:
        text = served.ask("/runs?wait=1").text
        menu = text.partition('name="run" data-submit>')[2].partition("</select>")[0]
        assert "baseline · " in menu
        assert "newest · train.py · " in menu
        assert " · bad values<" in menu
        assert 'title="run-1"' in menu
        assert "lr=0.1" in text
        assert "as in July" in text
        assert "NaN came up in Log:0" in text
        assert served.ask("/?run=baseline&wait=1").status == 200
        assert served.ask("/?run=nobody").status == 404


def test_the_facts_of_many_runs_are_read_in_the_background(tmp_path: Path) -> None:
    for number in range(12):
        losing(f"run-{number:02}", (1.0, math.nan), wall_time_ns=START_NS + number).write(tmp_path)
    with serving(tmp_path) as served:
        for _ in range(200):
            text = served.ask("/runs").text
            if "data-pending" not in text:
                break
        assert text.count("NaN came up in Log:0") == 12


def test_labels_of_runs_differ() -> None:
    def run(run_id: str, **changes: Any) -> Run:
        known = losing(run_id, (), **changes).rows["run"][0]
        names = [field.name for field in dataclasses.fields(Run) if field.name in known and field.name != "tags"]
        return Run(**{name: known[name] for name in names})

    found = [
        run("r0", wall_time_ns=START_NS - 86_400 * SECOND),
        run("r1", worker="worker:1"),
        run("r2"),
        run("r3"),
        run("r4", command_line='["python", "-m", "my.training"]'),
        run("r5", command_line="[1", run_name="x" * 500),
    ]
    labels = run_labels(found, bad_run_ids=["r1", "r4"])
    day, time = naming.time_text(START_NS - 86_400 * SECOND)[:10], naming.time_text(START_NS)[11:16]
    assert list(labels.values()) == [
        f"train.py · {day} {time}",
        f"worker:1 · {time} · bad values",
        f"train.py · {time} · r2",
        f"train.py · {time} · r3",
        f"my.training · {time} · bad values",
        f"newest · {'x' * 59}… · {time}",
    ]


def test_a_newest_run_that_is_not_bad_is_told_first(tmp_path: Path) -> None:
    worker(tmp_path, 0, bad=(6, 7))
    worker(tmp_path, 1, bad=(4,), late_s=60)
    worker(tmp_path, 2, late_s=120)
    page = runs(tmp_path)
    assert page.headline == "The newest run is not bad. 2 of 3 runs are bad, the first from step 4 on."
    with serving(tmp_path) as served:
        assert '<section class="verdict healthy"' in served.ask("/runs?wait=1").text
        assert '<a href="/runs">All runs</a>' in served.ask("/tensors").text
    worker(tmp_path, 3, bad=(1,), late_s=180)
    assert runs(tmp_path).headline == "worker:3 went bad first, in step 1; 3 of 4 runs are bad."


def test_one_bad_run_is_told_without_other_runs(tmp_path: Path) -> None:
    worker(tmp_path, 0, bad=(6,))
    assert runs(tmp_path).headline == "The run is bad from step 6 on."


def test_a_run_whose_bad_values_did_no_harm_is_not_bad(tmp_path: Path) -> None:
    logdirs.unused_infinity(tmp_path)
    page = runs(tmp_path)
    assert (page.headline, page.num_bad) == ("The bad values of the run did no harm.", 0)
    assert [(row.is_first_bad, row.verdict) for row in page.rows] == [(False, "no harm")]
    with serving(tmp_path) as served:
        assert '<section class="verdict expected"' in served.ask("/runs?wait=1").text


def test_runs_whose_bad_values_did_no_harm_are_compared_with_bad_runs(tmp_path: Path) -> None:
    worker(tmp_path, 0, bad=(6,))
    logdirs.unused_infinity(tmp_path, run_id="run-1", wall_time_ns=START_NS + 60 * SECOND)
    page = runs(tmp_path)
    assert page.headline == "The newest run is not bad. 1 of 2 runs is bad from step 6 on."
    assert [(row.is_first_bad, row.verdict) for row in page.rows] == [(True, "the only bad run"), (False, "no harm")]
    assert (page.num_bad, page.compared) == (1, ("run-1", "run-0"))


def test_a_run_is_not_called_bad_before_its_harm_is_examined(tmp_path: Path) -> None:
    worker(tmp_path, 0, bad=(6,))
    hurried = runs(tmp_path, budget_s=0.0)
    assert hurried.headline == "It is not known whether the bad values of the run did harm."
    logdirs.unused_infinity(tmp_path, run_id="run-1", wall_time_ns=START_NS + 60 * SECOND)
    worker(tmp_path, 2, late_s=120)
    hurried = runs(tmp_path, budget_s=0.0)
    assert hurried.headline == (
        "None of 3 runs is known to be bad. It is not known whether the bad values of 2 runs did harm."
    )
    assert [(row.is_bad, row.is_first_bad, row.verdict) for row in hurried.rows] == [
        (None, False, "harm not known"),
        (None, False, "harm not known"),
        (False, False, "not bad"),
    ]
    assert (hurried.num_bad, hurried.num_unknown, hurried.num_unread, hurried.num_unexamined) == (0, 2, 3, 0)
    assert hurried.compared == ("run-2", "run-1")


def test_bad_values_outside_the_examined_runs_are_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_page, "LIMIT", 2)
    monkeypatch.setattr(runs_page, "MAX_OTHERS", 1)
    for index in range(3):
        logdirs.unused_infinity(tmp_path, run_id=f"run-{index}", wall_time_ns=START_NS + index * SECOND)
    worker(tmp_path, 3, bad=(5,), late_s=60)
    page = runs(tmp_path)
    assert page.headline == (
        "None of 4 runs is known to be bad; the bad values of 3 runs did no harm. "
        "It is not known whether the bad values of 1 run did harm."
    )
    assert (page.num_bad, page.num_harmless, page.num_unknown, page.num_unexamined) == (0, 3, 1, 1)
    with serving(tmp_path) as served:
        assert "Not examined: whether the bad values of 1 run did harm" in served.ask("/runs?wait=1").text
    page = runs(tmp_path, first=2)  # run-2, run-3 and the first of the others
    assert page.headline == (
        "1 of 4 runs is known to be bad. It is not known whether the bad values of 1 other run did harm."
    )
    assert [(row.is_bad, row.is_first_bad, row.verdict) for row in page.rows] == [
        (False, False, "no harm"),
        (True, False, "bad"),
    ]
    monkeypatch.setattr(runs_page, "MAX_OTHERS", 2)
    assert runs(tmp_path).headline == "worker:3 went bad first, in step 5; 1 of 4 runs is bad."


def test_several_runs_whose_bad_values_did_no_harm(tmp_path: Path) -> None:
    worker(tmp_path, 0)
    logdirs.unused_infinity(tmp_path, run_id="run-1", wall_time_ns=START_NS + 60 * SECOND)
    page = runs(tmp_path)
    assert page.headline == "None of 2 runs is known to be bad; the bad values of 1 run did no harm."


def without_steps(path: Path, run_id: str, *, bad_call: int, **settings: Any) -> Path:
    """Writes a run without training steps. It calls `step` five times; the first bad tensors are not the culprit."""
    run = RunBuilder(run_id, **settings)
    graph = run.graph("step").op("x", "Placeholder").op("Log", "Log", ["x"]).op("loss", "Mean", ["Log"], role="loss")
    run.rows["graph_op_output"][-1]["static_shape"] = []
    graph.function("__inference_step_1", ["x"], ["loss"])
    run.execution("AddV2")
    for number in range(1, 6):
        call = run.execution("__inference_step_1", graph=graph)
        health, value = (NAN, math.nan) if number >= bad_call else (CLEAN, 1.0)
        scalar = {"scalar_value": value, "size": 1, "rank": 0, "shape": []}
        run.tensor(graph, "x", CLEAN, execution=call)
        run.tensor(graph, "loss", {**health, **scalar}, execution=call)  # it arrived before its input
        run.tensor(graph, "Log", health, execution=call)
    return run.write(path)


def test_all_pages_name_the_call_of_a_run_without_steps(tmp_path: Path) -> None:
    without_steps(tmp_path, "run-0", bad_call=3)
    (row,) = runs(tmp_path).rows
    assert row.facts is not None
    assert row.facts.first_bad_call == FunctionCall("step", 3, 3)
    assert row.facts.last_call == FunctionCall("step", 5, 5)
    with serving(tmp_path) as served:
        texts = {
            name: " ".join(re.sub(r"<title>.*?</title>|<[^>]*>", " ", served.ask(f"/{name}?wait=1").text).split())
            for name in ("runs", "overview")
        }
    assert "call 3 of step ✕ bad" in texts["runs"]
    assert "nan call 5 of step" in texts["runs"]
    assert "The whole run bad from call 3 of step on" in texts["overview"]
    for text in texts.values():
        assert not re.search(r"event 7|from event|execution 5", text)


def test_the_overview_names_the_call_of_the_last_bad_run(tmp_path: Path) -> None:
    for index, bad_call in enumerate((2, 4, 9)):
        without_steps(tmp_path, f"run-{index}", bad_call=bad_call, wall_time_ns=START_NS + index * 60 * SECOND)
    with open_logdir(tmp_path) as logdir:
        page = read_overview(logdir, parameters_of())
    assert page.first_bad_calls == {"run-1": FunctionCall("step", 4, 4)}
    with serving(tmp_path) as served:
        table = served.ask("/overview?wait=1").text.partition('id="runs"')[2].partition("</table>")[0]
    since = [cell.strip() for cell in re.findall(r'data-label="Since">([^<]*)</td>', table)]
    bad = re.findall(r'<span class="pill (\w+)">', table)
    assert (since, bad) == (["", "call 4 of step", ""], ["fact", "bad"])


def masked(run_id: str, *, step_of_harm: int, late_s: int = 0) -> RunBuilder:
    """Returns a run whose mask holds -Inf in each of five steps, and does harm in one of them."""
    run = RunBuilder(run_id, worker=run_id, wall_time_ns=START_NS + late_s * SECOND)
    graph = run.graph("f").op("mask", "Const").op("softmax", "Softmax", ["mask"]).function("__f", [], ["softmax"])
    for step in range(5):
        call = run.execution("__f", outputs={100 + step: "float32"}, graph=graph)
        softmax = {**(NAN if step == step_of_harm else CLEAN), "step": step}
        run.tensors(graph, {"mask": {**counts(neg_inf=2, zero=3), "step": step}, "softmax": softmax}, execution=call)
        run.eager(call, softmax, tensor_id=100 + step)
    return run


def test_a_run_goes_bad_in_the_step_of_the_harm(tmp_path: Path) -> None:
    masked("run-0", step_of_harm=3).write(tmp_path / "one")
    assert runs(tmp_path / "one").headline == "The run is bad from step 3 on."
    for number, step in enumerate((3, 1)):
        masked(f"run-{number}", step_of_harm=step, late_s=number).write(tmp_path / "two")
    page = runs(tmp_path / "two")
    assert page.headline == "run-1 went bad first, in step 1; 2 of 2 runs are bad."
    assert [row.verdict for row in page.rows] == ["2 steps later", "went bad first"]
