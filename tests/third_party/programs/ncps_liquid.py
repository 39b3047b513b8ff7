"""A sparsely wired closed-form continuous-time network (ncps) over irregular time steps, trained by fit."""

import healthy
import keras
from ncps.keras import LTC, CfC
from ncps.wirings import AutoNCP

data = healthy.start()
inputs = keras.Input((6, 2))
hidden = CfC(AutoNCP(10, 4), return_sequences=True)(inputs)
outputs = keras.layers.Dense(1)(LTC(AutoNCP(8, 3), return_sequences=False)(hidden))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "mse")
sequences = data.normal(size=(16, 6, 2)).astype("float32")
history = model.fit(sequences, sequences[:, :, 0].sum(1), batch_size=8, epochs=2, verbose=0)
healthy.report(loss=history.history["loss"])
