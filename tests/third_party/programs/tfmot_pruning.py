"""Pruning of weights by magnitude, and clustering of weights, with the TensorFlow Model Optimization Toolkit."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import healthy
import tensorflow_model_optimization as tfmot
import tf_keras

data = healthy.start()
features = data.normal(size=(32, 6)).astype("float32")
targets = features.sum(1, keepdims=True)
model = tf_keras.Sequential(
    [tf_keras.layers.InputLayer((6,)), tf_keras.layers.Dense(8, activation="tanh"), tf_keras.layers.Dense(1)]
)
sparsity = tfmot.sparsity.keras
schedule = sparsity.PolynomialDecay(0.0, 0.5, begin_step=0, end_step=6, frequency=1)
pruned = sparsity.prune_low_magnitude(model, pruning_schedule=schedule)
pruned.compile("adam", "mse")
history = pruned.fit(features, targets, batch_size=8, epochs=2, verbose=0, callbacks=[sparsity.UpdatePruningStep()])
stripped = sparsity.strip_pruning(pruned)
healthy.report(loss=history.history["loss"], zeros=[float((w == 0).sum()) for w in stripped.get_weights()])
