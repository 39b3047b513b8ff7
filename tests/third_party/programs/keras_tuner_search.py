"""A random search of KerasTuner over layer widths and learning rates: several models, fitted and compared."""

import tempfile

import healthy
import keras
import keras_tuner

data = healthy.start()
features = data.normal(size=(48, 4)).astype("float32")
targets = features @ data.normal(size=(4, 1)).astype("float32")


def build(choices: keras_tuner.HyperParameters) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(choices.Int("units", 4, 16, step=4), activation="gelu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(choices.Choice("learning_rate", [1e-2, 1e-3])), "mse")
    return model


with tempfile.TemporaryDirectory() as directory:
    tuner = keras_tuner.RandomSearch(build, "val_loss", max_trials=3, seed=5, directory=directory, overwrite=True)
    tuner.search(features, targets, epochs=2, validation_split=0.25, verbose=0)
    best = tuner.oracle.get_best_trials()[0]
    healthy.report(score=best.score, units=best.hyperparameters.get("units"))
