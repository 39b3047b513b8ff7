"""The error that stops a program: when and in which thread it is raised, and what the program can do with it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import NonFiniteError, SettingError

from .stops import not_stopped, origin, stopped


@pytest.mark.slow
def test_a_bad_value_that_no_op_takes_stops_at_the_next_boundary(tmp_path: Path, health_backend: str) -> None:
    def at_end() -> None:
        tf.math.log(tf.constant(0.0))

    def at_mark() -> None:
        tf.math.log(tf.constant(0.0))
        with pytest.raises(NonFiniteError, match="Log"):
            tfdbg_arrow.mark(step=1)
        tfdbg_arrow.mark(step=2)
        tf.math.log(tf.constant(0.0))
        with pytest.raises(NonFiniteError, match="Log"):
            tfdbg_arrow.flush()

    assert origin(stopped(tmp_path / "end", at_end, backend_name=health_backend))[0] == "Log"
    not_stopped(tmp_path / "mark", at_mark, backend_name=health_backend)


def test_a_stop_in_a_data_set_is_not_called_harmless(tmp_path: Path) -> None:
    def program() -> None:
        for record in tf.data.Dataset.from_tensor_slices([1.0, 0.0, 2.0]).map(lambda x: 1.0 / x):
            tf.square(record)

    with pytest.raises(NonFiniteError, match="RealDiv"), tfdbg_arrow.capture(tmp_path, on_nonfinite="raise"):
        program()
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.op_type, found.effect, found.is_expected) == ("RealDiv", "result", False)


def test_an_error_of_the_program_is_not_hidden(tmp_path: Path) -> None:
    def program() -> None:
        with tfdbg_arrow.capture(tmp_path, on_nonfinite="raise"):
            tf.math.log(tf.constant(0.0))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program()
    assert not tfdbg_arrow.is_recording()


@pytest.mark.slow
def test_a_program_that_catches_the_error_stops_again(tmp_path: Path, health_backend: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    def program() -> None:
        for _ in range(3):
            with pytest.raises(NonFiniteError) as caught:
                f(tf.constant([0.0]))
            assert origin(caught.value) == ("Log", "f", True)
            assert f(tf.constant([1.0])).numpy() == [0.0]
        y = tf.math.log(tf.constant([0.0]))
        for _ in range(2):
            with pytest.raises(NonFiniteError):
                _ = y + 1.0

    not_stopped(tmp_path, program, backend_name=health_backend)


@pytest.mark.slow
def test_the_error_is_raised_in_the_thread_that_ran_the_op(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    caught: dict[str, list[float]] = {}

    def run(name: str, x: tf.Tensor, program: Callable[[tf.Tensor], tf.Tensor]) -> None:
        results = []
        for _ in range(20):
            try:
                results.append(float(program(x)))
            except NonFiniteError as error:
                results.append(float("nan") if error.nonfinite is None else -1.0)
        caught[name] = results

    def program() -> None:
        work = [
            ("bad graph", tf.constant(0.0), f),
            ("good graph", tf.constant(1.0), f),
            ("bad eager", tf.constant(0.0), lambda x: tf.math.log(x) * 2.0),
            ("good eager", tf.constant(1.0), lambda x: tf.math.log(x) * 2.0),
        ]
        threads = [threading.Thread(target=run, args=each) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    not_stopped(tmp_path, program)

    assert caught == {
        "bad graph": [-1.0] * 20,
        "good graph": [0.0] * 20,
        "bad eager": [-1.0] * 20,
        "good eager": [0.0] * 20,
    }


@pytest.mark.parametrize("value", ["stop", None, 1])
def test_an_invalid_on_nonfinite_raises_an_error(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SettingError, match=r"on_nonfinite is .*expected 'record', 'keep', 'raise' or a callable"):
        tfdbg_arrow.enable(tmp_path, on_nonfinite=value)


def test_a_mode_without_health_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="mode SHAPE does not look for bad values; use CURT_HEALTH"):
        tfdbg_arrow.enable(tmp_path, "SHAPE", on_nonfinite="raise")


def test_the_error_can_be_pickled(tmp_path: Path) -> None:
    error = stopped(tmp_path, lambda: tf.math.log(tf.constant(0.0)) * 2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.nonfinite, copy.logdir) == (str(error), error.nonfinite, error.logdir)
