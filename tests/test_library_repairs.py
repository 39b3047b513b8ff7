"""The repair for an op inside a function of TensorFlow or Keras says what to write in place of the call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query.explanation import read_reasons
from tfdbg_arrow.query.explanation.keras_ops import NAMES
from tfdbg_arrow.query.explanation.library import repair_of_call
from tfdbg_arrow.query.stacks import Frame


def gradient(function: Callable[[Any], Any], variable: Any) -> None:
    with tf.GradientTape() as tape:
        loss = function(variable)
    variable.assign_sub(tape.gradient(loss, variable))


STRIPES = tf.reshape(tf.cast(tf.range(32 * 32) % 2, tf.float32), [1, 32, 32, 1])


def multiscale_similarity(images: Any) -> Any:
    """Compares images with an image whose pixels are the opposite of theirs."""
    return tf.reduce_mean(tf.image.ssim_multiscale(images, 1.0 - STRIPES, 1.0, (0.4, 0.6), filter_size=3))


def slope_of_the_slope_of_the_norm() -> None:
    x = tf.Variable(tf.zeros([3]))
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            norm = tf.norm(x)
        slope = inner.gradient(norm, x, output_gradients=tf.zeros([]))
    x.assign_sub(outer.gradient(slope, x))


PROGRAMS: dict[str, tuple[Callable[[], object], str]] = {
    "standard deviation": (
        lambda: gradient(tf.math.reduce_std, tf.Variable(tf.ones([4]))),
        "The standard deviation is a root.",
    ),
    "standard deviation in Keras": (
        lambda: gradient(keras.ops.std, tf.Variable(tf.ones([4]))),
        "The standard deviation is a root.",
    ),
    "norm": (lambda: gradient(tf.norm, tf.Variable(tf.zeros([3]))), "The norm is a root."),
    "mean of a ragged tensor": (
        lambda: tf.reduce_mean(tf.ragged.constant([[1.0], []]), axis=1),
        "A row of the ragged tensor is empty.",
    ),
    "mean of a tensor": (lambda: tf.reduce_mean(tf.zeros([2, 0]), axis=1), "Check for an empty batch or mask"),
    "multiscale similarity": (
        lambda: gradient(multiscale_similarity, tf.Variable(STRIPES)),
        "The contrast of two images is 0 or negative at a scale",
    ),
    "Poisson loss": (
        lambda: keras.losses.Poisson()(tf.ones([2, 1]), -tf.ones([2, 1])),
        "The Poisson loss takes the logarithm of the predictions.",
    ),
    "unit length": (
        lambda: tf.math.l2_normalize(tf.zeros([4], tf.float16)),
        "Pass an epsilon to tf.math.l2_normalize",
    ),
    "norm of 0": (lambda: tf.linalg.normalize(tf.zeros([3]), ord=1), "The norm is 0."),
    "normalization": (
        lambda: tf.nn.batch_normalization(tf.ones([2, 3]), tf.ones([3]), tf.zeros([3]), None, None, 0.0),
        "Give the normalization an epsilon above 0",
    ),
    "normalization by a negative variance": (
        lambda: tf.nn.batch_normalization(tf.ones([2, 3]), tf.ones([3]), -tf.ones([3]), None, None, 1e-3),
        "The variance is negative",
    ),
    "layer normalization": (
        lambda: keras.layers.LayerNormalization(epsilon=0.0)(tf.ones([2, 3])),
        "Give the normalization an epsilon above 0",
    ),
    "group normalization": (
        lambda: keras.layers.GroupNormalization(groups=1, epsilon=0.0)(tf.ones([2, 3])),
        "Give the normalization an epsilon above 0",
    ),
    "RMS normalization": (
        lambda: keras.layers.RMSNormalization(epsilon=0.0)(tf.zeros([2, 3])),
        "Give the normalization an epsilon above 0",
    ),
    "Adam": (
        lambda: keras.optimizers.Adam(beta_2=1.999).apply([tf.ones([2])], [keras.Variable([1.0, 2.0])]),
        "The root is the optimizer's, not yours: construct it with a beta_2",
    ),
    "slope of the slope of the norm": (slope_of_the_slope_of_the_norm, "The norm is a root."),
}


@pytest.mark.slow
def test_the_call_is_to_be_replaced(tmp_path: Path) -> None:
    for name, (program, repair) in PROGRAMS.items():
        with tfdbg_arrow.capture(tmp_path / name):
            program()
        with tfdbg_arrow.open_logdir(tmp_path / name) as opened:
            found = opened.first_nonfinite()
            assert found is not None, name
            explanation = read_reasons(opened, found).explanation
        assert explanation is not None, name
        assert (explanation.repair or "").startswith(repair), (name, explanation)


def test_a_function_of_the_user_with_the_same_name_keeps_the_repair_of_the_op() -> None:
    library = Frame("/site-packages/tensorflow/python/ops/math_ops.py", 3, "reduce_std", None, "framework")
    user = Frame("/home/ada/math_ops.py", 7, "reduce_std", None, "user")
    sqrt = Frame("/site-packages/tensorflow/python/ops/gen_math_ops.py", 5, "sqrt", None, "framework")
    assert repair_of_call((sqrt, user, library), "Sqrt") is None
    assert repair_of_call((sqrt, library, user), "Sqrt") is not None
    assert repair_of_call((sqrt, library, user), "Log") is None
    assert repair_of_call((), None) is None


def test_keras_ops_has_the_functions_that_fixes_name() -> None:
    assert [name for name in NAMES.values() if not hasattr(keras.ops, name)] == []
