"""The corpus: small programs, one for each feature that a TensorFlow program may use. Both recorders record them.

Most programs come from other tests. This module defines the programs that only the comparison needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from writer.features import FEATURES
from writer.programs import PROGRAMS

OWN: dict[str, Callable[[], Any]] = {}
"""The programs of this module, by name."""


def program(run: Callable[[], Any]) -> Callable[[], Any]:
    OWN[run.__name__] = run
    return run


@contextmanager
def _scratch() -> Iterator[Path]:
    """Creates a directory that has the same name under both recorders, because file names are values of tensors."""
    path = Path("scratch")
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Affine(tf.Module):
    """A weight and a bias, applied in a function."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable([[0.5, -1.0], [2.0, 0.25]], name="w")
        self.b = tf.Variable([0.1, 0.2], name="b")

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32)])
    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.matmul(x, self.w) + self.b)


@program
def saved_model() -> Any:
    x = tf.constant([[1.0, 2.0], [-1.0, 0.5]])
    with _scratch() as directory:
        tf.saved_model.save(Affine(), directory)
        loaded = tf.saved_model.load(directory)
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(loaded(x))
    return y, tape.gradient(y, loaded.w), loaded.signatures["serving_default"](x)


@program
def checkpoints() -> Any:
    model, optimizer = Affine(), tf.Variable(0, dtype=tf.int64)
    with _scratch() as directory:
        path = tf.train.Checkpoint(model=model, step=optimizer).save(str(directory / "point"))
        model.w.assign(tf.zeros([2, 2]))
        optimizer.assign_add(3)
        tf.train.Checkpoint(model=model, step=optimizer).restore(path).assert_consumed()
    return model(tf.ones([1, 2])), optimizer.read_value()


@program
def keras_saving() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    with _scratch() as directory:
        path = str(directory / "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
    return loaded(tf.ones([2, 2])), loaded.get_weights()


@program
def mirrored_strategy() -> Any:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        w = tf.Variable([1.0, 2.0])

    @tf.function
    def step(x: tf.Tensor) -> Any:
        def replica(a: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.exp(a * w))
            gradient = tape.gradient(loss, w)
            total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            w.assign_sub(0.01 * total)
            return loss

        return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    return [step(tf.constant([1.0, -1.0])) for _ in range(2)], w.read_value()


@program
def loss_scaling() -> Any:
    layer = keras.layers.Dense(2, dtype="mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**20)
    layer.build((None, 3))

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(layer(x), tf.float32) ** 2.0)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, layer.trainable_variables), layer.trainable_variables)
        return loss

    return [step(tf.ones([4, 3])) for _ in range(3)], layer.get_weights()


@program
def mixed_bfloat16() -> Any:
    model = keras.Sequential([keras.layers.Dense(3, dtype="mixed_bfloat16"), keras.layers.Dense(1, dtype="float32")])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    x = np.linspace(-1.0, 1.0, 16, dtype=np.float32).reshape(4, 4)
    model.fit(x, x.sum(axis=1), epochs=1, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


@program
def gated_recurrent() -> Any:
    layer = keras.layers.Bidirectional(keras.layers.GRU(2, return_sequences=True))
    x = tf.reshape(tf.range(24.0) / 24.0, [2, 4, 3])
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.function(layer)(x))
    return y, tape.gradient(y, layer.trainable_variables)


@program
def eager_training() -> Any:
    w, b = tf.Variable([[0.1], [0.2]]), tf.Variable([0.0])
    optimizer = keras.optimizers.Adam(0.05)
    x, y = tf.constant([[1.0, 2.0], [3.0, -1.0]]), tf.constant([[1.0], [0.0]])
    losses = []
    for _ in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=x @ w + b, labels=y))
        gradients = tape.gradient(loss, [w, b])
        optimizer.apply(gradients, [w, b])
        losses.append(loss)
    return losses, w.read_value()


@program
def bad_values() -> Any:
    """Computes every kind of bad value in every floating-point dtype, eagerly and in a function."""

    @tf.function
    def f(x: tf.Tensor) -> Any:
        return tf.math.log(x), tf.math.rsqrt(x), x / tf.zeros_like(x), tf.sqrt(x - 1.0), tf.zeros_like(x)

    results = []
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        x = tf.constant([[-1.0, 0.0, -0.0, 1.0, 4.0, 1e-7]], dtype)
        results += [f(x), tf.math.log(x), x / tf.zeros_like(x), x - x, tf.constant(np.inf, dtype) * 0.0]
    return results


