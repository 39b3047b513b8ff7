"""Test that recovery sees if another process is dead or alive. tests/durability/test_run_files.py tests the rules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.recovery.driver import COUNTERS, RUN_ID
from tfdbg_arrow import open_logdir, recover
from tfdbg_arrow.storage.layout import spool_paths

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
    """Kills a program when its forked child prints its process ID. The child lives until the end of the block."""
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
