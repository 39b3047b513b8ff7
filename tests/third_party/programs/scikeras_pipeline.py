"""A Keras model behind scikit-learn's interface (SciKeras), in a cross-validated pipeline."""

import healthy
import keras
import numpy as np
from scikeras.wrappers import KerasRegressor
from sklearn.linear_model import Ridge

data = healthy.start()
features = data.normal(size=(40, 3)).astype("float32")
targets = features @ np.array([1.0, -1.0, 0.5], "float32")


def build() -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, activation="relu"), keras.layers.Dense(1)])


regressor = KerasRegressor(build, loss="mse", optimizer="adam", epochs=3, batch_size=10, verbose=0, random_state=7)
regressor.fit(features, targets)
linear = Ridge().fit(features, targets)
healthy.report(predicted=regressor.predict(features), linear=linear.predict(features), loss=regressor.history_["loss"])
