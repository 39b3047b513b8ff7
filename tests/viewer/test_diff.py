"""Test the page that compares two runs: both sides of the first divergence, and comparisons that take too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import diff, open_logdir
from tfdbg_arrow.viewer import comparison
from tfdbg_arrow.viewer.page import NoAnswerError, TookTooLongError
from tfdbg_arrow.viewer.pages.diff import DiffPage, read_diff

from . import logdirs
from .serving import serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logdirs.two_runs(tmp_path_factory.mktemp("logdir"))


def page_of(path: Path, **arguments: Any) -> DiffPage:
    with open_logdir(path) as logdir:
        return read_diff(logdir, **arguments)


def test_both_sides_of_the_first_divergence_with_their_lines(path: Path) -> None:
    page = page_of(path, run_a="run-a", run_b="run-b")
    assert page.diff == diff(path, run_a="run-a", run_b="run-b")
    assert (
        page.headline
        == "The first divergence: Square:0 (Square) has different numbers of negative, zero or positive elements."
    )
    assert page.source_a is not None
    assert page.source_b is not None
    assert (page.source_a.run_id, page.source_b.run_id) == ("run-a", "run-b")
    assert [source.frame.lineno for source in (page.source_a, page.source_b)] == [4, 4]
    assert page.known_next == "Square"
    assert page.command == f"tfdbg-arrow diff {path} --run-a run-a --run-b run-b"


def test_the_next_divergence_behind_a_known_one(path: Path) -> None:
    page = page_of(path, run_a="run-a", run_b="run-b", known="Square")
    assert page.diff is not None
    assert page.diff.divergence is not None
    assert page.diff.divergence.a.op_name == "Sqrt"
    assert page.known_next == "Square|Sqrt"


def test_last_step_limits_the_comparison(path: Path) -> None:
    page = page_of(path, run_a="run-a", run_b="run-b", last_step=0)
    assert page.diff == diff(path, run_a="run-a", run_b="run-b", last_step=0)
    assert page.command == f"tfdbg-arrow diff {path} --run-a run-a --run-b run-b --last-step 0"


def test_a_comparison_needs_two_chosen_runs(path: Path) -> None:
    page = page_of(path, run_a="run-a")
    assert (page.diff, page.headline, page.run_ids) == (None, "Choose two runs to compare.", ("run-a", "run-b"))
    with pytest.raises(QueryError, match="run and other are both run-a; choose two runs"):
        page_of(path, run_a="run-a", run_b="run-a")


def test_an_error_of_the_comparison_is_raised(path: Path) -> None:
    with pytest.raises(QueryError, match="which is not a valid regular expression"):
        page_of(path, run_a="run-a", run_b="run-b", known="(")


def test_the_error_for_a_slow_comparison_names_the_command_and_no_file_is_left(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(
        TookTooLongError,
        match=r"longer than 0\.01 seconds and was stopped; .* tfdbg-arrow diff .* --run-b run-b --known 'S.*'",
    ):
        page_of(path, run_a="run-a", run_b="run-b", known="S.*", timeout_s=0.01)
    assert [entry for entry in tmp_path.iterdir() if "diff" in entry.name] == []
    with comparison._running, pytest.raises(TookTooLongError, match="another comparison is still running"):
        page_of(path, run_a="run-a", run_b="run-b", timeout_s=0.01)


def test_the_error_for_a_process_that_ends_without_an_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(NoAnswerError, match=r"ended without an answer \(exit code 1; .* tfdbg-arrow diff"):
        page_of(path, run_a="run-a", run_b="run-b")


def test_the_server_still_works_after_a_slow_comparison(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.viewer.pages.diff.compare", _slow)
    with serving(path) as served:
        answer = served.ask("/diff?run=run-a&other=run-b")
        assert answer.status == 503
        assert "tfdbg-arrow diff LOGDIR" in answer.text
        assert served.ask("/runs").status == 200


def _slow(*_: object, **__: object) -> None:
    raise TookTooLongError("the comparison took too long; run this command instead: tfdbg-arrow diff LOGDIR")


def test_the_page_has_links_to_both_sides(path: Path) -> None:
    with serving(path) as served:
        text = served.ask("/diff?run=run-a&other=run-b").text
        assert "/tensor?run=run-a&amp;event=2" in text
        assert "/tensor?run=run-b&amp;event=2" in text
        assert (
            served.ask("/diff.json?run=run-a&other=run-c").json["error"]["message"].startswith("run 'run-c' is not in")
        )
