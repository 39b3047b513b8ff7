"""`on_nonfinite` with Keras."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from .stops import origin, stopped


def test_keras_stops_in_fit(tmp_path: Path, health_backend: str) -> None:
    keras.utils.set_random_seed(3)

    class Log(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(x)

    model = keras.Sequential([keras.layers.Input([2]), Log(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones([32, 2], np.float32)
    x[17, 1] = 0.0
    batches: list[int] = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))

    def program() -> None:
        model.fit(x, np.ones([32, 1]), batch_size=8, shuffle=False, verbose=0, callbacks=[callback])

    error = stopped(tmp_path, program, backend_name=health_backend)

    assert origin(error)[::2] == ("Log", True)
    assert batches == [0, 1]
    assert error.nonfinite is not None
    assert error.nonfinite.source is not None
    assert error.nonfinite.source.file_path == __file__


def test_an_eager_keras_layer_raises_the_error(tmp_path: Path) -> None:
    class Log(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(x) * 2.0

    error = stopped(tmp_path, lambda: Log()(tf.constant([0.0])))

    assert origin(error)[0] == "Log"
