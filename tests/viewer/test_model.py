"""Test the model page: the map of layers over steps, its drawings, and the curves on the overview."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser, expect

from tfdbg_arrow.query import Curve, LayerHealth, layer_health, open_logdir, training_curves
from tfdbg_arrow.query.display.tensor_window import TensorFilter, tensors
from tfdbg_arrow.viewer.background import InTurn
from tfdbg_arrow.viewer.colours import DARK, LIGHT, Colours, colour_at, style_sheet
from tfdbg_arrow.viewer.line_drawing import Line, Plot, curve_plot, curves_svg, plot_drawing
from tfdbg_arrow.viewer.map_drawing import map_drawing, map_svg
from tfdbg_arrow.viewer.map_rows import map_rows
from tfdbg_arrow.viewer.map_scale import ColourScale, colour_scale, shown_measure
from tfdbg_arrow.viewer.page import Parameters, parameters_of
from tfdbg_arrow.viewer.pages.alerts import AlertsView
from tfdbg_arrow.viewer.pages.model import ModelPage, read_model
from tfdbg_arrow.viewer.pages.overview import complete_overview, read_overview
from tfdbg_arrow.viewer.report import read_report, render_report, write_report
from tfdbg_arrow.viewer.svg import Columns

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs
from .browser import place_of, watched_page
from .serving import TOKEN, Served, serving

Array = npt.NDArray[np.float64]


def numbers(value: float) -> dict[str, Any]:
    return {**CLEAN, "max_abs_finite": abs(value), "mean_finite": value, "stddev_finite": 0.5, "size": 4}


def training(path: Path, *, num_steps: int = 20, bad_from: int | None = 12, run_id: str = "run-a") -> Path:
    """Writes a run of the layers `net/a` and `net/b`. From step `bad_from` on, the Log of `net/b` is bad."""
    run = RunBuilder(run_id, tensor_debug_mode="FULL_NUMERICS")
    graph = run.graph("step")
    for name, op_type, inputs, layer in (
        ("x", "Mul", [], "net/a"),
        ("y", "Log", ["x"], "net/b"),
        ("dy", "LogGrad", ["y"], "net/b"),
    ):
        graph.op(name, op_type, inputs)
        run.rows["graph_op"][-1].update(layer=layer, role="gradient" if name == "dy" else "forward")
    run.rows["graph_op"][-1].update(forward_graph_id=graph.graph_id, forward_op_name="y")
    for step in range(num_steps):
        is_bad = bad_from is not None and step >= bad_from
        run.tensor(graph, "x", {**numbers(10.0**step), "step": step})
        for name in ("y", "dy"):
            run.tensor(graph, name, {**(NAN if is_bad else numbers(1.0 + step)), "step": step})
    return run.write(path)


def model(path: Path, **arguments: Any) -> ModelPage:
    with open_logdir(path) as logdir:
        return read_model(logdir, parameters_of(**arguments))


def health(path: Path) -> LayerHealth:
    found = layer_health(path)
    assert found is not None
    return found


def test_the_page_of_a_run_that_went_bad(tmp_path: Path) -> None:
    page = model(training(tmp_path))
    assert page.health is not None
    assert (page.run_id, page.measure and page.measure.name) == ("run-a", "max_abs")
    assert page.headline == page.health.sentence
    assert [(row.layer, row.depth, row.parent, row.has_children, row.is_open) for row in page.rows] == [
        ("net", 0, None, True, True),
        ("net/a", 1, 0, False, True),
        ("net/b", 1, 0, False, True),
    ]
    assert [(row.forward is None, row.gradient is None) for row in page.rows][1:] == [(False, True), (False, False)]
    worst = page.worst[0]
    assert (page.health.rows[worst.row].layer, worst.first_bad_column) == ("net/b", 12)


def test_the_parameters_choose_measure_range_and_columns(tmp_path: Path) -> None:
    with serving(training(tmp_path)) as served:
        page = served.ask("/model.json?measure=mean&first=5&last=8&columns=2").json
        assert [(column["first"], column["last"]) for column in page["health"]["columns"]] == [(5, 6), (7, 8)]
        assert page["measure"]["name"] == "mean"
        assert served.ask("/model?measure=nothing").status == 400
        assert served.ask("/model?run=nothing").status == 404
        html = served.ask("/model?first=5&last=8").text
        assert 'href="/model?run=run-a&amp;measure=mean&amp;first=5&amp;last=8"' in html
        assert "No recorded tensor of this run has a step" in served.ask("/model?first=500").text


def test_the_table_without_javascript_names_where_it_began(tmp_path: Path) -> None:
    with serving(training(tmp_path)) as served:
        answer = served.ask("/model")
    assert answer.status == 200, answer.text
    html = answer.text
    rows = [
        " ".join(unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in re.findall("<tr.*?</tr>", html, re.DOTALL)
    ]
    assert rows[1].startswith("net/b began here forward ✕ step 12 8")
    assert "<noscript>" not in html.partition("<main")[2]
    assert "began here</text>" in html


def test_calls_name_the_columns_of_a_program_without_steps() -> None:
    columns = Columns(
        axis="execution",
        ranges=((3, 3), (4, 4), (5, 7), (8, 8)),
        is_cells=True,
        calls=((0, 0), (1, 1), (2, 4), (4, 4)),
    )
    assert columns.texts == ("before call 1", "call 1", "calls 2 to 4", "call 4")
    assert columns.starts == ("before call 1", "call 1", "call 2", "call 4")
    assert columns.ticks[0] == (0.0, "start")
    assert 'data-ranges="3-3|4-4|5-7|8-8"' in columns.attributes


@pytest.mark.parametrize(
    ("mode", "text"),
    [("NO_TENSOR", "No tensors are recorded here yet."), ("FULL_NUMERICS", "No tensors are recorded here yet.")],
)
def test_an_empty_run(tmp_path: Path, mode: str, text: str) -> None:
    with serving(RunBuilder("run-a", tensor_debug_mode=mode).write(tmp_path)) as served:
        assert text in served.ask("/model").text
        assert served.ask("/").status == 200


def test_a_mode_that_measures_nothing(tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode="NO_TENSOR")
    graph = run.graph("f").op("x", "Mul")
    run.tensor(graph, "x", {"step": 0, "has_inf_or_nan": None})
    with serving(run.write(tmp_path)) as served:
        assert "measures nothing that a map can show" in served.ask("/model").text


@pytest.mark.slow
@pytest.mark.parametrize("write", [logdirs.log_of_zero, logdirs.nested, logdirs.two_runs, logdirs.healthy])
def test_recordings_without_layers_or_steps_have_a_page(tmp_path: Path, write: Any) -> None:
    with serving(write(tmp_path)) as served:
        for target in ("/model", "/model.json", "/"):
            assert served.ask(target).status == 200, target


def test_the_tensors_of_a_layer_and_a_side(tmp_path: Path) -> None:
    with open_logdir(training(tmp_path, num_steps=3, bad_from=None)) as logdir:
        found = {
            (layer, side): {
                row.op_name
                for row in tensors(logdir, TensorFilter(layer=layer, side=side), run_id="run-a").window().rows
            }
            for layer in ("net", "net/b", "n")
            for side in (None, "forward", "gradient")
        }
    assert found == {
        ("net", None): {"x", "y", "dy"},
        ("net", "forward"): {"x", "y"},
        ("net", "gradient"): {"dy"},
        ("net/b", None): {"y", "dy"},
        ("net/b", "forward"): {"y"},
        ("net/b", "gradient"): {"dy"},
        **{("n", side): set() for side in (None, "forward", "gradient")},
    }


def test_deep_rows_are_folded_except_those_of_the_origin(tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
    graph = run.graph("step")
    for number in range(60):
        graph.op(f"op{number}", "Log")
        run.rows["graph_op"][-1].update(layer=f"net/block{number % 10}/layer{number}", role="forward")
        run.tensor(graph, f"op{number}", {**(NAN if number == 25 else CLEAN), "step": 0})
    rows = map_rows(health(run.write(tmp_path)))
    assert [row.layer for row in rows if row.has_children and not row.is_open] == [
        f"net/block{number}" for number in range(10) if number != 5
    ]


@pytest.mark.slow
def test_static_drawings(tmp_path: Path) -> None:
    path = training(tmp_path, num_steps=300, bad_from=200)
    drawn = map_svg(health(path))
    assert drawn.count("<svg") == drawn.count("</svg>")
    assert LIGHT.bad in drawn
    assert "began here" in drawn
    assert len(drawn) < 200_000
    curves = training_curves(path)
    assert curves is not None
    assert "bad in steps 200 to 201 and later" in curves_svg(curves)
    with open_logdir(path) as logdir:
        report, _ = render_report(read_report(logdir))
    assert drawn.count("<path") > 1
    assert 'id="model"' in report


@pytest.mark.slow
def test_a_healthy_run_has_curves_on_the_overview(tmp_path: Path) -> None:
    path = training(tmp_path, bad_from=None)
    with open_logdir(path) as logdir:
        page, hurried = (
            complete_overview(InTurn(logdir, budget_s=budget_s), read_overview(logdir, Parameters()), AlertsView())
            for budget_s in (1000, 0)
        )
    assert page.training is not None
    assert page.training.curves is not None
    assert "max_activation" in [curve.name for curve in page.training.curves.curves]
    assert hurried.training is not None
    assert (hurried.training.is_finished, hurried.training.curves) == (False, None)


@pytest.mark.parametrize(
    ("scale", "value", "place"),
    [
        (ColourScale(kind="log", low=0.01, high=100.0), 1.0, 0.5),
        (ColourScale(kind="log", low=0.01, high=100.0), 0.0, 0.0),
        (ColourScale(kind="log", low=0.01, high=100.0), 1e30, 1.0),
        (ColourScale(kind="signed", low=-5.0, high=5.0, linear=0.005), 0.0, 0.5),
        (ColourScale(kind="signed", low=-5.0, high=5.0, linear=0.005), -5.0, 0.0),
        (ColourScale(kind="signed", low=-5.0, high=5.0, linear=0.005), 1e300, 1.0),
        (ColourScale(kind="share", low=0.0, high=1.0), 0.25, 0.25),
    ],
)
def test_the_place_of_a_value_on_a_scale(scale: ColourScale, value: float, place: float) -> None:
    assert scale.place(value) == pytest.approx(place)


def test_the_constants_of_masks_do_not_widen_the_scale(tmp_path: Path) -> None:
    layers = health(training(tmp_path, bad_from=None))
    measure = shown_measure(layers, "max_abs")
    assert measure is not None
    *rows, last = layers.values["max_abs"]
    masked = replace(layers, values={"max_abs": (*rows, (2.4e38,) * len(last))})
    largest = max(value or 0.0 for row in rows for value in row)
    scale = colour_scale(masked, measure)
    assert (scale.high, scale.place(2.4e38)) == (largest, 1.0)
    grown = replace(layers, values={"max_abs": (*rows, tuple(10.0**power for power in range(len(last))))})
    assert colour_scale(grown, measure).high == 10.0 ** (len(last) - 1)


# Colour vision of people who lack one kind of cone. Source: Machado, Oliveira and Fernandes, "A Physiologically-based
# Model for Simulation of Color Vision Deficiency", 2009, severity 1.0, for linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
LEAST_BAD = 19.0
"""Least distance of the colours of bad cells from every colour of a scale (CIE 1976 Delta E).

