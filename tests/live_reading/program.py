"""A program without TensorFlow that writes parts as often as it can, while readers read the parts.

Run as `python -m tests.live_reading.program LOGDIR NUM_RUNS FLUSHES_A_RUN REPORTS`. The program flushes and merges, and
compacts at the end of each run. The runs do not overlap, so the order of all rows is known. The report of each reader
is written to a file in the directory REPORTS.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tests.live_reading.reading import KINDS, read_until
from tests.recovery.driver import COUNTERS, RUN_ROW, Recorder
from tfdbg_arrow.writer.recover import remove_spool_files
from tfdbg_arrow.writer.sink.sink import Sink

MERGE_PARTS = 8
"""Maximum number of unmerged parts. The number is small, so that merged parts are soon merged again."""


def record_run(logdir: Path, number: int, *, num_flushes: int) -> None:
    """Records a run with a few calls before each flush."""
    run_id = f"20261120T163000.{number:06d}-myhost-4242"
    counters = np.zeros(len(COUNTERS), np.int64)
    recorder = Recorder(logdir, counters, seed=number, run_id=run_id)
    recorder.sink._parts._merge_parts = MERGE_PARTS
    for _ in range(num_flushes):
        for _ in range(recorder.random.choice((1, 1, 3))):
            recorder.call()
        recorder.sink.flush()
    recorder.sink.close(run_row={**RUN_ROW, "is_clean_end": True})
    reason = remove_spool_files(recorder.spool, recorder.files, is_all_written=recorder.sink.is_all_written)
    assert reason is None, reason


def read_in_fork(kind: str, logdir: Path, *, stop: int, other_end: int, reports: Path) -> int:
    """Starts a reader and returns its process ID."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.close(other_end)
        report = read_until(stop, kind=kind, logdir=logdir)
        (reports / kind).write_text(json.dumps(asdict(report)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    logdir, num_runs, flushes_a_run, reports = sys.argv[1:]
    stop, other_end = os.pipe()
    readers = [
        read_in_fork(kind, Path(logdir), stop=stop, other_end=other_end, reports=Path(reports)) for kind in KINDS
    ]
    Sink._run = lambda self: None  # type: ignore[method-assign]  # only the counted flushes happen
    for number in range(int(num_runs)):
        record_run(Path(logdir), number, num_flushes=int(flushes_a_run))
    os.close(other_end)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) for reader in readers))


if __name__ == "__main__":
    main()
