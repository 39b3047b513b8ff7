"""Test histograms=True: each floating-point tensor has a histogram of its elements, and nothing else changes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.writer.native.reference import HISTOGRAM_DTYPES, HistogramSummary, count_histogram

from .subprocesses import run_python

HISTOGRAM = ("histogram_exponent", "histogram_negative", "histogram_positive")


def tensors(logdir: Path) -> list[dict[str, Any]]:
    """Returns the rows of tensor_health, with the elements if they are kept, in order."""
    with tfdbg_arrow.open_logdir(logdir) as opened:
        names = [row[0] for row in opened.rows("DESCRIBE tensor_health")]
        query = f"SELECT {', '.join(f't.{name}' for name in names)}, v.value FROM tensor_health t LEFT JOIN "
        rows = opened.rows(query + "tensor_value v USING (run_id, event_index) ORDER BY t.event_index")
    return [dict(zip([*names, "value"], row, strict=True)) for row in rows]


def histogram_of(row: dict[str, Any]) -> HistogramSummary | None:
    exponent, negative, positive = (row[name] for name in HISTOGRAM)
    return None if negative is None else HistogramSummary(exponent, tuple(negative), tuple(positive))


def check(rows: list[dict[str, Any]]) -> int:
    """Asserts that each row has the histogram of its elements. Returns the number of histograms with buckets."""
    for row in rows:
        found = histogram_of(row)
        if row["dtype"] not in HISTOGRAM_DTYPES:
            assert found is None
            continue
        assert found is not None, row
        assert sum(found.negative) == row["num_neg_finite"]
        assert sum(found.positive) == row["num_pos_finite"]
        if row["value"] is not None:
            dtype = getattr(ml_dtypes, row["dtype"], row["dtype"])
            assert found == count_histogram(np.frombuffer(row["value"], dtype))
    return sum(row["histogram_exponent"] is not None for row in rows)


def record(logdir: Path, program: Callable[[], object], mode: str = "FULL_TENSOR", **settings: Any) -> Any:
    with tfdbg_arrow.capture(logdir, mode, histograms=True, **settings):
        program()
    return tensors(logdir)


def numbers(*shape: int, dtype: str = "float32") -> tf.Tensor:
    """Returns numbers of many magnitudes, with zeros, infinities and NaN."""
    random = np.random.default_rng(0)
    made = random.standard_normal(shape) * 2.0 ** random.integers(-30, 10, shape)
    made.ravel()[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.0]
    return tf.cast(tf.constant(made), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int32"])
def test_eager_tensors_of_each_dtype(tmp_path: Path, dtype: str) -> None:
    given = numbers(4, 100, dtype=dtype)
    rows = record(tmp_path / "log", lambda: given + given)
    assert [(row["scope"], row["dtype"]) for row in rows] == [("external", dtype), ("execution", dtype)]
    assert check(rows) == (2 if dtype in HISTOGRAM_DTYPES else 0)


@pytest.mark.parametrize("graphs", ["executed", "traced"])
def test_functions_with_loops_branches_and_deep_shapes(tmp_path: Path, graphs: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for i in tf.range(3):
            x = tf.cond(i > 0, lambda x=x: tf.math.log(tf.abs(x)), lambda x=x: x * 3.0)
        return tf.reduce_sum(tf.reshape(x, [2, 1, 1, 1, 1, 1, 5, 20]), axis=-1)

    rows = record(tmp_path / "log", lambda: f(numbers(200)), graphs=graphs)
    assert check(rows) >= 10
    assert any(row["scope"] == "graph" and row["rank"] == 8 and row["histogram_exponent"] is not None for row in rows)
    assert {row["scope"] for row in rows} == {"external", "graph", "execution"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["FULL_HEALTH", "FULL_NUMERICS"])
def test_a_training_in_keras(tmp_path: Path, mode: str) -> None:
    def train() -> None:
        model = tf.keras.Sequential([tf.keras.layers.Dense(300, "relu"), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 4), "float32"), np.ones((8, 1), "float32"), batch_size=4, verbose=0)

    rows = record(tmp_path / "log", train, mode)
    assert check(rows) > 50
    assert max(row["size"] for row in rows if row["scope"] == "graph") > 1000


@pytest.mark.slow
def test_all_other_columns_are_the_same_without_histograms(tmp_path: Path) -> None:
    given = numbers(1000)
    program = tf.function(lambda x: tf.math.log(x) * 2.0)
    with_histograms = record(tmp_path / "with", lambda: program(given), "FULL_NUMERICS")
    with tfdbg_arrow.capture(tmp_path / "without", "FULL_NUMERICS"):
        program(given)
    without = tensors(tmp_path / "without")
    different = {"run_id", "event_index", "wall_time", "wall_time_ns", "step_id", "op_type", "tensor_id", *HISTOGRAM}
    assert check(with_histograms) == len(without)
    assert all(row[name] is None for row in without for name in HISTOGRAM)
    # Independent ops run in any order.
    one, other = (
        sorted(repr({name: value for name, value in row.items() if name not in different}) for row in rows)
        for rows in (with_histograms, without)
    )
    assert one == other


@pytest.mark.parametrize(("dump_on", "most"), [(None, 25), ("nonfinite", 20)])
def test_a_circular_buffer_keeps_histograms(tmp_path: Path, dump_on: str | None, most: int) -> None:
    def program() -> None:
        x = tf.linspace(0.0, 1.0, 500)
        for i in range(30):
            x = tf.math.log(x) if i == 20 else x * 1.5

    rows = record(tmp_path / "log", program, "FULL_HEALTH", circular_buffer_size=5, dump_on=dump_on, dump_after=2)
    assert 5 <= check(rows) < most


@pytest.mark.slow
def test_histograms_survive_a_kill(tmp_path: Path) -> None:
    program = """
