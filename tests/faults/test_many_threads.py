"""Test many processes with many threads that record into one logdir: no event is lost, and memory stays flat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.faults.threads import COUNTS
from tfdbg_arrow import open_logdir

MAX_GROWTH_BYTES = 64 * 2**20
"""Maximum growth of the median memory from the middle third of the time to the last third. Both contain merges."""
MAX_PEAK_BYTES = 448 * 2**20
"""Maximum memory of a process.

A process takes 140 MB with its libraries before it records, 16 MB for the mapped spool file, about 90 MB for batches of
up to 65,536 records and their rows, and up to 150 MB more while any number of parts is merged. The allocators return
some of this memory later.
"""


@pytest.mark.parametrize(
    ("num_processes", "num_threads", "seconds"),
    [
        pytest.param(8, 4, 2.0, id="seconds"),
        pytest.param(8, 4, 300.0, id="minutes", marks=pytest.mark.exhaustive),
        pytest.param(1, 32, 60.0, id="one-process", marks=pytest.mark.exhaustive),
        pytest.param(8, 32, 60.0, id="many-of-many", marks=pytest.mark.exhaustive),
    ],
)
def test_every_event_of_every_thread_becomes_a_row(
    tmp_path: Path, num_processes: int, num_threads: int, seconds: float
) -> None:
    logdir, counter = tmp_path / "logdir", tmp_path / "counter"
    shape = (num_processes, num_threads, len(COUNTS))
    counter.write_bytes(bytes(8 * int(np.prod(shape))))
    command = [sys.executable, "-m", "tests.faults.threads", *map(str, (logdir, counter, *shape[:2], seconds))]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=seconds + 300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    counts = np.frombuffer(counter.read_bytes(), np.int64).reshape(shape)
    assert (counts[:, :, :2] > 0).all(), "a thread recorded nothing"
    by_run = dict(zip(sorted(run["run_id"] for run in runs), counts.sum(axis=1).tolist(), strict=True))
    with open_logdir(logdir) as opened:
        for column, table in enumerate(COUNTS[:4]):
            found = dict(opened.rows(f"SELECT run_id, count(*) FROM {table} GROUP BY ALL"))
            assert found == {run_id: row[column] for run_id, row in by_run.items()}, table
        for table in ("execution", "tensor_health"):
            assert opened.rows(f"SELECT count(*) - count(DISTINCT (run_id, event_index)) FROM {table}") == [(0,)]
        dropped = dict(opened.rows("SELECT run_id, sum(num_events) FROM capture_stat GROUP BY ALL"))
        assert dropped == {run_id: row[4] for run_id, row in by_run.items() if row[4]}
        ends = opened.rows("SELECT run_id, is_clean_end FROM run")
    assert dict(ends) == {run_id: row[4] == 0 for run_id, row in by_run.items()}
    assert list((logdir / "spool").iterdir()) == []
    growth = {run["run_id"]: run["late_bytes"] - run["early_bytes"] for run in runs}
    assert max(growth.values()) < MAX_GROWTH_BYTES, growth
    assert max(run["most_bytes"] for run in runs) < MAX_PEAK_BYTES
