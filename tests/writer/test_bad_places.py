"""first_bad_index and num_bad_slices say where the bad elements of a tensor are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.schema.dtypes import DTYPES
from tfdbg_arrow.writer.native.reference import BadPlace, find_bad

from .tables import rows

FLOATS = [dtype.name for dtype in DTYPES if dtype.has_health and dtype.kind in ("float", "complex")]


def place_of(row: dict[str, Any]) -> tuple[int | None, int | None]:
    return row["first_bad_index"], row["num_bad_slices"]


def record(logdir: Path, program: Callable[[], object], **settings: Any) -> list[dict[str, Any]]:
    """Records a program with all elements, and compares first_bad_index and num_bad_slices with NumPy's results."""
    with tfdbg_arrow.capture(logdir, "FULL_TENSOR", **settings):
        program()
    health = [row for row in rows(logdir) if row["dtype"] != "string"]
    values = {row["event_index"]: row["value"] for row in rows(logdir, "tensor_value")}
    for row in health:
        elements = np.frombuffer(values[row["event_index"]], getattr(ml_dtypes, row["dtype"], row["dtype"]))
        place = find_bad(elements.reshape(row["shape"]))
        assert place_of(row) == ((None, None) if place is None else (place.first_index, place.num_slices)), row
    return health


def with_bad_elements(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    """Returns numbers, a few of which are NaN or infinite."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape).astype("float32")
    is_bad = random.random(shape) < 0.02
    values[is_bad] = random.choice([np.nan, np.inf, -np.inf], is_bad.sum())
    if dtype.startswith("complex"):
        parts = np.stack([values, values[::-1]], axis=-1).astype({"complex64": "f4", "complex128": "f8"}[dtype])
        return parts.view(dtype)[..., 0]
    with np.errstate(all="ignore"):
        return values.astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_eager_tensors_of_each_dtype(tmp_path: Path, dtype: str) -> None:
    values = with_bad_elements(20, 30, dtype=dtype)
    health = record(tmp_path / "log", lambda: tf.identity(tf.constant(values)))
    assert len({place_of(row) for row in health}) == 1
    assert find_bad(values) == BadPlace(*place_of(health[0]))  # type: ignore[arg-type]


def test_eager_tensors_of_each_rank(tmp_path: Path) -> None:
    def program() -> None:
        for shape in ((), (0,), (3, 0), (1,), (50,), (7, 30), (2, 3, 40), (1, 5, 2, 3, 2), (1, 2, 1, 2, 1, 2, 50)):
            tf.identity(tf.constant(with_bad_elements(*shape)))
        tf.identity(tf.constant(np.nan))
        tf.identity(tf.constant([[[[[[np.inf]]]]]]))

    health = record(tmp_path / "log", program)
    assert {row["rank"] for row in health if row["first_bad_index"] is not None} >= {0, 1, 2, 3, 5, 6, 7}


@pytest.mark.parametrize("graphs", ["executed", "traced"])
def test_functions_with_loops_and_ops_that_move_elements(tmp_path: Path, graphs: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for i in tf.range(4):
            x = tf.tensor_scatter_nd_update(x, [[3 * i + 1, i]], [tf.math.log(-1.0 - tf.cast(i, tf.float32))])
            y = tf.reduce_sum(tf.transpose(x)) + tf.reshape(x, [4, 5, 5])
        return tf.identity(tf.reshape(tf.transpose(x), [2, 50])) + tf.reduce_max(y)

    health = record(tmp_path / "log", lambda: f(tf.constant(np.ones((20, 5), "float32"))), graphs=graphs)
    updated = [place_of(row) for row in health if row["op_type"] == "TensorScatterUpdate"]
    assert updated == [(5, 1), (5, 2), (5, 3), (5, 4)]


def test_arrays_that_a_session_feeds_and_fetches(tmp_path: Path) -> None:
    def program() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, [None, 3])
            session.run([x * 2.0, tf.reduce_sum(x)], {x: with_bad_elements(40, 3)})

    health = record(tmp_path / "log", program)
    assert {"external", "execution", "graph"} <= {row["scope"] for row in health if row["first_bad_index"] is not None}


def test_tensors_that_ops_count_on_their_device_have_no_place(tmp_path: Path) -> None:
    small, large = with_bad_elements(4, 100), with_bad_elements(200, 1000)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    with tfdbg_arrow.capture(tmp_path, health_backend="tensorflow"):
        f(tf.constant(small))
        f(tf.constant(large))
    products = [row for row in rows(tmp_path) if row["op_type"] == "Mul"]
    expected = find_bad(small)
    assert expected is not None
    assert [(row["has_inf_or_nan"], *place_of(row)) for row in products] == [
        (True, expected.first_index, expected.num_slices),
        (True, None, None),
    ]
