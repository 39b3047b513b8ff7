"""A bad value is followed into the Python function of `tf.py_function`, and out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import NonFinite


def path_of_last(logdir: Path, op_type: str) -> list[str | None]:
    """Returns the types of the ops behind the last bad tensor of an op type, from this tensor to the origin."""
    with tfdbg_arrow.open_logdir(logdir) as opened:
        (last,) = opened.rows(
            "SELECT max(event_index) FROM tensor_health WHERE has_inf_or_nan AND op_type = ?", [op_type]
        )
        path = opened.provenance(*last).path
        return [hop.op_type for hop in reversed(path) if hop.has_inf_or_nan]


def first_of(logdir: Path) -> NonFinite:
    first = tfdbg_arrow.first_nonfinite(logdir)
    assert first is not None
    return first


@pytest.mark.parametrize("backend", ["native", "tensorflow"])
def test_an_eager_op_in_the_function_is_the_origin(backend: str, tmp_path: Path) -> None:
    def entropy(p: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_sum(p * tf.math.log(p))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(entropy, [x * 2.0], tf.float32) + 1.0

    with tfdbg_arrow.capture(tmp_path, health_backend=backend):
        step(tf.constant([1.0, 0.5]))
        step(tf.constant([1.0, 0.0]))
    first = first_of(tmp_path)
    assert (first.op_type, first.graph_name, first.effect) == ("Log", None, "result")
    assert first.call is not None
    assert (first.call.function, first.call.number) == ("step", 2)
    assert path_of_last(tmp_path, "EagerPyFunc") == ["EagerPyFunc", "Neg", "Sum", "Mul", "Log"]


def test_a_bad_argument_of_the_function_comes_from_the_graph(tmp_path: Path) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        logarithm = tf.math.log(x)
        return tf.py_function(lambda y: tf.reduce_sum(y * 2.0), [logarithm], tf.float32) + 1.0

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([1.0, 0.5]))
        step(tf.constant([1.0, 0.0]))
    assert first_of(tmp_path).op_type == "Log"
    assert path_of_last(tmp_path, "Sum") == ["Sum", "Mul", None, "Log"]
    assert path_of_last(tmp_path, "AddV2") == ["AddV2", "EagerPyFunc", "Log"]


def test_a_function_that_computes_with_numpy_is_the_origin(tmp_path: Path) -> None:
    def logarithm(y: tf.Tensor) -> np.ndarray[Any, Any]:
        with np.errstate(divide="ignore"):
            return np.log((y * 2.0).numpy())

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(logarithm, [x], tf.float32) + 1.0

    with tfdbg_arrow.capture(tmp_path):
        step(tf.constant([1.0, 0.5]))
        step(tf.constant([1.0, 0.0]))
    first = first_of(tmp_path)
    assert (first.op_type, first.is_origin) == ("EagerPyFunc", True)


def test_a_record_that_the_function_makes_has_its_batch_and_row(tmp_path: Path) -> None:
    records = tf.constant([[1.0, 2.0]] * 6 + [[1.0, -2.0], [1.0, 2.0]])

    def load(record: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.py_function(tf.math.log, [record], tf.float32), [2])

    weight = tf.Variable([1.0, 1.0])

    @tf.function
    def step(batch: tf.Tensor) -> None:
        weight.assign_sub(tf.reduce_mean(batch * weight, axis=0))

    with tfdbg_arrow.capture(tmp_path):
        for batch in tf.data.Dataset.from_tensor_slices(records).map(load).batch(4):
            step(batch)
    first = first_of(tmp_path)
    assert (first.op_type, first.effect) == ("Log", "variable")
    assert first.samples is not None
    assert (first.samples.first, first.samples.num_samples, first.samples.row) == (2, 4, 6)
