"""Answers say what a bad tensor from outside is in the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import read_reasons

NAN = np.float32(np.nan)


def trained(spoil: Callable[[Any], None]) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="scores")], name="model")
    model.compile(keras.optimizers.SGD(), "mse")
    spoil(model)
    model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), batch_size=4, verbose=0)


def spoil_rate(model: Any) -> None:
    model.optimizer.learning_rate = float("inf")


def spoil_weights(model: Any) -> None:
    model.layers[-1].set_weights([np.full((2, 1), NAN), np.zeros(1, "float32")])


def argument() -> None:
    @tf.function
    def step(rate: Any) -> Any:
        return rate * 2.0

    step(tf.constant(1.0))
    step(tf.constant(NAN))


def feed() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ages = tf.compat.v1.placeholder(tf.float32, [None], name="ages")
        session.run(tf.reduce_sum(ages), {ages: [1.0]})
        session.run(tf.reduce_sum(ages), {ages: [NAN]})


def eager_operand() -> None:
    tf.constant(NAN) + 1.0


def captured() -> None:
    weights = tf.constant([1.0, np.inf])

    @tf.function
    def weighted(x: Any) -> Any:
        return tf.reduce_sum(x * weights)

    @tf.function
    def step(x: Any) -> Any:
        return weighted(x + 1.0)

    step(tf.constant([1.0, 2.0]))


def first(logdir: Path, program: Callable[[], None]) -> Any:
    with tfdbg_arrow.capture(logdir):
        program()
    found = tfdbg_arrow.first_nonfinite(logdir)
    assert found is not None
    return found


@pytest.mark.slow
def test_outside_tensors_have_names(tmp_path: Path) -> None:
    names = {
        "rate": first(tmp_path / "rate", lambda: trained(spoil_rate)).outside_name,
        "weights": first(tmp_path / "weights", lambda: trained(spoil_weights)).outside_name,
        "argument": first(tmp_path / "argument", argument).outside_name,
        "captured": first(tmp_path / "captured", captured).outside_name,
        "feed": first(tmp_path / "feed", feed).outside_name,
        "operand": first(tmp_path / "operand", eager_operand).outside_name,
        "op": first(tmp_path / "op", lambda: tf.math.log(tf.zeros([]))).outside_name,
    }
    assert names == {
        "rate": "a value for a variable of the optimizer",
        "weights": "a value for a variable of the layer model/scores",
        "argument": "the argument `rate` of `step`",
        "captured": "a tensor made outside the function",
        "feed": "the feed of `ages`",
        "operand": None,
        "op": None,
    }


def test_the_headline_names_the_argument_and_its_call(tmp_path: Path) -> None:
    headline = first(tmp_path, argument).headline
    start, _, end = headline.partition(", read at test_outside_tensors.py:")
    assert start == "NaN came into the program in the argument `rate` of `step`"
    assert end.endswith(", in call 2 of step.")


def test_the_headline_names_the_line_that_uses_a_captured_tensor(tmp_path: Path) -> None:
    found = first(tmp_path, captured)
    assert found.source.code == "return tf.reduce_sum(x * weights)"
    line = f"test_outside_tensors.py:{found.source.lineno}"
    name = "a tensor made outside the function"
    assert found.headline == f"+Inf came into the program in {name}, used at {line}, in call 1 of step."


def captured_logarithms() -> None:
    logarithms = tf.constant([[-0.5, -1.0], [-np.inf, -np.inf]])

    @tf.function
    def step(x: Any) -> Any:
        logits = x + logarithms
        return tf.exp(logits - tf.reduce_max(logits, axis=-1, keepdims=True))

    step(tf.constant([1.0, 2.0]))


def test_captured_logarithms_of_0_are_not_to_blame_for_a_row_of_zeros(tmp_path: Path) -> None:
    assert first(tmp_path, captured_logarithms).op_type == "Sub"


def test_a_variable_that_was_bad_before_the_recording_is_not_called_a_result_of_its_reader(tmp_path: Path) -> None:
    weights, table = tf.Variable([1.0, NAN]), tf.Variable([[1.0, 1.0], [NAN, 1.0]])
    read = tf.function(lambda x: weights * x)
    look_up = tf.function(lambda rows: tf.gather(table, rows) * 2.0)
    for name, program, op_type, code, call in (
        ("read", lambda: read(tf.ones([2])), "ReadVariableOp", "weights * x", " in call 1 of <lambda>"),
        ("gather", lambda: look_up([1]), "ResourceGather", "tf.gather(table, rows)", " in call 1 of <lambda>"),
        ("eager", lambda: weights.assign(weights * 2.0), "ReadVariableOp", "weights * 2.0", ""),
    ):
        found = first(tmp_path / name, program)
        assert found.op_type == op_type
        place = f"test_outside_tensors.py:{found.source.lineno}"
        assert found.headline == f"`{code}` at {place} read NaN from a variable{call}."
        explanation = read_reasons(tmp_path / name, found).explanation
        assert explanation is not None
        assert explanation.sentence == "The variable already held NaN, and no recorded op is known to have written it."
        assert "begin the recording earlier" in explanation.repair
