from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.recovery.checking import copied
from tests.recovery.driver import COUNTERS, RUN_ID, RUN_ROW, Recorder

from .commands import run_cli


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The logdir that a killed process left."""
    recorder = Recorder(tmp_path / "logdir", np.zeros(len(COUNTERS), np.int64), seed=1)
    recorder.sink._stop.set()
    recorder.sink._thread.join()
    for _ in range(3):
        recorder.call()
    copy = copied(tmp_path / "logdir", tmp_path / "left")
    recorder.sink.close(run_row=RUN_ROW)
    recorder.files.remove()
    return copy


def test_it_prints_what_it_recovered_and_then_that_nothing_is_left(left: Path) -> None:
    result = run_cli("recover", str(left))
    assert (result.exit_code, result.stdout) == (0, f"{RUN_ID}: recovered 12 events\n")
    result = run_cli("recover", str(left))
    assert (result.exit_code, result.stdout) == (0, "There is nothing to recover.\n")


def test_json(left: Path) -> None:
    result = run_cli("recover", str(left), "--json")
    assert json.loads(result.stdout) == {
        "logdir": str(left),
        "runs": [{"run_id": RUN_ID, "state": "recovered", "num_events": 12, "reason": None}],
    }


def test_a_spool_that_cannot_be_recovered_gives_an_error_and_stays(left: Path) -> None:
    spool = left / "spool" / f"{RUN_ID}.spool"
    spool.write_bytes(b"x")
    result = run_cli("recover", str(left))
    assert result.exit_code == 2
    assert f"{spool} cannot be recovered: it is not an event spool of tfdbg_arrow" in result.stderr
    assert spool.exists()


def test_a_possibly_live_run_of_another_machine_is_recovered_only_on_request(left: Path) -> None:
    journal = left / "spool" / f"{RUN_ID}.journal"
    content = journal.read_bytes()
    journal.write_bytes(b"x" + content[1:])
    os.utime(journal)
    result = run_cli("recover", str(left))
    assert (result.exit_code, result.stdout) == (0, f"{RUN_ID}: may still be recording; left alone\n")
    assert journal.exists()
    result = run_cli("recover", str(left), "--other-machines")
    assert (result.exit_code, result.stdout) == (0, f"{RUN_ID}: recovered 12 events\n")


def test_a_path_that_is_not_a_logdir_gives_an_error(tmp_path: Path) -> None:
    assert run_cli("recover", str(tmp_path)).exit_code == 2
    result = run_cli("recover", "s3://bucket/logs")
    assert result.exit_code == 2
    assert "expected a directory" in result.stderr
