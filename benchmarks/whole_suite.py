"""A test suite of a model. The pytest plugin of tfdbg_arrow records each test, and whole_runs.py measures the suite."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import phases
import pytest
import tensorflow as tf

pytestmark = pytest.mark.tfdbg

phases.begin("tracing")


@pytest.fixture(autouse=True)
def _end_of_first_test() -> Iterator[None]:
    yield
    phases.at_step(1)


def _train(width: int) -> float:
    keras.utils.set_random_seed(1)
    features = np.random.default_rng(1).normal(size=(256, 8)).astype(np.float32)
    hidden = keras.layers.Dense(width, activation="tanh")
    model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    history = model.fit(features, features.sum(axis=1), batch_size=32, epochs=3, verbose=0)
    return float(history.history["loss"][-1])


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_loss_is_finite(width: int) -> None:
    """Trains a model with Keras."""
    assert np.isfinite(_train(width))


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3, 0.4])
def test_gradient_descent_converges(rate: float) -> None:
    """Minimizes a square with a tf.function."""
    value = tf.Variable(3.0)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.square(value)
        value.assign_sub(rate * tape.gradient(loss, value))

    for _ in range(50):
        step()
    assert abs(float(value)) < 0.1
