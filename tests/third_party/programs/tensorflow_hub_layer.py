"""A SavedModel that TensorFlow Hub loads as a layer, fine-tuned inside another model."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tempfile

import healthy
import tensorflow as tf
import tensorflow_hub as hub
import tf_keras

data = healthy.start()
with tempfile.TemporaryDirectory() as directory:
    encoder = tf_keras.Sequential([tf_keras.layers.InputLayer((5,)), tf_keras.layers.Dense(8, activation="elu")])
    encoder.save(directory, save_format="tf")
    model = tf_keras.Sequential(
        [
            hub.KerasLayer(directory, input_shape=(5,), trainable=True),
            tf_keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(tf_keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    features = tf.constant(data.normal(size=(32, 5)), tf.float32)
    history = model.fit(features, data.integers(0, 2, 32), batch_size=8, epochs=2, verbose=0)
healthy.report(loss=history.history["loss"])
