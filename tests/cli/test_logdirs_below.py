"""Test what commands say about a directory that is no logdir but has logdirs below it."""

from __future__ import annotations

import html
import json
import os
import re
import urllib.error
import urllib.parse
from pathlib import Path

import pytest

from tfdbg_arrow.cli import command
from tfdbg_arrow.errors import NoLogdirError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.logdirs import read_summaries
from tfdbg_arrow.storage.search import LogdirsBelow, find_logdirs

from ..query.builder import CLEAN, NAN, RunBuilder
from .commands import run_cli
from .running import viewing


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the answers independent of the speed of the machine."""
    monkeypatch.setattr(command, "_MAX_READ_S", 60.0)
    monkeypatch.setattr(read_summaries, "__kwdefaults__", {**read_summaries.__kwdefaults__, "max_seconds": 60.0})
    monkeypatch.setattr(find_logdirs, "__kwdefaults__", {**find_logdirs.__kwdefaults__, "max_seconds": 60.0})


def make(path: Path, *, at_s: int, is_bad: bool = False, runs: tuple[str, ...] = ("run-a",)) -> Path:
    for run_id in runs:
        run = RunBuilder(run_id)
        run.tensor(run.graph("f").op("x", "Mul"), "x", NAN if is_bad else CLEAN)
        run.write(path)
    for file in (*path.glob("manifest*"), *path.glob("manifest/*"), path / "tfdbg_arrow.json"):
        os.utime(file, (at_s, at_s))
    return path


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A directory with an old healthy logdir and a new bad one, of two runs, and what looks like logdirs."""
    parent = tmp_path / "parent"
    make(parent / "old", at_s=1_000_000_000)
    new = make(parent / "2026" / "new", at_s=1_700_000_000, is_bad=True, runs=("run-a", "run-b"))
    make(parent / ".hidden", at_s=1_800_000_000)
    make(new / "inside", at_s=1_800_000_000)
    (parent / "link").symlink_to(new)
    (parent / "2026" / "loop").symlink_to(parent)
    (parent / "tfdbg_arrow.json").mkdir()
    return parent


@pytest.mark.parametrize("name", ["first-nonfinite", "why", "alerts", "coverage", "verify", "recover", "report"])
def test_the_error_names_the_logdirs_newest_first(parent: Path, name: str) -> None:
    result = run_cli(name, parent)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"tfdbg-arrow: {parent} is not a logdir of tfdbg_arrow: it has no tfdbg_arrow.json; "
        "2 logdirs are below it, newest first:\n"
        f"    {parent}/2026/new  2 runs, changed 2023-11-14 22:13:20 UTC, has bad tensors\n"
        f"    {parent}/old  1 run, changed 2001-09-09 01:46:40 UTC, nothing is bad\n"
    )


def test_the_exception_names_them_in_one_line(parent: Path) -> None:
    with pytest.raises(NoLogdirError, match=r"newest first: .*/2026/new .2 runs., .*/old .1 run.[.]$") as caught:
        open_logdir(parent)
    assert [logdir.path for logdir in caught.value.below.logdirs] == [parent / "2026" / "new", parent / "old"]


def test_info_lists_them(parent: Path) -> None:
    result = run_cli("info", parent)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        [f"{parent}/2026/new", "2023-11-14", "22:13:20", "has", "bad", "tensors", "2"],
        [f"{parent}/old", "2001-09-09", "01:46:40", "nothing", "is", "bad", "1"],
    ]
    listed = json.loads(run_cli("info", parent, "--json").stdout)
    assert listed == {
        "path": str(parent),
        "logdirs": [
            {"path": f"{parent}/2026/new", "num_runs": 2, "wall_time_ns": 17 * 10**17, "is_bad": True},
            {"path": f"{parent}/old", "num_runs": 1, "wall_time_ns": 10**18, "is_bad": False},
        ],
        "is_cut": False,
    }


def test_info_of_a_directory_without_logdirs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = run_cli("info", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("it has no tfdbg_arrow.json; give the directory that a recording wrote.\n")


def test_a_damaged_logdir_is_listed_as_not_read(tmp_path: Path) -> None:
    logdir = make(tmp_path / "damaged", at_s=1_000_000_000)
    (logdir / "tfdbg_arrow.json").write_text("not JSON")
    assert "not read" in run_cli("first-nonfinite", tmp_path).stderr


def test_the_search_is_bounded_and_says_so(tmp_path: Path) -> None:
    for index in range(30):
        (tmp_path / f"{index:02}" / "a").mkdir(parents=True)
    make(tmp_path / "29" / "a" / "b", at_s=1_000_000_000)
    cut = find_logdirs(tmp_path, max_directories=10)
    assert (cut.logdirs, cut.num_searched, cut.is_cut) == ((), 10, True)
    assert find_logdirs(tmp_path, max_entries=20).is_cut
    assert find_logdirs(tmp_path, max_depth=2).logdirs == ()
    assert find_logdirs(tmp_path, max_seconds=0) == LogdirsBelow(path=tmp_path, logdirs=(), num_searched=0, is_cut=True)
    whole = find_logdirs(tmp_path, max_depth=3)
    assert ([logdir.path for logdir in whole.logdirs], whole.is_cut) == ([tmp_path / "29" / "a" / "b"], False)


def test_a_cut_search_is_part_of_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_logdirs, "__kwdefaults__", {**find_logdirs.__kwdefaults__, "max_directories": 1})
    (tmp_path / "a").mkdir()
    assert "the search for logdirs below it stopped after 1 directory" in run_cli("info", tmp_path).stderr


def test_view_of_several_logdirs_refuses_to_choose_a_run(parent: Path) -> None:
    result = run_cli("view", parent, "--no-open", "--run", "run-a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"tfdbg-arrow: --run needs one logdir, and {parent} is not one; give one of ")


@pytest.mark.slow
def test_view_serves_a_list_and_the_pages_of_each_logdir(parent: Path) -> None:
    with viewing(str(parent)) as (printed, opener):
        root = printed["url"].partition("?")[0]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            opener.open(root, timeout=60)
        with opener.open(printed["url"], timeout=60) as answer:
            assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert "2026/new" in answer.read().decode()
        with opener.open(f"{root}logdirs.json", timeout=60) as answer:
            rows = json.load(answer)["rows"]
        assert [(row["name"], row["summary"]["num_runs"]) for row in rows] == [("2026/new", 2), ("old", 1)]
        for row, verdict in zip(rows, ("NaN came up in x:0", "Nothing is bad"), strict=True):
            with opener.open(f"{root}{row['url']}", timeout=60) as answer:
                page = answer.read().decode()
            assert verdict in page
            for link in set(re.findall(r'(?:href|src)="([^"#]+)', page)):
                with opener.open(urllib.parse.urljoin(f"{root}{row['url']}", html.unescape(link)), timeout=60):
                    pass
