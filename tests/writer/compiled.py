"""Programs in which XLA compiles some functions. Each program returns numbers to compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

PROGRAMS: dict[str, Callable[[], Any]] = {}
"""All programs, by name."""


def program(run: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[run.__name__] = run
    return run


@program
def alone() -> Any:
    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(x) * x)

    return compiled(tf.constant([1.0, 2.0])), compiled(tf.constant([1.0, 2.0, 3.0]))


@program
def compiled_in_plain() -> Any:
    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return tf.math.exp(x) * 2.0

    @tf.function
    def plain(x: tf.Tensor) -> tf.Tensor:
        return compiled(x + 1.0) - 1.0

    return plain(tf.constant([0.5])), compiled(tf.constant([0.5]))


@program
def plain_in_compiled() -> Any:
    @tf.function
    def plain(x: tf.Tensor) -> tf.Tensor:
        return tf.math.sqrt(x) + 1.0

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return plain(x) * plain(x * 2.0)

    x = tf.constant([4.0])
    return plain(x), compiled(x), plain(x)


@program
def compiled_in_compiled() -> Any:
    @tf.function(jit_compile=True)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.math.sin(x)

    @tf.function(jit_compile=True)
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x) + inner(x * 2.0)

    return outer(tf.constant([1.0])), inner(tf.constant([1.0]))


@program
def control_flow() -> Any:
    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        for i in tf.range(3):
            x = x * 1.5 if tf.reduce_sum(x) > 2.0 else x + tf.cast(i, tf.float32)
        return x

    return compiled(tf.constant([1.0, 2.0]))


@program
def gradients() -> Any:
    weight = tf.Variable([2.0, 3.0])

    @tf.function
    def plain(x: tf.Tensor) -> tf.Tensor:
        return tf.math.tanh(x * weight)

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(plain(x) * x)

    @tf.function(jit_compile=True)
    def loop(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = plain(x) * weight
        return tf.reduce_sum(x)

    @tf.function
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = compiled(x) * 3.0
        return tape.gradient(loss, weight)

    @tf.function(jit_compile=True)
    def compiled_step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = compiled(x) + loop(x)
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(0.1 * gradient)
        return gradient

    x = tf.constant([0.5, 0.25])
    concrete = compiled.get_concrete_function(x)
    results = [step(x), compiled_step(x)]
    for function in (compiled, concrete):
        with tf.GradientTape(persistent=True) as outer, tf.GradientTape() as tape:
            loss = function(x)
            first = tape.gradient(loss, weight)
        results += [loss, first, outer.gradient(first, weight)]
    return results


@program
def keras_fit_auto() -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(4, activation="gelu"), keras.layers.Dense(1)])
    accelerator = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    with mock.patch.object(tf.config, "list_physical_devices", return_value=[accelerator]):
        # On a CPU, "auto" means no XLA.
        model.compile(optimizer="adam", loss="mse", jit_compile="auto")
        assert model.jit_compile is True
    x = np.linspace(0.0, 1.0, 32, dtype=np.float32).reshape(8, 4)
    model.fit(x, x.sum(axis=1), epochs=2, batch_size=4, shuffle=False, verbose=0)
    return model.get_weights(), model.predict(x, verbose=0), model.evaluate(x, x.sum(axis=1), verbose=0)


@program
def compiled_optimizer() -> Any:
    """Compiles the update of each variable as a function of its own, as optimizers of tf.keras do."""
    import tf_keras

    tf_keras.utils.set_random_seed(3)
    optimizer = tf_keras.optimizers.Adam(0.1, jit_compile=True)
    optimizer.jit_compile = True  # Keras resets this attribute if there is no accelerator
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * weight)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    optimizer.build([weight])
    step()
    step()
    return weight.read_value()
