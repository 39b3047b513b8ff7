"""Test that an independent reader gives the same answers about random programs as tfdbg_arrow.

For each program, the test compares all origins, whether each origin is proven (all inputs of its op are known), whether
it did harm, the whole answer of first_nonfinite, the tensors on the paths of provenance and spread, and the inputs in
the view `tensor_input`.
TFDBG_ARROW_SEEDS replays programs: `TFDBG_ARROW_SEEDS=17` or `TFDBG_ARROW_SEEDS=1000-1199`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

import tfdbg_arrow
from tests.spec_reader import inputs
from tests.spec_reader.harm import harm_of_roots, most_harmful
from tests.spec_reader.reader import Origin, open_logdir
from tests.spec_reader.test_spec_reader import REPOSITORY
from tests.spec_reader.traces import wrong_traces
from tfdbg_arrow.query import NonFinite

HARMS = ("variable", "result")
NUM_PROGRAMS = 200
NUM_IN_SAMPLE = 4
NUM_TOGETHER = 20
"""Number of programs that one process records."""


def chosen_seeds(number: int) -> list[list[int]]:
    """Returns the seeds to test, in groups that one process records."""
    first, _, last = os.environ.get("TFDBG_ARROW_SEEDS", f"0-{number - 1}").partition("-")
    seeds = list(range(int(first), int(last or first) + 1))
    return [seeds[start : start + NUM_TOGETHER] for start in range(0, len(seeds), NUM_TOGETHER)]


def differences(directory: Path, seeds: Sequence[int]) -> list[str]:
    """Records the programs of some seeds and returns the differences between the two readers."""
    command = [sys.executable, "-m", "tests.spec_reader.record_programs", str(directory), "traced", *map(str, seeds)]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [
        f"TFDBG_ARROW_SEEDS={seed}, {directory / str(seed) / 'program.py'}: {found}"
        for seed in seeds
        for found in (
            *compare(directory / str(seed) / "logdir"),
            *inputs.differences(directory / str(seed) / "logdir"),
        )
    ]


def compare(logdir: Path) -> list[str]:
    """Returns the differences between the answers of the two readers about a run."""
    (run,) = open_logdir(logdir)
    ours = {each.event_index: each for each in tfdbg_arrow.nonfinite(logdir, limit=None)}
    kinds: dict[int, set[str]] = defaultdict(set)
    for kind in ("nan", "inf"):
        for each in tfdbg_arrow.nonfinite(logdir, kinds=(kind,), limit=None):
            kinds[each.event_index] |= {kind} if each.is_origin else set()
    proven = {index: (_row(each), kinds[index]) for index, each in ours.items() if each.is_origin}
    origins = ((run.describe(each, made), made) for each, made in run.origins().items() if run.is_known(each))
    known = {origin.event_index: (_answer(origin), made) for origin, made in origins}
    found = [
        f"origin {index}: {proven.get(index)} is not {known.get(index)}"
        for index in sorted(proven.keys() | known.keys())
        if proven.get(index) != known.get(index)
    ]
    found += [
        f"harm of {index}: {ours[index].expected_reason} is not {harm}"
        for index, harm in harm_of_roots(run).items()
        if index in proven and ours[index].effect == "absorbed"
    ]
    found += wrong_traces(run, logdir)
    first = tfdbg_arrow.first_nonfinite(logdir)
    expected, harm = most_harmful(run)
    own = first and (*_row(first), first.effect if first.effect in HARMS else None)
    theirs = expected and (*_answer(expected), harm)
    # A proven origin may come before an unproven origin. A tool that knows more inputs may name the proven origin.
    is_better_known = (
        first is not None and expected is not None and expected.event_index not in known and first.event_index in known
    )
    if own != theirs and not is_better_known and not (harm is None and _is_of_unknown_harm(first, expected, ours)):
        found.append(f"first: {own} is not {theirs}")
    return found


def _is_of_unknown_harm(first: NonFinite | None, expected: Origin | None, ours: dict[int, NonFinite]) -> bool:
    """Returns whether a tool ranked an origin of unknown harm before an origin that did no harm."""
    is_unknown = first is not None and first.is_origin and first.effect is None
    return is_unknown and expected is not None and ours[expected.event_index].is_expected


_Row = tuple[object, ...]


def _row(found: NonFinite) -> _Row:
    """Returns an answer of tfdbg_arrow: row, op, graph, output, all kinds of bad values, and the user's line."""
    frame = next((frame for frame in found.stack if frame.owner == "user"), None)
    line = None if frame is None else f"{frame.file_path}:{frame.lineno}"
    return found.run_id, found.event_index, found.op_type, found.op_name, found.graph_name, found.output_slot, line


def _answer(origin: Origin) -> _Row:
    """Returns an answer of the reader in the same form as `_row`."""
    place = (origin.run_id, origin.event_index, origin.op_type, origin.op_name, origin.graph_name, origin.output_slot)
    return *place, origin.line


@pytest.mark.slow
@pytest.mark.parametrize("seeds", chosen_seeds(NUM_IN_SAMPLE), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_the_answers_about_some_random_programs_are_the_same(tmp_path: Path, seeds: list[int]) -> None:
    assert differences(tmp_path, seeds) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("seeds", chosen_seeds(NUM_PROGRAMS), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_the_answers_about_many_random_programs_are_the_same(tmp_path: Path, seeds: list[int]) -> None:
    assert differences(tmp_path, seeds) == []
