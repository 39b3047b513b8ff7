"""Gradients: custom, recomputed, second-order and forward-mode."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .registry import feature


@feature
def custom_gradient() -> Any:
    @tf.custom_gradient
    def clipped(x: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.clip_by_value(upstream, -0.5, 0.5)

        return tf.exp(x), gradient

    @tf.function
    def inside(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(clipped(x) * 3.0)
        return y, tape.gradient(y, x)

    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(clipped(x) * 3.0)
    return inside(tf.constant([1.0, 2.0])), tape.gradient(y, x)


@feature
def recompute_grad() -> Any:
    w = tf.Variable([0.3, 0.4])

    @tf.recompute_grad
    def block(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x * w) * tf.cos(x)

    @tf.function
    def f(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(block(block(x)))
        return y, tape.gradient(y, w)

    return f(tf.constant([1.0, 2.0]))


@feature
def jacobians() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x) * tf.reduce_sum(x)

    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)


@feature
def forward_mode() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x) * x

    x = tf.constant([1.0, 2.0])
    with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


@feature
def indexed_slices() -> Any:
    table = tf.Variable(tf.reshape(tf.range(6.0), [3, 2]))

    @tf.function
    def f(ids: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(tf.gather(table, ids) ** 2.0)
        gradient = tape.gradient(y, table)
        table.scatter_sub(gradient)
        return tf.convert_to_tensor(gradient)

    return f(tf.constant([0, 2, 2])), table.read_value()
