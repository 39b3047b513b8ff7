"""Test that first_nonfinite names the culprit of nearly every program of the corpus, and reports no healthy program.

`python -m tests.culprit.compare` prints a table of the wrong answers. With names of programs or modules, the command
checks only these programs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from tests.culprit.compare import REPOSITORY, are_good_enough, judge, miss, record, summary
from tests.culprit.corpus import programs, sampled
from tests.culprit.patches import PATCHES
from tests.culprit.repairs import KNOWN_EXCEPTIONS, patched_text, repaired
from tests.culprit.repairs import summary as summary_of_repairs

SAMPLE_STEP, SLOW_SAMPLE_STEP, FAST_SAMPLE_STEP = 10, 48, 80
NUM_RECORDINGS = 50
FINITE = 0.85
"""The smallest allowed share of buggy programs that become finite after the repair of their answer."""
MAX_WORSE = 0.02
"""The largest allowed share of programs for which only TensorFlow's monitor is right, given a Debugger V2 dump."""


def check(answers: Iterable[dict[str, Any]], *, graphs: str = "traced") -> None:
    """Asserts that enough answers are right, and shows the wrong answers otherwise."""
    verdicts = list(judge(answers, graphs=graphs))
    told = "\n".join([summary(verdicts), *filter(None, map(miss, verdicts))])
    print(told)
    assert are_good_enough(verdicts), told


def test_the_corpus_has_bugs_and_healthy_programs() -> None:
    bugs = [program for program in programs() if program.culprit is not None]
    assert len(bugs) >= 110
    assert len(programs()) - len(bugs) >= 40


def test_the_answers_for_a_sample_of_the_corpus_are_right() -> None:
    names = [program.name for program in sampled(FAST_SAMPLE_STEP)]
    check(record(names))


WHOLE = pytest.param(1, id="all", marks=pytest.mark.exhaustive)
SIXTEENTH = pytest.param(16, id="sixteenth", marks=pytest.mark.slow)
SAMPLE = pytest.param(SLOW_SAMPLE_STEP, id="some", marks=pytest.mark.slow)


@cache
def executed_answers(every: int) -> list[dict[str, Any]]:
    """Returns the answers for some of the programs, recorded with their executed graphs."""
    return list(record([program.name for program in sampled(every)], graphs="executed"))


@pytest.mark.parametrize("every", [SIXTEENTH, WHOLE])
def test_the_answers_for_the_corpus_are_right(every: int) -> None:
    check(executed_answers(every), graphs="executed")


def test_each_patch_changes_its_program() -> None:
    declared = {program.name: program for program in programs()}
    for name, patch in PATCHES.items():
        text = declared[name].path.read_text()
        assert patched_text(text, declared[name], patch) != text


@pytest.mark.parametrize("every", [SAMPLE, WHOLE])
def test_the_repair_of_each_answer_makes_its_program_finite(every: int) -> None:
    names = {program.name for program in sampled(every)}
    answers = executed_answers(1 if every == 1 else 16)
    outcomes = list(repaired(answer for answer in answers if answer["name"] in names))
    print(summary_of_repairs(outcomes))
    others = {outcome.name: outcome for outcome in outcomes if outcome.outcome != "finite"}
    assert others.keys() == KNOWN_EXCEPTIONS.keys() & {outcome.name for outcome in outcomes}, others
    assert len(outcomes) - len(others) >= FINITE * len(outcomes)


@pytest.mark.parametrize("every", [SAMPLE, WHOLE])
def test_the_answers_for_traced_programs_are_right(every: int) -> None:
    names = [program.name for program in sampled(every)]
    check(record(names))


@pytest.mark.parametrize("every", [SAMPLE, WHOLE])
def test_the_answers_for_programs_compiled_by_xla_are_right(every: int) -> None:
    names = [program.name for program in sampled(every)]
    answers = list(record(names, graphs="auto", is_compiled=True))
    assert sum(not answer["is_refused"] for answer in answers) >= 150 // every
    check(answers, graphs="executed")


@pytest.mark.parametrize("every", [pytest.param(16, id="some", marks=pytest.mark.slow), WHOLE])
def test_the_answers_for_imported_dumps_are_better_than_those_of_tensorflows_monitor(every: int) -> None:
    command = [sys.executable, "-m", "tests.culprit.imported", "--every", str(every)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = ast.literal_eval(done.stdout.splitlines()[-1])
    assert told["bugs_named_by_us"] >= told["bugs_named_by_monitor"], done.stdout
    assert told["others_reported_by_us"] < told["others_reported_by_monitor"], done.stdout
    assert told["worse"] <= MAX_WORSE * (told["bugs"] + told["others"]), done.stdout


@pytest.mark.exhaustive
def test_every_recording_of_a_program_gives_the_same_answer() -> None:
    names = [program.name for program in sampled(SAMPLE_STEP) if program.culprit is not None]
    with every_core_busy():
        answers = list(record(names, repeat=NUM_RECORDINGS))
    different: dict[str, set[tuple[object, ...]]] = {name: set() for name in names}
    for answer in answers:
        told = ("is_reported", "op_type", "forward", "effect", "path", "lineno", "error")
        different[answer["name"]].add(tuple(answer[field] for field in told))
    assert len(answers) == len(names) * NUM_RECORDINGS
    assert [name for name, seen in different.items() if len(seen) != 1] == [], different


@contextmanager
def every_core_busy() -> Iterator[None]:
    """Keeps a process on each core busy while the block runs."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
