"""Measures how much of a recording can be read after a SIGKILL, for this recorder and for Debugger V2.

    python -m tests.recovery.beside_debugger_v2 DIRECTORY [NUM_KILLS]

The same training is killed at the same moments after its first step. The training counts ended steps in shared memory.
The number of executions and graph tensors of a step is taken from trainings that ended normally. The product of these
two numbers is the number of recorded events. The number of readable events is the number that the recorder's own reader
returns. For Debugger V2, this reader is the DebugDataReader.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tensorflow.python.debug.lib import debug_events_reader

from tests.recovery.trainer import RECORDERS, Trainer
from tfdbg_arrow import open_logdir

MAX_LIFE_S = 3.0
CLEAN_STEPS = (10, 30)


@dataclass(frozen=True)
class Events:
    """Numbers of executions and graph tensors."""

    executions: int
    tensors: int


@dataclass
class Score:
    """The counts of recorded and readable events of a recorder.

    Attributes:
        recorded: Number of events of ended steps.
        readable: Number of these events that can be read.
        num_whole: Number of kills after which all events could be read.
        num_none: Number of kills after which no event could be read.
        errors: The errors that the reader raised, with their counts.
    """

    recorded: int = 0
    readable: int = 0
    num_whole: int = 0
    num_none: int = 0
    errors: collections.Counter[str] = field(default_factory=collections.Counter)


def read(logdir: Path, recorder: str) -> Events:
    """Returns the numbers of events that the recorder's own reader finds in a logdir."""
    if recorder == "tfdbg_arrow":
        with open_logdir(logdir) as opened:
            ((executions,),) = opened.rows("SELECT count(*) FROM execution")
            ((tensors,),) = opened.rows("SELECT count(*) FROM tensor_health WHERE scope = 'graph'")
        return Events(executions, tensors)
    with debug_events_reader.DebugDataReader(str(logdir)) as reader:
        reader.update()
        return Events(reader.num_executions(), reader.num_graph_execution_traces())


def events_a_step(trainer: Trainer, directory: Path, recorder: str) -> Events:
    """Returns the numbers of events of a step, computed from two trainings that ended normally."""
    found = []
    for num_steps in CLEAN_STEPS:
        place = directory / f"clean-{recorder}-{num_steps}"
        place.mkdir(parents=True)
        trainer.start(place, recorder=recorder, num_steps=num_steps)
        assert trainer.end() == (0, num_steps)
        found.append(read(place / "logdir", recorder))
    num_steps = CLEAN_STEPS[1] - CLEAN_STEPS[0]
    executions, tensors = found[1].executions - found[0].executions, found[1].tensors - found[0].tensors
    assert executions % num_steps == tensors % num_steps == 0
    return Events(executions // num_steps, tensors // num_steps)


def kill(trainer: Trainer, directory: Path, recorder: str, *, number: int, a_step: Events, score: Score) -> None:
    """Kills a training at a random moment. `number` is the seed of the moment."""
    directory.mkdir(parents=True)
    pid = trainer.start(directory, recorder=recorder)
    time.sleep(random.Random(number).random() ** 2 * MAX_LIFE_S)
    os.kill(pid, signal.SIGKILL)
    status, done = trainer.end()
    assert status == -signal.SIGKILL
    recorded = done * (a_step.executions + a_step.tensors)
    try:
        found = read(directory / "logdir", recorder)
    except Exception as error:  # Debugger V2's reader raises errors of many kinds
        score.errors[f"{type(error).__name__}: {str(error)[:80]}"] += 1
        found = Events(0, 0)
    readable = min(found.executions, done * a_step.executions) + min(found.tensors, done * a_step.tensors)
    score.recorded += recorded
    score.readable += readable
    score.num_whole += readable == recorded
    score.num_none += readable == 0
    shutil.rmtree(directory)


def main() -> None:
    directory, num_kills = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    trainer = Trainer()
    for recorder in RECORDERS:
        a_step = events_a_step(trainer, directory, "debugger_v2" if recorder != "tfdbg_arrow" else recorder)
        score = Score()
        for number in range(num_kills):
            kill(trainer, directory / f"{recorder}-{number}", recorder, number=number, a_step=a_step, score=score)
        print(recorder, a_step, score, flush=True)
        shutil.rmtree(directory)
    trainer.close()


if __name__ == "__main__":
    main()