import os, signal, sys
import tensorflow as tf, tfdbg_arrow
tfdbg_arrow.enable(sys.argv[1], histograms=True)
tf.function(lambda x: x * 2.0)(tf.constant([[[[[[[3.0, -0.25]]]]]]]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_python(tmp_path / "program.py", program, tmp_path / "log", returncode=-signal.SIGKILL)
    rows = tensors(tmp_path / "log")
    check(rows)
    (doubled,) = [row for row in rows if row["op_type"] == "Mul"]
    assert histogram_of(doubled) == HistogramSummary(-1, (1, 0, 0, 0), (0, 0, 0, 1))
    assert doubled["shape"] == [1, 1, 1, 1, 1, 1, 2]


def test_a_function_that_xla_would_compile_is_observed(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.math.exp(x), jit_compile=True)
    rows = record(tmp_path / "log", lambda: compiled(numbers(100)), "FULL_HEALTH")
    assert check(rows) == len(rows)
    assert "Exp" in {row["op_type"] for row in rows if row["scope"] == "graph"}


def test_feeds_and_fetches_of_sessions(tmp_path: Path) -> None:
    feed = numbers(300).numpy()

    def program() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None])
            session.run([x * 2.0, tf.shape(x)], {x: feed})

    rows = record(tmp_path / "log", program)
    assert check(rows) >= 3
    assert {row["scope"] for row in rows} >= {"external", "execution", "graph"}


def test_what_is_counted_on_a_device_has_none_and_is_reported(tmp_path: Path) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None])])  # a known small shape is counted on the host
    def f(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    with pytest.warns(RuntimeWarning, match="changed: histograms: With health_backend='tensorflow'"):
        rows = record(tmp_path / "log", lambda: f(numbers(200)) + 1.0, "FULL_HEALTH", health_backend="tensorflow")
    on_device = [row for row in rows if row["scope"] == "graph" and row["size"] == 200]
    assert check([row for row in rows if row not in on_device]) >= 3
    assert [histogram_of(row) for row in on_device] == [None] * 2
    with tfdbg_arrow.open_logdir(tmp_path / "log") as opened:
        assert opened.rows("SELECT subject FROM capture_stat WHERE stat = 'changed'") == [("histograms",)]


@pytest.mark.parametrize("histograms", [True, False])
def test_the_run_says_whether_histograms_were_recorded(tmp_path: Path, histograms: bool) -> None:
    with tfdbg_arrow.capture(tmp_path, histograms=histograms):
        tf.constant(1.0) * 2.0
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        assert opened.rows("SELECT settings->>'histograms' FROM run") == [(str(histograms).lower(),)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"histograms": 1}, "histograms is 1; expected True or False"),
        ({"tensor_debug_mode": "CONCISE_HEALTH"}, "mode CONCISE_HEALTH does not count finite elements; use"),
        ({"tensor_debug_mode": "SHAPE"}, "mode SHAPE does not count finite elements"),
        ({"xla": "inside"}, "xla is 'inside', which cannot count histograms; choose xla='observe'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        tfdbg_arrow.enable(tmp_path, **({"histograms": True} | settings))
