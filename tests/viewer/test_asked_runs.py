"""Test which run the pages show: the newest by default, as the command line does."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.viewer.reading import Reader
from tfdbg_arrow.viewer.report import read_report, render_report
from tfdbg_arrow.viewer.site import Site

from ..query.builder import CLEAN, NAN
from ..query.test_asked_runs import run_of

NEWS = (
    '<b class="is-good">Clean.</b> This is the newest of 2 runs. '
    "The other run recorded bad values: train.py · 22:13 · bad values."
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The pages of a logdir in which a run went bad, and a later run is healthy."""
    run_of("z-old", NAN, start_s=0, end_s=10).write(tmp_path)
    run_of("a-new", CLEAN, start_s=20, end_s=30).write(tmp_path)
    with contextlib.closing(Reader(tmp_path, timeout_s=600)) as reader:
        yield Site(reader)


def page(site: Site, name: str, **parameters: str) -> Any:
    answer = site.answer(f"/{name}.json", parameters)
    assert answer.status == 200, answer.content
    return json.loads(answer.content)


@pytest.mark.parametrize("name", ["model", "executions", "tensors", "graph", "source", "tensor", "history"])
def test_a_page_about_one_run_shows_the_newest(site: Site, name: str) -> None:
    def run_of_page(**parameters: str) -> str | None:
        found = page(site, name, **({"event": "0"} if name in ("tensor", "history") else {}), **parameters)
        run_id = found["tensor"]["run_id"] if name == "tensor" else found["run_id"]
        return None if run_id is None else str(run_id)

    assert run_of_page() == "a-new"
    assert run_of_page(run="z-old") == "z-old"
    assert run_of_page(run="all") == "z-old"  # this run went bad first


@pytest.mark.slow
def test_the_overview_and_the_alerts_are_about_the_newest_run(site: Site) -> None:
    assert (page(site, "overview")["verdict"], page(site, "alerts")["num_found"]) == ("healthy", 0)
    for run in ("z-old", "all"):
        assert page(site, "overview", run=run)["origin"]["run_id"] == "z-old"
        assert page(site, "alerts", run=run)["num_found"] > 0
    assert page(site, "overview")["about"] == {
        "run_ids": ["a-new"],
        "is_newest": True,
        "num_others": 1,
        "num_bad_others": 1,
    }
    assert len(page(site, "runs")["rows"]) == 2


def test_the_overview_of_a_healthy_run_says_what_was_bad_before(site: Site) -> None:
    before = page(site, "overview")["before"]
    assert (before["run_id"], before["num_nan"]) == ("z-old", 1)
    assert page(site, "overview", run="z-old")["before"] is None
    text = site.answer("/overview", {"wait": "1"}).content.decode()
    assert re.search(r'In the last bad run: <a href="/\?run=z-old">[^<]*NaN', text), text


def test_a_page_says_which_run_it_shows_and_the_menu_selects_it(site: Site) -> None:
    text = site.answer("/overview", {"wait": "1"}).content.decode()
    assert f'<p class="news">{NEWS} <a href="/runs">All runs</a></p>' in text
    assert '<option value="">the newest run</option>' in text
    assert '<option value="all">all 2 runs</option>' in text
    of_all = site.answer("/tensors", {"run": "all"}).content.decode()
    assert '<option value="all" selected>all 2 runs</option>' in of_all
    assert "About run" not in of_all
    of_old = site.answer("/tensors", {"run": "z-old"}).content.decode()
    assert "About run z-old. The other run recorded no bad value." in of_old


def test_all_lists_of_runs_begin_with_the_oldest(tmp_path: Path) -> None:
    oldest_first = ["middle", "z-last", "a-first"]
    for run_id, start_s in (("a-first", 40), ("middle", 0), ("z-last", 20)):
        run_of(run_id, NAN, start_s=start_s, end_s=start_s + 10).write(tmp_path)
    with contextlib.closing(Reader(tmp_path, timeout_s=600)) as reader:
        site = Site(reader)
        for name in ("overview", "model", "runs", "diff"):
            for parameters in ({}, {"run": "all"}) if name != "diff" else ({},):
                text = site.answer(f"/{name}", {"wait": "1", **parameters}).content.decode()
                menus = re.findall(r'<select[^>]* name="(?:run|other)".*?</select>', text, re.DOTALL)
                values = [re.findall(r'<option value="([^"]+-[^"]+|middle)"', menu) for menu in menus]
                assert values == [oldest_first] * len(menus)
                assert menus
        assert [row["summary"]["run"]["run_id"] for row in page(site, "runs")["rows"]] == oldest_first
        assert [summary["run"]["run_id"] for summary in page(site, "overview")["runs"]] == oldest_first


def test_a_page_says_whether_the_run_is_fixed(tmp_path: Path) -> None:
    run_of("first", NAN, start_s=0, end_s=10).write(tmp_path)
    with contextlib.closing(Reader(tmp_path, timeout_s=600)) as reader:
        text = Site(reader).answer("/model", {}).content.decode()
    assert '<p class="news">This is the only run.</p>' in text
    run_of("second", CLEAN, start_s=20, end_s=30).write(tmp_path)
    with contextlib.closing(Reader(tmp_path, timeout_s=600)) as reader:
        text = Site(reader).answer("/model", {"run": "first"}).content.decode()
        assert re.findall(r"There is[^<]*", text) == ["There is a newer run without bad values: train.py · 22:13. "]
        assert "Not fixed" not in text
        assert '"news"' not in Site(reader).answer("/model", {"run": "all"}).content.decode()
    run_of("third", NAN, start_s=40, end_s=50).write(tmp_path)
    with contextlib.closing(Reader(tmp_path, timeout_s=600)) as reader:
        text = Site(reader).answer("/model", {}).content.decode()
    assert '<b class="is-bad">Not fixed.</b> This is the newest of 3 runs. 1 of the 2 other runs recorded' in text


def test_the_first_bad_run_after_healthy_runs_is_not_called_unfixed(tmp_path: Path) -> None:
    run_of("first", CLEAN, start_s=0, end_s=10).write(tmp_path)
    run_of("second", NAN, start_s=20, end_s=30).write(tmp_path)
    with contextlib.closing(Reader(tmp_path, timeout_s=600)) as reader:
        text = Site(reader).answer("/model", {}).content.decode()
    assert '<p class="news">This is the newest of 2 runs. The other run recorded no bad value.' in text


@pytest.mark.slow
def test_the_report_is_about_the_newest_run(site: Site) -> None:
    with open_logdir(site.reader.path) as logdir:
        report = read_report(logdir)
        assert report.overview.verdict == "healthy"
        assert NEWS in render_report(report)[0]
        assert read_report(logdir, run_id="all").overview.verdict == "bad"
