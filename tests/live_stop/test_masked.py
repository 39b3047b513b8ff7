"""Bad values that do not stop a program, because no op computes with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.debug.lib import check_numerics_callback
from tensorflow.python.framework import op_def_registry

import tfdbg_arrow
from tfdbg_arrow.writer.live_stop import masking

from .stops import not_stopped, origin, stopped


def test_a_bad_value_that_where_drops_does_not_stop(tmp_path: Path, health_backend: str) -> None:
    def masked(x: tf.Tensor) -> tf.Tensor:
        y = tf.reshape(tf.math.log(x), [-1])
        return tf.where(tf.math.is_finite(y), y, 0.0) * 2.0

    def program() -> None:
        x = tf.constant([[1.0, 0.0]])
        assert masked(x).numpy().tolist() == [0.0, 0.0]
        assert tf.function(masked)(x).numpy().tolist() == [0.0, 0.0]
        tfdbg_arrow.mark(step=1)

    told = not_stopped(tmp_path, program, backend_name=health_backend)

    assert [subject for subject, _ in told if subject.startswith("Log:0")] == ["Log:0 (Log)"]
    users = "IsFinite, Reshape"  # TensorFlow runs IsFinite before Reshape
    assert ("Log:0 (Log)", f"nothing computes with it: {users} only select, pass on or test values") in told
    assert any(subject == "the input of SelectV2" for subject, _ in told)


def test_the_gradient_through_where_stops(tmp_path: Path, health_backend: str) -> None:
    v = tf.Variable([-1.0, 4.0])

    @tf.function
    def f() -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.where(v > 0.0, tf.sqrt(v), 0.0))
        return y, tape.gradient(y, v)

    error = stopped(tmp_path, f, backend_name=health_backend)

    # The square root makes the NaN, but the NaN does harm only in the gradient.
    assert origin(error)[::2] == ("Sqrt", True)


def test_a_bad_value_that_where_keeps_stops(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.where(x > -1.0, tf.math.log(x), 0.0) + 1.0

    assert origin(stopped(tmp_path, lambda: f(tf.constant([0.0]))))[0] == "Log"


def test_unused_outputs_of_batch_normalization_do_not_stop(tmp_path: Path, health_backend: str) -> None:
    def normalize(x: tf.Tensor) -> tf.Tensor:
        one = tf.ones([2])
        return tf.compat.v1.nn.fused_batch_norm(x, one, one, is_training=True)

    def program() -> None:
        x = tf.zeros([0, 1, 1, 2])
        normalize(x)
        tf.function(lambda: normalize(x)[0])()

    told = not_stopped(tmp_path, program, backend_name=health_backend)

    slots = {subject.split()[0].rsplit(":")[-1].rstrip(",") for subject, _ in told if "FusedBatchNorm" in subject}
    assert slots, told
    assert slots <= set("12345")
    assert {reason for subject, reason in told if "FusedBatchNorm" in subject} == {
        "batch statistics of an empty batch, and what is reserved for the gradient, may be NaN"
    }


def test_cleaned_input_data_does_not_stop(tmp_path: Path, health_backend: str) -> None:
    def program() -> None:
        data = tf.data.Dataset.from_tensor_slices(np.array([[1.0, np.nan], [2.0, 3.0]], np.float32))
        data = data.map(lambda x: tf.where(tf.math.is_nan(x), tf.zeros_like(x), x)).batch(2)
        total = sum(float(tf.reduce_sum(batch * 2.0)) for batch in data)
        assert total == 12.0

    not_stopped(tmp_path, program, backend_name=health_backend)


def test_the_table_of_masked_outputs() -> None:
    ignored = {(name.decode(), slot) for name, slot in check_numerics_callback.IGNORE_OP_OUTPUTS}
    assert ignored == set(masking.HARMLESS_OUTPUTS)
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
def test_when_a_bad_value_stops(op_type: str, slot: int, users: list[str], is_returned: bool, stops: bool) -> None:
    assert (masking.mask_reason(op_type, slot, users=users, is_returned=is_returned) is None) is stops
