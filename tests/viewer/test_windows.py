"""Test endless lists in a real browser: scrolling and jumping load rows, and the address follows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from ..query.builder import CLEAN, NAN, RunBuilder
from .browser import watched_page
from .serving import TOKEN, Served, serving

pytestmark = pytest.mark.slow

NUM_EXECUTIONS = 3000
BAD = (700, 2500)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves executions 0 to 2999, with one output each. Execution i is event 2 i, and its output is event 2 i + 1."""
    run = RunBuilder("run-a")
    stack = run.stack(("/me/train.py", 7, "train", "a + b", "user"))
    for number in range(NUM_EXECUTIONS):
        execution = run.execution("Mul" if number % 2 else "Log", outputs={number: "float32"}, stack=stack)
        run.eager(execution, NAN if number in BAD else CLEAN, tensor_id=number)
    with serving(run.write(tmp_path_factory.mktemp("logdir"))) as server:
        yield server


def opened(page: Page, served: Served, target: str) -> None:
    page.goto(f"{served.url}/alerts?token={TOKEN}")
    page.goto(served.url + target)


def scroll(page: Page, by: int) -> None:
    page.evaluate("by => document.querySelector('[data-pane]').scrollBy(0, by)", by)


def places(page: Page) -> list[int]:
    """Returns the indexes of the rows that are in the document."""
    found: list[int] = page.evaluate("[...document.querySelectorAll('tr[data-at]')].map(row => Number(row.dataset.at))")
    return found


@pytest.mark.parametrize(("target", "step"), [("/tensors", 2), ("/executions", 1)])
def test_scrolling_loads_rows_in_both_directions(browser: Browser, served: Served, target: str, step: int) -> None:
    with watched_page(browser) as page:
        opened(page, served, f"{target}?place=0&limit=250")
        first = int(page.locator("tr[data-at]").first.get_attribute("data-at") or 0)
        for before in (250, 500, 750):
            scroll(page, 100_000)
            page.wait_for_selector(f"tbody[data-before='{before}']", state="attached")
        assert places(page) == [first + step * number for number in range(500, 1000)]
        for before in (250, 0):
            scroll(page, -100_000)
            page.wait_for_selector(f"tbody[data-before='{before}']", state="attached")
        assert places(page) == [first + step * number for number in range(500)]


@pytest.mark.parametrize(("target", "first_bad"), [("/tensors", 1401), ("/executions", 700)])
def test_a_page_without_a_place_opens_at_the_first_bad_row(
    browser: Browser, served: Served, target: str, first_bad: int
) -> None:
    with watched_page(browser) as page:
        opened(page, served, target)
        expect(page.locator(f"tr[data-at='{first_bad}']")).to_be_in_viewport()
        page.get_by_role("link", name="first").click()
        page.wait_for_url("**?place=0")
        expect(page.get_by_text("1 to", exact=False).first).to_be_visible()
        page.reload()
        expect(page.locator("tr[data-at]").first).to_have_attribute("data-at", "1" if target == "/tensors" else "0")


