"""Test the SQL page: it is off by default, links tensors, and shows errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.pages.sql import _EDITOR, EXAMPLES, read_sql
from tfdbg_arrow.viewer.rendering import static_files

from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, Served, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logdirs.log_of_zero(tmp_path_factory.mktemp("logdir"))


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[Served]:
    with serving(path, sandbox=Sandbox(path)) as server:
        yield server


def test_it_is_off_by_default(path: Path) -> None:
    with serving(path) as server:
        assert server.ask("/sql?query=SELECT+1").status == 404
        assert server.ask("/sql.csv?query=SELECT+1").status == 404
        assert "SQL page" not in server.ask("/").text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.title)
def test_the_examples_return_rows(path: Path, example: object) -> None:
    with open_logdir(path) as logdir:
        page = read_sql(logdir, Sandbox(path), example.query)  # type: ignore[attr-defined]
    assert page.error is None
    assert page.answer is not None
    assert page.answer.rows


def test_rows_of_tensors_link_to_them(served: Served) -> None:
    query = quote("SELECT run_id, event_index, op_name FROM tensor_health WHERE has_inf_or_nan ORDER BY 2")
    assert '<a href="/tensor?run=run-a&amp;event=3"' in served.ask(f"/sql?query={query}").text
    answer = served.ask(f"/sql.json?query={query}").json
    assert answer["answer"]["rows"][0] == ["run-a", 3, "Log"]
    assert served.ask(f"/sql.csv?query={query}").text.splitlines()[:2] == [
        '"run_id","event_index","op_name"',
        '"run-a",3,"Log"',
    ]


def test_a_refused_query_shows_an_error_and_stays_in_the_field(served: Served) -> None:
    query = "SELECT '</textarea><script>alert(1)</script>'\n, nothing_of_that_name"
    answer = served.ask(f"/sql?query={quote(query)}")
    assert answer.status == 200
    assert "Binder Error" in answer.text
    assert "<script>alert" not in answer.text
    assert "&lt;/textarea&gt;&lt;script&gt;" in answer.text
    refused = served.ask(f"/sql.csv?query={quote('DROP TABLE x')}")
    assert refused.status == 400
    assert "expected one SELECT, found DROP" in refused.text
    assert served.ask("/").status == 200


def test_other_pages_are_answered_during_a_slow_query_which_is_stopped(path: Path) -> None:
    sandbox = Sandbox(path, timeout_s=3)
    slow = quote("SELECT count(*) FROM range(100000000) AS a, range(100000) AS b")
    with serving(path, sandbox=sandbox) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, f"/sql?query={slow}")
        while not sandbox.is_busy:
            assert not asked.done()
        assert server.ask("/tensors").status == 200
        refused = server.ask("/sql.csv?query=SELECT+1")
        assert (refused.status, "another query is running" in refused.text) == (503, True)
        assert not asked.done()
        answer = asked.result()
        assert (answer.status, "took longer than 3 seconds" in answer.text) == (200, True)
        assert server.ask("/sql.csv?query=SELECT+1+AS+a").text == '"a"\r\n1\r\n'


@pytest.mark.parametrize(
    "query", ["SELECT list(range) FROM range(100000000)", "SELECT repeat('x', 100000) FROM range(500)"]
)
def test_a_huge_result_is_refused_and_the_server_still_works(path: Path, query: str) -> None:
    with serving(path, sandbox=Sandbox(path, memory_limit=64 << 20)) as server:
        answer = server.ask(f"/sql.csv?query={quote(query)}")
        assert answer.status == 400
        assert len(answer.body) < 10_000
        assert server.ask("/sql.json?query=SELECT+1").json["answer"]["rows"] == [[1]]


def test_every_page_shows_the_sql_behind_it(served: Served) -> None:
    text = served.ask("/tensors").text
    assert "The SQL behind this page" in text
    assert "FROM tensor_health" in text
    assert "Run on the SQL page" in text


def test_running_a_query_with_the_keyboard_and_copying_it(served: Served) -> None:
    with chromium() as browser, watched_page(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.keyboard.press("g")
        page.keyboard.press("q")
        page.wait_for_url("**/sql")
        page.keyboard.press("/")
        page.keyboard.type("SELECT op_name, num_nan FROM graph_tensor WHERE has_inf_or_nan ORDER BY event_index")
        page.keyboard.press("Control+Enter")
        page.wait_for_url("**/sql?query=*")
        expect(page.locator(".result tbody tr")).to_have_count(3)
        page.get_by_role("button", name="Copy as CSV").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()").splitlines()[1] == '"Log",0'
        page.goto(f"{served.url}/tensors")
        page.locator(".questions summary").click()
        page.locator(".questions").get_by_role("link", name="Run on the SQL page").first.click()
        expect(page.locator(".result tbody tr").first).to_be_visible()


def test_the_editor_completes_tables_and_columns(served: Served) -> None:
    with chromium() as browser, watched_page(browser) as page:
        page.goto(f"{served.url}/sql?query=SELECT+1&token={TOKEN}")
        page.keyboard.press("/")
        page.keyboard.press("Control+A")
        page.keyboard.type("SELECT * FROM tensor_hea")
        expect(page.locator(".CodeMirror-hint")).to_have_text(["tensor_health"])
        page.keyboard.press("Enter")
        page.keyboard.type(" AS h WHERE h.num_na")
        expect(page.locator(".CodeMirror-hint")).to_have_text(["h.num_nan"])
        page.keyboard.press("Enter")
        page.keyboard.type(" >= 0")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**num_nan*")
        expect(page.locator(".result tbody tr").first).to_be_visible()
        assert page.locator("#query").input_value() == "SELECT * FROM tensor_health AS h WHERE h.num_nan >= 0"


def test_the_files_of_the_editor_are_those_of_its_package() -> None:
    names = {name for name in static_files() if name.startswith("vendor/codemirror/")}
    assert names == {f"vendor/codemirror/{name}" for name in _EDITOR}


def test_a_long_cell_is_cut_and_unfolds_and_a_wide_result_scrolls_in_its_card(served: Served) -> None:
    columns = ", ".join(f"'{'word ' * 6}' AS c{number}" for number in range(30))
    query = quote(f"SELECT repeat('long ', 300) || 'end' AS text, {columns}")
    with chromium() as browser, watched_page(browser, viewport={"width": 400, "height": 700}) as page:
        page.goto(f"{served.url}/sql?query={query}&token={TOKEN}")
        cell = page.locator(".result details.cell")
        expect(cell.locator(".short")).to_have_text("long " * 16 + "…")
        expect(cell.locator("pre")).to_be_hidden()
        cell.locator("summary").click()
        expect(cell.locator("pre")).to_have_text("long " * 300 + "end")
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert page.locator(".scrolled").evaluate("(e) => e.scrollWidth > e.clientWidth")
