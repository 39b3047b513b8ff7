"""Quantisation-aware training with the TensorFlow Model Optimization Toolkit: fake quantisation in every layer."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import tensorflow_model_optimization as tfmot
import tf_keras

data = healthy.start()
layers = tf_keras.layers
model = tf_keras.Sequential(
    [
        layers.InputLayer((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(3, activation="softmax"),
    ]
)
model = tfmot.quantization.keras.quantize_model(model)
model.compile("adam", "sparse_categorical_crossentropy")
images = data.normal(size=(24, 8, 8, 1)).astype("float32")
history = model.fit(images, data.integers(0, 3, 24), batch_size=8, epochs=2, verbose=0)
healthy.report(loss=history.history["loss"], predicted=model.predict(images[:4], verbose=0)[:, 0])
