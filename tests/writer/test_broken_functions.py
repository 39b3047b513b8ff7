"""Test functions that TensorFlow's optimizer may break.

The functions apply an activation to the sum of a dense layer and another tensor. With oneDNN, the optimizer replaces
the activation by a node without an op type, and TensorFlow then runs the function without any optimization. On other
machines, the optimizer changes these functions as usual.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import tfdbg_arrow
from tests.sampling import mostly_slow
from tests.writer.tables import rows

X = tf.constant(np.random.default_rng(0).normal(size=(4, 8)).astype("float32"))
W = tf.constant(np.random.default_rng(1).normal(size=(8, 8)).astype("float32"))
B = tf.constant(np.random.default_rng(2).normal(size=8).astype("float32"))
ACTIVATIONS = {"Relu": tf.nn.relu, "Relu6": tf.nn.relu6, "Elu": tf.nn.elu, "LeakyRelu": tf.nn.leaky_relu}


def residual(x: Any, activation: Any = tf.nn.relu) -> Any:
    return activation(tf.nn.bias_add(x @ W, B) + x)


def num_recorded(logdir: Path, op_type: str) -> int:
    """Returns the number of tensors recorded for the ops of a type. Asserts that all functions were recorded."""
    assert rows(logdir, "capture_stat") == []
    return sum(row["op_type"] == op_type for row in rows(logdir, "tensor_health"))


@pytest.mark.parametrize("op_type", mostly_slow(ACTIVATIONS, fast=["Relu", "Elu"]))
def test_the_first_call_is_recorded_and_runs_once(tmp_path: Path, op_type: str) -> None:
    activation, num_calls = ACTIVATIONS[op_type], tf.Variable(0)

    def block(x: Any) -> Any:
        num_calls.assign_add(1)
        return residual(residual(x, activation), activation)

    expected = tf.function(block)(X)
    with tfdbg_arrow.capture(tmp_path):
        function = tf.function(block)
        results = [function(X), function(X)]
    assert num_calls.numpy() == 3
    assert [result.numpy().tobytes() for result in results] == [expected.numpy().tobytes()] * 2
    assert num_recorded(tmp_path, op_type) == 4


def test_a_function_runs_once_if_tensorflow_does_not_heed_the_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = tf.Variable(0)

    def block(x: Any) -> Any:
        num_calls.assign_add(1)
        return residual(x)

    expected = tf.function(block)(X)
    monkeypatch.setattr(cancellation.CancellationManager, "start_cancel", lambda self: None)
    with tfdbg_arrow.capture(tmp_path):
        result = tf.function(block)(X)
    assert num_calls.numpy() == 2
    assert result.numpy().tobytes() == expected.numpy().tobytes()


def test_a_loop_and_its_gradient(tmp_path: Path) -> None:
    def trained(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = residual(y)
        return tape.gradient(y, x)

    expected = tf.function(trained)(X)
    with tfdbg_arrow.capture(tmp_path):
        gradient = tf.function(trained)(X)
    assert gradient.numpy().tobytes() == expected.numpy().tobytes()
    assert num_recorded(tmp_path, "ReluGrad") == 3


def test_a_function_under_a_tape(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path), tf.GradientTape() as tape:
        tape.watch(X)
        y = tf.function(residual)(X)
        tape.gradient(y, X)
    assert num_recorded(tmp_path, "ReluGrad") == 1


@pytest.mark.parametrize("layer", mostly_slow(["SimpleRNN", "Dense"], fast=["Dense"]))
def test_keras(tmp_path: Path, layer: str) -> None:
    def history() -> Any:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4, 8) if layer == "SimpleRNN" else (8,))
        if layer == "SimpleRNN":
            hidden = keras.layers.SimpleRNN(8, activation="relu")(inputs)
        else:
            hidden = keras.layers.ReLU()(keras.layers.Dense(8)(inputs) + inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(16, *inputs.shape[1:]))
        losses = model.fit(x, np.ones(16), batch_size=8, epochs=2, verbose=0, shuffle=False).history["loss"]
        return losses, model.predict(x, verbose=0).tobytes()

    expected = history()
    with tfdbg_arrow.capture(tmp_path):
        assert history() == expected
    assert num_recorded(tmp_path, "ReluGrad") == (16 if layer == "SimpleRNN" else 4)


def test_threads_call_the_same_function_for_the_first_time(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        function = tf.function(residual).get_concrete_function(X)
        threads = [threading.Thread(target=function, args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert num_recorded(tmp_path, "Relu") == 4


def test_a_program_that_cancels_the_call_itself(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        manager = cancellation.CancellationManager()
        function = manager.get_cancelable_function(tf.function(residual).get_concrete_function(X))
        function(X)
        manager.start_cancel()
        with pytest.raises(tf.errors.CancelledError):
            function(X)
    assert num_recorded(tmp_path, "Relu") == 1


def test_an_error_of_the_first_call_reaches_the_program(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        function = tf.function(lambda x, i: residual(tf.gather(x, i)))
        with pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
            function(X, tf.constant([0, 99]))
        function(X, tf.constant([0, 1, 2, 3]))
    assert num_recorded(tmp_path, "Relu") == 1


def test_asynchronous_execution(tmp_path: Path) -> None:
    tf.config.experimental.set_synchronous_execution(False)
    try:
        with tfdbg_arrow.capture(tmp_path):
            result = tf.function(residual)(X).numpy()
    finally:
        tf.config.experimental.set_synchronous_execution(True)
    assert result.tobytes() == tf.function(residual)(X).numpy().tobytes()


def test_a_function_of_a_pipeline_is_recorded_or_noted(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        for _ in tf.data.Dataset.from_tensors(X).map(residual):
            pass
    recorded = [row for row in rows(tmp_path, "tensor_health") if row["op_type"] == "Relu"]
    noted = [row for row in rows(tmp_path, "capture_stat") if row["stat"] == "failed"]
    assert len(recorded) + len(noted) == 1
