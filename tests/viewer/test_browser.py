"""Test pages in a real browser: keyboard navigation, accessibility, and hostile recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.report import write_report
from tfdbg_arrow.viewer.security import RedirectFile

from ..query.builder import INF, NAN, START_NS, RunBuilder, counts
from . import logdirs
from .browser import watched_page
from .serving import TOKEN, Served, serving

pytestmark = pytest.mark.slow


def test_the_redirect_file_opens_the_first_page(browser: Browser, served: Served) -> None:
    with RedirectFile() as redirect, watched_page(browser) as page:
        page.goto(redirect.write(f"{served.url}/?token={TOKEN}"))
        page.wait_for_url(f"{served.url}/")
        expect(page.get_by_role("heading", level=1)).to_contain_text("made -Inf")


def test_keyboard_navigation_from_the_first_page_to_the_source_line_of_an_alert(
    browser: Browser, served: Served
) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        assert page.url == f"{served.url}/"
        expect(page.get_by_role("heading", level=1)).to_contain_text("made -Inf")
        page.keyboard.press("g")
        page.keyboard.press("a")
        page.wait_for_url("**/alerts")
        expect(page.locator("[data-pending]")).to_have_count(0, timeout=30_000)  # all rules have finished
        page.keyboard.press("n")
        page.keyboard.press("n")
        expect(page.locator(":focus")).to_have_text("Sqrt:0")
        page.keyboard.press("s")
        page.wait_for_url("**/source?**")
        expect(page.locator(".row.lit")).to_contain_text("scaled = tf.sqrt(offset)")
        expect(page.locator(".row.lit")).to_be_in_viewport()


def layered(path: Path) -> Path:
    """Writes a run where a layer, which was created in line 4, takes the logarithm of 0 in line 7."""
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path=logdirs.TRAIN, source_text=logdirs.TEXT)
    graph = run.graph("loss").op("probs", "Placeholder", stack=logdirs.line(run, 3, "model"))
    created = logdirs.line(run, 4, "model")
    graph.op("Log", "Log", ["probs"], stack=logdirs.line(run, 7, "loss"), layer="log", part_stack_trace_id=created)
    run.tensor(graph, "probs", counts(zero=2, pos=4))
    run.tensor(graph, "Log", counts(neg_inf=2, neg=4))
    return run.write(path)


def test_a_key_opens_the_line_of_the_answer_and_going_back_restores_the_focus(browser: Browser, tmp_path: Path) -> None:
    with serving(layered(tmp_path)) as served, watched_page(browser) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        expect(page.get_by_text("layer created at")).to_be_visible()
        page.keyboard.press("s")
        page.wait_for_url("**/source?**")
        expect(page.locator(".row.lit")).to_contain_text("log_probs = tf.math.log(probs)")
        page.go_back()
        expect(page.locator(":focus")).to_have_text("train.py:7")


def test_keys_for_opening_and_moving_and_the_folded_stack_trace(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/alerts?token={TOKEN}")
        expect(page.locator("[data-pending]")).to_have_count(0, timeout=30_000)  # all rules have finished
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tensor?**event=3")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Log:0")
        framework = page.locator(".stack .framework")
        expect(framework).to_be_hidden()
        page.get_by_text("All 2 frames").click()
        expect(framework).to_be_visible()
        page.keyboard.press("n")
        page.wait_for_url("**/tensor?**event=5")
        page.keyboard.press("p")
        page.wait_for_url("**/tensor?**event=3")
        page.keyboard.press("]")
        page.wait_for_url("**/tensor?**event=4")


def test_searches_and_filters_are_part_of_the_address(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/tensors?token={TOKEN}")
        rows = page.locator("table.rows tbody tr")
        expect(rows).to_have_count(6)
        page.keyboard.press("/")
        page.keyboard.type("sqr")
        page.keyboard.press("Enter")
        page.wait_for_url("**/tensors?run=run-a&name=sqr")
        expect(rows).to_have_count(1)
        page.get_by_role("link", name="clear").click()
        page.get_by_label("only bad").check()
        page.wait_for_url("**/tensors?run=run-a&bad=1")
        expect(rows).to_have_count(3)
        page.get_by_label("Step", exact=True).fill("2")
        page.get_by_role("button", name="Jump").click()
        page.wait_for_url("**step=2")
        expect(rows).to_have_count(3)  # with the row before the step


def test_help_and_the_theme(browser: Browser, served: Served) -> None:
    with watched_page(browser, color_scheme="light") as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        background = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(background)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
        page.get_by_role("button", name="Light or dark").click()
        dark = page.evaluate(background)
        assert dark != light
        page.goto(f"{served.url}/alerts")
        assert page.evaluate(background) == dark


@pytest.mark.every_case
@pytest.mark.parametrize(
    "target",
    [
        *("/", "/alerts", "/tensors", "/source?line=7", "/tensor?event=6", "/provenance?event=6"),
        *("/graph", "/graph?graph=0", "/graph?event=3"),
        *("/history?event=6", "/runs", "/diff"),
        *("/executions", "/executions?execution=0"),
    ],
)
def test_pages_fit_the_window_and_every_control_has_a_name(browser: Browser, served: Served, target: str) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(served.url + target)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            nameless = page.locator("button:visible, select:visible, input:visible, main a:visible").evaluate_all(
                "all => all.filter(e => !(e.ariaLabel || e.labels?.[0]?.innerText || e.innerText).trim())"
                ".map(e => e.outerHTML)"
            )
            assert nameless == []


def test_a_small_screen_shows_long_lines_and_long_names_whole(browser: Browser, tmp_path: Path) -> None:
    name = "a_program_with_a_long_name_for_the_training_of_a_model"
    for number in range(2):
        run = RunBuilder(f"run-{number}", run_name=f"{name}_{number}", wall_time_ns=START_NS + number)
        code = f"y = tf.math.log({' + '.join(f'summand_{index}' for index in range(20))})"
        graph = run.graph("f").op("y", "Log", stack=run.stack(("/home/me/train.py", 1, "f", code, "user")))
        run.add("source_file", source_file_id=0, file_path="/home/me/train.py", source_text=code)
        run.tensor(graph, "y", NAN)
        run.write(tmp_path)
    with serving(tmp_path) as served, watched_page(browser, viewport={"width": 400, "height": 800}) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        for target in ("/?run=run-1&wait=1", "/source?run=run-1"):
            page.goto(served.url + target)
            assert page.evaluate("document.documentElement.scrollWidth") == 400
            box = page.locator(".bar .chosen").bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 400
            expect(page.locator(".bar .chosen")).to_contain_text(f"{name}_1")
            lines = page.locator("pre.code")
            assert lines.evaluate("lines => lines.scrollWidth > lines.clientWidth")
            lines.focus()
            page.keyboard.press("ArrowRight")
            expect(lines).not_to_have_js_property("scrollLeft", 0)
        page.goto(f"{served.url}/?run=run-1&wait=1")
        too_wide = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML)"
        assert page.locator(".verdict, .verdict p, .card:not(.excerpt), .card p").evaluate_all(too_wide) == []
        page.set_viewport_size({"width": 1280, "height": 800})
        expect(page.locator(".bar .chosen")).to_be_hidden()


def test_a_hostile_recording_has_no_effect_on_pages(browser: Browser, tmp_path: Path) -> None:
    logdirs.hostile(tmp_path, run_id="run-b", bad=INF)
    with (
        serving(logdirs.hostile(tmp_path), sandbox=Sandbox(tmp_path)) as served,
        watched_page(browser) as page,
    ):
        page.goto(f"{served.url}/?token={TOKEN}")
        targets = (
            *("/alerts", "/tensors", "/source", "/tensor?event=1", "/graph", "/graph?event=1"),
            *("/executions?execution=0", "/history?event=1", "/provenance?event=1", "/diff?run=run-a&other=run-b"),
            "/sql?query=SELECT+file_path,+source_text+FROM+source_file+ORDER+BY+1+DESC",
        )
        for target in targets:
            page.goto(served.url + target)
            page.keyboard.press("j")
            expect(page.locator("main")).to_contain_text("onerror=alert(2)")


def test_a_report_opens_from_disk_and_works_with_the_keyboard(browser: Browser, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(path, file)
    with watched_page(browser) as page:
        page.goto(file.as_uri())
        expect(page.get_by_role("heading", level=1).first).to_contain_text("made -Inf")
        page.keyboard.press("g")
        page.keyboard.press("a")
        page.locator(".alert .name", has_text="Sqrt:0").first.focus()
        page.keyboard.press("s")
        expect(page.locator("#sources .row.lit", has_text="scaled = tf.sqrt(offset)")).to_be_in_viewport()
        page.locator(".alert .name", has_text="Sqrt:0").first.click()
        expect(page.locator("details#tensor-2")).to_have_attribute("open", "")
        expect(page.locator("details#tensor-2 .excerpt .lit")).to_contain_text("scaled = tf.sqrt(offset)")
        main, source = page.locator("main").bounding_box(), page.locator("#sources .file").bounding_box()
        assert main is not None
        assert source is not None
        assert source["width"] > 0.9 * main["width"] - 60


def test_a_hostile_recording_has_no_effect_on_a_report(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(logdirs.hostile(tmp_path / "logdir"), file)
    with watched_page(browser) as page:
        page.goto(file.as_uri())
        expect(page.locator("main")).to_contain_text("onmouseover")
        assert page.evaluate("JSON.parse(document.getElementById('data').textContent).overview.verdict") == "bad"
