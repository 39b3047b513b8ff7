"""Test how recovery decides that a process is dead. Only runs of dead processes are recovered."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.recovery.driver import COUNTERS
from tfdbg_arrow import open_logdir, recover
from tfdbg_arrow.spool.journal import MAX_SILENCE_S, RunFiles, held_if_dead
from tfdbg_arrow.storage.disk import lock_file
from tfdbg_arrow.storage.layout import spool_paths

RUN_ID = "20261120T163000.123456-myhost-4242"


def is_dead(journal: Path, *, to_change: bool = False, other_machines: bool = False) -> bool:
    with held_if_dead(journal, to_change=to_change, other_machines=other_machines) as found:
        return found


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(spool_paths(tmp_path, run_id=RUN_ID), run_id=RUN_ID)


def test_a_process_counts_as_alive_until_it_releases_its_lock(files: RunFiles) -> None:
    journal = files.names.path
    assert not is_dead(journal)
    assert not is_dead(journal, other_machines=True)
    files.close()
    assert is_dead(journal)
    assert is_dead(journal, to_change=True)
    journal.unlink()
    assert not is_dead(journal)


def test_many_readers_or_one_writer_can_hold_a_run(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.spool.journal._LOCK_PATIENCE_S", 0.05)
    journal = files.names.path
    files.close()
    with held_if_dead(journal, to_change=False) as one, held_if_dead(journal, to_change=False) as other:
        assert one
        assert other
        assert not is_dead(journal, to_change=True)
    with held_if_dead(journal, to_change=True) as one:
        assert one
        assert not is_dead(journal)
        assert not is_dead(journal, to_change=True)
    assert is_dead(journal, to_change=True)


def test_a_writer_waits_for_readers(files: RunFiles) -> None:
    files.close()
    journal = files.names.path
    with ThreadPoolExecutor(1) as pool:
        with held_if_dead(journal, to_change=False) as is_read:
            assert is_read
            changed = pool.submit(is_dead, journal, to_change=True)
            time.sleep(0.1)
            assert not changed.done()
        assert changed.result(timeout=20)


def test_a_lock_on_a_file_that_was_replaced_does_not_count(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.close()
    journal = files.names.path
    lock = lock_file

    def removed_first(descriptor: int, kind: int) -> bool:
        journal.rename(journal.with_suffix(".old"))
        journal.touch()
        return lock(descriptor, kind)

    monkeypatch.setattr("tfdbg_arrow.spool.journal.lock_file", removed_first)
    assert not is_dead(journal, to_change=True)


def test_a_process_on_another_machine_counts_as_alive_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("tfdbg_arrow.spool.journal._machine", lambda: "another")
        files = RunFiles(spool_paths(tmp_path, run_id=RUN_ID), run_id=RUN_ID)
    journal = files.names.path
    files.close()  # simulates a file system that does not share locks between machines
    assert not is_dead(journal)
    assert is_dead(journal, other_machines=True)
    long_ago = time.time() - MAX_SILENCE_S - 1
    os.utime(journal, (long_ago, long_ago))
    assert is_dead(journal)


def test_without_file_locks_the_modification_time_shows_that_a_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refused)
    files = RunFiles(spool_paths(tmp_path, run_id=RUN_ID), run_id=RUN_ID)
    journal = files.names.path
    assert not is_dead(journal)
    long_ago = time.time() - MAX_SILENCE_S - 1
    os.utime(journal, (long_ago, long_ago))
    assert is_dead(journal)
    files.touch()
    assert not is_dead(journal)
    files.close()


_FORKS = """
import os, sys, time
import tfdbg_arrow
from tfdbg_arrow.writer import active_recording
from tests.recovery.driver import Recorder
import numpy as np
from pathlib import Path
recorder = Recorder(Path(sys.argv[1]), np.zeros(5, np.int64), seed=1)
os.register_at_fork(after_in_child=lambda: (recorder.spool.abandon(), recorder.files.abandon()))
[recorder.call() for _ in range(50)]
if os.fork() == 0:
    print(os.getpid(), flush=True)  # after the handlers of fork, which release the lock
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@contextmanager
def outlived_by_its_child(program: str, logdir: Path, *arguments: str) -> Iterator[None]:
    """Kills a program when its forked child prints its process ID; the child lives in the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(logdir), *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        assert process.wait(timeout=60) == -signal.SIGKILL
        process.stdout.close()
        os.kill(child, 0)
        yield
    finally:
        os.kill(child, signal.SIGKILL)


def check_all_recovered(logdir: Path) -> None:
    (run,) = recover(logdir)
    assert run.state == "recovered"
    with open_logdir(logdir) as opened:
        assert opened.rows("SELECT count(*) FROM execution") == [(50,)]


def test_a_surviving_forked_child_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with outlived_by_its_child(_FORKS, logdir):
        check_all_recovered(logdir)


_FORKS_IN_C = """
import ctypes, os, sys, time
import numpy as np
from pathlib import Path
from tests.recovery.driver import Recorder
recorder = Recorder(Path(sys.argv[1]), np.zeros(5, np.int64), seed=1)
[recorder.call() for _ in range(50)]
if ctypes.PyDLL(None).fork() == 0:
    recorder.spool.intern_string("of the child")
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_child_forked_from_c_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with outlived_by_its_child(_FORKS_IN_C, logdir):
        assert b"of the child" not in spool_paths(logdir, run_id=RUN_ID).journal.read_bytes()
        check_all_recovered(logdir)


def test_a_live_recording_is_not_recovered(tmp_path: Path) -> None:
    logdir, counter = tmp_path / "logdir", tmp_path / "counter"
    counter.write_bytes(bytes(8 * len(COUNTERS)))
    with subprocess.Popen(
        [sys.executable, "-m", "tests.recovery.driver"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{logdir} {counter} 1\n")
        process.stdin.flush()
        pid = int(process.stdout.readline())
        try:
            before = {path.name for path in (logdir / "spool").iterdir() if path.suffix != ".tmp"}
            assert [run.state for run in recover(logdir)] == ["recording"]
            with open_logdir(logdir) as opened:
                assert opened.rows("SELECT count(*) FROM capture_stat") == [(0,)]
            assert before <= {path.name for path in (logdir / "spool").iterdir()}
        finally:
            os.kill(pid, signal.SIGKILL)
        process.stdout.readline()
        process.stdin.close()
    assert [run.state for run in recover(logdir)] == ["recovered"]
