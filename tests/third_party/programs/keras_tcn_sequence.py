"""A temporal convolutional network (keras-tcn) with dilations and skip connections, trained by fit."""

import healthy
import keras
from tcn import TCN

data = healthy.start()
model = keras.Sequential([keras.Input((12, 2)), TCN(8, kernel_size=2, dilations=(1, 2, 4)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "huber")
sequences = data.normal(size=(16, 12, 2)).astype("float32")
history = model.fit(sequences, sequences[:, -3:, 0].sum(1), batch_size=8, epochs=2, verbose=0)
healthy.report(loss=history.history["loss"])
