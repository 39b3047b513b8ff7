"""Test the history of an op: its values over time in few points, without losing any bad tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.display.tensor_window import TensorFilter, tensor_series
from tfdbg_arrow.viewer.distribution_drawing import level, level_shares
from tfdbg_arrow.viewer.line_drawing import Line, Plot, plot_drawing
from tfdbg_arrow.viewer.page import NoSuchPageError, parameters_of
from tfdbg_arrow.viewer.pages.history import HistoryPage, read_history
from tfdbg_arrow.viewer.svg import Columns

from ..query.builder import CLEAN, NAN, RunBuilder, counts
from .browser import chromium, place_of, watched_page
from .serving import TOKEN, serving

pytestmark = pytest.mark.slow


def history(path: Path, **arguments: Any) -> HistoryPage:
    with open_logdir(path) as logdir:
        return read_history(logdir, parameters_of(run="run-a", **arguments))


def magnitudes(value: float) -> dict[str, Any]:
    return {**CLEAN, "max_abs_finite": value, "mean_finite": -value, "stddev_finite": 0.0}


def training(path: Path, *, num_steps: int = 5, bad: tuple[int, ...] = (3,)) -> Path:
    """Writes a run of an eager op, and of an op with two outputs. The first output grows tenfold in each step."""
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
        return history(run.write(tmp_path / name), event=0).axis

    assert axis("steps", 0, 1) == "step"
    assert axis("build", None, 0, 1) == "step"
    assert axis("bad build", None, 0, 1, bad=(None,)) == "event"
    assert axis("no steps", None, None) == "event"
    with serving(training(tmp_path / "training")) as served:
        for query, expected in (("", "step"), ("&first_event=3", "event"), ("&axis=event", "event")):
            found = served.ask(f"/history.json?graph=0&op=x{query}").json
            assert (found["axis"], found["first"]) == (expected, 3 if "first" in query else None)


def test_the_history_of_an_op_by_event(tmp_path: Path) -> None:
    page = history(training(tmp_path), graph=0, op="x", slot=0, axis="event")
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
    page = history(training(tmp_path), graph=0, op="x", slot=0, axis="step", first_step=2, last_step=3)
    assert [(bucket.first_step, bucket.num_tensors, bucket.num_bad) for bucket in page.series.buckets] == [
        (2, 2, 0),
        (3, 2, 1),
    ]
    assert (page.series.nan.least, page.series.nan.greatest) == ((0.0, 0.0), (0.0, 0.5))


def test_the_history_of_the_op_of_a_tensor_and_of_an_eager_op_type(tmp_path: Path) -> None:
    path = training(tmp_path)
    of_event = history(path, event=2)
    assert (of_event.op_name, of_event.output_slot, of_event.series.num_tensors) == ("x", 1, 5)
    assert of_event.series.zero.peak == 0.75
    eager = history(path, op_type="Add")
    assert (eager.op_name, eager.series.num_tensors, eager.place["op_type"]) == (None, 5, "Add")
    assert history(path, event=4).series == eager.series


def test_columns_that_were_not_measured_are_named_and_not_drawn(tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode="CURT_HEALTH")
    graph = run.graph("f").op("x", "Mul")
    for is_bad in (False, None, True):
        run.tensor(graph, "x", {"has_inf_or_nan": is_bad})
    page = history(run.write(tmp_path), event=0)
    assert (page.shares, page.magnitudes, page.series.num_unmeasured) == ({}, {}, 1)
    known, shares, magnitudes = page.unmeasured
    assert (known, shares) == (
        "It is not known whether 1 of them are bad in the mode CURT_HEALTH.",
        "Not in the plot: NaN, -Inf, +Inf, zero. They were not measured in the mode CURT_HEALTH.",
    )
    assert magnitudes.startswith("Not in the plot: max |finite|, |mean|, stddev. They were not measured")
    by_step = history(tmp_path, event=0, axis="step")
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
        history(path, event=77)
    with pytest.raises(NoSuchPageError, match="event 1 of run run-a came from outside"):
        history(path, event=1)
    assert history(path, op_type="Nothing").summary == "No tensors of this op are recorded."


def test_a_line_ends_where_a_value_is_missing() -> None:
    def drawn(*values: float | None) -> list[str]:
        line = Line(name="x", greatest=values, least=values, texts=("",) * len(values))
        columns = Columns(axis="step", ranges=tuple((step, step) for step in range(len(values))), is_cells=False)
        plot = Plot(title="x", scale="share", columns=columns, lines=(line,), bad=())
        return re.findall('class="line-0" .*? d="([^"]*)"', plot_drawing(plot).area)

    assert drawn(0.0, 0.5, 1.0) == ["M0.0 1000L500.0 500L1000.0 0"]
    assert drawn(1.0, None, 1.0, 1.0) == ["M0.0 0L0.0 0M666.7 0L1000.0 0"]
    assert drawn(None) == []


def test_the_plots_of_an_op(tmp_path: Path) -> None:
    page = history(training(tmp_path), graph=0, op="x", slot=0, axis="step")
    plots = page.plots
    assert [(name, [line.name for line in plot.lines], plot.bad) for name, plot in plots.items()] == [
        ("shares", ["NaN", "-Inf", "+Inf", "zero"], (3,)),
        ("magnitudes", ["max |finite|", "|mean|", "stddev"], (3,)),
    ]
    assert plots["shares"].lines[0].texts == ("0 %", "0 %", "0 %", "0 % to 50 %", "0 %")
    assert page.columns.queries[3] == "event=16", "the bad tensor, not the first one of the step"
    assert plots["shares"].chosen is None
    assert history(tmp_path, event=16, axis="step").plots["shares"].chosen == 3


def distributions(path: Path, *, has_histograms: bool = True, bad_step: int | None = None) -> Path:
    """Writes a run of an op whose elements double in each step."""
    settings = json.dumps({"histograms": has_histograms})
    run = RunBuilder("run-a", tensor_debug_mode="FULL_HEALTH", settings=settings)
    graph = run.graph("f").op("x", "Mul").op("n", "Shape")
    for step in range(8):
        health = counts(neg=10, zero=20, pos=70, nan=int(step == bad_step), pos_inf=int(step == bad_step))
        histogram = {"histogram_exponent": step, "histogram_negative": [10, 0], "histogram_positive": [60, 10]}
        run.tensor(graph, "x", {**health, **(histogram if has_histograms else {}), "step": step})
        run.tensor(graph, "n", {**counts(pos=2), "step": step})
    return run.write(path)


def test_the_picture_of_distributions(tmp_path: Path) -> None:
    picture = history(distributions(tmp_path, bad_step=6), graph=0, op="x").distribution
    assert picture is not None
    kinds = [row.kind for row in picture.rows]
    # The numbers range from 2**0 to 2**9. Magnitude 2**0 is only in one column, but makes up 70 % of this column.
    assert kinds == ["nan", "pos_inf", *["positive"] * 9, "zero", *["negative"] * 9]
    assert [row.text for row in picture.rows if row.kind == "negative"][:2] == ["from -2 to -1", "from -4 to -2"]
    texts = {row.text: row.counts for row in picture.rows}
    assert texts["from 4 to 8"] == (0, 10, 60, 0, 0, 0, 0, 0)
    assert texts["from -8 to -4"] == (0, 0, 10, 0, 0, 0, 0, 0)
    assert texts["zero"] == (20,) * 8
    assert texts["NaN"] == texts["+Inf"] == (0, 0, 0, 0, 0, 0, 1, 0)
    assert picture.totals == (100, 100, 100, 100, 100, 100, 102, 100)
    assert picture.columns[3] == (3, 3, 6)
    # Rows touch each other, and labels are next to the rows.
    assert [row.top + row.height for row in picture.rows][:-1] == [row.top for row in picture.rows][1:]
    named = {text: at for at, text in picture.labels}
    assert set(named) == {"NaN", "+Inf", "100", "10", "0", "-10", "-100"}, "1 would touch 0"
    rows = {row.text: row for row in picture.rows}
    for label, row in (("100", rows["from 64 to 128"]), ("-10", rows["from -16 to -8"])):
        assert row.top < named[label] < row.top + row.height


def test_few_small_magnitudes_share_a_row(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    positive = [1] * 100 + [50_000] * 2
    histogram = {"histogram_exponent": -90, "histogram_negative": [0] * 102, "histogram_positive": positive}
    run.tensor(graph, "x", {**counts(pos=sum(positive)), **histogram, "step": 0})
    picture = history(run.write(tmp_path), graph=0, op="x").distribution
    assert picture is not None
    assert [(row.text, row.counts) for row in picture.rows] == [
        ("from 2050 to 4100", (50_000,)),
        ("from 1020 to 2050", (50_000,)),
        ("from 0 to 1020", (100,)),
        ("zero", (0,)),
    ]


def test_a_wide_range_has_few_rows(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    sides = {"histogram_negative": [7] * 2098, "histogram_positive": [0] * 2098}
    run.tensor(graph, "x", {**counts(neg=7 * 2098), "histogram_exponent": -1074, **sides, "step": 0})
    picture = history(run.write(tmp_path), graph=0, op="x").distribution
    assert picture is not None
    rows = [row for row in picture.rows if row.kind == "negative"]
    assert len(picture.rows) == 1 + len(rows) <= 30
    assert sum(row.counts[0] for row in rows) == 7 * 2098
    assert rows[-1].text.startswith("from -Inf to ")


def test_without_histograms_the_page_says_how_to_record_them(tmp_path: Path) -> None:
    page = history(distributions(tmp_path / "without", has_histograms=False), graph=0, op="x")
    assert page.distribution is None
    assert page.no_distribution is not None
    assert "record with enable(…, histograms=True), or with tfdbg-arrow run --histograms" in page.no_distribution
    of_integers = history(distributions(tmp_path / "with"), graph=0, op="n")
    assert of_integers.distribution is None
    assert of_integers.no_distribution is not None
    assert of_integers.no_distribution.startswith("These tensors have no histograms: only floating-point tensors")
    assert history(tmp_path / "with", op_type="Nothing").no_distribution is None


@pytest.mark.parametrize("settings", ["", "[", "[1]", '{"histograms": 1', "[" * 100_000])
def test_settings_that_no_recorder_wrote(tmp_path: Path, settings: str) -> None:
    run = RunBuilder("run-a", settings=settings)
    run.tensor(run.graph("f").op("x", "Mul"), "x", {**CLEAN, "step": 0})
    found = history(run.write(tmp_path), graph=0, op="x").no_distribution
    assert found is not None
    assert found.startswith("It was not recorded how")


def test_events_without_steps_and_a_range(tmp_path: Path) -> None:
    path = distributions(tmp_path)
    by_event = history(path, graph=0, op="x", axis="event").distribution
    assert by_event is not None
    assert by_event.axis == "event"
    assert sum(by_event.num_tensors) == 8
    part = history(path, graph=0, op="x", first_step=2, last_step=4).distribution
    assert part is not None
    assert [column[:2] for column in part.columns] == [(2, 2), (3, 3), (4, 4)]


def test_levels_of_colours() -> None:
    assert [level(count, 1000) for count in (0, 1, 3, 4, 100, 106, 1000)] == [0, 1, 1, 2, 4, 5, 10]
    texts, paints = zip(*level_shares(), strict=True)
    assert (texts[0], texts[-1]) == ("0.32 %", "100 %")
    assert len(set(paints)) == 10


def test_the_distribution_in_a_browser(tmp_path: Path) -> None:
    with serving(distributions(tmp_path, bad_step=6)) as served, chromium() as browser:
        for width in (1280, 400):
            with watched_page(browser, viewport={"width": width, "height": 800}) as page:
                page.goto(f"{served.url}/?token={TOKEN}")
                page.goto(f"{served.url}/history?graph=0&op=x")
                section, tip = page.locator(".distribution"), page.locator(".chart-tip")
                expect(section).to_contain_text("The median magnitude was about 1.4 in step 0 and about 1.8e+02")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                page.mouse.move(*place_of(page, "from 1 to 2", 2.5 / 8))
                expect(tip).to_have_text("from 1 to 2step 2of the elementsnone")
                page.mouse.move(*place_of(page, "NaN", 6.5 / 8))
                expect(tip).to_have_text("NaNstep 6of the elements0.98 % (1 of 102)")
                page.locator("#distribution").focus()
                page.mouse.move(0, 0)
                for key in ("End", "ArrowUp", "ArrowRight"):
                    page.keyboard.press(key)
                expect(tip).to_contain_text("from 1 to 2step 7")
                for _ in range(12):
                    page.keyboard.press("ArrowUp")
                expect(tip).to_have_text("NaNstep 7of the elementsnone")
                for key in ("ArrowLeft", "Enter"):
                    page.keyboard.press(key)
                page.wait_for_url("**/tensor?**event=12")
        with watched_page(browser, java_script_enabled=False) as page:
            page.goto(f"{served.url}/?token={TOKEN}")
            page.goto(f"{served.url}/history?graph=0&op=x")
            expect(page.locator(".distribution .area path").first).to_be_attached()


def test_the_plot_in_a_browser(tmp_path: Path) -> None:
    with serving(training(tmp_path)) as served, chromium() as browser:
        with watched_page(browser, color_scheme="light") as page:
            page.goto(f"{served.url}/?token={TOKEN}")
            page.goto(f"{served.url}/history?graph=0&op=x&slot=0&axis=event")
            plots, tip = page.locator(".history .area"), page.locator(".chart-tip")
            expect(plots).to_have_count(2)
            light = page.evaluate("getComputedStyle(document.querySelector('.line-0')).stroke")
            page.keyboard.press("d")
            assert page.evaluate("getComputedStyle(document.querySelector('.line-0')).stroke") != light
            page.get_by_label("Along").select_option("step")
            page.wait_for_url("**axis=step**")
            page.mouse.move(*place_of(page, "Share of the elements", 0.76))
            expect(tip.locator("b")).to_have_text("step 3")
            expect(tip.locator("tr").first).to_have_text("NaN0 % to 50 %")
            expect(tip.locator("tr", has_text="max |finite|")).to_contain_text("1000")
            expect(page.locator(".chart-cursor")).to_have_count(2)
            page.mouse.click(*place_of(page, "Share of the elements", 0.76))
            page.wait_for_url("**/tensor?**event=16")
            page.go_back()
            page.mouse.move(*place_of(page, "Share of the elements", 0.2))
            page.mouse.down()
            page.mouse.move(*place_of(page, "Share of the elements", 0.7))
            page.mouse.up()
            page.wait_for_url("**first_step=1&last_step=3")
            page.keyboard.press("0")
            page.wait_for_url("**axis=step")
            page.locator("#plots").focus()
            page.keyboard.press("End")
            page.keyboard.press("Enter")
            page.wait_for_url("**/tensor?**")
        with watched_page(browser, java_script_enabled=False) as page:
            page.goto(f"{served.url}/?token={TOKEN}")
            page.goto(f"{served.url}/history?graph=0&op=x&slot=0&axis=event")
            expect(page.locator(".history .area").first).to_be_visible()
            expect(page.locator("#summary")).to_have_text(SUMMARY)


SUMMARY = "10 tensors, events 0 to 21: 1 bad, the first at event 16, step 3; up to 50 % NaN; max |finite| up to 1e+04."
