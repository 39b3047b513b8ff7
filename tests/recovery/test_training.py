"""A training in TensorFlow that dies: what it had recorded is there."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.recovery.checking import all_rows
from tfdbg_arrow import first_nonfinite, open_logdir, recover

BAD_STEP = 5
NUM_KILLS = 50

PROGRAM = """
    import ctypes, mmap, os, signal, sys, time
    import numpy as np, tensorflow as tf, tfdbg_arrow

    logdir, counter, how = sys.argv[1:]
    with open(counter, "r+b") as file:
        done = np.frombuffer(mmap.mmap(file.fileno(), 16), np.int64)
    tfdbg_arrow.enable(logdir, "FULL_TENSOR")
    weight = tf.Variable(tf.ones([2, 2]))

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.log(x @ weight))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    for step in range(1_000_000):
        tfdbg_arrow.mark(step=step)
        train(tf.ones([1, 2]) * (4.5 - step))
        done[0] = step + 1
        if step == 8:
            if how == "segv":
                ctypes.string_at(0)
            elif how == "exit":
                os._exit(7)
            elif how == "abort":
                os.abort()
        if step == 0:
            print("trained", flush=True)
    """


def start(directory: Path, how: str) -> subprocess.Popen[str]:
    (directory / "counter").write_bytes(bytes(16))
    program = directory / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, str(program), str(directory / "logdir"), str(directory / "counter"), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def check(directory: Path) -> None:
    """Checks what is there against what the program counted."""
    logdir = directory / "logdir"
    done = int(np.frombuffer((directory / "counter").read_bytes(), np.int64)[0])
    with open_logdir(logdir) as opened:
        steps = [step for (step,) in opened.rows("SELECT step FROM mark ORDER BY step")]
        assert steps in (list(range(done)), list(range(done + 1)))
        calls = opened.rows(
            "SELECT execution.step, execution_index FROM execution JOIN graph_function "
            "ON op_type = function_name ORDER BY 2"
        )
        trained = [step for step, _ in calls]
        assert trained in (list(range(done)), list(range(done + 1)))
        # Each call that ended has all of its tensors, each once, with their elements, stacks and lines.
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


@pytest.mark.parametrize(("how", "returncode"), [("segv", -signal.SIGSEGV), ("exit", 7), ("abort", -signal.SIGABRT)])
def test_a_training_that_dies_by_itself_is_whole(tmp_path: Path, how: str, returncode: int) -> None:
    process = start(tmp_path, how)
    process.communicate(timeout=240)
    assert process.returncode == returncode
    check(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(NUM_KILLS))
def test_a_training_that_is_killed_is_whole(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, "kill")
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(random.Random(number).random() ** 2 * 3)
    process.kill()
    process.communicate()
    check(tmp_path)
    shutil.rmtree(tmp_path / "logdir")
