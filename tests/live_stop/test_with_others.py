"""`on_nonfinite` with other settings of a recording, and with graph mode."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow
from tfdbg_arrow.errors import NonFiniteError

from .stops import origin, stopped

tf1 = tf.compat.v1


def masked(logdir: Path) -> dict[str, str]:
    found = ds.dataset(logdir / "capture_stat").to_table().to_pylist()
    assert [row for row in found if row["stat"] == "failed"] == []
    return {row["subject"]: row["reason"] for row in found if row["stat"] == "masked"}


def test_a_skipped_step_does_not_stop(tmp_path: Path, health_backend: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    reached = []

    def program() -> None:
        f(tf.constant(1.0))
        for step in (1, 2, 3):
            tfdbg_arrow.mark(step=step)
            bad = f(tf.constant(0.0))
            reached.append((step, float(bad + 1.0), float(tf.math.log(tf.constant(0.0)) * 2.0)))

    error = stopped(tmp_path, program, backend_name=health_backend, steps="3:")

    assert reached == [(step, float("-inf"), float("-inf")) for step in (1, 2)]
    assert origin(error) == ("Log", "f", True)
    bad = ds.dataset(tmp_path / "tensor_health").to_table(filter=ds.field("has_inf_or_nan"))
    assert set(bad["step"].to_pylist()) == {3}


def test_a_bad_value_of_a_recorded_step_does_not_stop_a_skipped_step(tmp_path: Path, health_backend: str) -> None:
    with tfdbg_arrow.capture(tmp_path, health_backend=health_backend, on_nonfinite="raise", steps="1,3"):
        tfdbg_arrow.mark(step=1)
        bad = tf.math.log(tf.constant([0.0]))
        with pytest.raises(NonFiniteError, match=r"made -Inf(?s:.*) Log:0, run eagerly"):
            tfdbg_arrow.mark(step=2)  # no op has taken it
        tfdbg_arrow.mark(step=2)
        assert (bad * 2.0).numpy() == [float("-inf")]
        tfdbg_arrow.mark(step=3)
        with pytest.raises(NonFiniteError, match=r"made -Inf(?s:.*) Log:0, run eagerly"):
            bad * 2.0


@pytest.mark.parametrize("chosen", ["Log", "Mul"])
def test_a_bad_value_stops_when_its_elements_are_kept(tmp_path: Path, health_backend: str, chosen: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    error = stopped(tmp_path, lambda: f(tf.constant(0.0)), backend_name=health_backend, values=chosen)

    assert origin(error) == ("Log", "f", True)


@pytest.mark.parametrize(
    "more",
    [{"circular_buffer_size": 20, "dump_on": "nonfinite"}, {"circular_buffer_size": 20}, {"max_bytes": 1 << 20}],
)
def test_the_answer_includes_unwritten_events(tmp_path: Path, health_backend: str, more: dict[str, Any]) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    def program() -> None:
        for value in range(15, -1, -1):
            f(tf.constant(float(value)))

    error = stopped(tmp_path, program, backend_name=health_backend, **more)

    assert origin(error) == ("Log", "f", True)


def test_the_error_names_the_url_of_the_recording(tmp_path: Path) -> None:
    url = f"memory://stop/{tmp_path.name}"
    with (
        pytest.raises(NonFiniteError) as caught,
        tfdbg_arrow.capture(url, on_nonfinite="raise", local_dir=tmp_path),
    ):
        tf.math.log(tf.constant(0.0)) * 2.0

    assert caught.value.logdir == url
    assert caught.value.nonfinite is not None
    assert caught.value.nonfinite.op_type == "Log"
    found = tfdbg_arrow.first_nonfinite(url)
    # The effect of the value is not known while the program runs.
    assert found is not None
    assert (found.effect, caught.value.nonfinite.effect) == ("result", None)
    assert dataclasses.replace(found, effect=None) == caught.value.nonfinite


def test_the_result_of_a_function_that_stays_compiled_stops(tmp_path: Path) -> None:
    @tf.function(jit_compile=True)
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    reached = []

    def program() -> None:
        reached.append(f(tf.constant(0.0)))
        reached.append(reached[0] + 1.0)

    error = stopped(tmp_path, program, xla="keep")

    assert len(reached) == 1
    assert error.nonfinite is not None
    assert (error.nonfinite.op_type or "").startswith("__inference_f")


def test_a_graph_of_graph_mode_in_a_function_stops(tmp_path: Path, health_backend: str) -> None:
    was_v2 = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = tf1.placeholder(tf.float32, [], name="x")
            result = tf1.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.math.log(a, name="log")), [0, x])[1]
            tf.identity(result, name="output")
    finally:
        if was_v2:
            tf1.enable_control_flow_v2()
    assert "NextIteration" in {op.type for op in graph.get_operations()}
    graph_def = graph.as_graph_def()

    def program() -> None:
        wrapped = tf1.wrap_function(
            lambda x: tf.graph_util.import_graph_def(graph_def, {"x": x}, ["output:0"])[0],
            [tf.TensorSpec([], tf.float32)],
        )
        tf.function(lambda x: wrapped(x) * 2.0)(tf.constant(1.0))

    error = stopped(tmp_path, program, backend_name=health_backend)

    assert origin(error) == ("Log", "wrapped_function", True)
    assert error.nonfinite is not None
    assert error.nonfinite.iteration == 1


def bad_run(config: Any = None) -> list[float]:
    """Runs a session that computes -Inf; returns what it fetches."""
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        x = tf1.placeholder(tf.float32, [], name="x")
        log = tf.math.log(x, name="log")
        doubled = tf.multiply(log, 2.0, name="doubled")
        fetched: list[float] = session.run([doubled, log], {x: 0.0})
        return fetched


def without_optimizer() -> Any:
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


@pytest.mark.parametrize(
    ("graphs", "is_optimized"),
    mostly_slow(
        [("auto", True), ("traced", False), ("auto", False), ("traced", True)], fast=[("auto", True), ("traced", False)]
    ),
)
def test_a_session_stops_with_any_optimization(
    tmp_path: Path, health_backend: str, graphs: str, is_optimized: bool
) -> None:
    config = None if is_optimized else without_optimizer()

    error = stopped(tmp_path, lambda: bad_run(config), backend_name=health_backend, graphs=graphs)

    assert origin(error) == ("Log", "tf.Graph", True)
    assert masked(tmp_path) == {}


def test_a_session_without_optimizer_that_was_created_before_does_not_stop(tmp_path: Path, health_backend: str) -> None:
    with tf.Graph().as_default(), tf1.Session(config=without_optimizer()) as session:
        log = tf.math.log(tf1.placeholder_with_default(0.0, []))
        with tfdbg_arrow.capture(tmp_path, health_backend=health_backend, on_nonfinite="raise"):
            assert session.run([log * 2.0, log]) == [float("-inf")] * 2
    stats = ds.dataset(tmp_path / "capture_stat").to_table().to_pylist()
    [(stat, subject, reason)] = [(row["stat"], row["subject"], row["reason"]) for row in stats]
    assert (stat, subject) == ("unobservable", "Session")
    assert reason.startswith("was created before enable(), with TensorFlow's graph optimizer switched off")


def test_a_session_assigns_no_value_computed_from_a_bad_value(tmp_path: Path) -> None:
    def train() -> None:
        with tf.Graph().as_default(), tf1.Session() as session:
            x = tf1.placeholder(tf.float32, [2], name="x")
            weight = tf1.get_variable("weight", [], initializer=tf1.ones_initializer(), use_resource=False)
            loss = tf.reduce_sum(tf.math.log(x * weight, name="log"))
            step = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
            session.run(tf1.global_variables_initializer())
            session.run(step, {x: [1.0, 2.0]})
            before = session.run(weight)
            with pytest.raises(NonFiniteError) as caught:
                session.run([step, loss], {x: [1.0, 0.0]})
            errors.append(caught.value)
            assert session.run(weight) == before
            session.run(step, {x: [1.0, 2.0]})

    errors: list[NonFiniteError] = []
    with tfdbg_arrow.capture(tmp_path, on_nonfinite="raise"):
        train()

    assert origin(errors[0])[0] in ("Log", "Reciprocal")


def test_a_callable_is_called_after_a_run_of_a_session(tmp_path: Path) -> None:
    found = []
    with tfdbg_arrow.capture(tmp_path, on_nonfinite=lambda nonfinite: found.append(nonfinite.op_type)):
        assert bad_run() == [float("-inf")] * 2
        assert found == ["Log"]
    assert found == ["Log"]


def test_tensors_stored_by_a_loop_of_a_session_do_not_stop(tmp_path: Path) -> None:
    def masked_in_a_tensor_array() -> list[float]:
        x = tf1.placeholder(tf.float32, [4])
        array = tf.TensorArray(tf.float32, 4)
        logarithms = tf1.while_loop(
            lambda i, _: i < 4, lambda i, array: (i + 1, array.write(i, tf.math.log(x[i]))), [0, array]
        )[1].stack()
        result = tf.where(tf.math.is_inf(logarithms), tf.zeros_like(logarithms), logarithms) * 2.0
        with tf1.Session() as session:
            found: list[float] = session.run(result, {x: [1.0, 0.0, 1.0, 0.0]}).tolist()
            return found

    def gradient_of_a_masked_minimum() -> list[float]:
        x, bound = tf1.placeholder(tf.float32, [2]), tf1.placeholder(tf.float32, [2])
        weight = tf1.get_variable("weight", [2], initializer=tf1.ones_initializer())
        least = tf1.while_loop(
            lambda i, _: i < 3,
            lambda i, a: (i + 1, tf.minimum(a * x, tf.where(bound > 0.0, bound, float("inf") * tf.ones([2])))),
            [0, weight],
        )[1]
        gradient = tf1.gradients(tf.reduce_sum(least), [weight])[0]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            found: list[float] = session.run(gradient, {x: [1.0, 1.0], bound: [-1.0, 5.0]}).tolist()
            return found

    was_v2 = tf1.control_flow_v2_enabled()
    tf1.disable_control_flow_v2()
    try:
        for program, expected in ((masked_in_a_tensor_array, [0.0] * 4), (gradient_of_a_masked_minimum, [1.0] * 2)):
            with (
                tfdbg_arrow.capture(tmp_path / program.__name__, on_nonfinite="raise"),
                tf.Graph().as_default(),
            ):
                assert program() == expected
    finally:
        if was_v2:
            tf1.enable_control_flow_v2()


def test_a_stopped_recording_does_not_affect_the_next_one(tmp_path: Path, health_backend: str) -> None:
    bad = tf.constant([float("inf"), 1.0])  # before the recording
    function = tf.function(lambda x: x * 2.0)
    stopped(tmp_path / "first", lambda: function(bad) + function(bad), backend_name=health_backend)
    with tfdbg_arrow.capture(tmp_path / "second", health_backend=health_backend, on_nonfinite="raise"):
        assert function(tf.constant([1.0, 1.0])).numpy().tolist() == [2.0, 2.0]
    assert tfdbg_arrow.first_nonfinite(tmp_path / "second") is None
