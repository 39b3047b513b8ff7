"""A convolutional network with batch normalisation and dropout, trained by fit of tf-keras (Keras 2)."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import tf_keras

data = healthy.start()
layers = tf_keras.layers
model = tf_keras.Sequential(
    [
        layers.InputLayer((12, 12, 1)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.2, seed=1),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile(
    tf_keras.optimizers.Adam(tf_keras.optimizers.schedules.CosineDecay(0.01, 10)),
    "sparse_categorical_crossentropy",
    metrics=["accuracy", tf_keras.metrics.SparseTopKCategoricalAccuracy(2)],
)
images = data.normal(size=(32, 12, 12, 1)).astype("float32")
labels = data.integers(0, 3, 32)
stop = tf_keras.callbacks.EarlyStopping("val_loss", patience=2)
history = model.fit(images, labels, batch_size=16, epochs=2, verbose=0, validation_split=0.25, callbacks=[stop])
healthy.report(loss=history.history["loss"], val_loss=history.history["val_loss"])
