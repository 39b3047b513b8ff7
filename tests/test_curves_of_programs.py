"""The curves of programs that were recorded in the default mode are the numbers that the programs print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query.model_health.answers import TrainingCurves

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("float32")


def curves_of(logdir: Path) -> dict[str, tuple[float | None, ...]]:
    found = tfdbg_arrow.training_curves(logdir)
    assert isinstance(found, TrainingCurves)
    assert found.notes == ()
    return {curve.name: curve.values for curve in found.curves}


class Printed(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(dict(logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(dict(logs))


@pytest.mark.slow
def test_a_fit_of_keras(tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(schedule, global_clipnorm=1.0))
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    printed = Printed()
    with tfdbg_arrow.capture(tmp_path):
        model.fit(
            X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[printed], validation_data=(X[:8], Y[:8])
        )
    curves = curves_of(tmp_path)
    for name in ("loss", "accuracy"):
        assert curves[f"logs/{name}"] == tuple(logs[name] for logs in printed.batches)
    for name in ("val_loss", "val_accuracy"):
        assert [value for value in curves[f"logs/{name}"] if value is not None] == [
            logs[name] for logs in printed.epochs
        ]
        assert curves[f"logs/{name}"][2] == printed.epochs[0][name]
    # Keras prints the mean of the losses of an epoch so far.
    losses = np.array(curves["loss"], float)
    means = [losses[start : start + length].mean() for start in (0, 3) for length in (1, 2, 3)]
    assert means == pytest.approx([logs["loss"] for logs in printed.batches], rel=1e-6)
    assert curves["learning_rate"] == pytest.approx([0.5 * 0.5**step for step in range(6)])
    assert set(curves["loss_scale"]) == {2.0**15}
    assert all(value is not None and value > 0 for value in curves["global_norm"])


@pytest.mark.parametrize("marks", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_loop_with_a_function(tmp_path: Path, marks: bool) -> None:
    weight = tf.Variable([0.1, 0.2, 0.3])

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weight) - y))
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, [weight]), 0.5)
        weight.assign_sub(0.25 * gradients[0])
        return loss, norm

    losses, norms = [], []
    with tfdbg_arrow.capture(tmp_path):
        for step in range(3):
            tfdbg_arrow.mark(step=step)
            loss, norm = train(X, Y)
            losses.append(float(loss))
            norms.append(float(norm))
            if marks:
                tfdbg_arrow.mark(loss=2.0 * loss, host="gpu-1")
    curves = curves_of(tmp_path)
    assert curves["loss"] == pytest.approx([2.0 * loss for loss in losses] if marks else losses, rel=1e-6)
    assert curves["global_norm"] == pytest.approx(norms, rel=1e-6)
    assert "host" not in curves
