"""Test what the documentation says about TensorFlow itself, without a recording.

Each test names a page and a sentence. If the sentence changes, the test fails. tests/parity tests what the
documentation says about Debugger V2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

ROOT = Path(__file__).resolve().parents[1]


def check_said(page: str, sentence: str) -> None:
    """Checks that a page has a sentence, in lines or in cells of a table."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").replace("|", " ").split())
    assert " ".join(sentence.split()) in text


def optimized_ops(function: tf.types.experimental.PolymorphicFunction, *arguments: tf.Tensor) -> list[str]:
    """Returns the types of the nodes that TensorFlow's optimizer leaves of a function."""
    tensorflow = context.context()
    tensorflow.enable_run_metadata()
    try:
        tensorflow.export_run_metadata()  # it clears what ran before
        function(*arguments)
        metadata = tensorflow.export_run_metadata()
    finally:
        tensorflow.disable_run_metadata()
    return [node.op for graphs in metadata.function_graphs for node in graphs.post_optimization_graph.node]


def test_the_optimizer_fuses_ops() -> None:
    check_said("docs/executed_graphs.md", "`tf.math.log(tf.nn.softmax(x))` one LogSoftmax, which is finite")
    check_said("docs/executed_graphs.md", "The Log is -Inf where the Softmax underflows to 0")
    x = tf.constant([0.0, -200.0])
    function = tf.function(lambda x: tf.math.log(tf.nn.softmax(x)))
    assert "LogSoftmax" in optimized_ops(function, x)
    assert np.isfinite(function(x).numpy()).all()
    assert np.isneginf(tf.math.log(tf.nn.softmax(x)).numpy()[1])


def test_the_optimizer_computes_constants_in_advance() -> None:
    check_said("docs/executed_graphs.md", "TensorFlow computes ops that take only constants in advance")
    types = optimized_ops(tf.function(lambda x: x * (tf.math.log(tf.constant(2.0)) * 3.0)), tf.constant(1.0))
    assert types.count("Mul") == 1
    assert "Log" not in types


def test_the_optimizer_removes_unused_ops() -> None:
    check_said("docs/executed_graphs.md", "An op whose result is not used is removed, so it is not recorded")

    def square(x: tf.Tensor) -> tf.Tensor:
        tf.math.log(x)
        return tf.square(x)

    assert "Log" not in optimized_ops(tf.function(square), tf.constant(2.0))


def test_a_condition_runs_once_more_than_its_body() -> None:
    check_said("docs/xla.md", "TensorFlow computes a loop's condition once more than its body")
    ran: list[str] = []

    def note(what: str) -> None:
        tf.py_function(lambda: ran.append(what), [], [])

    def condition(i: tf.Tensor) -> tf.Tensor:
        note("condition")
        return i < 3

    def body(i: tf.Tensor) -> tf.Tensor:
        note("body")
        return i + 1

    tf.function(lambda: tf.while_loop(condition, body, [0]))()
    assert (ran.count("condition"), ran.count("body")) == (4, 3)


def test_xla_rounds_a_fused_product_once() -> None:
    check_said("docs/xla.md", "It rounds `a * b + c` only once if it computes both ops in one kernel")
    check_said("docs/xla.md", "and once more if something else reads the product")
    random = np.random.default_rng(1)
    a, b, c = (random.normal(size=1000).astype(np.float32) for _ in range(3))
    rounded_once = (a.astype(np.float64) * b + c).astype(np.float32)
    rounded_twice = a * b + c
    assert (rounded_once != rounded_twice).any()
    fused = tf.function(lambda a, b, c: a * b + c, jit_compile=True)
    read = tf.function(lambda a, b, c: (a * b + c, a * b), jit_compile=True)
    np.testing.assert_array_equal(fused(a, b, c), rounded_once)
    np.testing.assert_array_equal(read(a, b, c)[0], rounded_twice)


def test_check_numerics_fails_in_compiled_functions() -> None:
    check_said("docs/xla.md", "Debugger V2 and `tf.debugging.enable_check_numerics()` fail there")
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match="DebugNumericSummaryV2"):
            tf.function(tf.math.log, jit_compile=True)(tf.constant(-1.0))
    finally:
        tf.debugging.disable_check_numerics()


def test_check_numerics_stops_at_masked_values() -> None:
    check_said("docs/guide.md", "It also stops at values that no op uses, such as values that `tf.where` masks")
    x = tf.constant([0.0, 1.0])
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Log"):
            tf.where(x > 0, tf.math.log(x), 0.0)
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.parametrize("op", [tf.raw_ops.FusedBatchNorm, tf.raw_ops.FusedBatchNormV2, tf.raw_ops.FusedBatchNormV3])
def test_statistics_of_an_empty_batch_are_nan(op: object) -> None:
    check_said("docs/live_stop.md", "statistics of an empty batch, and values reserved for the gradient, may be NaN")
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    empty = np.zeros([0, 2, 2, 3], np.float32)
    outputs = op(x=empty, scale=ones, offset=zeros, mean=[], variance=[], is_training=True)  # type: ignore[operator]
    assert np.isnan(outputs.batch_mean.numpy()).all()


def test_the_executed_function_has_no_calls() -> None:
    check_said("docs/executed_graphs.md", "TensorFlow inlines functions, and removes unused ops")

    inner = tf.function(lambda x: tf.identity(tf.square(x)))
    types = optimized_ops(tf.function(lambda x: inner(x) + 1.0), tf.constant(2.0))
    assert "Square" in types
    assert not {"PartitionedCall", "StatefulPartitionedCall", "Identity"} & set(types)


def test_a_masked_logarithm_has_a_gradient_that_is_nan() -> None:
    check_said("docs/live_stop.md", "but the gradient through it stops if it is NaN, as for `tf.where(x > 0,")
    x = tf.constant(0.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.where(x > 0, tf.math.log(x), 0.0)
    assert y.numpy() == 0.0
    assert np.isnan(tape.gradient(y, x).numpy())
