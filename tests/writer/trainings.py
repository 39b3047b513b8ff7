"""Eight trainings with all of TensorFlow's optimizations and deterministic ops.

`python -m tests.writer.trainings NAME STEPS [LOGDIR GRAPHS MODE HEALTH_BACKEND]` prints the last loss, and hashes of
the losses and weights, as JSON. With the prefix `compiled_`, XLA compiles all functions of the training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf

import tfdbg_arrow
from tests.programs.compiling import compiled

Result = tuple[Iterable[Any], Iterable[Any]]
"""Losses and weights."""

BATCH = 8
COMPILED = "compiled_"


def _data(*shape: int, num_classes: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(4 * BATCH, *shape)).astype(np.float32)
    return inputs, rng.integers(0, num_classes, 4 * BATCH)


def _fit(model: Any, inputs: Any, labels: Any, steps: int, **compile_arguments: Any) -> Result:
    losses = []
    keep = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        **compile_arguments,
    )
    epochs = max(1, steps * BATCH // len(inputs))
    model.fit(inputs, labels, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[keep])
    return losses, model.get_weights()


def eager(steps: int) -> Result:
    """Runs eager ops with a gradient tape in a loop."""
    inputs, labels = _data(6)
    weights = [tf.Variable(tf.random.normal(shape, stddev=0.3)) for shape in ((6, 16), (16, 5))]
    losses = []
    for _ in range(steps):
        with tf.GradientTape() as tape:
            logits = tf.nn.tanh(tf.constant(inputs) @ weights[0]) @ weights[1]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for variable, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            variable.assign_sub(0.1 * gradient)
        losses.append(loss.numpy())
    return losses, [variable.numpy() for variable in weights]


def mlp(steps: int) -> Result:
    """Trains with a tf.function whose losses TensorFlow's optimizer rewrites."""
    inputs, labels = _data(6)
    weights = [tf.Variable(tf.random.normal(shape, stddev=0.3)) for shape in ((6, 16), (16, 5))]
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(weights)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(tf.nn.relu(x @ weights[0]), 0.3)
            probabilities = tf.nn.softmax(hidden @ weights[1])
            loss = -tf.reduce_mean(tf.math.log(tf.gather(probabilities, y, batch_dims=1) + 1e-6))
            loss += 1e-3 * tf.add_n([tf.reduce_sum(weight * weight) for weight in weights])
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    losses = [step(tf.constant(inputs), tf.constant(labels)).numpy() for _ in range(steps)]
    return losses, [variable.numpy() for variable in weights]


def cnn(steps: int) -> Result:
    """Trains convolutions, which TensorFlow fuses with the ops after them, and batch normalization."""
    inputs, labels = _data(12, 12, 3)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(5),
        ]
    )
    return _fit(model, inputs, labels, steps)


def transformer(steps: int) -> Result:
    """Trains two blocks of attention."""
    inputs, labels = _data(10, 16)
    layers = keras.layers
    given = keras.Input((10, 16))
    x = given
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, activation="gelu")(x)))
    model = keras.Model(given, layers.Dense(5)(layers.GlobalAveragePooling1D()(x)))
    return _fit(model, inputs, labels, steps)


def rnn(steps: int) -> Result:
    """Trains loops over time, with their gradients."""
    inputs, labels = _data(7, 4)
    layers = keras.layers
    model = keras.Sequential([layers.LSTM(8, return_sequences=True), layers.GRU(8), layers.Dense(5)])
    return _fit(model, inputs, labels, steps)


def mixed_precision(steps: int) -> Result:
    """Trains in half precision with a loss scale."""
    keras.config.set_dtype_policy("mixed_float16")
    inputs, labels = _data(6)
    layers = keras.layers
    model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(5, dtype="float32")])
    return _fit(model, inputs, labels, steps)


def mirrored(steps: int) -> Result:
    """Trains with two replicas."""
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        inputs, labels = _data(6)
        layers = keras.layers
        model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(5)])
        return _fit(model, inputs, labels, steps)


def session(steps: int) -> Result:
    """Trains in graph mode."""
    v1 = tf.compat.v1
    inputs, labels = _data(6)
    with tf.Graph().as_default(), v1.Session() as active:
        tf.random.set_seed(3)
        x, y = v1.placeholder(tf.float32, [None, 6]), v1.placeholder(tf.int64, [None])
        with v1.variable_scope("model", use_resource=True):
            first = v1.get_variable("first", [6, 16])
            second = v1.get_variable("second", [16, 5])
        logits = tf.nn.relu(x @ first) @ second
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        active.run(v1.global_variables_initializer())
        losses = [active.run([loss, train], {x: inputs, y: labels})[0] for _ in range(steps)]
        return losses, active.run([first, second])


TRAININGS: dict[str, Callable[[int], Result]] = {
    each.__name__: each for each in (eager, mlp, cnn, transformer, rnn, mixed_precision, mirrored, session)
}


def _hash(values: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.asarray(value).tobytes())
    return digest.hexdigest()


def main(
    name: str,
    steps: str,
    logdir: str | None = None,
    graphs: str = "executed",
    mode: str = "FULL_HEALTH",
    health_backend: str = "auto",
    on_nonfinite: str = "record",
) -> None:
    """Runs a training, and records it if a logdir is given."""
    is_compiled = name.startswith(COMPILED)
    if not is_compiled:  # with deterministic ops, Keras does not compile
        tf.config.experimental.enable_op_determinism()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.utils.set_random_seed(42)
    if logdir is not None:
        tfdbg_arrow.enable(logdir, mode, graphs=graphs, health_backend=health_backend, on_nonfinite=on_nonfinite)
    with compiled() if is_compiled else contextlib.nullcontext():
        losses, weights = TRAININGS[name.removeprefix(COMPILED)](int(steps))
    tfdbg_arrow.disable()
    losses = list(losses)
    answer = {"num_losses": len(losses), "last_loss": float(losses[-1])}
    print(json.dumps({**answer, "losses": _hash(losses), "weights": _hash(weights)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
