"""`values=` keeps the elements of the tensors of chosen ops. For other tensors, `values=` keeps only the health."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow

from .tables import rows


@pytest.fixture(params=mostly_slow(["native", "tensorflow"], fast=["native"]))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def program() -> None:
    """Runs eager ops, and a function with ops of the same types, a named layer, a loop, integers and a call."""
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(3)
    x = tf.constant(generator.normal(size=(3, 4)).astype(np.float32))
    kernel = tf.Variable(generator.normal(size=(4, 2)).astype(np.float32))

    @tf.function
    def inner(y: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(y)

    @tf.function
    def model(y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.name_scope("dense"):
            y = tf.matmul(y, kernel)
        for _ in tf.range(2):
            y = tf.tanh(y)
        y = inner(y)
        return y, tf.argmax(y, axis=1)

    for _ in range(2):
        outputs, labels = model(x)
    tf.tanh(outputs)
    tf.raw_ops.Add(x=labels, y=labels)


def keyed(logdir: Path, name: str) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Returns the rows of a table by op, in the order in which the op ran, without columns that differ by recording."""
    values = {row["event_index"]: row for row in rows(logdir, "tensor_value")}
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    health = [row for row in rows(logdir, "tensor_health") if row["scope"] != "external"]
    counts = [column for column in health[0] if column.startswith("num_")]
    for row in sorted(health, key=lambda row: row["event_index"]):
        op_name = row["op_name"] and re.sub(r"_\d+__", "__", row["op_name"])  # TensorFlow numbers loops
        key = (re.sub(r"\d+", "", row["op_type"]), op_name, row["output_slot"], row["scope"])
        facts = (row["dtype"], row["shape"], *(row[column] for column in counts))
        if name == "tensor_value":
            value = values.get(row["event_index"])
            if value is None:
                continue
            facts = (*facts, value["dtype"], value["shape"], value["value"])
        found.setdefault(key, []).append(facts)
    # The runs of an op in a loop have no fixed order.
    return {key: sorted(facts, key=repr) for key, facts in found.items()}


def is_chosen(key: tuple[Any, ...], values: str) -> bool:
    op_type, op_name = key[0], key[1]
    return re.match(values, op_type) is not None or (op_name is not None and re.match(values, op_name) is not None)


@pytest.mark.slow
@pytest.mark.parametrize("values", ["dense/|Tanh$|ArgMax|Add$", "."])
def test_the_rows_equal_those_of_full_tensor(values: str, backend: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"health_backend": backend, "graphs": "traced"}  # as with values=
    with tfdbg_arrow.capture(tmp_path / "full", "FULL_TENSOR", **settings):
        program()
    with tfdbg_arrow.capture(tmp_path / "health", **settings):
        program()
    with tfdbg_arrow.capture(tmp_path / "some", values=values, **settings):
        program()
    full = keyed(tmp_path / "full", "tensor_value")
    chosen = {key: facts for key, facts in full.items() if is_chosen(key, values)}
    assert keyed(tmp_path / "some", "tensor_value") == chosen
    assert chosen
    # All other rows equal the rows of a recording without values=.
    expected = {
        key: facts for key, facts in keyed(tmp_path / "health", "tensor_health").items() if not is_chosen(key, values)
    }
    found = keyed(tmp_path / "some", "tensor_health")
    assert {key: facts for key, facts in found.items() if not is_chosen(key, values)} == expected
    assert rows(tmp_path / "some", "capture_stat") == []
    (run,) = rows(tmp_path / "some", "run")
    assert (run["tensor_debug_mode"], f'"values":"{values}"' in run["settings"].replace(": ", ":")) == (
        "FULL_HEALTH",
        "\\" not in values,
    )


def test_a_callable_chooses_by_type_and_name(backend: str, tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def choose(op_type: str, op_name: str | None) -> bool:
        asked.append((op_type, op_name))
        return op_name == "dense/MatMul" or (op_name is None and op_type == "Tanh")

    with tfdbg_arrow.capture(tmp_path, values=choose, health_backend=backend):
        program()
    kept = {(key[0], key[1], key[3]) for key in keyed(tmp_path, "tensor_value")}
    assert kept == {("MatMul", "dense/MatMul", "graph"), ("Tanh", None, "execution")}
    eager = [op_type for op_type, op_name in asked if op_name is None]
    assert len(eager) == len(set(eager))
    assert '"choose"' not in rows(tmp_path, "run")[0]["settings"]
    assert "choose" in rows(tmp_path, "run")[0]["settings"]


def _raise(op_type: str, op_name: str | None) -> bool:
    raise ZeroDivisionError("of the program")


@pytest.mark.parametrize("choose", [_raise, lambda *_: np.ones(2)])
def test_a_callable_that_raises_chooses_nothing(choose: Callable[..., Any], backend: str, tmp_path: Path) -> None:
    with (
        pytest.warns(RuntimeWarning, match="the callable") as caught,
        tfdbg_arrow.capture(tmp_path / "a", values=choose),
    ):
        program()
    assert len([warning for warning in caught if "the callable" in str(warning.message)]) == 1
    with tfdbg_arrow.capture(tmp_path / "b", health_backend=backend, graphs="traced"):  # as with values=
        program()
    assert keyed(tmp_path / "a", "tensor_health") == keyed(tmp_path / "b", "tensor_health")
    assert rows(tmp_path / "a", "tensor_value") == []
    (stat,) = rows(tmp_path / "a", "capture_stat")
    assert (stat["stat"], stat["subject"]) == ("failed", "values")


def test_chosen_ops_are_kept_despite_filters(backend: str, tmp_path: Path) -> None:
    filters: dict[str, Any] = {"op_regex": "Softmax", "tensor_dtypes": ["float64", "float32"]}
    with tfdbg_arrow.capture(tmp_path, "SHAPE", values="ArgMax$|Add$", health_backend=backend, **filters):
        program()
    found = keyed(tmp_path, "tensor_health")
    assert {(key[0], key[3]) for key in found} >= {("Softmax", "graph"), ("ArgMax", "graph"), ("Add", "execution")}
    assert {key[0] for key in found} <= {"Softmax", "ArgMax", "Add"}
    kept = keyed(tmp_path, "tensor_value")
    assert {(key[0], facts[0][0]) for key, facts in kept.items()} == {("ArgMax", "int64"), ("Add", "int64")}
    recorded = {row["op_name"] for row in rows(tmp_path, "graph_op_output") if row["is_recorded"]}
    assert recorded == {"Softmax", "ArgMax"}


def test_arguments_are_kept_each_time_they_are_passed(tmp_path: Path) -> None:
    """Without kept elements, a large argument that is passed again is measured only once."""

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x)

    data = tf.constant(np.arange(1 << 15, dtype=np.float32))
    with tfdbg_arrow.capture(tmp_path, values="x$|Placeholder"):
        for _ in range(4):
            f(data)
    kept = [row["value"] for row in rows(tmp_path, "tensor_value")]
    assert kept == [data.numpy().tobytes()] * 4
