"""MobileNetV2 without weights, trained by fit: depthwise convolutions, batch normalisation, ReLU6."""

import healthy
import keras

data = healthy.start()
model = keras.applications.MobileNetV2(input_shape=(32, 32, 3), weights=None, classes=4, alpha=0.35)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
images = data.normal(size=(16, 32, 32, 3)).astype("float32")
labels = data.integers(0, 4, 16)
history = model.fit(images, labels, batch_size=8, epochs=2, verbose=0)
healthy.report(loss=history.history["loss"], predicted=model.predict(images[:4], verbose=0)[:, 0])
