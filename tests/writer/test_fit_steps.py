"""Steps of Keras's fit are marked automatically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer.keras import MarkCallback

from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")


def model(**options: Any) -> keras.Model:
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse", **options)
    return net


def fit(net: keras.Model, *, num_batches: int = 2, **options: Any) -> None:
    data = np.ones((num_batches, 1), np.float32)
    net.fit(data, data, batch_size=1, shuffle=False, verbose=0, **options)


def marks(logdir: Path) -> list[tuple[str, str]]:
    """The labels and values of the marks, in order, without the loss and the metrics that Keras logs for a batch."""
    by_time = sorted(rows(logdir, "mark"), key=lambda row: (row["event_index"], row["wall_time_ns"]))
    return [(row["label"], row["value"]) for row in by_time if not row["label"].startswith("logs/")]


def steps(logdir: Path) -> list[int]:
    return [int(value) for label, value in marks(logdir) if label == "step"]


@pytest.mark.slow
def test_epochs_batches_and_validation(tmp_path: Path) -> None:
    net, data = model(), np.ones((1, 1), np.float32)
    with tfdbg_arrow.capture(tmp_path):
        fit(net, epochs=2, validation_data=(data, data))
    epoch = [("epoch", "0"), ("phase", "train"), ("step", "0"), ("step", "1"), ("phase", "test"), ("phase", "train")]
    second = [("epoch", "1"), ("phase", "train"), ("step", "2"), ("step", "3"), ("phase", "test"), ("phase", "train")]
    assert marks(tmp_path) == epoch + second
    assert {row["step"] for row in rows(tmp_path)} >= {0, 1, 2, 3}


def test_steps_continue_from_one_fit_to_the_next(tmp_path: Path) -> None:
    net = model()
    with tfdbg_arrow.capture(tmp_path):
        fit(net)
        fit(net)
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_several_steps_of_one_execution_have_one_mark(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        fit(model(steps_per_execution=2), num_batches=5, epochs=2)
    assert steps(tmp_path) == [0, 2, 4, 5, 7, 9]


@pytest.mark.slow
def test_user_marks_replace_automatic_marks(tmp_path: Path) -> None:
    net = model()
    with tfdbg_arrow.capture(tmp_path / "ours"):
        fit(net, callbacks=[MarkCallback()])
    assert marks(tmp_path / "ours") == [("epoch", "0"), ("phase", "train"), ("step", "0"), ("step", "1")]
    with tfdbg_arrow.capture(tmp_path / "own"):
        tfdbg_arrow.mark(step=100)
        fit(net)
    assert marks(tmp_path / "own") == [("step", "100")]
    assert {row["step"] for row in rows(tmp_path / "own")} == {100}


def test_automatic_marks_end_at_the_first_user_mark(tmp_path: Path) -> None:
    own = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: tfdbg_arrow.mark(step=100 + batch))
    with tfdbg_arrow.capture(tmp_path):
        fit(model(), num_batches=3, callbacks=[own])
    assert steps(tmp_path) == [0, 100, 101, 102]


def test_a_schedule_uses_automatic_steps(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, steps=2):
        fit(model(), num_batches=4)
    assert {row["step"] for row in rows(tmp_path) if row["scope"] == "graph" and row["step"] is not None} == {0, 2}


@pytest.mark.slow
def test_a_nested_fit_is_part_of_the_outer_one(tmp_path: Path) -> None:
    inner = model()
    nested = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: fit(inner, num_batches=3))
    with tfdbg_arrow.capture(tmp_path):
        fit(model(), callbacks=[nested])
    assert steps(tmp_path) == [0, 1]


def test_a_fit_that_raises_is_over(tmp_path: Path) -> None:
    def stop(batch: int, logs: Any) -> None:
        raise RuntimeError("stop")

    net = model()
    with tfdbg_arrow.capture(tmp_path):
        with pytest.raises(RuntimeError, match="stop"):
            fit(net, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
        fit(net)
    assert steps(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("callbacks", [[], [MarkCallback()]])
def test_a_step_ends_with_its_fit(callbacks: list[Any], tmp_path: Path) -> None:
    net = model()
    with tfdbg_arrow.capture(tmp_path):
        fit(net, callbacks=callbacks)
        tf.square(tf.constant(3.0))
        tfdbg_arrow.mark(step=7)
        tf.exp(tf.constant(3.0))
    found = {row["op_type"]: row["step"] for row in rows(tmp_path) if row["scope"] == "execution"}
    assert (found["Square"], found["Exp"]) == (None, 7)


def test_what_follows_a_fit_is_outside_of_the_schedule(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, steps=[0]):
        fit(model(), num_batches=3)
        tf.square(tf.constant(3.0))
    found = {row["op_type"]: row["step"] for row in rows(tmp_path) if row["scope"] == "execution"}
    assert found["Square"] is None


def test_a_recording_may_end_within_a_fit(tmp_path: Path) -> None:
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: tfdbg_arrow.disable())
    tfdbg_arrow.enable(tmp_path)
    fit(model(), callbacks=[stop])
    assert steps(tmp_path) == [0]


def test_keras_is_restored_after_the_recording(tmp_path: Path) -> None:
    callback_list = keras.callbacks.CallbackList
    before = [vars(callback_list)["on_train_batch_begin"], keras.Model.fit, keras.layers.Layer.__call__]
    with tfdbg_arrow.capture(tmp_path):
        now = [vars(callback_list)["on_train_batch_begin"], keras.Model.fit, keras.layers.Layer.__call__]
        assert all(one is not other for one, other in zip(now, before, strict=True))
    assert [vars(callback_list)["on_train_batch_begin"], keras.Model.fit, keras.layers.Layer.__call__] == before


def test_a_loss_that_is_also_a_metric_is_named_as_the_loss(tmp_path: Path) -> None:
    """TensorFlow computes the squares of the errors once, as an op of the metric."""
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.SGD(100.0), "mse", metrics=["mse"])
    with tfdbg_arrow.capture(tmp_path):
        fit(net, num_batches=12)
    first = tfdbg_arrow.first_nonfinite(tmp_path)
    assert first is not None
    assert (first.op_type, first.op_name, first.role) == ("Square", "Square", "loss")
    assert first.headline.startswith("The loss in `net.fit(")
