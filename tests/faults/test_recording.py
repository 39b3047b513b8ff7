"""Let every file operation of a recording fail. The program continues, and no recorded event is lost."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from tests.faults.checking import check_whole, leftovers, sample
from tests.faults.server import Done, Server
from tests.faults.shim import FOR_EVER, SHORT
from tests.recovery.checking import all_rows, column_of
from tests.recovery.driver import RUN_ID
from tfdbg_arrow import first_nonfinite, open_logdir, recover, verify
from tfdbg_arrow.storage.manifest import read_live_parts

pytestmark = pytest.mark.slow

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, SHORT)
NUM_CHUNKS = 8
NEVER = -1
MAY_DIFFER = {"capture_stat"}
"""`capture_stat` reports failures."""


class Whole:
    """A recording without faults.

    Attributes:
        names: Names of the recording's file operations.
        rows: The rows that were written. Readers must see the same rows if any single operation fails.
        contents: The hashes of the parts, by table.
    """

    def __init__(self, server: Server, directory: Path) -> None:
        done = attempt(server, directory / "whole", first=NEVER, end=NEVER, error=0)
        assert done.stderr == ""
        self.names: list[str] = done.answer["operations"]
        self.rows = check_whole(directory / "whole", done.answer["counts"])
        assert column_of(self.rows, "run", "is_clean_end") == [True]
        self.contents = contents_of(directory / "whole")


def contents_of(logdir: Path) -> dict[str, list[str]]:
    """Returns the hashes of the parts of each table that have rows, and checks that the files match the manifest.

    Parts with equal bytes have equal rows, so the rows of such parts need not be read again.
    """
    assert verify(logdir).deviations == ()
    found: dict[str, list[str]] = {}
    for entry in read_live_parts(logdir, run_id=RUN_ID):
        if entry.rows:
            found.setdefault(entry.table, []).append(entry.sha256)
    return found


def attempt(server: Server, logdir: Path, *, phase: str = "run", **fault: int) -> Done:
    done = server.do(what="record", logdir=logdir, phase=phase, **fault)
    assert done.status == 0, done.stderr
    return done


def check_one(server: Server, logdir: Path, number: int, whole: Whole) -> None:
    error = ERRORS[number % len(ERRORS)]
    if error == SHORT and "write" not in whole.names[number]:
        error = errno.EIO
    done = attempt(server, logdir, first=number, end=number + 1, error=error)
    what = f"operation {number} ({done.answer['operations'][number]}), error {error}: {done.stderr}"
    assert len(done.warnings) <= 1, what
    assert done.answer["kept"] is None, what
    contents = contents_of(logdir)
    different = {
        table for table in contents.keys() | whole.contents.keys() if contents.get(table) != whole.contents.get(table)
    }
    with open_logdir(logdir) as opened:
        for table in different - MAY_DIFFER:
            assert sorted(opened.rows(f"SELECT * FROM {table}"), key=repr) == whole.rows[table], what
        stats = opened.rows("SELECT stat FROM capture_stat")
    assert leftovers(logdir, RUN_ID) == [], what
    assert {stat for (stat,) in stats} <= {"failed"}, what
    assert bool(done.warnings) == bool(stats), what
    shutil.rmtree(logdir)


class TestOneFailure:
    def test_one_failed_operation_loses_nothing(self, server: Server, tmp_path: Path) -> None:
        whole = Whole(server, tmp_path)
        for number in sample(whole.names):
            check_one(server, tmp_path / f"logdir{number}", number, whole)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
    def test_no_single_failed_operation_loses_anything(self, server: Server, tmp_path: Path, chunk: int) -> None:
        whole = Whole(server, tmp_path)
        for number in range(chunk, len(whole.names), NUM_CHUNKS):
            check_one(server, tmp_path / f"logdir{number}", number, whole)


def check_outage(server: Server, logdir: Path, first: int, length: int, *, error: int) -> None:
    """Lets several successive operations fail. The disk works again before the end of the recording, or after it."""
    done = attempt(server, logdir, first=first, end=first + length, error=error)
    what = f"operations {first} to {first + length}: {done.stderr}"
    assert len(done.warnings) <= 1, what
    before = check_whole(logdir, done.answer["counts"], num_unkept=done.answer["unkept"])
    assert [run.state for run in recover(logdir)] in ([], ["recovered"])
    assert all_rows(logdir) == before
    assert leftovers(logdir, RUN_ID) == []
    shutil.rmtree(logdir)


class TestOutage:
    """The disk is full for some time."""

    def test_an_outage_loses_nothing(self, server: Server, tmp_path: Path) -> None:
        num_operations = len(Whole(server, tmp_path).names)
        for first in range(9, num_operations, num_operations // 2):
            check_outage(server, tmp_path / f"logdir{first}", first, 2 + first % 30, error=errno.ENOSPC)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
    def test_no_outage_loses_anything_wherever_it_begins(self, server: Server, tmp_path: Path, chunk: int) -> None:
        for first in range(chunk, len(Whole(server, tmp_path).names), NUM_CHUNKS):
            error = (errno.ENOSPC, errno.EIO)[first // NUM_CHUNKS % 2]
            check_outage(server, tmp_path / f"logdir{first}", first, 2 + first % 30, error=error)


def check_no_end(server: Server, logdir: Path, first: int, *, error: int) -> None:
    """Lets all operations from `first` on fail. Events are in the spool. Other data written later may be missing."""
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


class TestDiskStaysFull:
    def test_every_event_is_readable_and_recoverable(self, server: Server, tmp_path: Path) -> None:
        num_operations = len(Whole(server, tmp_path).names)
        for first in range(5, num_operations, num_operations // 2):
            check_no_end(server, tmp_path / f"logdir{first}", first, error=errno.ENOSPC)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
    def test_every_event_is_recoverable_wherever_the_outage_begins(
        self, server: Server, tmp_path: Path, chunk: int
    ) -> None:
        for first in range(chunk, len(Whole(server, tmp_path).names), NUM_CHUNKS):
            check_no_end(server, tmp_path / f"logdir{first}", first, error=ERRORS[first % (len(ERRORS) - 1)])
