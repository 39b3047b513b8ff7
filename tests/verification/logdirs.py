"""Writes logdirs to damage: small ones with every kind of file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.query.builder import CLEAN, NAN, RunBuilder
from tests.recovery.checking import copied
from tests.recovery.driver import COUNTERS, RUN_ID, RUN_ROW, Recorder
from tfdbg_arrow import Verification, verify
from tfdbg_arrow.query import Deviation

CLEAN_RUN, KILLED_RUN = "run-a", RUN_ID


def clean_run(run_id: str = CLEAN_RUN) -> RunBuilder:
    """Returns a run of some tensors, one of which is bad."""
    run = RunBuilder(run_id)
    graph = run.graph("f").op("x", "Mul")
    for index in range(6):
        run.tensor(graph, "x", NAN if index == 3 else CLEAN)
        run.add("mark", event_index=index, label="step", value=str(index))
    return run


def write_killed_run(logdir: Path, scratch: Path, *, seed: int = 1) -> Path:
    """Writes a run whose process was killed, with some rows in parts and the others in the spool."""
    recorder = Recorder(scratch / "recording", np.zeros(len(COUNTERS), np.int64), seed=seed)
    recorder.sink._stop.set()
    recorder.sink._thread.join()
    for number in range(40):
        recorder.call()
        if number == 25:
            recorder.sink.flush()
    copied(scratch / "recording", logdir)
    recorder.sink.close(run_row=RUN_ROW)
    recorder.files.remove()
    return logdir


def write_all(logdir: Path, scratch: Path) -> Path:
    """Writes a logdir with one run that ended and one that was killed."""
    write_killed_run(logdir, scratch)
    return clean_run().write(logdir)


def damage(verification: Verification) -> list[tuple[str, str]]:
    """Returns the kind and the path of each damaged file."""
    return [(deviation.kind, deviation.path) for deviation in verification.deviations if deviation.is_damage]


def others(logdir: Path) -> list[Deviation]:
    """Returns the deviations that are not damage."""
    verification = verify(logdir)
    assert verification.is_intact, verification
    return [deviation for deviation in verification.deviations if not deviation.is_damage]