A distance of 2.3 is barely noticeable.
"""
LEAST_ENDS = 45.0
LEAST_STEP = 4.0
"""Least distance of colours that are a tenth of a scale apart."""


def lab(colour: str, vision: Array) -> Array:
    """Returns a colour in CIELAB (D65), as a person with that vision sees it."""
    shares = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = np.clip(vision @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    )
    xyz = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, vision: Array) -> float:
    return float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_differ_in_every_kind_of_vision(colours: Colours, vision: str) -> None:
    matrix = VISIONS[vision]
    for stops in (colours.sequential, colours.diverging):
        scale = [colour_at(stops, place / 30) for place in range(31)]
        for bad in (colours.bad, colours.harmless):
            assert min(distance(bad, colour, matrix) for colour in scale) >= LEAST_BAD
        assert distance(scale[0], scale[-1], matrix) >= LEAST_ENDS or stops is colours.diverging
        assert min(distance(one, other, matrix) for one, other in itertools.pairwise(scale[::3])) >= LEAST_STEP
    assert distance(colours.harmless, colours.zero, matrix) >= LEAST_BAD
    low, middle, high = (colour_at(colours.diverging, place) for place in (0.0, 0.5, 1.0))
    assert min(distance(*pair, matrix) for pair in itertools.combinations((low, middle, high), 2)) >= LEAST_ENDS / 1.5


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_the_lightness_of_the_sequential_scale_changes_evenly(colours: Colours) -> None:
    lightness = [lab(colour_at(colours.sequential, place / 7), np.eye(3))[0] for place in range(8)]
    steps = np.diff(lightness) * (1 if lightness[-1] > lightness[0] else -1)
    assert steps.min() > 3
    assert math.isclose(abs(lightness[-1] - lightness[0]), steps.sum())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(training(tmp_path_factory.mktemp("logdir"))) as server:
        yield server


@pytest.mark.slow
def test_pointing_clicking_and_zooming_on_the_map(browser: Browser, served: Served) -> None:
    with watched_page(browser, viewport={"width": 1280, "height": 800}) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.goto(f"{served.url}/model")
        page.mouse.move(*place_of(page, "layer net/b forward", 12.5 / 20))
        tip = page.locator(".chart-tip")
        expect(tip.locator("b")).to_have_text("net/b")
        expect(tip).to_contain_text("step 12 · forward, 1 op output")
        expect(tip.locator("tr.bad td")).to_have_text(["✕ bad tensors", "1"])
        page.mouse.move(*place_of(page, "layer net/a forward", 3.5 / 20))
        expect(tip.locator("tr.shown td")).to_have_text(["Largest magnitude", "1000"])
        page.mouse.move(0, 0)
        expect(tip).to_be_hidden()
        page.mouse.click(*place_of(page, "layer net/b forward", 12.5 / 20))
        page.wait_for_url("**/tensors?run=run-a&layer=net%2Fb&side=forward&first_step=12&last_step=12")
        expect(page.locator("table.rows tbody tr")).to_have_count(1)
        page.go_back()
        page.mouse.move(*place_of(page, "layer net/b forward", 4.5 / 20))
        page.mouse.down()
        page.mouse.move(*place_of(page, "layer net/b forward", 9.5 / 20), steps=4)
        expect(page.locator(".chart-drag")).to_be_visible()
        page.mouse.up()
        page.wait_for_url("**/model?run=run-a&measure=max_abs&first=4&last=9")
        page.keyboard.press("0")
        page.wait_for_url("**/model?run=run-a&measure=max_abs")
        page.keyboard.press("+")
        page.wait_for_url("**first=7&last=16")


@pytest.mark.slow
def test_the_keyboard_folding_and_live_updates(browser: Browser, tmp_path: Path) -> None:
    path = training(tmp_path)
    with serving(path) as served, watched_page(browser) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.keyboard.press("g")
        page.keyboard.press("m")
        page.wait_for_url("**/model")
        layers, inside = page.locator("#map details"), page.locator("[data-row='layer net/a forward']")
        expect(inside).to_be_visible()
        page.mouse.click(*place_of(page, "layer net forward", 0.99))  # opens tensors, but does not fold
        page.wait_for_url("**/tensors?**")
        page.go_back()
        expect(layers).to_have_attribute("open", "")
        layers.locator("summary > .map-name").click()
        expect(inside).to_be_hidden()
        page.mouse.move(0, 0)
        chart, tip = page.locator("#map"), page.locator(".chart-tip")
        chart.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(tip).to_contain_text("step 14 · forward")
        training(path, run_id="run-b")
        expect(page.locator("#run option")).to_have_count(4, timeout=15_000)
        expect(inside).to_be_hidden()
        expect(chart).to_be_focused()
        expect(tip).to_contain_text("step 14 · forward")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tensors?**layer=net&**first_step=14&**")


@pytest.mark.slow
def test_the_arrow_keys_go_from_row_to_row_and_from_side_to_side(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.goto(f"{served.url}/model")
        chart, tip = page.locator("#map"), page.locator(".chart-tip")
        expect(chart).to_have_attribute("role", "application")
        page.keyboard.press("j")  # after a key press, the browser shows the focus
        chart.focus()
        expect(tip).to_contain_text("net/bstep 12 · forward")
        page.keyboard.press("ArrowUp")
        expect(tip).to_contain_text("net/astep 12 · forward")
        page.keyboard.press("ArrowUp")
        for key in ("End", "ArrowRight"):
            page.keyboard.press(key)
        expect(tip).to_contain_text("netstep 0 · gradient")
        page.keyboard.press("ArrowDown")
        expect(tip).to_contain_text("net/bstep 0 · gradient")
        for key in ("Home", "ArrowLeft"):
            page.keyboard.press(key)
        expect(tip).to_contain_text("net/bstep 19 · forward")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()


@pytest.mark.slow
def test_the_page_fits_small_windows_and_the_curves_are_drawn(browser: Browser, served: Served) -> None:
    with watched_page(browser, viewport={"width": 400, "height": 800}, color_scheme="dark") as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.goto(f"{served.url}/model")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        page.goto(f"{served.url}/?wait=1")
        page.mouse.move(*place_of(page, "Largest activation", 5 / 19))
        tip = page.locator(".chart-tip")
        expect(tip.locator("b")).to_have_text("step 5")
        expect(tip.locator("tr", has_text="Largest activation").locator("td")).to_have_text(
            ["Largest activation", "100000"]
        )
        expect(tip.locator("tr", has_text="Share of bad tensors")).to_contain_text("0 %")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        page.mouse.click(*place_of(page, "Largest activation", 5 / 19))
        page.wait_for_url("**/model?run=run-a")


@pytest.mark.slow
def test_a_report_shows_numbers_too(browser: Browser, served: Served, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(training(tmp_path / "logdir"), file)
    with watched_page(browser) as page:
        page.goto(file.as_uri())
        page.mouse.move(*place_of(page, "layer net/a forward", 3.5 / 20))
        expect(page.locator(".chart-tip tr.shown td")).to_have_text(["Largest magnitude", "1000"])


def test_dark_pages_have_dark_colours_for_each_colour_of_a_drawing(tmp_path: Path) -> None:
    drawn = map_svg(health(training(tmp_path)))
    dark = style_sheet()
    for name in set(re.findall('class="([a-z]+-[a-z0-9]+)"', drawn)):
        assert dark.count(f".{name} {{ fill: #") == 2
    assert f".bad-cell {{ fill: {DARK.bad}; }}" in dark


def test_columns_have_round_numbers_whose_texts_do_not_meet() -> None:
    def ticks(*ranges: tuple[int, int], is_cells: bool) -> list[str]:
        columns = Columns(axis="step", ranges=ranges, is_cells=is_cells)
        return [f"{place:.3f} {text}" for place, text in columns.ticks]

    assert ticks((7, 7), is_cells=True) == ["0.000 step 7"]
    assert ticks((7, 7), is_cells=False) == ["0.500 step 7"]
    assert ticks(*((step, step + 9) for step in range(0, 1000, 10)), is_cells=True) == [
        "0.000 step 0",
        *("0.405 400", "0.605 600", "0.805 800"),
    ]


@pytest.mark.parametrize(
    ("scale", "values", "places", "ticks"),
    [
        ("share", (0.0, 0.5, None), [0.0, 0.5 / 0.575], ["0 %", "20 %", "40 %"]),
        ("log", (0.0, 1.0, 90.0), [0.0, 1 / 3, (1 + math.log10(90)) / 3], ["0.1", "1", "10", "100"]),
        ("signed", (-1e308, 1e308, 0.0), [0.069, 0.931, 0.5], ["-1e308", "0", "1e308"]),
        ("signed", (3.0, 3.0, None), [0.5, 0.5], ["2.8", "3", "3.2"]),
    ],
)
def test_the_extent_of_a_plot(
    scale: str, values: tuple[float | None, ...], places: list[float], ticks: list[str]
) -> None:
    line = Line(name="x", greatest=values, least=values, texts=("",) * len(values))
    columns = Columns(axis="step", ranges=tuple((step, step) for step in range(len(values))), is_cells=False)
    extent = Plot(title="x", scale=scale, columns=columns, lines=(line,), bad=()).extent
    assert [extent.place(value) for value in values if value is not None] == pytest.approx(places, abs=0.001)
    assert [text for _, text in extent.ticks] == ticks


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1.7e308, -1.7e308, 0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("scale", ["log", "signed", "share"])
def test_every_number_can_be_drawn(scale: str, value: float) -> None:
    columns = Columns(axis="step", ranges=((0, 0), (1, 1)), is_cells=False)
    curve = Curve(name="x", title="x", scale=scale, values=(value, None), first_bad=None, source="")
    with np.errstate(all="raise"):
        drawn = plot_drawing(curve_plot(curve, columns, bad_from=None))
    assert "nan" not in drawn.area
    assert "inf" not in drawn.area


@pytest.mark.parametrize(
    ("write", "paints", "legend"),
    [
        (logdirs.unused_infinity, {"harmless-cell"}, "Inf or NaN that did no known harm"),
        (logdirs.log_of_zero, {"bad-cell"}, "bad (Inf, NaN)"),
    ],
)
def test_harmless_values_have_another_colour_and_legend_than_bad_values(
    tmp_path: Path, write: Callable[[Path], Path], paints: set[str], legend: str
) -> None:
    with open_logdir(write(tmp_path)) as logdir:
        health = layer_health(logdir)
    assert health is not None
    (measure,) = (measure for measure in health.measures if measure.name == "bad_share")
    drawing = map_drawing(health, measure)
    assert (drawing.has_bad, drawing.words.bad) == (True, legend)
    svg = map_svg(health)
    assert set(re.findall('class="([a-z]+-cell)"', svg)) - {"zero-cell"} == paints
    assert f'<rect width="12" height="12" {drawing.bad_paint}/>' in re.sub(' [xy]="[0-9]+"', "", svg)


def test_the_page_of_harmless_values_does_not_look_bad(tmp_path: Path) -> None:
    with serving(logdirs.unused_infinity(tmp_path)) as served:
        text = served.ask("/model").text
    main = text.partition("<main")[2]
    assert '<section class="verdict expected"' in main
    assert "Where Inf or NaN came up first" in main
    for red in ("✕", "is-bad", "bad-cell", 'data-kind="bad"', "went bad"):
        assert red not in main