def test_visible_rows_do_not_move_when_rows_are_added_above(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/tensors?at=2001")
        page.wait_for_selector("tbody[data-before='900']", state="attached")
        top = "document.querySelector('tr[data-at=\"2001\"]').getBoundingClientRect().top"
        head = "document.querySelector('.rows thead th').getBoundingClientRect().bottom"
        assert abs(page.evaluate(f"{top} - {head}")) < 2


def test_the_slider_jumps_to_a_place_and_changes_the_address(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/executions?op_type=Mul")
        slider = page.get_by_label("Place among all 1,500 rows")
        slider.fill("1000")
        page.wait_for_url("**/executions?op_type=Mul&at=2001")
        expect(page.get_by_role("heading", level=1)).to_contain_text(re.compile(r"1,001 to 1,0\d\d of 1,500"))
        page.reload()
        expect(slider).to_have_value("1000")
        page.wait_for_selector("tbody[data-before='900']", state="attached")
        scroll(page, -400)
        expect(slider).not_to_have_value("1000")
        page.get_by_role("link", name="last").click()
        expect(page.get_by_text("2,999", exact=True)).to_be_in_viewport()
        page.get_by_role("link", name="first").click()
        page.wait_for_url("**/executions?op_type=Mul&place=0")


@pytest.mark.parametrize(("target", "bad"), [("/tensors", [1401, 5001]), ("/executions", list(BAD))])
def test_n_and_p_cross_the_borders_of_windows(browser: Browser, served: Served, target: str, bad: list[int]) -> None:
    with watched_page(browser) as page:
        opened(page, served, target)
        lit = page.locator("tr:has(:focus)")
        for key, index in (("n", bad[0]), ("n", bad[1]), ("p", bad[0])):
            page.keyboard.press(key)
            expect(lit).to_have_attribute("data-at", str(index))
            expect(lit).to_be_in_viewport()


def test_without_a_focus_n_starts_at_the_visible_rows(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/executions?at=690")
        page.wait_for_selector("tbody[data-before='590']", state="attached")
        scroll(page, 600)
        page.wait_for_url(re.compile(r"at=7\d\d"))
        page.keyboard.press("n")
        expect(page.locator("tr:has(:focus)")).to_have_attribute("data-at", "2500")


def test_j_and_k_cross_the_borders_of_windows(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/executions?limit=5&at=1000")
        page.wait_for_selector("tbody[data-before='995']", state="attached")
        focused = page.locator("tr:has(:focus)")
        page.locator("tr[data-at='1002'] [data-item]").focus()
        for number in range(1003, 1012):
            page.keyboard.press("j")
            expect(focused).to_have_attribute("data-at", str(number))
        for number in range(1010, 993, -1):
            page.keyboard.press("k")
            expect(focused).to_have_attribute("data-at", str(number))


def test_details_of_an_execution_open_beside_the_list(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/executions")
        page.keyboard.press("n")
        expect(page.locator("tr:has(:focus)")).to_have_attribute("data-at", "700")
        page.keyboard.press("Enter")
        detail = page.locator("[data-detail]")
        expect(detail.get_by_role("heading", level=2).first).to_contain_text("execution 700")
        page.wait_for_url("**execution=700**")
        expect(page.locator("tr[aria-current]")).to_have_attribute("data-at", "700")
        page.get_by_label("next execution").click()
        expect(detail.get_by_role("heading", level=2).first).to_contain_text("execution 701")
        expect(page.get_by_label("next execution")).to_be_focused()
        page.reload()
        expect(page.locator("tr[aria-current]")).to_be_in_viewport()
        page.get_by_label("Close the detail").click()
        expect(detail).to_have_count(0)
        expect(page).not_to_have_url(re.compile("execution="))


def test_scrolling_works_after_new_data_replaced_the_page(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/executions?place=0")
        page.evaluate(
            """async () => {
              const next = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
              document.getElementById("main").replaceWith(document.importNode(next.getElementById("main"), true));
              document.dispatchEvent(new Event("content-changed"));
            }"""
        )
        scroll(page, 100_000)
        page.wait_for_selector("tbody[data-before='100']", state="attached")
        page.locator("tr[data-at='150'] [data-focus]").click()
        expect(page.locator("[data-detail]")).to_contain_text("execution 150")


def test_a_click_on_the_strip_jumps_to_its_place(browser: Browser, served: Served) -> None:
    with watched_page(browser) as page:
        opened(page, served, "/executions")
        page.locator(".strip a").nth(60).click()
        page.wait_for_url("**/executions?at=1500")
        expect(page.get_by_text("1,500", exact=True)).to_be_in_viewport()


def test_links_between_windows_without_javascript(browser: Browser, served: Served) -> None:
    with watched_page(browser, java_script_enabled=False) as page:
        opened(page, served, "/executions?op_type=Mul")
        page.get_by_role("link", name="after").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("101 to 200 of 1,500")
        page.get_by_role("link", name="before").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("1 to 100 of 1,500")
        page.locator("a[data-focus]").nth(3).click()
        expect(page.locator("[data-detail]")).to_contain_text("execution 7")
