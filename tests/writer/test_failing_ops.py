"""Programs in which an op fails: the tensors computed before the failure and the failure itself are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import execute

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.query.coverage import coverage

from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")

ZERO = np.array([0.0, 1.0], np.float32)
INVALID = "InvalidArgumentError"


@pytest.fixture(params=mostly_slow(["native", "tensorflow"], fast=["native"]))
def health_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def bad_tensors(logdir: Path, scope: str = "graph") -> Counter[tuple[str, int | None]]:
    """Counts tensors with an infinity or a NaN by op type and iteration."""
    return Counter(
        (row["op_type"], row["iteration"]) for row in rows(logdir) if row["has_inf_or_nan"] and row["scope"] == scope
    )


def record_failure(logdir: Path, health_backend: str, program: Callable[[], Any], error: Any = None) -> None:
    with (
        tfdbg_arrow.capture(logdir, health_backend=health_backend),
        pytest.raises(error or tf.errors.InvalidArgumentError),
    ):
        program()


def errors(logdir: Path) -> list[tuple[str, str]]:
    """Returns the op type, or `call`, and the error of each row."""
    op_types = {
        row["execution_index"]: "call" if row["op_type"].startswith("__") else row["op_type"]
        for row in rows(logdir, "execution")
    }
    found = sorted(rows(logdir, "execution_error"), key=lambda row: row["event_index"])
    return [(op_types[row["execution_index"]], row["error_type"]) for row in found]


def check_in_function() -> Any:
    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)
        tf.debugging.assert_all_finite(y, "")
        return y * 2.0

    return program(ZERO)


def check_in_callee() -> Any:
    @tf.function
    def check(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(x, "")

    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        return check(tf.math.log(x)) * 2.0

    return program(ZERO)


def check_after_callee() -> Any:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.minimum(tf.math.log(x), 5.0)

    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        return tf.debugging.check_numerics(inner(x), "")

    return program(ZERO)


def check_in_branch() -> Any:
    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)
        if tf.reduce_sum(x) > 0.0:
            y = tf.debugging.check_numerics(y, "")
        return y

    return program(ZERO)


def assert_on_result() -> Any:
    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)
        tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(y)), [y])
        return y

    return program(ZERO)


def gather_out_of_range() -> Any:
    @tf.function
    def program(x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.math.log(x), index)

    return program(ZERO, tf.constant(7))


def reshape_to_another_size() -> Any:
    @tf.function
    def program(x: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.math.log(x), [size, 1])

    return program(ZERO, tf.constant(7))


@pytest.mark.parametrize(
    "program",
    [
        *(check_in_function, check_in_callee, check_after_callee, check_in_branch),
        *(assert_on_result, gather_out_of_range, reshape_to_another_size),
    ],
)
def test_earlier_tensors_are_recorded(program: Callable[[], Any], health_backend: str, tmp_path: Path) -> None:
    record_failure(tmp_path, health_backend, program)
    assert "Log" in {op_type for op_type, _ in bad_tensors(tmp_path)}
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert (found.op_type, found.is_origin) == ("Log", True)
    assert errors(tmp_path) == [("call", INVALID)]
    report = coverage(tmp_path)
    assert [(group.error_type, group.num_executions, group.is_lossy) for group in report.failed] == [(INVALID, 1, True)]
    assert not report.is_complete


class TestLoops:
    def test_tensors_computed_before_a_failing_loop_are_recorded(self, health_backend: str, tmp_path: Path) -> None:
        @tf.function
        def program(x: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
            y, total, unused = tf.math.log(x), tf.zeros([]), tf.ones([])
            for i in tf.range(count):
                unused = unused * 2.0
                for k in tf.range(2):
                    total += tf.gather(y, i + k)
            return total, tf.exp(unused) + tf.math.rsqrt(x)

        record_failure(tmp_path, health_backend, lambda: program(tf.constant(ZERO), tf.constant(30)))
        assert "Log" in {op_type for op_type, _ in bad_tensors(tmp_path)}
        found = tfdbg_arrow.first_nonfinite(tmp_path)
        assert found is not None
        assert found.op_type in ("Log", "Rsqrt")

    def test_every_earlier_iteration_is_recorded(self, health_backend: str, tmp_path: Path) -> None:
        @tf.function
        def program(x: tf.Tensor) -> tf.Tensor:
            for i in tf.range(4):
                y = tf.exp(x)
                x = tf.ensure_shape(tf.math.log(x), [2]) + y
                tf.debugging.Assert(tf.math.is_finite(x[0]), [i])
            return x

        record_failure(tmp_path, health_backend, lambda: program(np.array([2.0, 2.5], np.float32)))
        counted = Counter(row["op_type"] for row in rows(tmp_path) if row["scope"] == "graph")
        assert counted["Exp"] >= 3
        assert counted["Log"] >= 3

    def test_the_last_iteration_before_a_check_is_recorded(self, health_backend: str, tmp_path: Path) -> None:
        @tf.function
        def program(x: tf.Tensor) -> tf.Tensor:
            for _ in tf.range(3):
                x = tf.math.log(x) * 1.0 + 0.5
            return tf.debugging.check_numerics(x, "")

        record_failure(tmp_path, health_backend, lambda: program(ZERO))
        counted = Counter(row["op_type"] for row in rows(tmp_path) if row["scope"] == "graph")
        assert counted["Log"] == 3


def test_the_inputs_of_a_failing_gradient_are_recorded(health_backend: str, tmp_path: Path) -> None:
    @tf.custom_gradient
    def checked(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.debugging.check_numerics(tf.math.log(upstream), "")

        return x, gradient

    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(checked(x) * x)
        return tape.gradient(y, x)

    record_failure(tmp_path, health_backend, lambda: program(tf.constant(ZERO)))
    assert "Log" in {op_type for op_type, _ in bad_tensors(tmp_path)}


@pytest.mark.slow
def test_keras_stops_at_an_assert_in_a_layer(health_backend: str, tmp_path: Path) -> None:
    keras = tf.keras

    class Checked(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            y = tf.math.log(x)
            tf.debugging.assert_all_finite(y, "bad input")
            return y

    model = keras.Sequential([keras.Input((2,)), Checked(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    record_failure(tmp_path, health_backend, lambda: model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0))
    found = tfdbg_arrow.first_nonfinite(tmp_path)
    assert found is not None
    assert found.op_type == "Log"
    assert ("call", INVALID) in errors(tmp_path)


class TestEagerOps:
    def test_a_failing_op_has_a_row_with_its_input(self, health_backend: str, tmp_path: Path) -> None:
        x = tf.constant([np.nan])
        record_failure(tmp_path, health_backend, lambda: tf.debugging.check_numerics(x, "here"))
        [execution] = rows(tmp_path, "execution")
        assert (execution["op_type"], execution["num_inputs"], execution["num_outputs"]) == ("CheckNumerics", 1, 0)
        assert execution["stack_trace_id"] is not None
        [error] = rows(tmp_path, "execution_error")
        assert (error["execution_index"], error["error_type"]) == (execution["execution_index"], INVALID)
        assert error["event_index"] > execution["event_index"]
        [tensor] = rows(tmp_path)
        assert (tensor["scope"], tensor["num_nan"], tensor["execution_index"]) == ("external", 1, 0)
        [taken] = rows(tmp_path, "execution_input")
        assert taken["tensor_id"] == tensor["tensor_id"]
        report = coverage(tmp_path)
        assert [(group.op_type, group.num_executions, group.is_lossy) for group in report.failed] == [
            ("CheckNumerics", 1, False)
        ]
        assert report.is_complete

    def test_each_of_many_failures_has_a_row(self, health_backend: str, tmp_path: Path) -> None:
        x = tf.constant([np.inf])
        with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
            for _ in range(200):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    tf.debugging.check_numerics(x, "")
        assert errors(tmp_path) == [("CheckNumerics", INVALID)] * 200
        assert len(rows(tmp_path)) == 1

    def test_the_end_of_a_data_set_leaves_the_recording_complete(self, health_backend: str, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
            assert len(list(tf.data.Dataset.range(2))) == 2
        assert errors(tmp_path) == [("IteratorGetNext", "OutOfRangeError")]
        assert coverage(tmp_path).is_complete


def test_an_interrupt_in_a_call_is_recorded(health_backend: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Ctrl-C reaches Python when TensorFlow's runtime returns from a call."""
    double = tf.function(lambda x: x * 2.0)
    with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
        double(ZERO)
        run = execute.quick_execute

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            outputs = run(*args, **kwargs)
            if args and b"inference" in tf.compat.as_bytes(args[0]):
                raise KeyboardInterrupt
            return outputs

        with monkeypatch.context() as patched:
            patched.setattr(execute, "quick_execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                double(ZERO)
        double(ZERO)
    assert errors(tmp_path) == [("call", "KeyboardInterrupt")]
    assert len([row for row in rows(tmp_path) if row["op_type"] == "Mul"]) == 3


def test_a_failing_session_run_is_recorded(tmp_path: Path) -> None:
    tf1 = tf.compat.v1
    with tfdbg_arrow.capture(tmp_path), tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [2])
        checked = tf1.debugging.check_numerics(tf.math.log(x), "")
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(checked, {x: ZERO})
    assert [error for _, error in errors(tmp_path)] == [INVALID]
    assert not coverage(tmp_path).is_complete


def test_a_removed_check_does_not_run_because_of_a_recording(health_backend: str, tmp_path: Path) -> None:
    """TensorFlow removes a check whose result no gradient needs."""

    @tf.custom_gradient
    def idle(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            tf.raw_ops.CheckNumerics(tensor=tf.math.log(upstream * 0.0), message="")
            return upstream

        return x * 1.0, gradient

    @tf.function
    def program(x: tf.Tensor) -> tf.Tensor:
        return idle(x)

    def run() -> Any:
        with tf.GradientTape() as tape:
            x = tf.constant(ZERO)
            tape.watch(x)
            y = program(x)
        return tape.gradient(y, x).numpy().tolist()

    bare = run()
    with tfdbg_arrow.capture(tmp_path, health_backend=health_backend):
        assert run() == bare
