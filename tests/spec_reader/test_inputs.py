"""Test that the view `tensor_input` has the inputs that a reader written from the specification alone finds.

The tests of culprits compare the inputs in traced graphs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.culprit.corpus import sampled
from tests.spec_reader.inputs import differences, edges_of_reader
from tests.spec_reader.reader import open_logdir
from tests.spec_reader.test_random_programs import chosen_seeds
from tests.spec_reader.test_spec_reader import LOGDIRS, REPOSITORY

SAMPLE_STEP = 56
NUM_SEEDS = 6


def record(module: str, *arguments: object) -> None:
    command = [sys.executable, "-m", f"tests.spec_reader.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("logdir", LOGDIRS, ids=[f"{path.parent.name}-{path.name}" for path in LOGDIRS])
def test_the_inputs_in_a_golden_logdir_are_the_same(logdir: Path) -> None:
    assert differences(logdir) == []


@pytest.mark.slow
def test_the_inputs_in_executed_graphs_of_a_sample_of_the_corpus_are_the_same(tmp_path: Path) -> None:
    names = [program.name for program in sampled(SAMPLE_STEP)]
    record("record", tmp_path, "executed", *names)
    assert [each for name in names for each in differences(tmp_path / name / "logdir")] == []


@pytest.mark.slow
@pytest.mark.parametrize("graphs", ["traced", "executed"])
def test_the_inputs_in_runs_of_sessions_are_the_same(tmp_path: Path, graphs: str) -> None:
    record("record_sessions", tmp_path / "logdir", graphs)
    assert differences(tmp_path / "logdir") == []
    (run,) = open_logdir(tmp_path / "logdir")
    assert len(edges_of_reader(run)) > 1000


@pytest.mark.slow
def test_the_inputs_in_executed_graphs_of_random_programs_are_the_same(tmp_path: Path) -> None:
    for seeds in chosen_seeds(NUM_SEEDS):
        record("record_programs", tmp_path, "executed", *seeds)
        assert [each for seed in seeds for each in differences(tmp_path / str(seed) / "logdir")] == []
