"""Test the SQL page: it is off by default, links tensors, and shows errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.sql_sandbox import Sandbox
from tfdbg_arrow.viewer.logdir_search import LogdirSearch, key_of
from tfdbg_arrow.viewer.pages.sql import _EDITOR, EXAMPLES, SqlBox, read_sql
from tfdbg_arrow.viewer.rendering import static_files
from tfdbg_arrow.viewer.saved_queries import SavedQueries, default_directory
from tfdbg_arrow.viewer.sites import Sites

from . import logdirs
from .browser import chromium, watched_page
from .serving import TOKEN, Served, serving, serving_sites

pytestmark = pytest.mark.slow


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
        sql_box = SqlBox(sandbox=Sandbox(path), saved=SavedQueries(path.with_name("queries")))
        page = read_sql(logdir, sql_box, example.query)  # type: ignore[attr-defined]
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


def _form(**fields: str) -> bytes:
    return urlencode(fields).encode()


def test_a_query_is_saved_opened_changed_and_deleted(path: Path) -> None:
    with (
        serving(path, sandbox=Sandbox(path)) as server,
        chromium() as browser,
        watched_page(browser) as page,
    ):
        page.goto(f"{server.url}/sql?token={TOKEN}")
        expect(page.get_by_text("None yet.")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("SELECT 1 AS one")
        page.get_by_label("Name", exact=True).fill("Ones, 50 %")
        page.get_by_role("button", name="Save").click()
        assert page.locator("input:invalid").count() == 1  # the browser asks for another name
        assert not [*path.parent.rglob("*.sql")]
        page.get_by_label("Name", exact=True).fill("Ones (all)")
        page.get_by_role("button", name="Save").click()
        page.wait_for_url("**/sql?query=SELECT+1*")
        expect(page.locator(".result tbody tr")).to_have_count(1)
        file = path.with_name("queries") / "Ones (all).sql"
        assert file.read_text() == "SELECT 1 AS one"
        file.write_text("SELECT 1 AS one UNION SELECT 2")
        page.goto(f"{server.url}/sql")
        page.get_by_role("link", name="Ones (all)").click()
        expect(page.locator(".result tbody tr")).to_have_count(2)
        expect(page.get_by_label("Name", exact=True)).to_have_value("Ones (all)")
        page.get_by_role("button", name="Delete “Ones (all)”").click()
        expect(page.get_by_text("None yet.")).to_be_visible()
        assert page.locator("#query").input_value() == "SELECT 1 AS one UNION SELECT 2"  # to be saved again
        assert not file.exists()


@pytest.mark.parametrize("name", ["", " ", "../up", "/etc/x", "a/b", ".hidden", "a.", "x" * 81, "a\0b", "a\nb", "é"])
def test_a_name_that_is_no_file_name_is_refused(path: Path, served: Served, name: str) -> None:
    for action in ("save", "delete"):
        answer = served.ask(f"/sql.{action}", method="POST", body=_form(name=name, query="SELECT 1"))
        assert answer.status == 400
    assert not [*path.parent.rglob("*.sql")]


def test_a_query_that_is_too_large_or_has_no_text_is_not_saved(path: Path, served: Served) -> None:
    for size, status in ((0, 400), (10_001, 400), (100_000, 413)):
        assert served.ask("/sql.save", method="POST", body=_form(name="n", query="x" * size)).status == status
    assert not [*path.parent.rglob("*.sql")]


def test_other_files_are_no_saved_queries(tmp_path: Path) -> None:
    saved = SavedQueries(tmp_path / "queries")
    assert saved.read() == ()
    saved.save("naive", "SELECT 'é'\r\n")
    (saved.directory / "notes.txt").write_text("SELECT 1")
    (saved.directory / ".hidden.sql").write_text("SELECT 1")
    (saved.directory / "directory.sql").mkdir()
    (saved.directory / "Bytes.sql").write_bytes(b"SELECT '\xff'")
    (saved.directory / "long.sql").write_bytes(b"-" * 10_001)
    assert [(query.name, query.query) for query in saved.read()] == [
        ("Bytes", "SELECT '\ufffd'"),
        ("naive", "SELECT 'é'\n"),
    ]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QueryError, match=r"file/a\.sql cannot be changed: .*--queries"):
        SavedQueries(tmp_path / "file").save("a", "SELECT 1")


def test_saved_queries_are_in_the_data_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_directory() == Path("/home/somebody/.local/share/tfdbg_arrow/queries")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_directory() == Path("/data/tfdbg_arrow/queries")


def test_each_of_several_logdirs_has_the_page_and_all_share_the_saved_queries(tmp_path: Path) -> None:
    paths = [logdirs.log_of_zero(tmp_path / name) for name in ("a", "b")]
    saved = SavedQueries(tmp_path / "queries")
    sites = Sites(LogdirSearch(paths), sql_box_of=lambda path: SqlBox(sandbox=Sandbox(path), saved=saved))
    with serving_sites(sites) as server:
        first, second = (f"/{key_of(path)}/sql" for path in paths)
        assert server.ask(f"{first}.json?query=SELECT+count(*)+FROM+run").json["answer"]["rows"] == [[1]]
        answer = server.ask(f"{first}.save", method="POST", body=_form(name="one", query="SELECT 1", run="run-a"))
        assert (answer.status, answer.headers["location"]) == (303, "./sql?query=SELECT+1&name=one&run=run-a")
        page = server.ask(f"{second}.json").json
        assert (page["saved"], page["directory"]) == ([{"name": "one", "query": "SELECT 1"}], str(tmp_path / "queries"))
        assert server.ask("/nowhere/sql.save", method="POST", body=_form(name="one", query="SELECT 1")).status == 404
    with serving_sites(Sites(LogdirSearch(paths))) as server:
        assert server.ask(first).status == 404
        assert server.ask(f"{first}.save", method="POST", body=_form(name="two", query="SELECT 1")).status == 404
    assert [query.name for query in saved.read()] == ["one"]


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
