"""Test the history of an op: its values over time in few points, without losing any bad tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.display.tensor_window import TensorFilter, tensor_series
from tfdbg_arrow.viewer.charts import sparkline
from tfdbg_arrow.viewer.page import NoSuchPageError
from tfdbg_arrow.viewer.pages.history import HistoryPage, read_history

from ..query.builder import CLEAN, NAN, RunBuilder, counts
from .browser import chromium, watched_page
from .serving import TOKEN, serving

pytestmark = pytest.mark.slow


def history(path: Path, **arguments: Any) -> HistoryPage:
    with open_logdir(path) as logdir:
        return read_history(logdir, run_id="run-a", **arguments)


def magnitudes(value: float) -> dict[str, Any]:
    return {**CLEAN, "max_abs_finite": value, "mean_finite": -value, "stddev_finite": 0.0}


def training(path: Path, *, num_steps: int = 5, bad: tuple[int, ...] = (3,)) -> Path:
    """Writes a run of an op with two outputs, whose values grow tenfold each step, and an eager op."""
    run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
    graph = run.graph("loss").op("x", "Mul", dtypes=("float32", "float32"))
    for step in range(num_steps):
        for iteration in (0, 1):
            health = NAN if step in bad and iteration else magnitudes(10.0**step)
            run.tensor(graph, "x:0", {**health, "step": step}, iteration=iteration)
        run.tensor(graph, "x:1", {**counts(zero=3, pos=1), "step": step})
        run.eager(run.execution("Add"), {**CLEAN, "step": step}, tensor_id=step)
    return run.write(path)


def test_the_axis_is_the_training_step_unless_a_bad_tensor_has_none(tmp_path: Path) -> None:
    def axis(name: str, *steps: int | None, bad: tuple[int | None, ...] = ()) -> str:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("x", "Mul")
        for step in steps:
            run.tensor(graph, "x", {**(NAN if step in bad else CLEAN), "step": step})
        return history(run.write(tmp_path / name), event_index=0).axis

    assert axis("steps", 0, 1) == "step"
    assert axis("build", None, 0, 1) == "step"
    assert axis("bad build", None, 0, 1, bad=(None,)) == "event"
    assert axis("no steps", None, None) == "event"
    with serving(training(tmp_path / "training")) as served:
        for query, expected in (("", "step"), ("&first_event=3", "event"), ("&axis=event", "event")):
            found = served.ask(f"/history.json?graph=0&op=x{query}").json
            assert (found["axis"], found["first"]) == (expected, 3 if "first" in query else None)


def test_the_history_of_an_op_by_event(tmp_path: Path) -> None:
    page = history(training(tmp_path), graph_id=0, op_name="x", output_slot=0, axis="event")
    assert (page.graph_name, page.op_type, page.mode, page.series.is_exact) == ("loss", "Mul", "FULL_NUMERICS", True)
    assert [bucket.num_bad for bucket in page.series.buckets] == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert page.series.nan.greatest[6:8] == (0.0, 0.5)
    assert page.series.max_abs.least[6:9] == (1000.0, None, 10000.0)
    assert page.series.mean_abs.greatest[0] == 1.0
    assert [row.event_index for row in page.bad.rows] == [16]
    assert page.summary == (
        "10 tensors, events 0 to 21: 1 bad, the first at event 16, step 3; up to 50 % NaN; max |finite| up to 1e+04."
    )
    assert page.unmeasured == ()


def test_the_history_of_an_op_by_training_step(tmp_path: Path) -> None:
    page = history(training(tmp_path), graph_id=0, op_name="x", output_slot=0, axis="step", first=2, last=3)
    assert [(bucket.first_step, bucket.num_tensors, bucket.num_bad) for bucket in page.series.buckets] == [
        (2, 2, 0),
        (3, 2, 1),
    ]
    assert (page.series.nan.least, page.series.nan.greatest) == ((0.0, 0.0), (0.0, 0.5))


def test_the_history_of_the_op_of_a_tensor_and_of_an_eager_op_type(tmp_path: Path) -> None:
    path = training(tmp_path)
    of_event = history(path, event_index=2)
    assert (of_event.op_name, of_event.output_slot, of_event.series.num_tensors) == ("x", 1, 5)
    assert of_event.series.zero.peak == 0.75
    eager = history(path, op_type="Add")
    assert (eager.op_name, eager.series.num_tensors, eager.place["op_type"]) == (None, 5, "Add")
    assert history(path, event_index=4).series == eager.series


def test_columns_that_were_not_measured_are_named_and_not_drawn(tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode="CURT_HEALTH")
    graph = run.graph("f").op("x", "Mul")
    for is_bad in (False, None, True):
        run.tensor(graph, "x", {"has_inf_or_nan": is_bad})
    page = history(run.write(tmp_path), event_index=0)
    assert (page.shares, page.magnitudes, page.series.num_unmeasured) == ({}, {}, 1)
    known, shares, magnitudes = page.unmeasured
    assert (known, shares) == (
        "It is not known whether 1 of them are bad in the mode CURT_HEALTH.",
        "Not in the plot: NaN, -Inf, +Inf, zero. They were not measured in the mode CURT_HEALTH.",
    )
    assert magnitudes.startswith("Not in the plot: max |finite|, |mean|, stddev. They were not measured")
    by_step = history(tmp_path, event_index=0, axis="step")
    assert by_step.series.buckets == ()
    assert by_step.unmeasured[-1].startswith("3 tensors are left out because no training step was marked")


def test_few_points_contain_every_bad_tensor_and_the_extremes(tmp_path: Path) -> None:
    path = _long(tmp_path, (7, 70, 700))
    with open_logdir(path) as logdir:
        for axis in ("event", "step"):
            series = tensor_series(logdir, TensorFilter(op_name="x"), run_id="run-a", axis=axis, max_buckets=9)
            assert (series.is_exact, len(series.buckets), series.num_bad) == (False, 9, 3)
            found = [bucket.first_bad_event_index for bucket in series.buckets if bucket.num_bad]
            assert found == [7, 700]
            assert sum(bucket.num_tensors for bucket in series.buckets) == 720
            assert (series.max_abs.peak, min(value for value in series.max_abs.least if value is not None)) == (719, 0)
        with pytest.raises(QueryError, match="axis is 'time', expected one of event, step"):
            tensor_series(logdir, TensorFilter(), run_id="run-a", axis="time")


def _long(path: Path, bad: tuple[int, ...]) -> Path:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    for step in range(720):
        run.tensor(graph, "x", {**(NAN if step in bad else magnitudes(float(step))), "step": step})
    return run.write(path)


def test_errors_for_addresses_without_a_history(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.external(1, CLEAN, execution=run.execution("Add"))
    path = run.write(tmp_path)
    with pytest.raises(NoSuchPageError, match="the address names no op"):
        history(path)
    with pytest.raises(NoSuchPageError, match="event 77 of run run-a is not a recorded tensor"):
        history(path, event_index=77)
    with pytest.raises(NoSuchPageError, match="event 1 of run run-a came from outside"):
        history(path, event_index=1)
    assert history(path, op_type="Nothing").summary == "No tensors of this op are recorded."


@pytest.mark.parametrize(
    ("values", "is_log", "lines"),
    [
        ([0.0, 0.5, 1.0], False, ["0.0,100.0 500.0,50.0 1000.0,0.0"]),
        ([1.0, None, 2.0, 2.0], False, ["0.0,50.0 0.0,50.0", "666.7,0.0 1000.0,0.0"]),
        ([0.0, 1.0, 10.0], True, ["0.0,100.0 500.0,50.0 1000.0,0.0"]),
        ([3.0], True, ["0.0,100.0 0.0,100.0"]),
        ([None], True, []),
    ],
)
def test_a_line_ends_where_a_value_is_missing(values: list[float | None], is_log: bool, lines: list[str]) -> None:
    assert list(sparkline(values, is_log=is_log)) == lines


def test_the_plot_in_a_browser(tmp_path: Path) -> None:
    with serving(training(tmp_path)) as served, chromium() as browser:
        with watched_page(browser, color_scheme="light") as page:
            page.goto(f"{served.url}/?token={TOKEN}")
            page.goto(f"{served.url}/history?graph=0&op=x&slot=0&axis=event")
            canvas = page.locator(".history canvas")
            expect(canvas).to_have_count(2)
            expect(page.locator(".history .still").first).to_be_hidden()
            expect(page.locator(".plot").first).to_have_attribute("aria-label", "Share of the elements. " + SUMMARY)
            light = page.evaluate("document.querySelector('.history canvas').toDataURL()")
            page.keyboard.press("d")
            page.wait_for_function(
                "(before) => document.querySelector('.history canvas').toDataURL() !== before", arg=light
            )
            page.evaluate("document.dispatchEvent(new Event('content-changed'))")  # like a live page
            expect(canvas).to_have_count(2)
            page.get_by_label("Along").select_option("step")
            page.wait_for_url("**axis=step**")
            over = page.locator(".u-over").first
            box = over.bounding_box()
            assert box is not None
            page.mouse.click(box["x"] + box["width"] * 0.76, box["y"] + 40)
            page.wait_for_url("**/tensor?**event=16")
            page.go_back()
            expect(canvas).to_have_count(2)
            page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)
            page.mouse.down()
            page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40)
            page.mouse.up()
            page.wait_for_url("**first_step=0&last_step=3")
        with watched_page(browser, java_script_enabled=False) as page:
            page.goto(f"{served.url}/?token={TOKEN}")
            page.goto(f"{served.url}/history?graph=0&op=x&slot=0&axis=event")
            expect(page.locator(".history svg.still").first).to_be_visible()
            expect(page.locator("#summary")).to_have_text(SUMMARY)


SUMMARY = "10 tensors, events 0 to 21: 1 bad, the first at event 16, step 3; up to 50 % NaN; max |finite| up to 1e+04."
