"""Nested loops, branches and calls, and functions with several callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.culprit.corpus import bug

tf1 = tf.compat.v1


@bug(op_type="Log", effect="result")
def loop_in_a_loop() -> Any:
    """The inner loop makes the bad value. The outer loop computes nothing itself."""

    @tf.function
    def settle(values: Any, times: Any) -> Any:
        for _ in tf.range(times):
            for _ in tf.range(2):
                values = tf.math.log(values)  # culprit
        return values

    return settle(tf.constant([0.5, 9.0]), tf.constant(3))


@bug(op_type="Exp", effect="variable")
def loop_in_a_loop_of_a_training_step() -> None:
    """The gradients of two nested loops are bad, too."""
    weights = tf.Variable([0.1, 0.2])

    @tf.function
    def train_step() -> None:
        with tf.GradientTape() as tape:
            values = weights * 1.0
            for _ in tf.range(3):
                for _ in tf.range(2):
                    values = tf.exp(values)  # culprit
            loss = tf.reduce_sum(values)
        weights.assign_sub(tape.gradient(loss, weights))

    train_step()


@bug(op_type="Log", effect="result")
def branch_in_a_loop() -> Any:
    """The branch is the last statement of the loop's body."""

    @tf.function
    def settle(values: Any) -> Any:
        for step in tf.range(3):
            if step < 2:  # noqa: SIM108
                values = tf.math.log(values)  # culprit
            else:
                values = values * 2.0
        return values

    return settle(tf.constant([0.5, 0.25]))


@bug(op_type="Log", effect="variable")
def branch_that_another_one_hands_on() -> None:
    """One branch creates a bad value.

    In a later iteration, the other branch multiplies the value. The result is assigned.
    """
    total = tf.Variable(1.0)

    @tf.function
    def accumulate(values: Any) -> None:
        product = total * 1.0
        for index in tf.range(2):
            if values[index] > 0.0:  # noqa: SIM108
                product = product * values[index]
            else:
                product = tf.math.log(product * values[index])  # culprit
        total.assign(product)

    accumulate(tf.constant([-1.0, 2.0]))


@bug(op_type="Sqrt", effect="variable")
def branch_in_a_loop_of_a_training_step() -> None:
    """The loop is differentiated, and a later iteration takes the other branch."""
    weight = tf.Variable(1.0)

    @tf.function
    def train_step(values: Any) -> None:
        with tf.GradientTape() as tape:
            product = weight * 1.0
            for index in tf.range(2):
                if values[index] > 0.0:  # noqa: SIM108
                    product = product * values[index]
                else:
                    product = tf.sqrt(product * values[index])  # culprit
        weight.assign_sub(tape.gradient(product, weight))

    train_step(tf.constant([-1.0, 2.0]))


@bug(op_type="Log", effect="result")
def function_with_a_loop_called_in_a_loop() -> Any:
    """The outer loop calls a function that contains the inner loop."""

    @tf.function
    def shrink(values: Any, times: Any) -> Any:
        for _ in tf.range(times):
            values = tf.math.log(values)  # culprit
        return values

    @tf.function
    def sum_up(values: Any) -> Any:
        total = tf.zeros_like(values)
        for times in tf.range(3):
            total += shrink(values, times)
        return total

    return sum_up(tf.constant([1.0, 1.9]))


@bug(op_type="RealDiv", effect="result")
def function_of_two_others() -> Any:
    """Two functions call a third function from call sites of the same name.

    Only the second caller passes a bad argument.
    """

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def score(values: Any) -> Any:
        return tf.reduce_sum(tf.exp(values) * 2.0)

    @tf.function
    def evaluate(values: Any) -> Any:
        return score(values)

    @tf.function
    def train(values: Any) -> Any:
        return score(values / tf.reduce_sum(values))  # culprit

    return evaluate(tf.constant([1.0, 2.0])), train(tf.constant([1.0, -1.0]))


@bug(op_type="Rsqrt", effect="result")
def op_that_is_fused_with_one_of_a_called_function() -> Any:
    """The caller is traced for two shapes. The function that it calls is traced once for all shapes."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def positive(values: Any) -> Any:
        return tf.nn.relu(values) * 2.0

    @tf.function
    def scale(values: Any) -> Any:
        inverse = tf.math.rsqrt(values)  # culprit
        return positive(inverse) + 1.0

    return scale(tf.constant([1.0])), scale(tf.constant([1.0, 0.0]))


@bug(op_type="Exp", effect="variable")
def loop_of_a_compiled_training_step() -> None:
    """Without the recording, XLA would compile the loop."""
    weights = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def train_step() -> None:
        with tf.GradientTape() as tape:
            values = weights * 1.0
            for _ in tf.range(3):
                values = tf.exp(values * 3.0)  # culprit
            loss = tf.reduce_sum(values)
        weights.assign_sub(tape.gradient(loss, weights))

    train_step()


@bug(op_type="Log", effect="result")
def branch_of_a_compiled_function() -> Any:
    """Without the recording, XLA would compile the branch."""

    @tf.function(jit_compile=True)
    def scale(values: Any) -> Any:
        if tf.reduce_sum(values) > 0.0:  # noqa: SIM108
            values = tf.math.log(values - 1.0)  # culprit
        else:
            values = values * 2.0
        return values * 2.0

    return scale(tf.constant([1.0, 2.0]))


@bug(op_type="Log", effect="result")
def branch_of_one_op_in_a_session() -> Any:
    """The branch is so small that TensorFlow does not optimize it separately."""
    tf1.enable_control_flow_v2()
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf1.placeholder(tf.float32, [None])

        def logarithm() -> Any:
            return tf.math.log(values)  # culprit

        return session.run(tf.cond(tf.size(values) > 1, logarithm, lambda: values), {values: [1.0, 0.0]})


@bug(op_type="Sqrt", effect="result", raises=tf.errors.InvalidArgumentError)
def check_that_stops_a_session() -> None:
    """The program gets an error instead of the value."""
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf1.placeholder(tf.float32, [2])
        roots = tf.sqrt(values)  # culprit
        session.run(tf.debugging.check_numerics(roots, "roots"), {values: [1.0, -2.0]})


def _save_graph(directory: Path) -> None:
    tf1.enable_control_flow_v2()
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None])
        y = tf.cond(tf.size(x) > 1, lambda: tf.exp(x), lambda: x)
        tf1.saved_model.simple_save(session, str(directory / "graph"), {"x": x}, {"y": tf.identity(y)})


@bug(op_type="RealDiv", effect="result", prepare=_save_graph)
def saved_graph_with_a_branch(directory: Path) -> Any:
    """A model of TensorFlow 1 is loaded while the program is recorded."""
    model = tf.saved_model.load(str(directory / "graph")).signatures["serving_default"]
    return model(x=tf.constant([1.0, 2.0]) / tf.constant([0.0, 1.0]))  # culprit


@bug(op_type="Softmax", effect="variable")
def row_that_is_masked_altogether() -> None:
    """The infinities are intended. The NaN that the softmax creates from these infinities is not intended."""
    attention = tf.Variable(tf.ones([2, 3]))

    @tf.function
    def attend(scores: Any, is_kept: Any) -> None:
        attention.assign(tf.nn.softmax(scores + tf.where(is_kept, 0.0, float("-inf"))))  # culprit

    attend(tf.ones([2, 3]), tf.constant([[True] * 3, [False] * 3]))
