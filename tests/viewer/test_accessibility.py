"""Test that no page and no report breaks a rule of axe-core, in both themes, and that the keyboard is enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect

from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.pages import PAGES
from tfdbg_arrow.viewer.report import write_report

from . import logdirs
from .browser import watched_page
from .serving import TOKEN, Served, serving
from .test_model import training

pytestmark = [pytest.mark.slow, pytest.mark.every_case]

# All rules of WCAG 2.2 up to AA, the recommendations, and the experimental rules of axe-core.
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice", "experimental")
# The rules whose results depend on the theme.
RULES_OF_COLOUR = ("color-contrast", "link-in-text-block")
PARAMETERS = {
    "overview": ("?wait=1",),
    "alerts": ("?wait=1",),
    "model": ("?run=run-b",),
    "tensor": ("?event=3",),
    "provenance": ("?event=5",),
    "history": ("?run=run-b&event=3",),
    "source": ("?line=7",),
    "graph": ("?run=run-a", "?run=run-a&graph=0", "?run=run-a&event=3"),
    "diff": ("?wait=1",),
    "executions": ("?run=run-a&execution=0",),
}
"""The parameters of each page. Other pages have no parameters."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a logdir of run-a, which has a bad logarithm, and run-b, a training with layers."""
    path = tmp_path_factory.mktemp("logdir")
    logdirs.log_of_zero(path)
    return training(path, run_id="run-b")


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with serving(path, sandbox=Sandbox(path), timeout_s=120.0) as server:
        yield server


def violations(page: Page, **options: Any) -> set[tuple[str, str]]:
    """Returns (rule, HTML) of each element that breaks a rule."""
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate(
        "async (options) => (await axe.run(document, {resultTypes: ['violations'], ...options})).violations", options
    )
    return {(rule["id"], node["html"]) for rule in found for node in rule["nodes"]}


def violations_in_both_themes(page: Page) -> set[tuple[str, str]]:
    page.emulate_media(color_scheme="light")
    light = violations(page, runOnly={"type": "tag", "values": TAGS})
    page.emulate_media(color_scheme="dark")
    return light | violations(page, runOnly={"type": "rule", "values": RULES_OF_COLOUR})


@pytest.mark.parametrize("name", [*(kind.name for kind in PAGES), "sql"])
def test_no_page_breaks_a_rule(browser: Browser, served: Served, name: str) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/runs?token={TOKEN}")
        for parameters in PARAMETERS.get(name, ("",)):
            page.goto(served.url + ("/" if name == "overview" else f"/{name}") + parameters, timeout=120_000)
            expect(page.locator("[data-pending], .is-waiting")).to_have_count(0)
            assert violations_in_both_themes(page) == set()


def test_the_comparison_of_two_runs_breaks_no_rule(browser: Browser, tmp_path: Path) -> None:
    with serving(logdirs.two_runs(tmp_path), timeout_s=120.0) as served, watched_page(browser) as page:
        page.goto(f"{served.url}/diff?wait=1&token={TOKEN}", timeout=120_000)
        expect(page.locator("[data-pending]")).to_have_count(0)
        assert violations_in_both_themes(page) == set()


def test_no_report_breaks_a_rule(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(logdirs.log_of_zero(tmp_path / "logdir"), file)
    with watched_page(browser) as page:
        page.goto(file.as_uri())
        page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        assert violations_in_both_themes(page) == set()


def test_the_keyboard_leads_from_the_first_screen_to_the_line_and_back(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        page.goto(f"{served.url}/?run=run-a&token={TOKEN}")
        line = page.locator(".excerpt h2 a")
        for _ in range(60):
            page.keyboard.press("Tab")
            if line.evaluate("link => link === document.activeElement"):
                break
        expect(line).to_be_focused()
        page.keyboard.press("Enter")
        page.wait_for_url("**/source?**")
        expect(page.locator(".row.lit")).to_contain_text("log_probs = tf.math.log(probs)")
        expect(page.locator(".row.lit")).to_be_in_viewport()
        page.go_back()  # the same as Alt and the left arrow in a browser with a window
        page.wait_for_url("**/?run=run-a**")
        expect(page.get_by_role("heading", level=1)).to_contain_text("made -Inf")