@program
def log_of_softmax() -> Any:
    @tf.function
    def model(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(x)

    @tf.function
    def loss(probs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return -tf.reduce_mean(tf.reduce_sum(labels * tf.math.log(probs), axis=1))

    x = tf.Variable([[1.0, 2.0, 300.0]])
    with tf.GradientTape() as tape:
        value = loss(model(x), tf.constant([[1.0, 0.0, 0.0]]))
    return value, tape.gradient(value, x)


@program
def many_dtypes() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        return tf.stack([x, x]), tf.reshape(x, [3, 1]), tf.reverse(x, [0])

    names = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float16", "bfloat16")
    tensors = [tf.cast(tf.constant([0, 1, 2]), name) for name in (*names, "float32", "float64")]
    return [(f(x), tf.concat([x, x], 0), tf.equal(x, x)) for x in tensors]


@program
def many_dimensions() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        return tf.reshape(x, [1, 2, 1, 3, 1, 2, 1, 2]), tf.reshape(x, [2, 3, 1, 2, 1, 2]), tf.reduce_max(x)

    x = tf.range(24.0) - 3.0
    return f(x), tf.reshape(x, [3, 1, 2, 1, 1, 1, 4]), tf.zeros([0, 2, 0]), tf.zeros([])


@program
def outputs_behind_variants() -> Any:
    """An output without a value comes before an output with a value."""
    elements = tf.raw_ops.TensorListFromTensor(tensor=tf.constant([[1.0], [-2.0]]), element_shape=[1])

    @tf.function
    def f(x: tf.Tensor) -> Any:
        values = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[1])
        return tf.raw_ops.TensorListPopBack(input_handle=values, element_shape=[1], element_dtype=tf.float32)[1]

    popped = tf.raw_ops.TensorListPopBack(input_handle=elements, element_shape=[1], element_dtype=tf.float32)
    return popped.tensor, f(tf.constant([[0.0], [3.0]]))


@program
def names_and_scopes() -> Any:
    @tf.function
    def größe(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("outer"), tf.name_scope("in-ner.x"):
            y = tf.add(x, x, name="sum")
            y = tf.add(y, x, name="sum")
        return tf.identity(y, name="result")

    with tf.name_scope("eager"):
        return größe(tf.constant([1.0])), (lambda x: tf.square(x, name="zwölf"))(tf.constant(3.0))


@program
def while_with_functions() -> Any:
    @tf.function
    def body(x: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda row: tf.cond(row > 0.0, lambda: tf.sqrt(row), lambda: row * 2.0), x)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, body(a)), [0, x])[1]

    return f(tf.constant([4.0, -1.0])), f(tf.constant([16.0, 0.0]))


@program
def data_set_of_functions() -> Any:
    @tf.function
    def step(row: tf.Tensor) -> tf.Tensor:
        return tf.math.log(row)

    data_set = tf.data.Dataset.from_tensor_slices(tf.range(6.0)).batch(2).map(lambda x: x * 2.0)
    return [step(batch) for batch in data_set]


@program
def recursive_gradients() -> Any:
    x = tf.constant([0.5, 1.5])

    @tf.function
    def third(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as a:
            a.watch(x)
            with tf.GradientTape() as b:
                b.watch(x)
                with tf.GradientTape() as c:
                    c.watch(x)
                    y = tf.reduce_sum(tf.sin(x) * x**2.0)
                first = c.gradient(y, x)
            second = b.gradient(first, x)
        return a.gradient(second, x)

    return third(x), third(x * 2.0)


_LEFT_OUT = (
    "quantized_and_float8",  # crashes Debugger V2's process: see test_what_breaks_debugger_v2.py
)

CORPUS: dict[str, Callable[[], Any]] = {
    **{name: program.run for name, program in PROGRAMS.items()},
    **{name: run for name, run in FEATURES.items() if name not in _LEFT_OUT},
    **OWN,
}
"""All programs by name. The name is the name of the function, so that a stack identifies its program."""
