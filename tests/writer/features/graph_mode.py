"""Programs that use graph mode or distribution strategies."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .registry import feature


@feature
def graph_mode_function() -> Any:
    def f(x: Any) -> Any:
        v = tf.compat.v1.get_variable("v", initializer=2.0)
        return v * x

    wrapped = tf.compat.v1.wrap_function(f, [tf.TensorSpec([], tf.float32)])
    return wrapped(tf.constant(3.0))


@feature
def v1_graph() -> Any:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2])
        y = tf.while_loop(lambda a: tf.reduce_sum(a) < 10.0, lambda a: (a * 2.0,), [x])
        with tf.compat.v1.Session() as session:
            return session.run(y, {x: [1.0, 2.0]})


@feature
def distributed_values() -> Any:
    strategy = tf.distribute.get_strategy()

    @tf.function
    def f(x: tf.Tensor) -> Any:
        return strategy.run(lambda a: tf.distribute.get_replica_context().all_reduce("SUM", a * 2.0), (x,))

    return f(tf.constant([1.0]))
