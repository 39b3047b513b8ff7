"""Data sets, and functions over the elements of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from .registry import feature


@feature
def data_set_from_generator() -> Any:
    def values() -> Any:
        for i in range(4):
            yield np.float32(i), [i, i + 1]

    signature = (tf.TensorSpec([], tf.float32), tf.TensorSpec([2], tf.int32))
    data_set = tf.data.Dataset.from_generator(values, output_signature=signature).batch(2).prefetch(1)
    return list(data_set)


@feature
def data_set_pipeline() -> Any:
    data_set = tf.data.Dataset.range(20).map(lambda i: tf.cast(i, tf.float32)).shuffle(20, seed=3).batch(4)
    data_set = data_set.interleave(lambda x: tf.data.Dataset.from_tensor_slices(tf.sqrt(x)), cycle_length=2)
    return list(data_set.cache().repeat(2).take(30)), data_set.reduce(0.0, lambda a, b: a + b)


@feature
def map_fn() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.map_fn(lambda row: tf.reduce_sum(row * row), x)
        return y, tape.gradient(y, x)

    return f(tf.reshape(tf.range(6.0), [3, 2])), tf.map_fn(tf.sin, tf.constant([1.0, 2.0]))


@feature
def vectorized_map() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.vectorized_map(lambda row: tf.reduce_sum(row * row), x)

    x = tf.reshape(tf.range(6.0), [3, 2])
    return f(x), tf.vectorized_map(lambda row: tf.nn.softmax(row), x)


@feature
def tensor_array() -> Any:
    @tf.function
    def f(n: tf.Tensor) -> tf.Tensor:
        array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(n):
            array = array.write(i, tf.cast(i, tf.float32) ** 2.0)
        return array.stack()

    return f(tf.constant(4))


@feature
def iterator_in_function() -> Any:
    @tf.function
    def f(iterator: Any) -> Any:
        total = 0.0
        for _ in tf.range(3):
            total += next(iterator) * 2.0
        for x in tf.data.Dataset.range(5):
            if x > 2:
                break
            total += tf.cast(x, tf.float32)
        return total

    return f(iter(tf.data.Dataset.from_tensor_slices(tf.range(10.0))))
