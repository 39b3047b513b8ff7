"""Test that a SIGKILL at a random moment neither loses nor duplicates recorded events."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.recovery.checking import check_recovery
from tests.recovery.driver import COUNTERS

pytestmark = pytest.mark.slow

NUM_KILLS = 10
NUM_EXHAUSTIVE = 950
MAX_LIFE_S = 0.6


class Victims:
    """Starts processes that record, and kills them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.recovery.driver"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill_one(self, number: int) -> tuple[Path, dict[str, int]]:
        """Kills a recording at a random moment. Returns the logdir and the counts of the recording."""
        generator = random.Random(number)
        logdir, counter = self._directory / f"logdir{number}", self._directory / f"counter{number}"
        counter.write_bytes(bytes(8 * len(COUNTERS)))
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{logdir} {counter} {number}\n")
        process.stdin.flush()
        pid = int(process.stdout.readline())
        time.sleep(generator.random() ** 2 * MAX_LIFE_S)
        os.kill(pid, signal.SIGKILL)
        assert process.stdout.readline() == "dead\n"
        counts = np.frombuffer(counter.read_bytes(), np.int64).tolist()
        return logdir, dict(zip(COUNTERS, counts, strict=True))

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    found = Victims(tmp_path_factory.mktemp("victims"))
    yield found
    found.close()


def kill_and_check(victims: Victims, number: int) -> None:
    logdir, counts = victims.kill_one(number)
    check_recovery(logdir, **counts)
    shutil.rmtree(logdir)


@pytest.mark.parametrize("first", range(0, NUM_KILLS, 10))
def test_a_killed_recording_is_complete(victims: Victims, first: int) -> None:
    for number in range(first, first + 10):
        kill_and_check(victims, number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(1000, 1000 + NUM_EXHAUSTIVE, 50))
def test_a_killed_recording_is_complete_each_of_many_times(victims: Victims, first: int) -> None:
    for number in range(first, first + 50):
        kill_and_check(victims, number)
