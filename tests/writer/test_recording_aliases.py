"""Tensors of one record op that share a buffer are counted once, and each has the row that it would have by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer.native import reference

from .tables import rows

SIZE = 2048
BAD = np.linspace(-3.0, 3.0, SIZE, dtype=np.float32)
BAD[7:700:7] = np.nan
BAD[3], BAD[5], BAD[9] = np.inf, -np.inf, 0.0


@tf.function
def names_and_shapes(x: tf.Tensor) -> Any:
    @tf.custom_gradient
    def doubled(y: tf.Tensor) -> Any:
        return y * 2.0, lambda upstream: upstream * 2.0

    chain = tf.identity(tf.reshape(tf.identity(x), [4, -1]))
    chain = tf.squeeze(tf.expand_dims(tf.stop_gradient(chain), 1))
    y = doubled(tf.reshape(chain, [-1]))
    # Where y is, but neither of its dtype nor of its size.
    return tf.bitcast(tf.reshape(y, [-1, 2]), tf.complex64), y[: SIZE // 2], tf.identity_n([y, tf.identity(x) + y])


@tf.function
def two_reads(x: tf.Tensor) -> Any:
    before, again = VARIABLE.read_value(), tf.identity(VARIABLE)
    VARIABLE.assign(x)
    after = VARIABLE.read_value()
    VARIABLE.assign_add(after)
    return before + again, after, VARIABLE.read_value(), tf.reshape(VARIABLE, [2, -1])


@tf.function
def loop(x: tf.Tensor) -> Any:
    for i in tf.range(3):
        y = tf.identity(tf.reshape(x, [2, -1]))
        if i % 2 == 0:
            y = tf.identity(y) * 3.0
        x = tf.reshape(tf.identity(y), [-1])
        VARIABLE.assign(x)
        x = VARIABLE.read_value() + VARIABLE.read_value()
    return x


@tf.function
def handed_on(x: tf.Tensor) -> tf.Tensor:
    return tf.identity(tf.reshape(x, [-1, 8]))


@tf.function
def nested(x: tf.Tensor) -> Any:
    return handed_on(handed_on(x) * 2.0), handed_on(tf.identity(x)), x


@tf.function
def same_twice(x: tf.Tensor, y: tf.Tensor) -> Any:
    return tf.identity(x), tf.reshape(y, [4, -1]) + 1.0


HEALTH_MODES = ("CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH")
VARIABLE = tf.Variable(tf.zeros([SIZE]))
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "names_and_shapes": names_and_shapes,
    "two_reads": two_reads,
    "loop": loop,
    "nested": nested,
    "same_twice": lambda x: same_twice(x, x),
}


def run(name: str, logdir: Path, mode: str, **settings: Any) -> list[dict[str, Any]]:
    """Records each op of a program twice over, healthy and bad; returns the rows of what graphs made."""
    with tfdbg_arrow.capture(logdir, mode, graphs="traced", **settings):
        VARIABLE.assign(tf.zeros([SIZE]))
        for x in (tf.constant(BAD), tf.ones([SIZE]), tf.ones([SIZE])):
            PROGRAMS[name](x)
    return [row for row in rows(logdir) if row["scope"] == "graph"]


def elements(row: dict[str, Any], value: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(value, row["dtype"]).reshape(row["shape"])


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "FULL_NUMERICS"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("not_recording")
def test_each_row_tells_of_its_own_elements(name: str, mode: str, tmp_path: Path) -> None:
    found = run(name, tmp_path, mode, values=".")
    kept = {row["event_index"]: row["value"] for row in rows(tmp_path, "tensor_value")}
    floating = [row for row in found if row["dtype"] in ("float32", "complex64")]
    assert sum(row["has_inf_or_nan"] for row in floating) > 3
    for row in floating:
        array = elements(row, kept[row["event_index"]])
        health = reference.summarize(array)
        assert {column: row[column] for column in vars(health)} == vars(health)
        assert (row["size"], row["rank"]) == (array.size, array.ndim)
        assert row["has_inf_or_nan"] == (not np.isfinite(array).all())
        if mode == "FULL_NUMERICS":
            numerics = reference.measure(array)
            assert row["num_subnormal"] == numerics.num_subnormal
            assert row["max_abs_finite"] == (numerics.max_abs if numerics.any_finite else None)
            ordered = (numerics.min, numerics.max) if numerics.ordered else (None, None)
            assert (row["min_finite"], row["max_finite"]) == ordered
            assert row["mean_finite"] == (pytest.approx(numerics.mean, rel=1e-12) if numerics.ordered else None)


@pytest.mark.parametrize(
    "mode",
    ["FULL_NUMERICS", *(pytest.param(mode, marks=pytest.mark.exhaustive) for mode in ("SHAPE", *HEALTH_MODES))],
)
@pytest.mark.usefixtures("not_recording")
def test_the_rows_are_those_of_tensors_that_are_kept(mode: str, tmp_path: Path) -> None:
    def facts(found: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        times = ("event_index", "wall_time", "wall_time_ns", "run_id", "step_id", "frame_id", "value_offset")
        floating = [row for row in found if row["dtype"] in ("float32", "complex64")]
        return Counter(tuple(repr(row[key]) for key in sorted(row) if key not in times) for row in floating)

    for name in PROGRAMS:
        plain = facts(run(name, tmp_path / f"{name}_plain", mode))
        kept = facts(run(name, tmp_path / f"{name}_kept", mode, values="."))
        assert plain == kept
        assert plain
