"""scalar_value is the value of each tensor with one floating-point element."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.writer.native.reference import HISTOGRAM_DTYPES, scalar_value

from .tables import rows

READING = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "FULL_NUMERICS", "FULL_TENSOR")
TINY = 2.0**-140  # subnormal in float32
VALUES = (2.5, -3.0, 0.0, -0.0, TINY, math.nan, math.inf, -math.inf)


def text(value: float | None) -> str:
    return repr(value)  # a NaN is not equal to itself


def record(logdir: Path, program: Callable[[], object], **settings: Any) -> list[dict[str, Any]]:
    """Records a program with its tensors' elements, and asserts that each row has the value that NumPy finds."""
    with tfdbg_arrow.capture(logdir, "FULL_TENSOR", **settings):
        program()
    values = {row["event_index"]: row["value"] for row in rows(logdir, "tensor_value")}
    health = [row for row in rows(logdir) if row["dtype"] != "string"]
    for row in health:
        elements = np.frombuffer(values[row["event_index"]], getattr(ml_dtypes, row["dtype"], row["dtype"]))
        assert text(row["scalar_value"]) == text(scalar_value(elements)), row
    return health


def test_each_floating_point_dtype(tmp_path: Path) -> None:
    def program() -> None:
        for dtype in HISTOGRAM_DTYPES:
            for value in VALUES:
                with np.errstate(all="ignore"):
                    array = np.array(value, "float32").astype(getattr(ml_dtypes, dtype, dtype))
                tf.identity(tf.constant(array))
                tf.identity(tf.constant(array.reshape(1, 1, 1, 1, 1)))
            tf.identity(tf.constant(np.zeros(2).astype(getattr(ml_dtypes, dtype, dtype))))

    health = record(tmp_path, program)
    ranks: dict[str, set[int]] = {dtype: set() for dtype in HISTOGRAM_DTYPES}
    for row in health:
        if row["scalar_value"] is not None:
            ranks[row["dtype"]].add(row["rank"])
    assert ranks == {dtype: {0, 5} for dtype in HISTOGRAM_DTYPES}
    scalars = [row for row in health if (row["dtype"], row["rank"], row["scope"]) == ("float32", 0, "execution")]
    expected = [2.5, -3.0, 0.0, 0.0, TINY, math.nan, math.inf, -math.inf]
    assert [text(row["scalar_value"]) for row in scalars] == list(map(text, expected))


def test_other_dtypes_and_sizes_have_no_value(tmp_path: Path) -> None:
    def program() -> None:
        for value in (1, True, 1j, [1.0, 2.0], np.zeros((0, 3), "float32")):
            tf.identity(tf.constant(value))

    assert {row["scalar_value"] for row in record(tmp_path, program)} == {None}


@tf.function
def in_graph(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(3):
        x = tf.math.log(x) * 0.5
    return tf.reduce_sum(tf.reshape(x, [1, 1]) + tf.zeros([4, 5]))


@pytest.mark.parametrize("backend", mostly_slow(["native", "tensorflow"], fast=["native"]))
@pytest.mark.parametrize("mode", mostly_slow([*READING, "SHAPE"], fast=["CURT_HEALTH", "FULL_NUMERICS", "SHAPE"]))
def test_each_mode(tmp_path: Path, mode: str, backend: str) -> None:
    with tfdbg_arrow.capture(tmp_path, mode, health_backend=backend):
        in_graph(tf.constant(5.0))
    logs = {row["iteration"]: row["scalar_value"] for row in rows(tmp_path) if row["op_type"] == "Log"}
    x, expected = np.float32(5.0), []
    for _ in range(3):
        with np.errstate(all="ignore"):
            expected.append(float(np.log(x)))
        x = np.float32(expected[-1] * 0.5)
    if mode == "SHAPE":
        assert logs == dict.fromkeys(range(3))
    else:
        assert logs == pytest.approx(dict(enumerate(expected)), rel=1e-6, nan_ok=True)


def test_arrays_that_a_session_feeds_and_fetches(tmp_path: Path) -> None:
    def program() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32)
            for value in VALUES:
                session.run([x * 2.0, tf.reduce_sum(x)], {x: value})

    health = record(tmp_path, program)
    assert {"external", "execution", "graph"} == {row["scope"] for row in health if row["scalar_value"] is not None}


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "FULL_NUMERICS"])
def test_inside_xla(tmp_path: Path, mode: str) -> None:
    @tf.function(jit_compile=True)
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.math.log(x) * 3.0, [1]) + tf.reduce_sum(tf.zeros([7]) + x)

    with tfdbg_arrow.capture(tmp_path, mode, xla="inside"):
        for value in (2.0, TINY, 0.0, -1.0):
            f(tf.constant(value))
    inside = [row for row in rows(tmp_path) if row["scope"] == "graph" and row["size"] == 1]
    logs = [row["scalar_value"] for row in inside if row["op_type"] == "Log"]
    assert logs[0] == pytest.approx(math.log(2.0))
    assert logs[2] == -math.inf
    assert math.isnan(logs[3])
    assert all(row["scalar_value"] is not None for row in inside)
    assert all(
        (row["size"] == 1) == (row["scalar_value"] is not None) for row in rows(tmp_path) if row["dtype"] == "float32"
    )
