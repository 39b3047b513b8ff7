"""Programs that use Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .registry import feature


@feature
def keras_random() -> Any:
    keras.utils.set_random_seed(11)
    layer = keras.layers.Dropout(0.5)
    initial = keras.initializers.GlorotUniform()((3, 3))

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return layer(x, training=True) + keras.random.normal((4,))

    return initial, [f(tf.ones([4])) for _ in range(3)], keras.random.uniform((2,))


@feature
def recurrent() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.LSTM(3), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    x = np.linspace(0.0, 1.0, 40, dtype=np.float32).reshape(4, 5, 2)
    model.fit(x, np.ones([4, 1], np.float32), epochs=2, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


@feature
def metrics_and_steps_per_execution() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(4, activation="gelu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"], steps_per_execution=2, jit_compile=False)
    x = np.linspace(0.0, 1.0, 32, dtype=np.float32).reshape(8, 4)
    history = model.fit(x, x.sum(axis=1), validation_split=0.25, epochs=2, batch_size=2, shuffle=False, verbose=0)
    return sorted(history.history.items()), model.get_weights()


@feature
def run_eagerly() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(optimizer="rmsprop", loss="mse", run_eagerly=True)
    x = np.linspace(0.0, 1.0, 16, dtype=np.float32).reshape(4, 4)
    model.fit(x, x.sum(axis=1), epochs=1, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


@feature
def mixed_precision() -> Any:
    keras.utils.set_random_seed(5)
    layer = keras.layers.Dense(2, dtype="mixed_float16")
    return layer(tf.ones([2, 3])), tf.function(lambda x: tf.cast(x, tf.bfloat16) * 2)(tf.ones([2]))
