"""Test that everything that a TensorFlow training had recorded is still there after the training died."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.checking import all_rows
from tests.recovery.trainer import BAD_STEP, LAST_STEP_OF_SUICIDES, Trainer
from tfdbg_arrow import first_nonfinite, open_logdir, recover

pytestmark = pytest.mark.slow

NUM_KILLS = 50


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    made = Trainer()
    yield made
    made.close()


def check(logdir: Path, *, done: int) -> None:
    """Compares the content of the logdir with the counts of the program."""
    with open_logdir(logdir) as opened:
        steps = [step for (step,) in opened.rows("SELECT step FROM mark ORDER BY step")]
        assert steps in (list(range(done)), list(range(done + 1)))
        calls = opened.rows(
            "SELECT execution.step, execution_index FROM execution JOIN graph_function "
            "ON op_type = function_name ORDER BY 2"
        )
        trained = [step for step, _ in calls]
        assert trained in (list(range(done)), list(range(done + 1)))
        # Each call that ended has each of its tensors exactly once, with elements, stack traces and source lines.
        counts = dict(
            opened.rows("SELECT execution_index, count(*) FROM tensor_health WHERE scope = 'graph' GROUP BY ALL")
        )
        assert len({counts[index] for _, index in calls[:done]}) == 1
        assert opened.rows("SELECT count(*) - count(DISTINCT event_index) FROM tensor_health") == [(0,)]
        assert opened.rows("SELECT count(*) FROM tensor_health ANTI JOIN tensor_value USING (event_index)") == [(0,)]
        assert opened.rows("SELECT count(*) FROM graph_op ANTI JOIN stack_trace USING (stack_trace_id)") == [(0,)]
        assert opened.rows("SELECT count(*) FROM stack_frame ANTI JOIN source_file USING (source_file_id)") == [(0,)]
        assert opened.rows("SELECT is_clean_end FROM run") == [(False,)]
        found = first_nonfinite(opened)
        bad_step = opened.rows("SELECT min(step) FROM tensor_health WHERE has_inf_or_nan")
    if done > BAD_STEP:
        assert found is not None
        assert (found.op_type, bad_step) == ("Log", [(BAD_STEP,)])
        assert found.source is not None
        assert "tf.math.log" in str(found.source)
    before = all_rows(logdir)
    (run,) = recover(logdir)
    assert run.state == "recovered"
    assert all_rows(logdir) == before


@pytest.mark.parametrize(("how", "status"), [("segv", -signal.SIGSEGV), ("exit", 7), ("abort", -signal.SIGABRT)])
def test_the_recording_of_a_training_that_crashes_is_complete(
    trainer: Trainer, tmp_path: Path, how: str, status: int
) -> None:
    trainer.start(tmp_path, how=how)
    found, done = trainer.end()
    assert (found, done) == (status, LAST_STEP_OF_SUICIDES + 1)
    check(tmp_path / "logdir", done=done)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(NUM_KILLS))
def test_the_recording_of_a_training_that_is_killed_is_complete(trainer: Trainer, tmp_path: Path, number: int) -> None:
    pid = trainer.start(tmp_path)
    time.sleep(random.Random(number).random() ** 2 * 3)
    os.kill(pid, signal.SIGKILL)
    status, done = trainer.end()
    assert status == -signal.SIGKILL
    check(tmp_path / "logdir", done=done)
    shutil.rmtree(tmp_path / "logdir")
