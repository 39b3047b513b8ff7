"""Records, reads and recovers while file operations fail, without TensorFlow.

The program also runs without the sink's thread, so that the operations come in the same order each time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset  # imported here, so that the forks need not import it

from tests.faults.server import serve
from tests.faults.shim import Shim
from tests.recovery.checking import all_rows
from tests.recovery.driver import COUNTERS, RUN_ROW, Recorder
from tfdbg_arrow import first_nonfinite, open_logdir, recover
from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.writer.recover import remove_spool_files
from tfdbg_arrow.writer.sink.sink import Sink

NUM_CALLS = 30
FLUSHES = (14,)


class SmallRecorder(Recorder):
    """A recorder whose bad tensors come early."""

    num_sound_tensors = 40
    bad_chance = 0.1


def record(job: Mapping[str, Any]) -> Mapping[str, object]:
    """Records a few calls. `phase` says if faults begin before or after the recorder is created."""
    shim, logdir = Shim(), Path(job["logdir"])
    Sink._run = lambda self: None  # type: ignore[method-assign]
    counters = np.zeros(len(COUNTERS), np.int64)
    is_from_start = job["phase"] == "start"
    shim.arm(logdir, **{name: job[name] if is_from_start else 0 for name in ("first", "end", "error")})
    try:
        recorder = SmallRecorder(logdir, counters, seed=3, **job.get("options", {}))
    except (OSError, TfdbgArrowError) as error:
        return {"refused": f"{type(error).__name__}: {error}", "operations": shim.disarm()}
    recorder.sink._parts._merge_parts = 1
    if not is_from_start:
        arm(shim, job)
    for number in range(NUM_CALLS):
        recorder.call()
        if number in FLUSHES:
            recorder.sink.flush()
    if job.get("dies"):
        return {"counts": dict(zip(COUNTERS, counters.tolist(), strict=True)), "operations": shim.disarm()}
    recorder.sink.close(run_row={**RUN_ROW, "is_clean_end": True})
    reason = remove_spool_files(recorder.spool, recorder.files, is_all_written=recorder.sink.is_all_written)
    return {
        "counts": dict(zip(COUNTERS, counters.tolist(), strict=True)),
        "unkept": recorder.num_unkept,
        "kept": reason,
        "operations": shim.disarm(),
        "random": recorder.random.random(),
    }


def read(job: Mapping[str, Any]) -> Mapping[str, object]:
    """Reads a whole logdir."""
    shim, logdir = Shim(), Path(job["logdir"])
    arm(shim, job)
    try:
        rows = all_rows(logdir)
        with open_logdir(logdir) as opened:
            found = first_nonfinite(opened)
    except TfdbgArrowError as error:
        return {"error": str(error), "operations": shim.disarm()}
    event = None if found is None else found.event_index
    return {"rows": {table: len(found) for table, found in rows.items()}, "bad": event, "operations": shim.disarm()}


def recover_it(job: Mapping[str, Any]) -> Mapping[str, object]:
    """Recovers a logdir."""
    shim, logdir = Shim(), Path(job["logdir"])
    arm(shim, job)
    try:
        runs = recover(logdir)
    except TfdbgArrowError as error:
        return {"error": str(error), "operations": shim.disarm()}
    return {"states": [run.state for run in runs], "operations": shim.disarm()}


def arm(shim: Shim, job: Mapping[str, Any]) -> None:
    shim.arm(Path(job["logdir"]), first=job["first"], end=job["end"], error=job["error"])


def main() -> None:
    os.environ.setdefault("TMPDIR", "/tmp")
    pa.array([])  # makes pyarrow look for pandas and import it here, not in each fork
    jobs = {"record": record, "read": read, "recover": recover_it}
    serve(lambda job: jobs[job["what"]](job))


if __name__ == "__main__":
    main()
