"""on_nonfinite: a recording that stops the program where a NaN or an infinity comes up."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf
from tensorflow.python.debug.lib import check_numerics_callback
from tensorflow.python.framework import op_def_registry

import tfdbg_arrow
from tfdbg_arrow.errors import NonFiniteError, SettingError, TfdbgArrowError
from tfdbg_arrow.writer import backend
from tfdbg_arrow.writer.live_stop import masking

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


def origin(error: NonFiniteError) -> tuple[str | None, str | None, bool]:
    """Op type, graph and proof of what an error names."""
    assert error.nonfinite is not None
    return error.nonfinite.op_type, error.nonfinite.graph_name, error.nonfinite.is_origin


def test_a_nested_function_stops(tmp_path: Path, variant: str) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.sqrt(x)

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x * 2.0) + inner(x) * 3.0

    error = stopped(tmp_path, lambda: outer(tf.constant([-1.0])), backend_name=variant)

    assert origin(error) == ("Sqrt", "inner", True)


def test_only_the_branch_that_runs_stops(tmp_path: Path, variant: str) -> None:
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

    found = stopped(tmp_path, program, backend_name=variant).nonfinite

    assert found is not None
    # Without the core nothing tells in which call a branch ran: the answer is then the op that returned its value.
    has_core = backend.native_core() is not None
    assert (found.op_type, found.num_neg_inf) == ("Log" if has_core else "StatelessIf", 1)


def test_the_gradient_of_a_square_root_stops(tmp_path: Path, variant: str) -> None:
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
        error = stopped(tmp_path / str(index), program, backend_name=variant)
        assert origin(error)[::2] == ("SqrtGrad", True), program
    assert v.numpy() == 0.0


def test_keras_stops_in_fit(tmp_path: Path, variant: str) -> None:
    keras.utils.set_random_seed(3)

    class Log(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(x)

    model = keras.Sequential([keras.layers.Input([2]), Log(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones([32, 2], np.float32)
    x[17, 1] = 0.0
    batches: list[int] = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(batch))

    def program() -> None:
        model.fit(x, np.ones([32, 1]), batch_size=8, shuffle=False, verbose=0, callbacks=[callback])

    error = stopped(tmp_path, program, backend_name=variant)

    assert origin(error)[::2] == ("Log", True)
    assert batches == [0, 1]
    assert error.nonfinite is not None
    assert error.nonfinite.source is not None
    assert error.nonfinite.source.file_path == __file__


def test_an_eager_keras_layer_hands_the_error_on(tmp_path: Path) -> None:
    class Log(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: tf.Tensor) -> tf.Tensor:
            return tf.math.log(x) * 2.0

    error = stopped(tmp_path, lambda: Log()(tf.constant([0.0])))

    assert origin(error)[0] == "Log"


def test_what_where_leaves_out_does_not_stop(tmp_path: Path, variant: str) -> None:
    def masked(x: tf.Tensor) -> tf.Tensor:
        y = tf.reshape(tf.math.log(x), [-1])
        return tf.where(tf.math.is_finite(y), y, 0.0) * 2.0

    def program() -> None:
        x = tf.constant([[1.0, 0.0]])
        assert masked(x).numpy().tolist() == [0.0, 0.0]
        assert tf.function(masked)(x).numpy().tolist() == [0.0, 0.0]
        tfdbg_arrow.mark(step=1)

    told = not_stopped(tmp_path, program, backend_name=variant)

    assert [subject for subject, _ in told if subject.startswith("Log:0")] == ["Log:0 (Log)"]
    assert ("Log:0 (Log)", "nothing computes with it: Reshape only choose, hand on or test values") in told
    assert any(subject == "the input of SelectV2" for subject, _ in told)


def test_the_gradient_through_where_stops(tmp_path: Path, variant: str) -> None:
    v = tf.Variable([-1.0, 4.0])

    @tf.function
    def f() -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.where(v > 0.0, tf.sqrt(v), 0.0))
        return y, tape.gradient(y, v)

    error = stopped(tmp_path, f, backend_name=variant)

    # The square root is where the NaN comes from; that it does harm shows only in the gradient.
    assert origin(error)[::2] == ("Sqrt", True)


def test_a_bad_value_that_where_keeps_stops(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.where(x > -1.0, tf.math.log(x), 0.0) + 1.0

    assert origin(stopped(tmp_path, lambda: f(tf.constant([0.0]))))[0] == "Log"


def test_unused_outputs_of_batch_normalization_do_not_stop(tmp_path: Path, variant: str) -> None:
    def normalize(x: tf.Tensor) -> tf.Tensor:
        one = tf.ones([2])
        return tf.compat.v1.nn.fused_batch_norm(x, one, one, is_training=True)

    def program() -> None:
        x = tf.zeros([0, 1, 1, 2])
        normalize(x)
        tf.function(lambda: normalize(x)[0])()

    told = not_stopped(tmp_path, program, backend_name=variant)

    slots = {subject.split()[0].rsplit(":")[-1].rstrip(",") for subject, _ in told if "FusedBatchNorm" in subject}
    assert slots, told
    assert slots <= set("12345")
    assert {reason for subject, reason in told if "FusedBatchNorm" in subject} == {
        "batch statistics of an empty batch, and what is reserved for the gradient, may be NaN"
    }


def test_bad_input_data_stop(tmp_path: Path, variant: str) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x * 2.0)

    error = stopped(tmp_path / "argument", lambda: f(tf.constant([1.0, np.nan])), backend_name=variant)
    assert error.nonfinite is not None
    assert (error.nonfinite.op_type, error.nonfinite.num_nan) == (None, 1)
    assert "an eager tensor that came from outside" in str(error)

    v = tf.Variable([1.0, np.inf])
    error = stopped(tmp_path / "variable", lambda: v * 2.0, backend_name=variant)
    assert error.nonfinite is not None
    assert (error.nonfinite.op_type, error.nonfinite.num_pos_inf) == ("ReadVariableOp", 1)


def test_input_data_that_are_cleaned_do_not_stop(tmp_path: Path, variant: str) -> None:
    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices(np.array([[1.0, np.nan], [2.0, 3.0]], np.float32))
        data = data.map(lambda x: tf.where(tf.math.is_nan(x), tf.zeros_like(x), x)).batch(2)
        total = sum(float(tf.reduce_sum(batch * 2.0)) for batch in data)
        assert total == 12.0

    not_stopped(tmp_path, program, backend_name=variant)


def test_a_data_set_stops(tmp_path: Path, variant: str) -> None:
    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices([1.0, 2.0, 0.0, 3.0]).map(lambda x: tf.math.log(x) * 2.0)
        seen.extend(float(x) for x in data)

    seen: list[float] = []
    error = stopped(tmp_path, program, backend_name=variant)

    assert origin(error)[::2] == ("Log", True)
    assert len(seen) == 2


def test_what_no_op_has_taken_counts_at_a_boundary(tmp_path: Path, variant: str) -> None:
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

    assert origin(stopped(tmp_path / "end", at_end, backend_name=variant))[0] == "Log"
    not_stopped(tmp_path / "mark", at_mark, backend_name=variant)


def test_an_error_of_the_program_is_not_hidden(tmp_path: Path) -> None:
    def program() -> None:
        with tfdbg_arrow.capture(tmp_path, on_nonfinite="raise"):
            tf.math.log(tf.constant(0.0))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program()
    assert not tfdbg_arrow.is_recording()


def test_a_program_that_goes_on_is_stopped_again(tmp_path: Path, variant: str) -> None:
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

    not_stopped(tmp_path, program, backend_name=variant)


def test_the_thread_that_ran_the_op_gets_the_error(tmp_path: Path) -> None:
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


def test_a_session_stops(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    def program() -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(f(tf.constant(0.0)))

    assert origin(stopped(tmp_path, program))[0] == "Log"


def test_a_callable_is_called_once_for_each_origin(tmp_path: Path, variant: str) -> None:
    found: list[tuple[str | None, str]] = []

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        y = tf.math.log(x) * 2.0
        return tf.reduce_sum(y) + tf.reduce_sum(tf.sqrt(x - 1.0))

    def tell(nonfinite: tfdbg_arrow.NonFinite) -> None:
        found.append((nonfinite.op_type, threading.current_thread().name))
        _ = tf.math.log(tf.constant(0.0)) * 2.0  # what it runs itself is not looked at

    with tfdbg_arrow.capture(tmp_path, health_backend=variant, on_nonfinite=tell):
        for _ in range(3):
            y = f(tf.constant([0.0, 1.0]))
            _ = tf.sqrt(tf.constant(-1.0)) + y
    name = threading.current_thread().name
    assert sorted(found, key=str) == [("Log", name), ("Sqrt", name), ("Sqrt", name)]


def test_what_a_callable_raises_is_the_users_own(tmp_path: Path, variant: str) -> None:
    def fail(nonfinite: tfdbg_arrow.NonFinite) -> None:
        raise KeyError(nonfinite.op_type)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(x) * 2.0

    for index, program in enumerate((f, lambda x: tf.math.log(x) * 2.0)):
        with (
            pytest.raises(KeyError, match="Log"),
            tfdbg_arrow.capture(tmp_path / str(index), health_backend=variant, on_nonfinite=fail),
        ):
            program(tf.constant(0.0))


def test_a_callable_may_end_the_recording(tmp_path: Path, variant: str) -> None:
    for index, program in enumerate((tf.function(lambda x: tf.math.log(x) * 2.0), lambda x: tf.math.log(x) * 2.0)):
        calls: list[object] = []

        def end(nonfinite: tfdbg_arrow.NonFinite, calls: list[object] = calls) -> None:
            calls.append(nonfinite.op_type)
            tfdbg_arrow.disable()

        tfdbg_arrow.enable(tmp_path / str(index), health_backend=variant, on_nonfinite=end)
        program(tf.constant(0.0))
        assert calls == ["Log"]
        assert not tfdbg_arrow.is_recording()
        program(tf.constant(0.0))
        assert calls == ["Log"]


@pytest.mark.parametrize("value", ["stop", None, 1])
def test_an_unknown_reaction_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SettingError, match=r"on_nonfinite is .*expected 'record', 'raise' or a callable"):
        tfdbg_arrow.enable(tmp_path, on_nonfinite=value)


def test_a_mode_without_health_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="mode SHAPE does not look for bad values; use CURT_HEALTH"):
        tfdbg_arrow.enable(tmp_path, "SHAPE", on_nonfinite="raise")


def test_the_error_survives_pickling(tmp_path: Path) -> None:
    error = stopped(tmp_path, lambda: tf.math.log(tf.constant(0.0)) * 2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.nonfinite, copy.logdir) == (str(error), error.nonfinite, error.logdir)


def test_the_table_of_what_is_masked() -> None:
    slots = {output.op_type: output.slots for output in masking.HARMLESS_OUTPUTS}
    assert slots == {
        "FusedBatchNorm": (1, 2, 3, 4),
        "FusedBatchNormV2": (1, 2, 3, 4),
        "FusedBatchNormV3": (1, 2, 3, 4, 5),
    }
    ignored = {(name.decode(), slot) for name, slot in check_numerics_callback.IGNORE_OP_OUTPUTS}
    assert ignored == {(op_type, slot) for op_type in slots for slot in slots[op_type]}
    assert {name.decode() for name in check_numerics_callback.SAFE_OPS} <= masking.CARRYING_OPS
    assert set() == masking.CARRYING_OPS & masking.TESTING_OPS


def test_the_masked_ops_are_ops_of_tensorflow() -> None:
    unknown = {name for name in masking.CARRYING_OPS | masking.TESTING_OPS if op_def_registry.get(name) is None}
    assert unknown == set()


@pytest.mark.parametrize(
    ("op_type", "slot", "users", "is_returned", "stops"),
    [
        ("Log", 0, ["Mul"], False, True),
        ("Log", 0, ["SelectV2"], False, False),
        ("Log", 0, ["SelectV2", "Mul"], False, True),
        ("Log", 0, ["SelectV2", "IsNan", "Reshape"], False, False),
        ("Log", 0, ["SelectV2"], True, True),
        ("Log", 0, [], False, False),
        ("Log", 0, [], True, True),
        ("Log", 0, ["AssignVariableOp"], False, True),
        ("Log", 0, ["StatefulPartitionedCall", "While"], False, False),
        ("FusedBatchNormV3", 0, ["Relu"], False, True),
        ("FusedBatchNormV3", 5, ["FusedBatchNormGradV3"], True, False),
    ],
)
def test_what_stops(op_type: str, slot: int, users: list[str], is_returned: bool, stops: bool) -> None:
    assert (masking.mask_reason(op_type, slot, users=users, is_returned=is_returned) is None) is stops
