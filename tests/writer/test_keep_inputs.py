"""Test on_nonfinite="keep": the inputs of an op that makes a bad value are kept, and nothing else changes."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.schema.dtypes import DTYPES_BY_NAME, decode_strings

from . import trainings
from .subprocesses import run_python
from .test_executed_graphs import rows, run_training


def kept(logdir: Path) -> list[tuple[Any, ...]]:
    """Returns (op_type, output_slot, has NaN, input_index, dtype, shape, elements) of the kept inputs, in order."""
    with tfdbg_arrow.open_logdir(logdir) as opened:
        rows = opened.rows(
            "SELECT t.op_type, t.output_slot, t.num_nan > 0, i.input_index, i.dtype, i.shape, i.value "
            "FROM input_value i JOIN tensor_health t USING (run_id, event_index) ORDER BY i.event_index, i.input_index"
        )
    return [(*row[:6], elements(row[4], row[5], row[6])) for row in rows]


def elements(dtype: str, shape: list[int], value: bytes) -> list[Any]:
    if dtype == "string":
        return list(decode_strings(value, math.prod(shape)))
    return np.frombuffer(value, tf.as_dtype(dtype).as_numpy_dtype).tolist()


def record(logdir: Path, program: Callable[[], object], **settings: Any) -> list[tuple[Any, ...]]:
    with tfdbg_arrow.capture(logdir, "CONCISE_HEALTH", on_nonfinite="keep", **settings):
        program()
    return kept(logdir)


def test_an_eager_op(tmp_path: Path) -> None:
    rows = record(tmp_path / "log", lambda: tf.constant([1.0, 0.0]) / tf.constant([2.0, 0.0]))
    assert rows == [
        ("RealDiv", 0, True, 0, "float32", [2], [1.0, 0.0]),
        ("RealDiv", 0, True, 1, "float32", [2], [2.0, 0.0]),
    ]


@pytest.mark.parametrize("graphs", ["executed", "traced"])
def test_an_op_in_a_function(tmp_path: Path, graphs: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(tf.reshape(x, [2, 1, 1, 1, 1, 1, 2])) * 2.0)

    rows = record(tmp_path / "log", lambda: f(tf.constant([[1.0, 0.0], [2.0, 3.0]])), graphs=graphs)
    shape = [2, 1, 1, 1, 1, 1, 2]
    if graphs == "traced":
        assert rows == [("Log", 0, False, 0, "float32", shape, [1.0, 0.0, 2.0, 3.0])]
    else:  # the optimizer may compute the logarithm before the reshape
        assert [(row[0], row[6]) for row in rows] == [("Log", [1.0, 0.0, 2.0, 3.0])]


def test_a_nan_made_of_infinities_and_nothing_made_of_nans(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        inf = tf.exp(x)
        nan = inf - inf * 2.0
        return tf.sin(nan) + tf.cos(inf)

    rows = record(tmp_path / "log", lambda: f(tf.constant([1000.0])), graphs="traced")
    found = {(row[0], row[2]): row[6] for row in rows}
    assert found[("Exp", False)] == [1000.0]
    assert found[("Sub", True)] == [math.inf]
    assert found[("Cos", True)] == [math.inf]
    assert all(not any(map(math.isnan, row[6])) for row in rows), "an input with a NaN explains the NaN"
    assert ("Mul", False) not in found, "an infinite input explains the infinity"
    assert ("Sin", True) not in found


def test_a_loop_and_a_gradient(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = tf.sqrt(y - 1.0)
        return tape.gradient(y, x)

    rows = record(tmp_path / "log", lambda: f(tf.constant([5.0])), graphs="traced")
    # The last root is 0, and the gradients of the roots before it get an infinity.
    assert rows == [
        ("SqrtGrad", 0, False, 0, "float32", [1], [0.0]),
        ("SqrtGrad", 0, False, 1, "float32", [1], [1.0]),
    ]


def test_integers_strings_and_empty_tensors_are_kept_too(tmp_path: Path) -> None:
    def program() -> None:
        tf.gather(tf.constant([[1.0], [math.inf]]), tf.constant([1, 0]))  # a copy of the infinity: not kept
        tf.strings.to_number(tf.constant(["1", "inf"]))
        tf.reduce_mean(tf.zeros([0, 2]), axis=0)

    rows = record(tmp_path / "log", program)
    assert ("StringToNumber", 0, False, 0, "string", [2], [b"1", b"inf"]) in rows
    assert ("Mean", 0, True, 0, "float32", [0, 2], []) in rows
    assert ("Mean", 0, True, 1, "int32", [], [0]) in rows
    assert not any(row[0] == "GatherV2" for row in rows)


def test_a_session_of_tensorflow_1(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        y = tf.math.rsqrt(x)
        with tfdbg_arrow.capture(tmp_path / "log", on_nonfinite="keep"), tf.compat.v1.Session() as session:
            session.run(y, {x: [4.0, 0.0]})
    assert kept(tmp_path / "log") == [("Rsqrt", 0, False, 0, "float32", [2], [4.0, 0.0])]


IN_EVERY_RUN = ("cnn", "session")


@pytest.mark.parametrize(
    ("name", "onednn"),
    [
        *(
            pytest.param(name, "0", marks=pytest.mark.slow if name in IN_EVERY_RUN else pytest.mark.exhaustive)
            for name in trainings.TRAININGS
        ),
        pytest.param("cnn", "1", marks=pytest.mark.exhaustive),
        pytest.param("transformer", "1", marks=pytest.mark.exhaustive),
    ],
)
def test_a_training_is_bit_identical(name: str, onednn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    kept_in = (tmp_path, "auto", "FULL_HEALTH", "native", "keep")
    assert run_training(name, 24) == run_training(name, 24, *kept_in)
    assert rows(tmp_path, "SELECT count(*) > 300 FROM tensor_health") == [(True,)]


def test_the_bytes_are_limited_and_the_rest_is_counted(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x)

    def program() -> None:
        for _ in range(4):
            f(tf.zeros([1 << 21]))  # 8 MiB each, of which one op may use 16 MiB

    rows = record(tmp_path / "log", program, graphs="traced")
    assert [row[0] for row in rows] == ["Log"] * 2
    with tfdbg_arrow.open_logdir(tmp_path / "log") as opened:
        stats = opened.rows(
            "SELECT subject, sum(num_events) FROM capture_stat WHERE reason_code = 'input_budget' GROUP BY subject"
        )
    assert stats == [("the inputs of a bad value", 4)]  # two inputs of the op, and the arguments of two calls


def test_inputs_survive_a_kill(tmp_path: Path) -> None:
    program = """
