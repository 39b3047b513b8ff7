"""Test that a notebook shows the report of a logdir in an isolated frame."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tfdbg_arrow.errors import QueryError, install_command
from tfdbg_arrow.query import open_logdir

from . import logdirs
from .browser import chromium, watched_page

pytestmark = pytest.mark.slow


def test_a_cell_that_ends_in_a_logdir_shows_its_report(tmp_path: Path) -> None:
    with open_logdir(logdirs.log_of_zero(tmp_path / "logdir")) as logdir:
        cell = logdir._repr_html_()
        shown = logdir.show(height=600)
        with pytest.raises(QueryError, match="run-z"):
            logdir.show(run_id="run-z")
    assert cell is not None
    assert "report of" in repr(shown)
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>notebook</title><h1>cells</h1>{cell}{shown._repr_html_()}", "utf-8")
    with chromium() as browser, watched_page(browser) as page:
        page.goto(notebook.as_uri())
        for frame in (page.frame_locator("iframe").first, page.frame_locator("iframe").nth(1)):
            expect(frame.get_by_role("heading", level=1).first).to_contain_text("made -Inf")
            expect(frame.get_by_role("heading", name="cells")).to_have_count(0)
        frame.locator("a[href='#tensor-0']").first.click()
        expect(frame.locator("#tensor-0")).to_have_attribute("open", "")
        assert (
            page.frames[1].evaluate("(() => { try { return parent.document.title } catch { return null } })()") is None
        )


def test_a_hostile_logdir_stays_in_its_frame(tmp_path: Path) -> None:
    with open_logdir(logdirs.hostile(tmp_path / "logdir")) as logdir:
        cell = logdir._repr_html_()
    assert cell is not None
    assert cell.startswith('<iframe sandbox="allow-scripts" srcdoc=\'')
    assert cell.count("<") == 2  # the tags of the iframe element
    assert cell.count("'") == 2


def test_without_the_packages_of_the_viewer_there_is_no_report(tmp_path: Path) -> None:
    path = logdirs.healthy(tmp_path / "logdir")
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from tfdbg_arrow.query import open_logdir\n"
        f"logdir = open_logdir({str(path)!r})\n"
        "assert logdir._repr_html_() is None\n"
        "try: logdir.show()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingDependencyError")
    assert install_command("viewer") in done.stdout


def test_answers_of_a_hostile_logdir_are_text_in_the_page_of_a_notebook(tmp_path: Path) -> None:
    with open_logdir(logdirs.hostile(tmp_path / "logdir")) as logdir:
        found = logdir.first_nonfinite()
        assert found is not None
        answers = [
            found,
            logdir.nonfinite(),
            logdir.provenance(found.event_index, run_id=found.run_id),
            logdir.alerts(),
        ]
        answers += [logdir.history(".*"), logdir.coverage(), logdir.info()]
        cells = [answer._repr_html_() for answer in answers]
    notebook = tmp_path / "notebook.html"
    notebook.write_text("<!doctype html><meta charset='utf-8'><title>notebook</title>" + "<hr>".join(cells), "utf-8")
    with chromium() as browser, watched_page(browser) as page:
        page.goto(notebook.as_uri())
        assert page.title() == "notebook"
        assert page.locator("script, img, iframe, a, form, link").count() == 0
        expect(page.get_by_role("table").first).to_be_visible()
        assert page.locator("hr").count() == len(cells) - 1
