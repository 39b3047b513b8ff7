"""on_nonfinite: a recording that stops the program where a NaN or an infinity comes up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import NonFiniteError, TfdbgArrowError
from tfdbg_arrow.writer import backend

NATIVE, WITH_CORE, WITHOUT_CORE = "native", "tensorflow", "tensorflow without core"
NATIVE_CORE = backend.native_core
needs_core = pytest.mark.skipif(NATIVE_CORE() is None, reason="needs the native core")


@pytest.fixture(
    params=[pytest.param(NATIVE, marks=needs_core), pytest.param(WITH_CORE, marks=needs_core), WITHOUT_CORE]
)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A health backend."""
    if request.param == WITHOUT_CORE:
        monkeypatch.setattr(backend, "native_core", lambda: None)
    return "native" if request.param == NATIVE else "tensorflow"


def line_of(text: str) -> int:
    """The line of this file that ends in the comment, from 1."""
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith("# " + text))


def stopped(logdir: Path, program: Callable[[], Any], *, backend_name: str = "auto", **more: Any) -> NonFiniteError:
    """Runs a program that has to be stopped, and returns the error."""
    with (
        pytest.raises(NonFiniteError) as caught,
        tfdbg_arrow.capture(logdir, health_backend=backend_name, on_nonfinite="raise", **more),
    ):
        program()
    assert not tfdbg_arrow.is_recording()
    assert caught.value.logdir == logdir
    return caught.value


def not_stopped(logdir: Path, program: Callable[[], Any], *, backend_name: str = "auto") -> list[tuple[str, str]]:
    """Runs a program that must not be stopped, and returns subject and reason of what was masked."""
    with tfdbg_arrow.capture(logdir, health_backend=backend_name, on_nonfinite="raise"):
        program()
    rows = ds.dataset(logdir / "capture_stat").to_table().to_pylist()
    assert [row for row in rows if row["stat"] == "failed"] == []
    return [(row["subject"], row["reason"]) for row in rows if row["stat"] == "masked"]


def test_an_eager_op_stops_where_its_result_is_computed_with(tmp_path: Path, variant: str) -> None:
    reached = []

    def program() -> None:
        x = tf.constant([1.0, 0.0])
        y = tf.math.log(x)  # eager origin
        reached.append("log")
        reached.append(y * 2.0)

    error = stopped(tmp_path, program, backend_name=variant)

    assert reached == ["log"]
    assert isinstance(error, TfdbgArrowError)
    assert isinstance(error, ArithmeticError)
    found = error.nonfinite
    assert found is not None
    assert (found.op_type, found.graph_name, found.num_neg_inf, found.size, found.is_origin) == (
        "Log",
        None,
        1,
        2,
        True,
    )
    assert found.source is not None
    assert (found.source.file_path, found.source.lineno) == (__file__, line_of("eager origin"))
    assert "\n" not in str(error)
    for part in ("-Inf in output 0 of Log, run eagerly", "1 -Inf, 1 zero of 2", "1 zero, 1 positive of 2", __file__):
        assert part in str(error)


def test_a_function_stops_at_the_op(tmp_path: Path, variant: str) -> None:
    assigned = tf.Variable(7.0)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)  # graph origin
        assigned.assign(tf.reduce_sum(y))
        return y * 2.0

    error = stopped(tmp_path, lambda: f(tf.constant([1.0, 0.0])), backend_name=variant)

    found = error.nonfinite
    assert found is not None
    assert (found.op_type, found.graph_name, found.num_neg_inf, found.is_origin) == ("Log", "f", 1, True)
    assert found.source is not None
    assert found.source.lineno == line_of("graph origin")
    if variant == "native":
        assert assigned.numpy() == 7.0, "nothing was computed with the bad value"


def test_a_loop_stops_at_its_iteration(tmp_path: Path, variant: str) -> None:
    count = tf.Variable(0)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(1000):
            count.assign_add(1)
            x = tf.math.log(x)
        return x

    error = stopped(tmp_path, lambda: f(tf.constant([2.0, 3.0])), backend_name=variant)

    x, iterations = np.array([2.0, 3.0], np.float32), 0
    with np.errstate(all="ignore"):
        while np.isfinite(x).all():
            x, iterations = np.log(x), iterations + 1
    assert error.nonfinite is not None
    assert error.nonfinite.op_type == "Log"
    assert count.numpy() == iterations
    if NATIVE_CORE() is not None and backend.native_core() is not None:
        assert error.nonfinite.iteration == iterations - 1