import os, signal, sys
import tensorflow as tf, tfdbg_arrow
tfdbg_arrow.enable(sys.argv[1], on_nonfinite="keep")
tf.function(tf.math.log)(tf.constant([1.0, 0.0]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python(tmp_path / "program.py", program, tmp_path / "log", returncode=-signal.SIGKILL)
    assert [row[6] for row in kept(tmp_path / "log")] == [[1.0, 0.0]]


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="circular_buffer_size is 10"):
        tfdbg_arrow.enable(tmp_path, on_nonfinite="keep", circular_buffer_size=10)
    with pytest.raises(SettingError, match="mode SHAPE"):
        tfdbg_arrow.enable(tmp_path, "SHAPE", on_nonfinite="keep")


def test_what_is_counted_on_a_device_is_reported(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="changed: on_nonfinite: With health_backend='tensorflow'"):
        record(tmp_path / "log", lambda: tf.math.log(tf.constant([0.0])), health_backend="tensorflow")
    with tfdbg_arrow.open_logdir(tmp_path / "log") as opened:
        assert opened.rows("SELECT stat, subject FROM capture_stat") == [("changed", "on_nonfinite")]


def test_each_dtype(tmp_path: Path) -> None:
    names = [name for name in DTYPES_BY_NAME if name in ("float16", "bfloat16", "float32", "float64", "complex64")]
    rows = record(tmp_path / "log", lambda: [tf.math.log(tf.zeros([2], name)) for name in names])
    assert [(row[0], row[4]) for row in rows if row[0] == "Log"] == [("Log", name) for name in names]
