"""`on_nonfinite` as a callable."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow


@pytest.mark.slow
def test_a_callable_is_called_once_for_each_origin(tmp_path: Path, health_backend: str) -> None:
    found: list[tuple[str | None, str]] = []

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x) * 2.0
        return tf.reduce_sum(y) + tf.reduce_sum(tf.sqrt(x - 1.0))

    def tell(nonfinite: tfdbg_arrow.NonFinite) -> None:
        found.append((nonfinite.op_type, threading.current_thread().name))
        _ = tf.math.log(tf.constant(0.0)) * 2.0  # ops of the callable are not checked

    with tfdbg_arrow.capture(tmp_path, health_backend=health_backend, on_nonfinite=tell):
        for _ in range(3):
            y = f(tf.constant([0.0, 1.0]))
            _ = tf.sqrt(tf.constant(-1.0)) + y
    name = threading.current_thread().name
    assert sorted(found, key=str) == [("Log", name), ("Sqrt", name), ("Sqrt", name)]


def test_an_error_of_the_callable_reaches_the_program(tmp_path: Path, health_backend: str) -> None:
    def fail(nonfinite: tfdbg_arrow.NonFinite) -> None:
        raise KeyError(nonfinite.op_type)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    for index, program in enumerate((f, lambda x: tf.math.log(x) * 2.0)):
        with (
            pytest.raises(KeyError, match="Log"),
            tfdbg_arrow.capture(tmp_path / str(index), health_backend=health_backend, on_nonfinite=fail),
        ):
            program(tf.constant(0.0))


def test_a_callable_may_end_the_recording(tmp_path: Path, health_backend: str) -> None:
    for index, program in enumerate((tf.function(lambda x: tf.math.log(x) * 2.0), lambda x: tf.math.log(x) * 2.0)):
        calls: list[object] = []

        def end(nonfinite: tfdbg_arrow.NonFinite, calls: list[object] = calls) -> None:
            calls.append(nonfinite.op_type)
            tfdbg_arrow.disable()

        tfdbg_arrow.enable(tmp_path / str(index), health_backend=health_backend, on_nonfinite=end)
        program(tf.constant(0.0))
        assert calls == ["Log"]
        assert not tfdbg_arrow.is_recording()
        program(tf.constant(0.0))
        assert calls == ["Log"]
