"""Test file operations that fail before a recording begins, or while a killed recording is read or recovered."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.checking import leftovers, sample
from tests.faults.server import Server
from tests.faults.shim import SHORT
from tests.recovery.checking import all_rows
from tests.recovery.driver import RUN_ID
from tfdbg_arrow import open_logdir, recover
from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.storage.layout import MARKER_NAME

NEVER = -1
ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, SHORT)


def numbers(names: Sequence[str], *, is_whole: bool, step: int = 1) -> Sequence[int]:
    """Returns the numbers of all operations, or of a sample: one operation of every `step`-th kind."""
    return range(len(names)) if is_whole else sample(names)[::step]


@pytest.fixture(scope="module")
def left(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The logdir of a killed process, and the counts of the process."""
    logdir = tmp_path_factory.mktemp("killed") / "logdir"
    done = server.do(what="record", logdir=logdir, phase="run", dies=True, first=NEVER, end=NEVER, error=0)
    assert done.status == 0, done.stderr
    return logdir, done.answer["counts"]


MODES = [pytest.param(False, id="some"), pytest.param(True, id="all", marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("is_whole", MODES)
def test_a_failure_before_the_recording_begins_refuses_it_or_loses_nothing(
    server: Server, tmp_path: Path, is_whole: bool
) -> None:
    job = {"what": "record", "phase": "start"}
    nothing = {"first": NEVER, "end": NEVER, "error": 0}
    whole = server.do(**job, logdir=tmp_path / "whole", **nothing)
    begun = server.do(**job | {"phase": "run"}, logdir=tmp_path / "begun", **nothing)
    # test_recording covers the operations after the beginning.
    names = whole.answer["operations"][: -len(begun.answer["operations"])]
    refused = 0
    for number in numbers(names, is_whole=is_whole, step=4):
        logdir = tmp_path / f"logdir{number}"
        done = server.do(**job, logdir=logdir, first=number, end=number + 1, error=ERRORS[number % 3])
        assert done.status == 0, done.stderr
        if "refused" in done.answer:
            refused += 1
            assert done.answer["refused"].startswith(
                ("LogdirError: ", "OSError: ", "SpoolError: ", "PermissionError: ")
            )
            if not (logdir / MARKER_NAME).exists():
                with pytest.raises(LogdirError):
                    open_logdir(logdir)
                continue
            before = all_rows(logdir)
            assert before["execution"] == []
            assert recover(logdir) is not None
            assert all_rows(logdir)["execution"] == []
        else:
            assert len(all_rows(logdir)["execution"]) == done.answer["counts"]["calls"]
        shutil.rmtree(logdir)
    assert refused


@pytest.mark.parametrize("is_whole", MODES)
def test_a_recovery_with_failing_operations_is_reported_and_can_be_repeated(
    server: Server, left: tuple[Path, dict[str, int]], tmp_path: Path, is_whole: bool
) -> None:
    source, counts = left
    whole = server.do(
        what="recover", logdir=shutil.copytree(source, tmp_path / "whole"), first=NEVER, end=NEVER, error=0
    )
    assert whole.answer["states"] == ["recovered"]
    for number in numbers(whole.answer["operations"], is_whole=is_whole, step=2):
        logdir = shutil.copytree(source, tmp_path / f"logdir{number}")
        done = server.do(
            what="recover", logdir=logdir, first=number, end=number + 1, error=ERRORS[number % len(ERRORS)]
        )
        what = f"operation {number}, {whole.answer['operations'][number]}: {done.answer}"
        assert (done.status, done.stderr) == (0, ""), done.stderr
        assert "error" in done.answer or done.answer["states"] in (["recovered"], ["failed"]), what
        if (logdir / "spool" / f"{RUN_ID}.journal").exists():
            check_recovery_again(logdir, counts)
        rows = all_rows(logdir)
        assert len(rows["execution"]) == counts["calls"], what
        assert len(rows["tensor_health"]) == counts["tensors"], what
        assert len(rows["tensor_value"]) == counts["values"], what
        assert leftovers(logdir, RUN_ID) == [], what
        shutil.rmtree(logdir)


def check_recovery_again(logdir: Path, counts: dict[str, int]) -> None:
    before = all_rows(logdir)
    assert [run.state for run in recover(logdir)] == ["recovered"]
    assert all_rows(logdir) == before


@pytest.mark.parametrize("is_whole", MODES)
def test_a_reader_with_failing_operations_returns_all_rows_or_reports_what_is_missing(
    server: Server, left: tuple[Path, dict[str, int]], is_whole: bool
) -> None:
    logdir, _ = left
    whole = server.do(what="read", logdir=logdir, first=NEVER, end=NEVER, error=0)
    errors = 0
    for number in numbers(whole.answer["operations"], is_whole=is_whole):
        done = server.do(what="read", logdir=logdir, first=number, end=number + 1, error=errno.EIO)
        what = f"operation {number}, {whole.answer['operations'][number]}: {done.answer}"
        assert (done.status, done.stderr) == (0, ""), done.stderr + what
        if "error" in done.answer:
            errors += 1
            assert str(logdir) in done.answer["error"], what
        elif done.answer["rows"] != whole.answer["rows"]:
            assert done.answer["rows"]["capture_stat"] >= whole.answer["rows"]["capture_stat"], what
    assert errors
