"""Labels: mark() and the Keras callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.schema import table


def rows(logdir: Path, name: str) -> list[dict[str, Any]]:
    return sorted(ds.dataset(logdir / name).to_table().to_pylist(), key=lambda row: row["event_index"])


def labels(logdir: Path) -> list[tuple[str, str]]:
    return [(row["label"], row["value"]) for row in rows(logdir, "mark")]


@pytest.mark.parametrize("steps", [None, "3:"])
def test_marks_without_an_event_between_them_have_different_keys(tmp_path: Path, steps: str | None) -> None:
    with tfdbg_arrow.capture(tmp_path, steps=steps):
        for step in range(3):
            tfdbg_arrow.mark(step=step, loss=0.5)
            if steps is not None:
                tf.constant(1.0) + 1.0  # left out
    marks = rows(tmp_path, "mark")
    assert labels(tmp_path) == [(name, value) for step in "012" for name, value in (("step", step), ("loss", "0.5"))]
    assert len({tuple(row[name] for name in table("mark").key) for row in marks}) == 6
    assert len({row["event_index"] for row in marks}) == 1


def test_a_mark_applies_to_later_events(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(x)

    with tfdbg_arrow.capture(tmp_path):
        f(tf.constant(0.0))
        for step in (10, 11):
            tfdbg_arrow.mark(step=step, epoch=step - 10, phase="train")
            f(tf.constant(1.0))
        tfdbg_arrow.mark(phase="test")
        f(tf.constant(2.0))
    executions, health, marks = (rows(tmp_path, name) for name in ("execution", "tensor_health", "mark"))

    assert [row["step"] for row in executions] == [None, 10, 11, 11]
    assert [row["step"] for row in health if row["op_type"] == "Exp"] == [None, 10, 11, 11]
    assert [(row["label"], row["value"], row["step"]) for row in marks] == [
        *(("step", "10", 10), ("epoch", "0", 10), ("phase", "train", 10)),
        *(("step", "11", 11), ("epoch", "1", 11), ("phase", "train", 11)),
        ("phase", "test", 11),
    ]
    # Each mark lies between the events before and after it.
    starts = [row["event_index"] for row in executions]
    places = [row["event_index"] for row in marks]
    assert starts[0] < places[0] <= starts[1] < places[3] <= starts[2] < places[6] <= starts[3]
    assert len(set(places)) == 3


def test_steps_of_many_types(tmp_path: Path) -> None:
    numbers: list[tuple[Any, int]] = [
        (0, 0),
        (-5, -5),
        (2**63 - 1, 2**63 - 1),
        (np.int64(7), 7),
        (np.array(8), 8),
        (3.0, 3),
        (tf.constant(9), 9),
        (tf.constant(4, tf.int64), 4),
        (tf.Variable(5), 5),
        (keras.Variable(6, dtype="int32"), 6),
    ]
    with tfdbg_arrow.capture(tmp_path):
        for step, _ in numbers:
            tfdbg_arrow.mark(step=step)
            tf.abs(1.0)
    steps = [row["step"] for row in rows(tmp_path, "execution") if row["op_type"] == "Abs"]
    assert steps == [number for _, number in numbers]


def test_an_invalid_step_raises_an_error(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        for step in ("x", 1.5, float("nan"), float("inf"), 2**63, [1, 2], object(), tf.constant([1, 2])):
            with pytest.raises(SettingError, match="expected an integer of at most 64 bits"):
                tfdbg_arrow.mark(step=step)
        tf.identity(1.0)
    assert rows(tmp_path, "mark") == []


def test_labels_of_any_value(tmp_path: Path) -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError("of the program")

    with tfdbg_arrow.capture(tmp_path):
        tfdbg_arrow.mark(loss=0.5, note="größe\n\udce9", nothing=None, silent=Silent())
    assert labels(tmp_path) == [
        ("loss", "0.5"),
        ("note", "größe\n\\udce9"),
        ("nothing", "None"),
        ("silent", "<test_labels_of_any_value.<locals>.Silent that cannot be shown>"),
    ]


def test_nothing_happens_while_nothing_records(tmp_path: Path) -> None:
    tfdbg_arrow.mark(step=3, phase="train")
    with tfdbg_arrow.capture(tmp_path):
        tf.identity(1.0)
    assert rows(tmp_path, "mark") == []
    assert [row["step"] for row in rows(tmp_path, "execution")] == [None]


def test_a_second_run_starts_without_a_step(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "a"):
        tfdbg_arrow.mark(step=3)
    with tfdbg_arrow.capture(tmp_path / "b"):
        tf.identity(1.0)
    assert [row["step"] for row in rows(tmp_path / "b", "execution")] == [None]


class TestKeras:
    def fit(self, logdir: Path, **settings: Any) -> keras.Model:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False, **settings)
        x = np.ones([8, 2], np.float32)
        callback = tfdbg_arrow.MarkCallback()
        with tfdbg_arrow.capture(logdir):
            options = {"batch_size": 2, "verbose": 0}
            model.fit(x, x[:, 0], validation_split=0.25, epochs=2, shuffle=False, callbacks=[callback], **options)
            model.evaluate(x, x[:, 0], callbacks=[callback], **options)
            model.predict(x, callbacks=[callback], **options)
        return model

    @pytest.mark.slow
    def test_fit_evaluate_and_predict(self, tmp_path: Path) -> None:
        self.fit(tmp_path)
        epoch = lambda n: [("epoch", str(n)), ("phase", "train"), *[("step", str(3 * n + i)) for i in range(3)]]  # noqa: E731
        validation = [("phase", "test"), ("phase", "train")]
        after = [("phase", "test"), ("phase", "predict")]
        found = [(label, value) for label, value in labels(tmp_path) if not label.startswith("logs/")]
        assert found == [*epoch(0), *validation, *epoch(1), *validation, *after]
        dense = ("MatMul", "_FusedMatMul")  # on some CPUs, TensorFlow fuses the ops of evaluate and predict
        steps = {row["step"] for row in rows(tmp_path, "tensor_health") if row["op_type"] in dense}
        assert steps == {*range(6), None}  # evaluate and predict belong to no step of fit

    @pytest.mark.slow
    def test_several_steps_in_one_call_have_one_mark(self, tmp_path: Path) -> None:
        self.fit(tmp_path, steps_per_execution=2)
        steps = [value for label, value in labels(tmp_path) if label == "step"]
        assert steps == ["0", "2", "3", "5"]  # an epoch has three batches: two in one call, then one
