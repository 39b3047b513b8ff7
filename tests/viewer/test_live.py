"""Test that pages show new data without a reload and without disturbing the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from ..query.builder import NAN, RunBuilder
from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, Served, serving

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return logdirs.healthy(tmp_path / "logdir")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser, watched_page(browser) as opened:
        yield opened


@pytest.fixture
def served(path: Path, page: Page) -> Iterator[Served]:
    with serving(path) as server:
        yield server
        page.goto("about:blank")  # the page asks its server for new data, and would log an error after its end


def add_bad_run(path: Path) -> None:
    run = RunBuilder("run-b")
    graph = run.graph("g").op("y", "Log")
    run.tensor(graph, "y", NAN)
    run.write(path)


def test_new_data_appears_without_a_reload(page: Page, served: Served, path: Path) -> None:
    page.goto(f"{served.url}/?token={TOKEN}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("No")
    page.evaluate("window.isSamePage = true")
    page.locator("[aria-labelledby=runs] a[data-item]").focus()
    focused = page.evaluate("document.activeElement.getAttribute('href')")
    add_bad_run(path)
    expect(page.get_by_role("heading", level=1)).to_contain_text("y:0", timeout=30_000)
    assert page.evaluate("window.isSamePage")
    assert page.evaluate("document.activeElement.getAttribute('href')") == focused
    expect(page.get_by_role("button", name="live")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#run option")).to_have_count(4)


def test_a_page_in_use_shows_new_data_only_on_request(page: Page, served: Served, path: Path) -> None:
    page.goto(f"{served.url}/tensors?token={TOKEN}")
    page.locator("input[name=name]").focus()
    add_bad_run(path)
    button = page.locator("[data-live]")
    expect(button).to_have_text("○ new data")
    expect(page.locator("#run option")).to_have_count(1)
    button.click()
    expect(page.locator("#run option")).to_have_count(4)
    expect(button).to_have_text("● live")


def test_a_click_is_not_lost_while_new_data_arrives(page: Page, served: Served, path: Path) -> None:
    page.goto(f"{served.url}/runs?token={TOKEN}")
    add_bad_run(path)
    page.reload()
    page.get_by_role("button", name="Compare").hover()
    page.mouse.down()
    with page.expect_response("**/runs") as answered:
        page.evaluate("document.dispatchEvent(new Event('update-content'))")
    answered.value.finished()
    page.wait_for_timeout(500)  # enough time to replace the content
    page.mouse.up()
    page.wait_for_url("**/diff?**")


def test_a_page_asks_again_for_the_rest_of_its_content_after_a_failure(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/runs?token={TOKEN}")
    page.route("**/runs", lambda route: route.fulfill(status=204), times=1)
    page.evaluate(
        "document.getElementById('main').insertAdjacentHTML('beforeend', '<p data-pending>Reading …</p>');"
        "document.dispatchEvent(new Event('content-changed'))"
    )
    expect(page.locator("[data-pending]")).to_have_count(0, timeout=30_000)
