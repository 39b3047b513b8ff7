"""A recording does not change any bit of a program's numbers, as far as TensorFlow itself is deterministic.

TensorFlow's passes that fuse kernels are off, because an op whose output is recorded cannot be fused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

from .features import FEATURES
from .subprocesses import run_python

UNFUSED = dict.fromkeys(("remapping", "layout_optimizer", "pin_to_host_optimization"), False)
IN_ORDER = dict.fromkeys(("constant_folding", "arithmetic_optimization"), False)
"""These passes turn (x * a) * b into x * (a * b) and reorder a + b + c, unless an op uses an intermediate result."""

TRAINING = f"""
import json, sys
import keras
import numpy as np
import tensorflow as tf

mode, logdir = sys.argv[1:]
tf.config.experimental.enable_op_determinism()
tf.config.optimizer.set_experimental_options({UNFUSED!r})
keras.utils.set_random_seed(42)
if mode != "none":
    import tfdbg_arrow
    tfdbg_arrow.enable(logdir, mode)
found = {{}}

def keep(name, *values):
    found[name] = [np.asarray(value).tobytes().hex() for value in tf.nest.flatten(values)]

def batches(*shape):
    rng = np.random.default_rng(3)
    return [rng.normal(size=shape).astype(np.float32) for _ in range(6)]

def mlp():
    w1, w2 = (tf.Variable(tf.random.normal(shape, stddev=0.3)) for shape in ((8, 16), (16, 4)))
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def forward(x):
        return tf.nn.softmax(tf.nn.dropout(tf.nn.relu(x @ w1), 0.3) @ w2)

    @tf.function
    def loss_of(probs, labels):
        return -tf.reduce_mean(tf.math.log(tf.reduce_sum(probs * labels, axis=1) + 1e-6))

    losses = []
    for x in batches(12, 8):
        labels = tf.one_hot(tf.random.uniform([12], maxval=4, dtype=tf.int32), 4)
        with tf.GradientTape() as tape:
            loss = loss_of(forward(tf.constant(x) + tf.random.normal([12, 8], stddev=0.1)), labels)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w1, w2]), [w1, w2]))
        losses.append(loss)
    keep("mlp", losses, w1, w2)

def cnn():
    model = keras.Sequential([
        keras.Input((8, 8, 1)), keras.layers.RandomFlip(), keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(), keras.layers.MaxPooling2D(), keras.layers.Dropout(0.4),
        keras.layers.Flatten(), keras.layers.GaussianNoise(0.1), keras.layers.Dense(3),
    ])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    x = np.concatenate(batches(4, 8, 8, 1))
    y = np.arange(len(x)) % 3
    history = model.fit(x, y, epochs=2, batch_size=8, verbose=0, validation_split=0.25)
    keep("cnn", sorted(history.history.items()), model.get_weights(), model.predict(x, verbose=0))

def rnn():
    cell = keras.layers.GRUCell(5, dropout=0.2)
    layer, bidirectional = keras.layers.RNN(cell), keras.layers.Bidirectional(keras.layers.LSTM(3))
    head = keras.layers.Dense(1)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(head(tf.concat([layer(x, training=True), bidirectional(x)], 1)) ** 2)
        weights = layer.trainable_variables + bidirectional.trainable_variables + head.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    losses = [step(x) for x in batches(4, 5, 2)]
    keep("rnn", losses, layer.get_weights(), head.get_weights())

def custom_gradient():
    @tf.custom_gradient
    def noisy(x):
        def gradient(upstream):
            return upstream * tf.random.normal(tf.shape(upstream))
        return tf.tanh(x), gradient

    w = tf.Variable(tf.random.uniform([6]))

    @tf.function
    def step(x):
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(noisy(x * w) * tf.random.uniform([6]))
            w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    keep("custom_gradient", [step(x) for x in batches(6)], w)

for program in (mlp, cnn, rnn, custom_gradient):
    program()
keep("random", tf.random.normal([4]), keras.random.normal((4,)), tf.random.Generator.from_seed(3).normal([2]))
if mode != "none":
    tfdbg_arrow.disable()
print(json.dumps(found))
"""


def train(directory: Path, mode: str) -> dict[str, list[str]]:
    output = run_python(directory / f"{mode}.py", TRAINING, mode, directory / "logdir", TF_ENABLE_ONEDNN_OPTS="0")
    found: dict[str, list[str]] = json.loads(output.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return train(tmp_path_factory.mktemp("unrecorded"), "none")


# The features below are always recorded in FULL_NUMERICS.
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["FULL_HEALTH", pytest.param("FULL_NUMERICS", marks=pytest.mark.exhaustive)])
def test_losses_and_weights_are_bit_identical(mode: str, unrecorded: dict[str, list[str]], tmp_path: Path) -> None:
    assert set(unrecorded) == {"mlp", "cnn", "rnn", "custom_gradient", "random"}
    assert train(tmp_path, mode) == unrecorded


def bits(result: Any) -> list[tuple[str, Any]]:
    values = [np.asarray(value) for value in tf.nest.flatten(result)]
    return [(value.dtype.name, value.tolist() if value.dtype == object else value.tobytes()) for value in values]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Returns the numbers or the exception of each feature, without a recording and within one common recording."""

    def outcome(name: str) -> Any:
        keras.utils.set_random_seed(0)
        try:
            return bits(FEATURES[name]())
        except Exception as error:
            return error

    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({**UNFUSED, **IN_ORDER})
    try:
        bare = {name: outcome(name) for name in FEATURES}
        with tfdbg_arrow.capture(tmp_path_factory.mktemp("features"), "FULL_NUMERICS"):
            return {name: (bare[name], outcome(name)) for name in FEATURES}
    finally:
        tf.config.optimizer.set_experimental_options({**dict.fromkeys({**UNFUSED, **IN_ORDER}, True), **before})


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_returns_the_same_bits(name: str, outcomes: dict[str, tuple[Any, Any]]) -> None:
    bare, recorded = outcomes[name]
    assert not isinstance(bare, Exception)
    assert recorded == bare
