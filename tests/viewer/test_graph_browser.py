"""Test the picture of a graph in a real browser: links, keys, and calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from . import logdirs
from .browser import watched_page
from .serving import TOKEN, Served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logdirs.nested(tmp_path_factory.mktemp("logdir"))


def opened(page: Page, served: Served, query: str) -> None:
    page.goto(f"{served.url}/graph{query}{'&' if query else '?'}token={TOKEN}")
    if page.locator(".picture").count():
        expect(page.locator(".picture svg")).to_be_visible()


def tops(page: Page) -> dict[str, float]:
    """Returns the vertical position of each box, by the name of its op."""
    found: dict[str, float] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.picture .box:not(.border)')]"
        ".map((box) => [box.querySelector('.op-name').textContent, box.getBoundingClientRect().top]))"
    )
    return found


def test_inputs_are_above_consumers_are_below_and_boxes_can_be_opened(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "?graph=0&op=call")
        top = tops(page)
        assert top["x"] < top["call"] < top["while"] < top["y"]
        page.locator(".picture").get_by_role("link", name=re.compile("^While while;")).click()
        page.wait_for_url("**/graph?**op=while**")
        expect(page.get_by_role("heading", level=1)).to_contain_text("while")
        page.locator(".picture .is-focus a").first.focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowDown")
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^While while"))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/graph?**op=y**")


def test_links_of_calls_and_borders(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "?graph=0&op=while")
        page.get_by_role("link", name=re.compile("into the graph that While while")).click()
        page.wait_for_url("**graph=2&op=Mul**")
        page.locator(".picture").get_by_role(
            "link", name=re.compile("^argument; call; in step; argument 0 of while in step")
        ).click()
        page.wait_for_url("**graph=0&op=call**")
        expect(page.get_by_role("heading", level=1)).to_contain_text("call")


def test_keyboard_navigation_from_the_graphs_to_the_previous_iteration(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "?graph=1")
        page.keyboard.press("g")
        page.keyboard.press("h")
        page.wait_for_url("**/graph")
        page.keyboard.press("n")
        page.keyboard.press("n")
        page.keyboard.press("Enter")
        page.wait_for_url("**graph=2")
        page.keyboard.press("n")
        page.keyboard.press("Enter")
        page.wait_for_url("**op=Mul")
        page.get_by_role("link", name="Show the first call in which it was bad").click()
        expect(page.locator(".why")).to_contain_text("iteration 1")
        page.keyboard.press("[")
        expect(page.locator(".why")).to_contain_text("iteration 0")
        expect(page.get_by_role("heading", level=1)).to_contain_text("healthy")


def test_zooming_with_keys_and_dragging(browser: Browser, served: Served) -> None:
    with watched_page(browser, viewport={"width": 1280, "height": 700}) as page:
        opened(page, served, "?graph=0&op=hub")
        expect(page.locator(".warn")).to_contain_text("6 of its 30 consumers are left out")
        svg, holder = page.locator(".picture svg"), page.locator(".picture")
        before = int(svg.get_attribute("width") or 0)
        page.keyboard.press("+")
        assert int(svg.get_attribute("width") or 0) > before
        page.keyboard.press("0")
        assert holder.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        page.keyboard.press("1")
        left = holder.evaluate("(e) => e.scrollLeft")
        box = holder.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 200, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 100, box["y"] + 100, steps=4)
        page.mouse.up()
        assert holder.evaluate("(e) => e.scrollLeft") == pytest.approx(left + 100, abs=2)
        assert "op=hub" in page.url


def test_new_content_keeps_the_view(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "?graph=0&op=call")
        page.keyboard.press("+")
        page.keyboard.press("+")
        page.locator(".picture").get_by_role("link", name=re.compile("^While while;")).focus()
        width = page.locator(".picture svg").get_attribute("width")
        page.evaluate(
            "() => { const main = document.getElementById('main'); const again = main.cloneNode(true);"
            " again.querySelector('#picture').replaceChildren(); again.querySelector('.picture-tools').remove();"
            " main.replaceChildren(...again.childNodes); document.dispatchEvent(new Event('content-changed')); }"
        )
        expect(page.locator(".picture svg")).to_have_attribute("width", width or "")
        expect(page.locator(":focus")).to_have_attribute("aria-label", re.compile("^While while;"))
        page.keyboard.press("-")
        assert int(page.locator(".picture svg").get_attribute("width") or 0) == pytest.approx(
            int(width or 0) / 1.25, abs=1
        )


def test_the_page_can_be_used_while_a_worker_places_the_boxes(browser: Browser, served: Served) -> None:
    held: list[Route] = []
    with watched_page(browser, viewport={"width": 1280, "height": 700}) as page:
        page.route("**/graph_layout.js", lambda route: held.append(route))
        page.goto(f"{served.url}/graph?graph=0&op=hub&token={TOKEN}")
        expect(page.locator(".picture .is-waiting")).to_have_text(re.compile(r"^Placing \d+ boxes …$"))
        expect(page.locator(".picture svg")).to_be_hidden()
        page.keyboard.press("+")  # does nothing, because there is no picture yet
        held.pop().continue_()
        expect(page.locator(".picture svg")).to_be_visible()
        expect(page.locator(".picture .is-waiting")).to_have_count(0)
