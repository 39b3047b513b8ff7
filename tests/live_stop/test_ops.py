"""`on_nonfinite="raise"` stops the program at the op that makes a NaN or an infinity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.errors import TfdbgArrowError

from .stops import line_of, origin, stopped


def test_an_eager_program_stops_where_an_op_takes_the_bad_value(tmp_path: Path, health_backend: str) -> None:
    reached = []

    def program() -> None:
        x = tf.constant([1.0, 0.0])
        y = tf.math.log(x)  # eager origin
        reached.append("log")
        reached.append(y * 2.0)

    error = stopped(tmp_path, program, backend_name=health_backend)

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
    assert (found.source.file_path, found.source.lineno) == (__file__, line_of(__file__, "eager origin"))
    assert str(error).splitlines()[1] == "Log of 0: 1 of 2 elements is 0, and the logarithm of 0 is -Inf."
    parts = ("made -Inf", "Log:0, run eagerly", "1 -Inf, 1 zero of 2", "1 zero, 1 positive of 2", __file__)
    for part in parts:
        assert part in str(error)


def test_a_function_stops_at_the_op(tmp_path: Path, health_backend: str) -> None:
    assigned = tf.Variable(7.0)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)  # graph origin
        assigned.assign(tf.reduce_sum(y))
        return y * 2.0

    error = stopped(tmp_path, lambda: f(tf.constant([1.0, 0.0])), backend_name=health_backend)

    found = error.nonfinite
    assert found is not None
    assert (found.op_type, found.graph_name, found.num_neg_inf, found.is_origin) == ("Log", "f", 1, True)
    assert found.source is not None
    assert found.source.lineno == line_of(__file__, "graph origin")
    if health_backend == "native":
        assert assigned.numpy() == 7.0, "no op computed with the bad value"


def test_a_loop_stops_at_its_iteration(tmp_path: Path, health_backend: str) -> None:
    count = tf.Variable(0)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(1000):
            count.assign_add(1)
            x = tf.math.log(x)
        return x

    error = stopped(tmp_path, lambda: f(tf.constant([2.0, 3.0])), backend_name=health_backend)

    x, iterations = np.array([2.0, 3.0], np.float32), 0
    with np.errstate(all="ignore"):
        while np.isfinite(x).all():
            x, iterations = np.log(x), iterations + 1
    assert error.nonfinite is not None
    assert error.nonfinite.op_type == "Log"
    assert count.numpy() == iterations
    assert error.nonfinite.iteration == iterations - 1


def test_a_nested_function_stops(tmp_path: Path, health_backend: str) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x * 2.0) + inner(x) * 3.0

    error = stopped(tmp_path, lambda: outer(tf.constant([-1.0])), backend_name=health_backend)

    assert origin(error) == ("Sqrt", "inner", True)


def test_only_the_branch_that_runs_stops(tmp_path: Path, health_backend: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0.0:  # noqa: SIM108
            y = tf.math.log(x)
        else:
            y = x * x
        return y + 1.0

    def program() -> None:
        assert f(tf.constant([-2.0])).numpy() == [5.0]
        f(tf.constant([0.0, 1.0]))

    found = stopped(tmp_path, program, backend_name=health_backend).nonfinite

    assert found is not None
    assert (found.op_type, found.num_neg_inf) == ("Log", 1)


@pytest.mark.slow
def test_a_bad_argument_stops_only_the_branch_that_takes_it(tmp_path: Path, health_backend: str) -> None:
    @tf.function
    def f(x: tf.Tensor, is_taken: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)
        return tf.cond(is_taken, lambda: tf.reduce_sum(y * 2.0), lambda: 1.0) + 1.0

    @tf.function
    def loop(x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        y, total = tf.math.log(x), tf.constant(1.0)
        for _ in tf.range(times):
            total += tf.reduce_sum(y * 2.0)
        return total

    bad = tf.constant([0.0, 1.0])
    for name, program, no, yes in (("branch", f, False, True), ("loop", loop, 0, 3)):
        results: list[float] = []

        def run(program: Any = program, no: Any = no, yes: Any = yes, results: list[float] = results) -> None:
            results.append(float(program(bad, tf.constant(no))))
            results.append(float(program(bad, tf.constant(yes))))

        found = stopped(tmp_path / name, run, backend_name=health_backend).nonfinite
        assert len(results) == 1, name
        assert np.isfinite(results).all()
        assert found is not None
        if health_backend == "native":
            assert (found.op_type, found.num_neg_inf, found.is_origin) == ("Log", 1, True)


@pytest.mark.slow
def test_a_bad_value_of_a_filtered_op_does_not_stop(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor, is_taken: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x)
        return tf.cond(is_taken, lambda: tf.reduce_sum(tf.sqrt(y * 0.5)), lambda: 1.0) + 1.0

    def run() -> None:
        assert np.isnan(f(tf.constant([0.0, 1.0]), tf.constant(True)))

    for pattern, op_type in (("Log|Sqrt", "Log"), ("Sqrt", "Sqrt")):
        found = stopped(tmp_path / op_type, run, op_regex=pattern, graphs="executed").nonfinite
        assert found is not None
        assert found.op_type == op_type
    with tfdbg_arrow.capture(tmp_path / "none", on_nonfinite="raise", op_regex="Cos", graphs="executed"):
        run()


@pytest.mark.slow
def test_the_gradient_of_a_square_root_stops(tmp_path: Path, health_backend: str) -> None:
    v = tf.Variable(0.0)

    @tf.function
    def inside() -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.sqrt(v)
        return tape.gradient(y, v)

    @tf.function
    def forward() -> tf.Tensor:
        return tf.sqrt(v) * 2.0

    def outside() -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = forward()
        return tape.gradient(y, v)

    def eager() -> None:
        with tf.GradientTape() as tape:
            y = tf.sqrt(v)
        v.assign_sub(0.1 * tape.gradient(y, v))

    for index, program in enumerate((inside, outside, eager)):
        error = stopped(tmp_path / str(index), program, backend_name=health_backend)
        assert origin(error)[::2] == ("SqrtGrad", True), program
    assert v.numpy() == 0.0


@pytest.mark.slow
def test_bad_input_data_stops(tmp_path: Path, health_backend: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x * 2.0)

    error = stopped(tmp_path / "argument", lambda: f(tf.constant([1.0, np.nan])), backend_name=health_backend)
    assert error.nonfinite is not None
    assert (error.nonfinite.op_type, error.nonfinite.num_nan) == (None, 1)
    assert "a tensor from outside" in str(error)

    v = tf.Variable([1.0, np.inf])
    error = stopped(tmp_path / "variable", lambda: v * 2.0, backend_name=health_backend)
    assert error.nonfinite is not None
    assert (error.nonfinite.op_type, error.nonfinite.num_pos_inf) == ("ReadVariableOp", 1)


def test_a_data_set_stops(tmp_path: Path, health_backend: str) -> None:
    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 0.0, 3.0]).map(lambda x: tf.math.log(x) * 2.0)
        seen.extend(float(x) for x in data)

    seen: list[float] = []
    error = stopped(tmp_path, program, backend_name=health_backend)

    assert origin(error)[::2] == ("Log", True)
    assert len(seen) == 2


@pytest.mark.slow
def test_a_strategy_and_a_python_function_stop(tmp_path: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(lambda: tf.sqrt(x) * 2.0)

    assert origin(stopped(tmp_path / "strategy", lambda: step(tf.constant(-1.0))))[0] == "Sqrt"

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(lambda y: tf.math.log(y) * 2.0, [x], tf.float32)

    assert origin(stopped(tmp_path / "py_function", lambda: f(tf.constant(0.0))))[0] == "Log"


@pytest.mark.slow
def test_a_session_stops(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    def program(*, is_fed: bool) -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, []) if is_fed else tf.constant(0.0)
            session.run(f(x), {x: 0.0} if is_fed else {})

    fed = stopped(tmp_path / "fed", lambda: program(is_fed=True))
    assert origin(fed) == ("Log", "f", True)
    constant = stopped(tmp_path / "constant", lambda: program(is_fed=False))
    assert constant.nonfinite is not None
    # TensorFlow computed the result of the call in advance.
    assert (constant.nonfinite.op_type, constant.nonfinite.ran_as) == ("Log", "Const in place of Log and Mul")
