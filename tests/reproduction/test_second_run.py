"""Test `tfdbg-arrow zoom`: a second run of a program keeps the elements around the first bad value."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow import open_logdir

PROGRAM = """
import sys, time
import tensorflow as tf
import tfdbg_arrow

zero_at, num_steps = int(sys.argv[1]), int(sys.argv[2])
scale = float(sys.argv[3]) if len(sys.argv) > 3 else 3.0

@tf.function
def train(x, step):
    return x * tf.math.log(tf.reduce_sum(x * x * scale))

for step in range(num_steps):
    tfdbg_arrow.mark(step=step)
    train(tf.ones([3]) * float(step != zero_at), tf.constant(step))
    if step > zero_at:
        time.sleep(0.2)
print("the end")
"""


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tfdbg_arrow", *map(str, words)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def first(script: Path) -> Path:
    """The logdir of a run that makes a NaN in step 2."""
    logdir = script.parent / "log"
    done = command("run", "-o", logdir, script, 2, 5)
    assert done.returncode in (0, 1), done.stderr  # 0 if the search for the first bad value takes over 10 seconds
    return logdir


@pytest.mark.slow
def test_the_same_value_goes_bad_again_and_the_program_is_stopped(first: Path, script: Path, tmp_path: Path) -> None:
    begin = time.monotonic()
    done = command("zoom", first, "-o", tmp_path / "zoom", "--json", "--", script, 2, 100_000)
    assert done.returncode == 0, done.stderr
    assert "the end" not in done.stdout
    assert time.monotonic() - begin < 250, "the program was stopped"
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["is_same_place"], found["is_stopped"], found["diff"]) == (True, True, None)
    place = [(found[each]["op_type"], found[each]["op_name"], found[each]["step"]) for each in ("first", "second")]
    assert place == [("Log", "Log", 2)] * 2
    with open_logdir(tmp_path / "zoom") as logdir:
        inputs = logdir.rows(
            "SELECT input_index, shape FROM input_value WHERE event_index = $event ORDER BY ALL",
            {"event": found["second"]["event_index"]},
        )
        kept = logdir.rows("SELECT DISTINCT op_type FROM tensor_value JOIN tensor_health USING (run_id, event_index)")
        ((last,),) = logdir.rows("SELECT max(step) FROM mark")
    assert inputs == [(0, [])]
    assert {"Log", "Sum", "Mul"} <= {op_type for (op_type,) in kept}, "the op, the one before it, and its input"
    assert 3 < last < 100_000


@pytest.mark.slow
def test_another_value_or_none_goes_bad(first: Path, script: Path, tmp_path: Path) -> None:
    done = command("zoom", first, "-o", tmp_path / "healthy", "--", script, 9, 5)
    assert done.returncode == 1, done.stderr
    assert re.search(r"The second run had no bad value. The first run: .*made -Inf in step 2", done.stdout)
    assert "The first divergence:" in done.stdout
    done = command("zoom", first, "-o", tmp_path / "other", "--", script, 9, 5, "-1.0")
    assert done.returncode == 1, done.stderr
    assert "Another value went bad first in the second run." in done.stdout
    assert re.search(r"second run: .*made NaN in step 0", done.stdout)


@pytest.mark.slow
def test_what_cannot_be_done_is_an_error(first: Path, script: Path, tmp_path: Path) -> None:
    cases = [
        ((first, "-o", tmp_path / "new", "--", tmp_path / "missing.py"), "the program recorded nothing (exit code 2)"),
        ((first, "-o", first, "--", script, 2, 5), f"{first} is not empty"),
        ((first, "--timeout", "0", "--", script), "--timeout is 0"),
        ((first, "--event", "1", "--", script), "has no bad tensor with event index 1"),
        ((tmp_path / "nothing", "--", script), f"{tmp_path / 'nothing'} does not exist"),
    ]
    for words, expected in cases:
        done = command("zoom", *words)
        assert done.returncode == 2, (words, done.stdout)
        assert expected in done.stderr, (words, done.stderr)


@pytest.mark.slow
def test_a_seed_makes_two_runs_equal(tmp_path: Path) -> None:
    path = tmp_path / "random_numbers.py"
    path.write_text(
        "import random; a = random.random()\n"
        "import numpy, tensorflow as tf\n"
        "print(a, numpy.random.random(), float(tf.random.normal([])))\n"
    )
    printed = [command("run", "-o", tmp_path / str(i), "--seed", seed, path) for i, seed in enumerate((3, 3, 4))]
    assert [done.returncode for done in printed] == [0, 0, 0]
    assert printed[0].stdout == printed[1].stdout != printed[2].stdout
    assert command("run", "-o", tmp_path / "log", "--seed", -1, path).returncode == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [None, 3])
def test_a_keras_training(seed: int | None, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import keras, numpy as np, tensorflow as tf\n"
        "x = np.random.default_rng(0).normal(size=(256, 4)).astype('float32'); x[100] = 0\n"
        "class Norm(keras.layers.Layer):\n"
        "    def call(self, x): return x / tf.norm(x, axis=-1, keepdims=True)\n"
        "model = keras.Sequential([Norm(), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(x, x[:, :1], epochs=1, batch_size=16, verbose=0)\n"
    )
    seeds = () if seed is None else ("--seed", seed)
    assert command("run", "-o", tmp_path / "log", *seeds, path).returncode in (0, 1)
    done = command("zoom", tmp_path / "log", *seeds, "--json", "--", path)
    found = json.loads(done.stdout)
    with open_logdir(tmp_path / "log-zoom") as logdir:
        ((num_kept,),) = logdir.rows("SELECT count(*) FROM input_value")
    assert num_kept > 0
    if seed is None:  # the order of the examples is another one, so another step meets the zeros
        assert found["second"]["op_name"] == found["first"]["op_name"]
        assert found["is_same_place"] == (found["second"]["step"] == found["first"]["step"])
    else:
        assert found["is_same_place"], done.stdout
