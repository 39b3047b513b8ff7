"""A bad result that the program threw away before it trained did no harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.query.flow.walk import DISCARDED

EXAMPLE = np.zeros((1, 2), "float32")


class Scale(keras.layers.Layer):
    """Divides by the mean magnitude of the data, which is 0 until the first batch."""

    def build(self, shape: Any) -> None:
        self.magnitude = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.magnitude.assign(tf.reduce_mean(tf.abs(x)))
        return x / self.magnitude


class Model(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.scale = Scale()
        self.head = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.scale(x, training=training))


class ModelThatKeepsItsOutput(Model):
    def call(self, x: Any, training: bool = False) -> Any:
        self.kept = self.head(self.scale(x, training=training))
        return self.kept


def train(model: Any) -> None:
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), epochs=1, verbose=0)


def only_called(model: Any) -> None:
    model(EXAMPLE)
    model.summary(print_fn=lambda *texts, **options: None)
    train(model)


def called_in_a_function(model: Any) -> None:
    def outputs() -> Any:
        return {"first": (model(EXAMPLE), 1)}

    outputs()
    train(model)


def not_trained(model: Any) -> None:
    model(EXAMPLE)
    model.count_params()


def read(model: Any) -> None:
    model(EXAMPLE).numpy()
    train(model)


def kept(model: Any) -> None:
    result = model(EXAMPLE)
    train(model)
    assert np.isnan(result.numpy()).all()


def kept_as_underscore(model: Any) -> None:
    _ = model(EXAMPLE)
    train(model)
    assert np.isnan(_.numpy()).all()


def printed(model: Any) -> None:
    print(model(EXAMPLE))
    train(model)


def printed_in_a_function(model: Any) -> None:
    def show() -> Any:
        return print(model(EXAMPLE))

    show()
    train(model)


def called_by_a_library(model: Any) -> None:
    model.predict_on_batch(EXAMPLE)
    train(model)


def first(logdir: Path, program: Callable[[Any], None], model: Callable[[], Any]) -> Any:
    with tfdbg_arrow.capture(logdir):
        program(model())
    return tfdbg_arrow.first_nonfinite(logdir)


@pytest.mark.parametrize("program", mostly_slow([only_called, called_in_a_function], fast=[only_called]))
def test_a_result_that_was_thrown_away_before_a_training_did_no_harm(
    program: Callable[[Any], None], tmp_path: Path
) -> None:
    found = first(tmp_path, program, Model)
    assert (found.op_type, found.effect, found.expected_reason) == ("RealDiv", "absorbed", DISCARDED)


@pytest.mark.parametrize(
    ("program", "model"),
    mostly_slow(
        [
            *(
                (program, Model)
                for program in (not_trained, read, kept, kept_as_underscore, printed, printed_in_a_function)
            ),
            (called_by_a_library, Model),
            (only_called, ModelThatKeepsItsOutput),
        ],
        fast=[(not_trained, Model), (kept, Model), (kept_as_underscore, Model), (called_by_a_library, Model)],
    ),
)
def test_a_result_that_the_program_may_have_used_did_harm(
    program: Callable[[Any], None], model: Callable[[], Any], tmp_path: Path
) -> None:
    assert first(tmp_path, program, model).expected_reason is None
