"""EfficientNetB0 without weights, trained by fit: normalisation of inputs, squeeze and excite, swish, drop connect."""

import healthy
import keras

data = healthy.start()
model = keras.applications.EfficientNetB0(input_shape=(32, 32, 3), weights=None, classes=4)
model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
images = data.uniform(0, 255, size=(8, 32, 32, 3)).astype("float32")
labels = data.integers(0, 4, 8)
history = model.fit(images, labels, batch_size=4, epochs=1, verbose=0)
healthy.report(loss=history.history["loss"])
