"""A small program with nested functions, a loop, a branch, gradients, eager ops of many dtypes, and log(0)."""

from __future__ import annotations

import tensorflow as tf


def run_program() -> list[float]:
    """Builds the functions of the program, runs it, and returns its losses."""
    w = tf.Variable([[0.5, -0.5], [0.25, 1.0]])
    x = tf.constant([[1.0, -2.0], [0.5, 4.0]])

    @tf.function
    def probabilities(inputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.matmul(inputs, w))

    @tf.function
    def loss_of(probs: tf.Tensor) -> tf.Tensor:
        loss = tf.reduce_sum(-tf.math.log(probs))  # the fault: relu returns zeros
        for i in tf.range(3):
            if i % 2 == 0:
                loss += tf.cast(i, tf.float32)
            else:
                loss = probabilities(tf.reshape(tf.stack([loss, loss]), [1, 2]))[0, 0]
        return loss

    @tf.function
    def shout(text: tf.Tensor) -> tf.Tensor:
        return tf.strings.upper(text, encoding="utf-8")

    losses = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = loss_of(probabilities(x))
        gradient = tape.gradient(loss, w)
        w.assign_sub(tf.where(tf.math.is_finite(gradient), gradient, 0.0) * 0.0)
        losses.append(float(loss))
    tf.split(x, 2)
    tf.nn.top_k(x, k=2)
    tf.math.log(tf.constant([0.0, -1.0, 1.0], tf.float16))
    tf.math.log(tf.constant([[0.0]], tf.bfloat16))
    tf.math.log(tf.constant(0.0, tf.float64))
    tf.math.log(tf.complex(tf.constant([0.0, 1.0]), tf.constant([0.0, 1.0])))
    tf.reshape(tf.range(128.0), [2] * 7) * 2.0
    tf.constant([], tf.float32) + 1.0
    tf.strings.join(["a", "b"])
    shout(tf.constant([["x", "ünï"], ["", "zero\0"]]))
    tf.logical_not([True, False])
    tf.Variable(tf.constant(1.0) / 0.0)
    return losses
