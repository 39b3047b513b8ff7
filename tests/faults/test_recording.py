"""Every file operation of a recording made to fail: the program goes on, nothing that was recorded is lost."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.faults.checking import check_whole, leftovers, lost_values, sample
from tests.faults.server import Done, Server
from tests.faults.shim import FOR_EVER, SHORT
from tests.recovery.checking import all_rows, column_of
from tests.recovery.driver import RUN_ID
from tfdbg_arrow import first_nonfinite, open_logdir, recover

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, SHORT)
NUM_CHUNKS = 8
NEVER = -1


def operations(server: Server, directory: Path, *, phase: str = "run", backend: str = "native") -> list[str]:
    """Returns the names of the operations of a recording without faults."""
    done = attempt(server, directory / "whole", first=NEVER, end=NEVER, error=0, phase=phase, backend=backend)
    assert done.stderr == ""
    names: list[str] = done.answer["operations"]
    return names


def attempt(server: Server, logdir: Path, *, phase: str = "run", backend: str = "native", **fault: int) -> Done:
    done = server.do(what="record", logdir=logdir, phase=phase, backend=backend, **fault)
    assert done.status == 0, done.stderr
    return done


def check_one(server: Server, logdir: Path, number: int, name: str, *, backend: str) -> None:
    error = ERRORS[number % len(ERRORS)]
    if error == SHORT and "write" not in name:
        error = errno.EIO
    done = attempt(server, logdir, first=number, end=number + 1, error=error, backend=backend)
    what = f"operation {number} ({done.answer['operations'][number]}), error {error}: {done.stderr}"
    assert len(done.warnings) <= 1, what
    assert done.answer["kept"] is None, what
    rows = check_whole(logdir, done.answer["counts"])
    assert lost_values(rows) == 0, what
    assert column_of(rows, "run", "is_clean_end") == [True], what
    assert leftovers(logdir, RUN_ID) == [], what
    assert set(column_of(rows, "capture_stat", "stat")) <= {"failed"}, what
    assert bool(done.warnings) == bool(rows["capture_stat"]), what
    shutil.rmtree(logdir)


class TestOneFailure:
    def test_one_that_fails_loses_nothing(self, server: Server, tmp_path: Path) -> None:
        backend = "native"
        names = operations(server, tmp_path, backend=backend)
        for number in sample(names):
            check_one(server, tmp_path / f"logdir{number}", number, names[number], backend=backend)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("backend", ["native", "python"])
    @pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
    def test_each_that_fails_loses_nothing(self, server: Server, tmp_path: Path, backend: str, chunk: int) -> None:
        names = operations(server, tmp_path, backend=backend)
        for number in range(chunk, len(names), NUM_CHUNKS):
            check_one(server, tmp_path / f"logdir{number}", number, names[number], backend=backend)


def check_outage(server: Server, logdir: Path, first: int, length: int, *, error: int) -> None:
    """Some operations on end fail; the disk is well again before the end, or afterwards."""
    done = attempt(server, logdir, first=first, end=first + length, error=error)
    what = f"operations {first} to {first + length}: {done.stderr}"
    assert len(done.warnings) <= 1, what
    check_whole(logdir, done.answer["counts"], num_unkept=done.answer["unkept"])
    before = all_rows(logdir)
    assert [run.state for run in recover(logdir)] in ([], ["recovered"])
    assert all_rows(logdir) == before
    assert leftovers(logdir, RUN_ID) == []
    shutil.rmtree(logdir)


class TestOutage:
    """The disk is full for a while."""

    def test_a_while_loses_nothing(self, server: Server, tmp_path: Path) -> None:
        num_operations = len(operations(server, tmp_path))
        for first in range(9, num_operations, num_operations // 2):
            check_outage(server, tmp_path / f"logdir{first}", first, 2 + first % 30, error=errno.ENOSPC)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
    def test_a_while_from_each_operation_on_loses_nothing(self, server: Server, tmp_path: Path, chunk: int) -> None:
        for first in range(chunk, len(operations(server, tmp_path)), NUM_CHUNKS):
            error = (errno.ENOSPC, errno.EIO)[first // NUM_CHUNKS % 2]
            check_outage(server, tmp_path / f"logdir{first}", first, 2 + first % 30, error=error)


def check_no_end(server: Server, logdir: Path, first: int, *, error: int) -> None:
    """All operations from one on fail: events are in the spool, what the disk refused from then on may be missing."""
    done = attempt(server, logdir, first=first, end=FOR_EVER, error=error)
    what = f"operations from {first} on: {done.stderr}"
    assert len(done.warnings) <= 1, what
    counts = done.answer["counts"]
    with open_logdir(logdir) as opened:
        first_nonfinite(opened)
    before = all_rows(logdir)
    assert sorted(column_of(before, "execution", "execution_index")) == list(range(counts["calls"])), what
    events = column_of(before, "tensor_health", "event_index")
    assert (len(events), len(set(events))) == (counts["tensors"], counts["tensors"]), what
    marks = column_of(before, "mark", "event_index")
    assert len(marks) == len(set(marks)) <= counts["marks"]
    assert len(before["tensor_value"]) <= counts["values"]
    assert [run.state for run in recover(logdir)] in ([], ["recovered"])
    assert all_rows(logdir) == before
    shutil.rmtree(logdir)


class TestFullToTheEnd:
    def test_every_event_is_there_and_can_be_recovered(self, server: Server, tmp_path: Path) -> None:
        num_operations = len(operations(server, tmp_path))
        for first in range(5, num_operations, num_operations // 2):
            check_no_end(server, tmp_path / f"logdir{first}", first, error=errno.ENOSPC)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
    def test_from_each_operation_on(self, server: Server, tmp_path: Path, chunk: int) -> None:
        for first in range(chunk, len(operations(server, tmp_path)), NUM_CHUNKS):
            check_no_end(server, tmp_path / f"logdir{first}", first, error=ERRORS[first % (len(ERRORS) - 1)])
