"""Test the model page: the map of layers over steps, its drawings, and the curves on the overview."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser, expect

from tfdbg_arrow.query import LayerHealth, layer_health, open_logdir, training_curves
from tfdbg_arrow.query.display.tensor_window import TensorFilter, tensor_window
from tfdbg_arrow.viewer.pages.model import ModelPage, read_model
from tfdbg_arrow.viewer.pages.overview import read_overview
from tfdbg_arrow.viewer.report import read_report, render_report
from tfdbg_arrow.viewer.static_charts import DARK, LIGHT, Colours, ColourScale, colour_at, curves_svg, map_rows, map_svg

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, Served, serving

Array = npt.NDArray[np.float64]


def numbers(value: float) -> dict[str, Any]:
    return {**CLEAN, "max_abs_finite": abs(value), "mean_finite": value, "stddev_finite": 0.5, "size": 4}


def training(path: Path, *, num_steps: int = 20, bad_from: int | None = 12, run_id: str = "run-a") -> Path:
    """Writes a run of the layers `net/a` and `net/b`; the Log of `net/b` is bad from a step on."""
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
        return read_model(logdir, **arguments)


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
    assert rows[1].startswith("net/b began here forward ✕ 12 8")
    assert "<noscript>" in html


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
                row.op_name for row in tensor_window(logdir, TensorFilter(layer=layer, side=side), run_id="run-a").rows
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
    assert drawn.count("<svg") == drawn.count("</svg>") == 1
    assert LIGHT.bad in drawn
    assert "began here" in drawn
    assert len(drawn) < 200_000
    curves = training_curves(path)
    assert curves is not None
    assert "bad from step 200 on" in curves_svg(curves)
    with open_logdir(path) as logdir:
        report, _ = render_report(read_report(logdir))
    assert drawn.count("<path") > 1
    assert 'id="model"' in report


@pytest.mark.slow
def test_a_healthy_run_has_curves_on_the_overview(tmp_path: Path) -> None:
    path = training(tmp_path, bad_from=None)
    with open_logdir(path) as logdir:
        page = read_overview(logdir, budget_s=1000)
        hurried = read_overview(logdir, budget_s=0.0)
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


# Full colour blindness of one kind of cone. Source: Machado, Oliveira and Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency", 2009, severity 1.0, for linear RGB.
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
"""Least distance of the bad colour from every colour of a scale, as CIE 1976 Delta E; 2.3 is just noticeable."""
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
        assert min(distance(colours.bad, colour, matrix) for colour in scale) >= LEAST_BAD
        assert distance(scale[0], scale[-1], matrix) >= LEAST_ENDS or stops is colours.diverging
        assert min(distance(one, other, matrix) for one, other in itertools.pairwise(scale[::3])) >= LEAST_STEP
    low, middle, high = (colour_at(colours.diverging, place) for place in (0.0, 0.5, 1.0))
    assert min(distance(*pair, matrix) for pair in itertools.combinations((low, middle, high), 2)) >= LEAST_ENDS / 1.5


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_the_lightness_of_the_sequential_scale_changes_evenly(colours: Colours) -> None:
    lightness = [lab(colour_at(colours.sequential, place / 7), np.eye(3))[0] for place in range(8)]
    steps = np.diff(lightness) * (1 if lightness[-1] > lightness[0] else -1)
    assert steps.min() > 3
    assert math.isclose(abs(lightness[-1] - lightness[0]), steps.sum())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(training(tmp_path_factory.mktemp("logdir"))) as server:
        yield server


@pytest.mark.slow
def test_pointing_clicking_and_zooming_on_the_map(browser: Browser, served: Served) -> None:
    with watched_page(browser, viewport={"width": 1280, "height": 800}) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.goto(f"{served.url}/model")
        canvas = page.locator(".map-cells canvas")
        box = canvas.bounding_box()
        assert box is not None
        panel = (box["width"] - 16 - 26) / 2
        x, y = box["x"] + 8, box["y"] + 42 + 2.5 * 18  # the row net/b
        page.mouse.move(x + panel * 12.5 / 20, y)
        tip = page.locator(".map-tip")
        expect(tip).to_contain_text("net/b")
        expect(tip).to_contain_text("step 12")
        expect(tip).to_contain_text("1 bad tensor")
        page.mouse.click(x + panel * 12.5 / 20, y)
        page.wait_for_url("**/tensors?run=run-a&layer=net%2Fb&side=forward&first_step=12&last_step=12")
        expect(page.locator("table.rows tbody tr")).to_have_count(1)
        page.go_back()
        page.mouse.move(x + panel * 4.5 / 20, y)
        page.mouse.down()
        page.mouse.move(x + panel * 9.5 / 20, y, steps=4)
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
        fold = page.get_by_role("button", name="Layers in net")
        expect(fold).to_have_attribute("aria-expanded", "true")
        expect(page.locator(".map-name")).to_have_count(3)
        fold.click()
        expect(fold).to_have_attribute("aria-expanded", "false")
        expect(page.locator(".map-name")).to_have_count(1)
        cells = page.locator(".map-cells")
        cells.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        tip = page.locator(".map-tip")
        expect(tip).to_contain_text("step 14")
        training(path, run_id="run-b")
        expect(page.locator("#run option")).to_have_count(4, timeout=15_000)
        expect(page.locator(".map-name")).to_have_count(1)
        expect(cells).to_be_focused()
        expect(tip).to_contain_text("step 14")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tensors?**layer=net&**")


@pytest.mark.slow
def test_the_page_fits_small_windows_and_the_curves_are_drawn(browser: Browser, served: Served) -> None:
    with watched_page(browser, viewport={"width": 400, "height": 800}, color_scheme="dark") as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.goto(f"{served.url}/model")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        page.goto(f"{served.url}/?wait=1")
        expect(page.locator(".training canvas").first).to_be_visible()
        expect(page.locator(".training .still")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") == 400
