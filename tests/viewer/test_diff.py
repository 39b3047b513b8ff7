"""Test the page that compares two runs: the map of layers, both sides of the first divergence, slow comparisons."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import diff, layer_differences, open_logdir
from tfdbg_arrow.viewer import comparison
from tfdbg_arrow.viewer.background import InTurn
from tfdbg_arrow.viewer.logdir_search import key_of
from tfdbg_arrow.viewer.page import Parameters, TookTooLongError
from tfdbg_arrow.viewer.pages import diff as diff_module
from tfdbg_arrow.viewer.pages.diff import DiffPage
from tfdbg_arrow.viewer.sites import pair_of

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs
from .browser import place_of, watched_page
from .serving import TOKEN, Served, serving, serving_sites

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logdirs.two_runs(tmp_path_factory.mktemp("logdir"))


def page_of(path: Path, **parameters: str) -> DiffPage:
    """Returns the page of a comparison of run-a with run-b, if the parameters name no other run."""
    with open_logdir(path) as logdir:
        asked = Parameters({"run": "run-a", "other": "run-b", **parameters})
        page = diff_module.PAGE.read(logdir, asked)
        return diff_module.complete(InTurn(logdir, budget_s=1000), page, asked)


def test_both_sides_of_the_first_divergence_with_their_lines(path: Path) -> None:
    page = page_of(path)
    assert page.diff == diff(path, run_a="run-a", run_b="run-b")
    assert page.layers == layer_differences(path, run_a="run-a", run_b="run-b")
    assert page.layers is not None
    assert (
        page.headline
        == page.layers.sentence
        == (
            "The runs are apart from the first execution on, first in line train.py:4, in execution 0: "
            "share of zeros 0 % in A against 50 % in B."
        )
    )
    assert (
        page.op_sentence
        == "The first divergence: Square:0 (Square) has different numbers of negative, zero or positive elements."
    )
    assert page.source_a is not None
    assert page.source_b is not None
    assert (page.source_a.run_id, page.source_b.run_id) == ("run-a", "run-b")
    assert [source.frame.lineno for source in (page.source_a, page.source_b)] == [4, 4]
    assert page.known_next == "Square"
    assert page.command == f"tfdbg-arrow diff {path} --run-a run-a --run-b run-b"


def test_the_next_divergence_behind_a_known_one(path: Path) -> None:
    page = page_of(path, known="Square")
    assert page.diff is not None
    assert page.diff.divergence is not None
    assert page.diff.divergence.a.op_name == "Sqrt"
    assert page.known_next == "Square|Sqrt"


def test_last_step_limits_the_comparison(path: Path) -> None:
    page = page_of(path, last_step="0")
    assert page.diff == diff(path, run_a="run-a", run_b="run-b", last_step=0)
    assert page.command == f"tfdbg-arrow diff {path} --run-a run-a --run-b run-b --last-step 0"


def test_a_comparison_needs_two_chosen_runs(path: Path) -> None:
    page = page_of(path, other="")
    assert (page.diff, page.headline, page.run_ids) == (None, "Choose two runs to compare.", ("run-a", "run-b"))
    with pytest.raises(QueryError, match="run and other are both run-a; choose two runs"):
        page_of(path, other="run-a")


def test_an_error_of_the_comparison_is_raised(path: Path) -> None:
    with pytest.raises(QueryError, match="which is not a valid regular expression"):
        page_of(path, known="(")


def test_the_failure_of_a_slow_comparison_names_the_command_and_no_file_is_left(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(diff_module, "TIMEOUT_S", 0.01)
    page = page_of(path, known="S.*")
    assert page.headline == "The runs could not be compared."
    wanted = r"longer than 0\.01 seconds and was stopped; .* tfdbg-arrow diff .* --run-b run-b --known 'S.*'"
    assert re.search(wanted, page.failures[0])
    assert [entry for entry in tmp_path.iterdir() if "diff" in entry.name] == []
    with comparison._running:
        assert page_of(path).failures[0].startswith("another comparison is still running")


def test_the_failure_of_a_process_that_ends_without_an_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    (failure,) = page_of(path).failures
    assert re.search(r"ended without an answer \(exit code 1; .* tfdbg-arrow diff", failure)


def test_the_server_still_works_after_a_slow_comparison(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_module, "answer_of", _without_ops)
    monkeypatch.setattr(diff_module, "WAIT_S", 20)
    with serving(path) as served:
        answer = served.ask("/diff?run=run-a&other=run-b")
        assert answer.status == 200
        assert "tfdbg-arrow diff LOGDIR" in answer.text
        found = served.ask("/diff.json?run=run-a&other=run-b").json
        assert found["diff"] is None
        assert found["layers"]["first_parting"]["measure"] == "zero_share"
        assert found["failures"] == ["the comparison took too long; run this command instead: tfdbg-arrow diff LOGDIR"]
        assert served.ask("/runs").status == 200


def _without_ops(compare: Any, asked: comparison.Comparison, *, timeout_s: float) -> Any:
    if compare is comparison.compare_ops:
        raise TookTooLongError("the comparison took too long; run this command instead: tfdbg-arrow diff LOGDIR")
    return comparison.answer_of(compare, asked, timeout_s=timeout_s)


def test_the_page_has_links_to_both_sides(path: Path) -> None:
    with serving(path) as served:
        text = served.ask("/diff?run=run-a&other=run-b&wait=1").text
        assert "/tensor?run=run-a&amp;event=2" in text
        assert "/tensor?run=run-b&amp;event=2" in text
        assert (
            served.ask("/diff.json?run=run-a&other=run-c").json["error"]["message"].startswith("run 'run-c' is not in")
        )


def training(path: Path, *, changed_from: int | None, run_id: str) -> Path:
    """Writes a run of the layers `net/a` and `net/b`. From step `changed_from` on, `net/b` has other values."""
    run = RunBuilder(run_id, tensor_debug_mode="FULL_NUMERICS")
    graph = run.graph("step")
    for name in ("a", "b"):
        graph.op(name, "Mul", layer=f"net/{name}", role="forward")
    graph.op("db", "Mul", ["b"], layer="net/b", role="gradient", forward_graph_id=graph.graph_id, forward_op_name="b")
    for step in range(20):
        for name in ("a", "b", "db"):
            is_changed = changed_from is not None and step >= changed_from and name != "a"
            value = 50.0 if is_changed else 2.0
            numbers = {"max_abs_finite": value, "mean_finite": value, "stddev_finite": 0.0, "size": 4}
            is_bad = is_changed and step >= 15 and name == "db"
            run.tensor(graph, name, {**(NAN if is_bad else {**CLEAN, **numbers}), "step": step})
    return run.write(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("pair")
    return (
        training(path / "a", changed_from=None, run_id="run-a"),
        training(path / "b", changed_from=12, run_id="run-b"),
    )


@pytest.fixture(scope="module")
def served(pair: tuple[Path, Path]) -> Iterator[Served]:
    with serving_sites(pair_of(*map(str, pair))) as server:
        yield server


def test_two_logdirs_with_a_run_each_are_compared_at_once(pair: tuple[Path, Path], served: Served) -> None:
    home = served.ask("/")
    key, other = map(key_of, pair)
    assert (home.status, home.headers["location"]) == (303, f"{key}/diff")
    page = served.ask(f"/{key}/diff.json").json
    assert page["layers"]["sentence"] == (
        "The layer net/b parted first, in step 12: largest magnitude 2 in A against 50 in B."
    )
    assert (page["run_a"], page["run_b"], page["other"]) == ("run-a", "run-b", f"{other}:run-b")
    assert page["command"] == f"tfdbg-arrow diff {pair[0]} {pair[1]} --run-a run-a --run-b run-b"
    swapped = served.ask(f"/{other}/diff.json?run=run-b&other={key}:run-a").json
    assert swapped["layers"]["sentence"].endswith("largest magnitude 50 in A against 2 in B.")
    text = served.ask(f"/{key}/diff?wait=1").text
    assert f'href="../{other}/tensor?run=run-b&amp;event=' in text
    assert f'<option value="{other}:run-b" selected>{pair[1]}: run-b</option>' in text
    assert served.ask(f"/{key}/diff?other={other}:run-x").status == 404
    assert served.ask(f"/{key}/diff?measure=nothing").status == 400
    assert f'href="{key}/diff"' in served.ask("/logdirs").text


def test_the_map_in_a_browser(pair: tuple[Path, Path], served: Served, browser: Browser) -> None:
    key, other = map(key_of, pair)
    with watched_page(browser, viewport={"width": 1280, "height": 900}) as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        page.wait_for_url(f"**/{key}/diff")
        expect(page.locator("h1")).to_contain_text("The layer net/b parted first, in step 12", timeout=60_000)
        expect(page.locator("[data-pending]")).to_have_count(0, timeout=60_000)
        expect(page.locator(".map-name.is-origin")).to_have_text("b")
        expect(page.locator(".worst tr.is-origin")).to_contain_text("net/b parted first")
        expect(page.locator(".legend")).to_contain_text("where the runs parted")
        place = place_of(page, "layer net/b forward", 12.5 / 20)
        page.mouse.move(*place)
        tip = page.locator(".chart-tip")
        expect(tip).to_contain_text("step 12")
        expect(tip.locator("tr", has_text="Largest magnitude").locator("td")).to_have_text(
            ["Largest magnitude", "2 in A, 50 in B, +96 %"]
        )
        page.mouse.move(*place_of(page, "layer net/b gradient", 16.5 / 20))
        expect(tip.locator("tr.bad td")).to_have_text(["✕ bad tensors", "0 in A, 1 in B"])
        page.mouse.move(*place)
        page.keyboard.down("Shift")
        page.mouse.click(*place)
        page.keyboard.up("Shift")
        page.wait_for_url(f"**/{other}/tensors?run=run-b&layer=net%2Fb&side=forward&first_step=12&last_step=12")
        expect(page.locator("table.rows tbody tr")).to_have_count(1)
        page.go_back()
        page.get_by_role("link", name="Norm").click()
        page.wait_for_url("**&measure=norm")
        expect(page.locator(".legend")).to_contain_text("Norm")
        page.locator("#map").focus()
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("step 11")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/{key}/tensors?run=run-a&layer=net%2Fb&side=forward&first_step=11&last_step=11")
        page.go_back()
        page.keyboard.press("+")
        page.wait_for_url("**first=**")
        expect(page.locator("h1")).to_contain_text("in step 12", timeout=60_000)


def test_the_page_fits_small_windows_and_works_without_javascript(
    pair: tuple[Path, Path], served: Served, browser: Browser
) -> None:
    with watched_page(browser, viewport={"width": 400, "height": 800}, color_scheme="dark") as page:
        page.goto(f"{served.url}/?token={TOKEN}")
        expect(page.locator("[data-pending]")).to_have_count(0, timeout=60_000)
        assert page.evaluate("document.documentElement.scrollWidth") == 400
    with watched_page(browser, java_script_enabled=False) as page:
        page.goto(f"{served.url}/{key_of(pair[0])}/diff?token={TOKEN}")
        expect(page.locator(".map")).to_contain_text("parted here", timeout=60_000)


def test_a_comparison_ends_with_its_server() -> None:
    child = (
        "import os, time; from tfdbg_arrow.viewer.comparison import end_with; end_with({}); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    server = (
        "import os, subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {child!r}.format(os.getpid())]); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        process.kill()
        assert process.stdout.read() == "", "the child must end soon: it holds the other end of the pipe"
