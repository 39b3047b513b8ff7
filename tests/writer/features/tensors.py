"""Tensors of unusual kinds: ragged, sparse, text, random, quantized, complex, empty."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .registry import feature


@feature
def ragged() -> Any:
    @tf.function
    def f(x: tf.RaggedTensor) -> Any:
        return tf.reduce_sum(x * 2.0, axis=1), x.to_tensor()

    return f(tf.ragged.constant([[1.0, 2.0], [], [3.0]]))


@feature
def sparse() -> Any:
    @tf.function
    def f(x: tf.SparseTensor) -> Any:
        return tf.sparse.sparse_dense_matmul(x, tf.ones([3, 2])), tf.sparse.to_dense(tf.sparse.map_values(tf.abs, x))

    return f(tf.SparseTensor([[0, 1], [1, 2]], [-1.0, 2.0], [2, 3]))


@feature
def strings() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        return tf.strings.to_number(tf.strings.split(x).values), tf.strings.join([x, "!"]), tf.strings.length(x)

    return f(tf.constant(["1 2.5", "3"])), tf.strings.format("{}", tf.constant([1.0, 2.0]))


@feature
def random_ops() -> Any:
    tf.random.set_seed(7)

    @tf.function
    def f(x: tf.Tensor) -> Any:
        noise = tf.random.normal([3])
        for _ in tf.range(2):
            with tf.control_dependencies([x]):  # otherwise TensorFlow may run the iterations' random ops in any order
                x += tf.random.uniform([3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.dropout(x, 0.5) * noise
        return y, tf.random.normal([2], seed=3), tape.gradient(y, x)

    eager = tf.random.normal([2])
    results = [f(tf.ones([3])) for _ in range(2)]
    return eager, results, tf.random.uniform([2]), tf.random.Generator.from_seed(3).normal([2])


@feature
def quantized_and_float8() -> Any:
    x = tf.constant([1.5, -2.25, 0.0])
    small = tf.cast(x, tf.dtypes.experimental.float8_e5m2)

    @tf.function
    def f(a: tf.Tensor) -> Any:
        return tf.cast(tf.cast(a, tf.dtypes.experimental.float8_e4m3fn), tf.float32)

    return tf.cast(small, tf.float32), f(x), tf.quantization.fake_quant_with_min_max_args(x)


@feature
def complex_numbers() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        return tf.signal.fft(x), tf.math.conj(x) * x, tf.math.real(x)

    return f(tf.complex(tf.constant([1.0, 2.0]), tf.constant([0.5, -1.0])))


@feature
def empty_and_scalar() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        return x + 1.0, tf.reduce_sum(x), tf.reduce_mean(tf.zeros([0, 3]), axis=1), ()

    return f(tf.zeros([0]))
