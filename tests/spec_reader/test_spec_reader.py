"""Test that an independent reader, written only from the specification, finds the same culprit as tfdbg_arrow.

The specification defines origins and the first origin. `first_nonfinite` ranks origins by their harm before it takes
the first origin. The ranking by harm is not a part of the format. The programs in RANKED have an earlier origin that
did less harm. For RANKED programs, the test checks only that the answer is one of the reader's origins.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tfdbg_arrow
from tests.culprit.corpus import Program, programs, sampled
from tests.spec_reader import inputs
from tests.spec_reader.reader import FormatError, Origin, Run, open_logdir
from tfdbg_arrow.query.outside_tensors import CAPTURED

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "compat" / "golden"
LOGDIRS = sorted(path.parent for path in GOLDEN.glob("*/*/tfdbg_arrow.json"))
SAMPLE_STEP = 20
EXPLAINED = frozenset({"sequences.log_sum_exp_of_a_masked_row"})
"""Programs whose answer is not an origin of the format: the answer skips an infinity that the program wrote itself."""
RANKED = frozenset(
    {
        "beside.best_loss_tracker_beside_a_logarithm",
        "beside.causal_mask_beside_a_division",
        "beside.cleaned_input_beside_a_division",
        "beside.constant_nan_beside_a_logarithm",
        "beside.division_that_is_guarded_beside_a_logarithm",
        "beside.infinite_clip_bounds_beside_an_exponential",
        "beside.loss_scaling_beside_a_logarithm",
        "beside.mask_that_is_right_in_one_row_only",
        "beside.metric_that_was_bad_from_the_start",
        "beside.statistics_that_nobody_reads_beside_a_root",
        "control_flow.row_that_is_masked_altogether",
        "data.flat_series_among_series_with_gaps",
        "keras_training.clip_norm_that_is_infinite",
        "keras_training.learning_rate_far_too_large",
        "keras_training.learning_rate_far_too_large_in_a_loop",
        "reinforcement.entropy_of_masked_actions",
        "reinforcement.value_of_a_state_without_actions",
        "scientific.mean_of_covariances_one_of_them_singular",
        "sequences.attention_row_without_any_key",
        "sequences.beam_search_that_restarts_from_dead_beams",
        "sequences.mask_times_infinity",
        "sequences.pointer_network_distribution",  # only with executed graphs
        "sequences.softmax_by_hand_of_a_masked_row",
    }
)


def difference(logdir: Path, *, is_ranked: bool = False) -> str | None:
    """Compares the reader's answer with that of first_nonfinite. Returns both answers if they differ."""
    found = tfdbg_arrow.first_nonfinite(logdir)
    runs = [run for run in open_logdir(logdir) if found is None or run.run_id == found.run_id]
    firsts = _origins(runs, found.event_index) if is_ranked and found is not None else _firsts(runs)
    if found is None or not firsts:
        return None if found is None and not firsts else f"{logdir}: {found} is not {firsts}"
    first = firsts[0]
    lines = [f"{frame.file_path}:{frame.lineno}" for frame in found.stack if frame.owner == "user"]
    line = lines[0] if lines else None
    if found.outside_name == CAPTURED and found.event_index == first.event_index and first.line in lines:
        line = first.line  # the answer's stack begins at the op that uses the tensor; the call is further out
    held = {"nan"} if found.num_nan else set()
    held |= {"inf"} if found.num_neg_inf or found.num_pos_inf else set()
    expected = (found.op_name, found.op_type, found.output_slot, line)
    answer = (first.op_name, first.op_type, first.output_slot, first.line)
    # If TensorFlow replaced the program's op, first_nonfinite names the op that most likely made the value.
    is_same_op = expected == answer if found.ran_as is None else found.event_index == first.event_index
    # The answer has the counts of the named op. For a folded division, these are the counts of the quotient, but the
    # row is the row of the reciprocal.
    has_same_kinds = first.kinds <= (held or first.kinds) or (found.ran_as or "").startswith(("Const", "Rsqrt"))
    is_same = is_same_op and has_same_kinds
    return None if is_same else f"{logdir}: {expected} with {held} is not {first}"


def _firsts(runs: list[Run]) -> list[Origin]:
    return [origin for run in runs if (origin := run.first()) is not None]


def _origins(runs: list[Run], event_index: int) -> list[Origin]:
    return [
        run.describe(tensor, kinds)
        for run in runs
        for tensor, kinds in run.origins().items()
        if run.health[tensor]["event_index"] == event_index
    ]


def differences(directory: Path, names: list[str], *, graphs: str) -> list[str]:
    """Records programs, and returns the differences between the two readers in the culprits and in all inputs."""
    command = [sys.executable, "-m", "tests.spec_reader.record", str(directory), graphs, *names]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    found = (difference(directory / name / "logdir", is_ranked=name in RANKED) for name in names)
    of_inputs = [each for name in names for each in inputs.differences(directory / name / "logdir")]
    return [*(each for each in found if each is not None), *of_inputs]


def _compared(selected: list[Program]) -> list[str]:
    return [program.name for program in selected if program.name not in EXPLAINED]


@pytest.mark.parametrize("logdir", LOGDIRS, ids=[f"{path.parent.name}-{path.name}" for path in LOGDIRS])
def test_the_first_culprit_of_a_golden_logdir_is_the_same(logdir: Path) -> None:
    assert difference(logdir) is None


@pytest.mark.slow
def test_the_first_culprits_of_a_sample_of_the_corpus_are_the_same(tmp_path: Path) -> None:
    names = _compared(sampled(SAMPLE_STEP))
    assert len(names) >= 15
    assert differences(tmp_path, names, graphs="traced") == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("graphs", ["traced", "executed"])
def test_the_first_culprits_of_the_whole_corpus_are_the_same(tmp_path: Path, graphs: str) -> None:
    assert differences(tmp_path, _compared(programs()), graphs=graphs) == []


def test_a_directory_without_a_marker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"tfdbg_arrow\.json"):
        open_logdir(tmp_path)
