"""Test that a training gives bit-identical results with a recorder that cannot write and without a recorder."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checking import leftovers
from tests.faults.server import Done, Server
from tests.faults.shim import FOR_EVER
from tests.recovery.checking import Rows, all_rows, column_of
from tfdbg_arrow import first_nonfinite, open_logdir, recover

pytestmark = pytest.mark.slow

NEVER = -1
NUM_EXHAUSTIVE = 20
NUM_CHUNKS = 16
EVENTS = ("execution", "execution_input", "execution_output", "tensor_health")


@pytest.fixture(scope="module")
def trainer(shim: Path) -> Iterator[Server]:
    made = Server("tests.faults.training", shim=shim)
    yield made
    made.close()


def attempt(trainer: Server, logdir: Path, *, first: int = NEVER, end: int = NEVER, error: int = 0) -> Done:
    done = trainer.do(logdir=logdir, is_recorded=True, first=first, end=end, error=error)
    assert done.status == 0, done.stderr
    return done


class Whole:
    """The results of the training without faults."""

    def __init__(self, trainer: Server, directory: Path) -> None:
        bare = trainer.do(logdir=directory, is_recorded=False)
        assert bare.status == 0, bare.stderr
        recorded = attempt(trainer, directory / "whole")
        assert recorded.answer["weights"] == bare.answer["weights"]
        assert recorded.warnings == []
        self.weights: str = bare.answer["weights"]
        self.num_operations = len(recorded.answer["operations"])
        self.rows: Rows = all_rows(directory / "whole")


@pytest.fixture(scope="module")
def whole(trainer: Server, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(trainer, tmp_path_factory.mktemp("whole"))


def check_one(trainer: Server, whole: Whole, logdir: Path, *, number: int, error: int) -> None:
    """Lets one operation fail and checks that all rows are there."""
    done = attempt(trainer, logdir, first=number, end=number + 1, error=error)
    assert done.answer["weights"] == whole.weights
    assert len(done.warnings) <= 1, done.stderr
    rows = all_rows(logdir)
    assert {table: len(rows[table]) for table in rows if table != "capture_stat"} == {
        table: len(rows) for table, rows in whole.rows.items() if table != "capture_stat"
    }
    assert column_of(rows, "run", "is_clean_end") == [True]
    ((run_id,),) = {(run_id,) for run_id in column_of(rows, "run", "run_id")}
    assert leftovers(logdir, run_id) == []
    shutil.rmtree(logdir)


def check_full(trainer: Server, whole: Whole, logdir: Path, *, first: int) -> None:
    """Fills the disk from one operation on and checks that all events are there and can be recovered."""
    done = attempt(trainer, logdir, first=first, end=FOR_EVER, error=errno.ENOSPC)
    assert done.answer["weights"] == whole.weights
    assert len(done.warnings) <= 2, done.stderr  # the disk is full; at the end, data waits for room
    with open_logdir(logdir) as opened:
        first_nonfinite(opened)
    rows = all_rows(logdir)
    assert {table: len(rows[table]) for table in EVENTS} == {table: len(whole.rows[table]) for table in EVENTS}
    assert {run.state for run in recover(logdir)} <= {"recovered"}
    assert all_rows(logdir) == rows
    shutil.rmtree(logdir)


def test_a_training_continues_when_an_operation_fails(trainer: Server, whole: Whole, tmp_path: Path) -> None:
    check_one(trainer, whole, tmp_path / "logdir", number=whole.num_operations // 3, error=errno.EIO)


def test_a_training_continues_when_the_disk_is_full(trainer: Server, whole: Whole, tmp_path: Path) -> None:
    check_full(trainer, whole, tmp_path / "logdir", first=whole.num_operations // 4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(NUM_EXHAUSTIVE))
def test_a_training_continues_wherever_a_failure_happens(
    trainer: Server, whole: Whole, tmp_path: Path, number: int
) -> None:
    at = whole.num_operations * number // NUM_EXHAUSTIVE
    check_one(trainer, whole, tmp_path / "one", number=at, error=(errno.ENOSPC, errno.EIO)[number % 2])
    check_full(trainer, whole, tmp_path / "full", first=at)


@pytest.mark.exhaustive
@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_a_training_continues_whichever_operation_fails(
    trainer: Server, whole: Whole, tmp_path: Path, chunk: int
) -> None:
    for number in range(chunk, whole.num_operations, NUM_CHUNKS):
        error = (errno.ENOSPC, errno.EIO)[number // NUM_CHUNKS % 2]
        check_one(trainer, whole, tmp_path / "logdir", number=number, error=error)
