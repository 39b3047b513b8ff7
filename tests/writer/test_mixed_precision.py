"""Mixed precision: a recording changes no number, and overflowed gradients of skipped steps are marked as expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import NonFinite
from tfdbg_arrow.query.flow.walk import SKIPPED_BY_LOSS_SCALING, SKIPPED_STEP, SKIPPED_UPDATE

from .test_recording_numbers import IN_ORDER, UNFUSED

pytestmark = pytest.mark.slow

BACKENDS = ("native", "tensorflow")
X = np.linspace(0.0, 1.0, 64, dtype=np.float32).reshape(16, 4)


@pytest.fixture(scope="module", autouse=True)
def unfused() -> Iterator[None]:
    """Turns off fusing: fused kernels round differently, and TensorFlow does not fuse ops that are recorded."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({**UNFUSED, **IN_ORDER})
    yield
    tf.config.optimizer.set_experimental_options({**dict.fromkeys({**UNFUSED, **IN_ORDER}, True), **before})


def numbers(value: Any) -> list[bytes]:
    return [np.asarray(tensor).tobytes() for tensor in tf.nest.flatten(value)]


def fit(
    policy: str = "mixed_float16", *, x: Any = X, loss: Any = "mse", initial_scale: float = 2.0**20, **settings: Any
) -> list[bytes]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu", dtype=policy),
            keras.layers.Dense(1, dtype=policy),
        ]
    )
    optimizer: Any = keras.optimizers.SGD(0.001)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale, dynamic_growth_steps=3)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False, **settings)
    history = model.fit(x, X.sum(axis=1), epochs=2, batch_size=4, shuffle=False, verbose=0)
    return numbers((model.get_weights(), history.history, [v.numpy() for v in optimizer.variables]))


def record(logdir: Path, program: Callable[[], Any], **settings: Any) -> tuple[Any, list[NonFinite], NonFinite | None]:
    """Returns the program's numbers, the bad tensors, and the first bad tensor."""
    with tfdbg_arrow.capture(logdir, **settings):
        result = program()
    with tfdbg_arrow.open_logdir(logdir) as opened:
        assert opened.rows("SELECT * FROM capture_stat") == []
        return result, opened.nonfinite(limit=None), opened.first_nonfinite()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_skipped_step_is_expected_and_changes_no_number(backend: str, tmp_path: Path) -> None:
    unrecorded = fit()
    recorded, bad, first = record(tmp_path, fit, health_backend=backend)
    assert recorded == unrecorded
    assert len(bad) > 10
    assert {(row.is_expected, row.expected_reason) for row in bad} == {(True, SKIPPED_BY_LOSS_SCALING)}
    assert first is not None
    assert (first.is_expected, first.is_origin) == (True, True)
    assert first.source is not None
    assert first.source.file_path == __file__


def test_a_step_skipped_in_eager_code_is_expected(tmp_path: Path) -> None:
    def run() -> Any:
        return fit(run_eagerly=True, initial_scale=2.0**17)

    _, bad, first = record(tmp_path, run)
    assert {(row.is_expected, row.expected_reason) for row in bad} == {(True, SKIPPED_UPDATE)}
    assert first is not None
    assert first.is_expected


@pytest.mark.parametrize("backend", ["native", pytest.param("tensorflow", marks=pytest.mark.exhaustive)])
def test_bfloat16_needs_no_loss_scale_and_has_no_bad_values(backend: str, tmp_path: Path) -> None:
    unrecorded = fit("mixed_bfloat16")
    recorded, bad, first = record(tmp_path, lambda: fit("mixed_bfloat16"), health_backend=backend)
    assert (recorded, bad, first) == (unrecorded, [], None)
    with tfdbg_arrow.open_logdir(tmp_path) as opened:
        dtypes = {dtype for (dtype,) in opened.rows("SELECT DISTINCT dtype FROM tensor_health")}
    assert dtypes == {"bfloat16", "float32"}


def test_an_overflow_in_the_forward_pass_ranks_before_earlier_expected_ones(tmp_path: Path) -> None:
    x = X.copy()
    x[12:] *= 60_000.0  # a layer's sum overflows float16; earlier steps overflow only because of their loss scale
    x[13::2] *= -1.0  # overflows in both directions: Relu replaces only -Inf
    _, bad, first = record(tmp_path, lambda: fit(x=x))
    assert bad[0].is_expected
    assert first is not None
    assert not first.is_expected
    assert first.event_index > bad[0].event_index
    assert first.op_name is not None
    assert "gradient" not in first.op_name


def test_a_new_nan_in_a_gradient_is_not_expected_in_a_skipped_step(tmp_path: Path) -> None:
    def loss(_: Any, y: Any) -> Any:
        return tf.sqrt(tf.cast(y, tf.float32) * 0.0)  # its gradient is 0 * (1 / 0)

    _, _, first = record(tmp_path, lambda: fit(loss=loss, initial_scale=1.0))
    assert first is not None
    assert not first.is_expected
    assert "Sqrt" in (first.op_name or "")


def step_of(apply: Callable[[Any], Any]) -> tuple[tf.Variable, Any]:
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def step(scale: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(tf.cast(weight, tf.float16) * 2.0, tf.float32)) * scale
        apply((tape.gradient(loss, weight), weight))

    return weight, step


def test_a_step_that_is_not_skipped_is_not_expected(tmp_path: Path) -> None:
    weight, step = step_of(lambda pair: pair[1].assign_sub(pair[0]))
    _, bad, _ = record(tmp_path, lambda: step(tf.constant(1e9)))
    assert not np.isfinite(weight.numpy()).any()
    assert {row.is_expected for row in bad} == {False}


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_a_custom_check_makes_a_skipped_step_expected(scale: float, tmp_path: Path) -> None:
    def apply(pair: Any) -> None:
        gradient, weight = pair
        if tf.reduce_all(tf.math.is_finite(gradient)):
            weight.assign_sub(gradient * 0.1)

    weight, step = step_of(apply)
    _, bad, _ = record(tmp_path, lambda: step(tf.constant(scale)))
    assert np.isfinite(weight.numpy()).all()
    assert {row.expected_reason for row in bad} == ({SKIPPED_STEP} if scale > 1.0 else set())


def test_a_check_that_only_reports_does_not_make_a_step_expected(tmp_path: Path) -> None:
    def apply(pair: Any) -> None:
        gradient, weight = pair
        if not tf.reduce_all(tf.math.is_finite(gradient)):
            tf.print("not finite", output_stream="file:///dev/null")
        weight.assign_sub(gradient)

    _, step = step_of(apply)
    _, bad, _ = record(tmp_path, lambda: step(tf.constant(1e9)))
    assert {row.is_expected for row in bad} == {False}


def test_the_optimizer_of_tf_keras_is_supported(tmp_path: Path) -> None:
    import tf_keras

    def run() -> Any:
        tf_keras.utils.set_random_seed(3)
        inner = tf_keras.optimizers.SGD(0.001)
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**20, dynamic_growth_steps=3)
        layers = [tf_keras.layers.Dense(units, dtype="mixed_float16") for units in (8, 1)]
        model = tf_keras.Sequential(layers)
        model.compile(optimizer=optimizer, loss="mse", jit_compile=False)
        model.fit(X, X.sum(axis=1), epochs=2, batch_size=4, shuffle=False, verbose=0)
        return numbers((model.get_weights(), optimizer.loss_scale))

    unrecorded = run()
    recorded, bad, _ = record(tmp_path, run)
    assert recorded == unrecorded
    assert len(bad) > 10
    assert {row.expected_reason for row in bad} == {SKIPPED_BY_LOSS_SCALING}
