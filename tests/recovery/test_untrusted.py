"""Test spools with arbitrary content: reading gives all rows, fewer rows and a report of the loss, or a clear error."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recovery.checking import copied, left_by_a_kill
from tests.recovery.driver import RUN_ID
from tfdbg_arrow import open_logdir, recover
from tfdbg_arrow.spool.records import RECORD_DTYPE
from tfdbg_arrow.spool.recovery import JournaledNames
from tfdbg_arrow.spool.spool_file import HEADER_SIZE
from tfdbg_arrow.storage.layout import spool_paths

NUM_CALLS = 40


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logdir of a killed process, with some rows in parts and the others in the spool."""
    return left_by_a_kill(tmp_path_factory.mktemp("left"), num_calls=NUM_CALLS, flushed_after=10)


def look(logdir: Path) -> int:
    """Reads a logdir and recovers it. Returns the number of executions."""
    with open_logdir(logdir) as opened:
        ((count, distinct),) = opened.rows("SELECT count(*), count(DISTINCT event_index) FROM execution")
        assert count == distinct
        opened.rows("SELECT * FROM tensor_health JOIN tensor_value USING (run_id, event_index)")
        notes = opened.rows("SELECT stat FROM capture_stat")
    (run,) = recover(logdir)
    assert run.state in ("recovered", "failed")
    assert (run.state == "failed") == (run.reason is not None)
    assert notes != []
    return int(count)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_torn_and_changed_spools_are_read_safely(left: Path, tmp_path: Path, data: st.DataObject) -> None:
    logdir = tmp_path / "logdir"
    shutil.rmtree(logdir, ignore_errors=True)
    shutil.copytree(left, logdir)
    paths = spool_paths(logdir, run_id=RUN_ID)
    path = data.draw(st.sampled_from(paths.all()))
    content = bytearray(path.read_bytes())
    # Damage only bytes that are used: in the spool, these are the header and the first slots.
    reach = min(len(content), HEADER_SIZE + 256 * 160) if path == paths.spool else len(content)
    starts = st.integers(0, 255) if path == paths.spool and data.draw(st.booleans()) else st.integers(0, reach - 1)
    for start in data.draw(st.lists(starts, min_size=1, max_size=6)):
        for offset, value in enumerate(data.draw(st.binary(min_size=1, max_size=9))):
            if start + offset < len(content):
                content[start + offset] = value
    path.write_bytes(content[: data.draw(st.one_of(st.none(), st.integers(0, len(content))))])
    os.utime(paths.journal, (0, 0))  # a torn journal header does not say on which machine it was written
    assert 0 <= look(logdir) <= NUM_CALLS


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_records_are_read_safely(left: Path, tmp_path: Path, seed: int) -> None:
    logdir = tmp_path / "logdir"
    shutil.rmtree(logdir, ignore_errors=True)
    shutil.copytree(left, logdir)
    path = spool_paths(logdir, run_id=RUN_ID).spool
    content = np.fromfile(path, np.uint8)
    slots = content[HEADER_SIZE:].reshape(-1, 256)
    generator = np.random.default_rng(seed)
    slots[:150, 8:] = generator.integers(0, 256, (150, 248), np.uint8)
    slots[:150, 16] = generator.integers(0, 9, 150)
    content.tofile(path)
    look(logdir)


def test_a_spool_that_claims_to_be_huge_takes_no_memory(left: Path, tmp_path: Path) -> None:
    logdir = copied(left, tmp_path / "logdir")
    path = spool_paths(logdir, run_id=RUN_ID).spool
    with open(path, "r+b") as file:
        file.seek(16)
        file.write((2**40).to_bytes(8, "little"))
        file.truncate(HEADER_SIZE + 2**30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    look(logdir)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024
    assert path.exists(), "an unreadable spool must not be deleted"


def test_missing_values_are_reported(left: Path, tmp_path: Path) -> None:
    logdir = copied(left, tmp_path / "logdir")
    spool_paths(logdir, run_id=RUN_ID).values.write_bytes(b"")
    with open_logdir(logdir) as opened:
        assert opened.rows("SELECT count(*) FROM execution") == [(NUM_CALLS,)]
        stats = opened.rows("SELECT stat, subject, reason FROM capture_stat ORDER BY stat")
    assert {(stat, subject) for stat, subject, _ in stats} == {
        ("failed", "tensor_value"),
        ("failed", "tensor_value (again)"),
        ("recovered", "events"),
    }
    assert "the value spool does not have" in stats[0][2]


def test_calls_that_never_end_are_read_in_reasonable_time(left: Path, tmp_path: Path) -> None:
    logdir = copied(left, tmp_path / "logdir")
    path = spool_paths(logdir, run_id=RUN_ID).spool
    num_slots = 2**15
    slots = np.zeros(num_slots, RECORD_DTYPE)
    slots["commit"] = np.arange(1, num_slots + 1)
    slots["wall_time_ns"], slots["tensor_id"] = 1, -1
    half = num_slots // 2
    name = JournaledNames(spool_paths(logdir, run_id=RUN_ID).journal).strings(0).index("__inference_f_0")
    slots["kind"][:half], slots["node"][:half], slots["execution_index"][:half] = 4, name, np.arange(half)
    slots["kind"][half:], slots["step_id"][half:], slots["flags"][half:] = 1, np.arange(half), 1 | 2 | 1024
    header = bytearray(path.read_bytes()[:HEADER_SIZE])
    header[16:24] = num_slots.to_bytes(8, "little")
    header[128:136] = bytes(8)
    path.write_bytes(bytes(header) + slots.tobytes())
    begin = time.process_time()
    look(logdir)
    assert time.process_time() - begin < 60, "reading took hours before it was bounded"
