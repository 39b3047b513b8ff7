"""Programs with functions: ways to trace them, and the kinds of code that they may contain."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from .registry import feature


@feature
def reduce_retracing() -> Any:
    @tf.function(reduce_retracing=True)
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x * x)

    return [f(tf.ones([n, 2])) for n in range(1, 6)], f.experimental_get_tracing_count()


@feature
def input_signature() -> Any:
    @tf.function(input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([], tf.int32)], autograph=False)
    def f(x: tf.Tensor, n: tf.Tensor) -> tf.Tensor:
        return x * tf.cast(n, tf.float32)

    concrete = f.get_concrete_function()
    return [f(tf.ones([n, 2]), n) for n in (1, 2, 3)], concrete(tf.ones([4, 2]), tf.constant(3))


@feature
def generator() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([x * factor for factor in (float(i) for i in range(3))])

    def values() -> Any:
        for i in range(3):
            yield f(tf.constant(float(i)))

    return list(values())


@feature
def python_functions() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        y = tf.numpy_function(lambda a: np.sort(a)[::-1].copy(), [x], tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = tf.py_function(lambda a: tf.sin(a) * a.numpy(), [x], tf.float32)
        return y, z, tape.gradient(z, x)

    return f(tf.constant([1.0, 3.0, 2.0]))


@feature
def control_dependencies() -> Any:
    v = tf.Variable(1.0)

    @tf.function
    def f() -> Any:
        before = v.read_value()
        with tf.control_dependencies([v.assign_add(2.0)]):
            after = tf.identity(before) + v
        tf.debugging.assert_greater(after, 0.0)
        tf.print("", output_stream="file:///dev/null")
        return before, after

    return f(), f(), v.read_value()


@feature
def devices_and_scopes() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"), tf.name_scope("a"), tf.name_scope("b/"):
            y = tf.matmul(x, x, name="product")
        with tf.init_scope():
            z = tf.constant(2.0)
        return y * z

    return f(tf.ones([2, 2]))


@feature
def methods_and_closures() -> Any:
    class Model(tf.Module):
        def __init__(self) -> None:
            self.v: Any = None

        @tf.function
        def __call__(self, x: tf.Tensor, *, scale: float = 1.0) -> dict[str, tf.Tensor]:
            if self.v is None:
                self.v = tf.Variable(3.0)
            return {"y": x * self.v * scale, "x": x}

    model = Model()
    partial = functools.partial(model, scale=2.0)
    first = model(tf.constant(1.0))
    model.v.assign(5.0)
    return first, partial(tf.constant(1.0)), model(tf.constant(1.0))


@feature
def extension_type() -> Any:
    class Masked(tf.experimental.ExtensionType):
        values: tf.Tensor
        mask: tf.Tensor

    @tf.function
    def f(x: Masked) -> Any:
        return Masked(x.values * 2.0, x.mask)

    result = f(Masked(tf.constant([1.0, 2.0]), tf.constant([True, False])))
    return result.values, result.mask


@feature
def recursion_limits() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in range(120):
            x = x + 0.01
        return x

    return f(tf.zeros([3]))


@feature
def autograph_forms() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        results = []
        n = 0
        while n < 3:
            n += 1
            if n == 2:
                continue
            results.append(x * float(n))
        for i in tf.range(5):
            if i == 3:
                break
            if i == 1:
                continue
            x = x + 1.0 if x[0] > 0.0 else x - 1.0
        assert x.shape[0] == 2
        scale = lambda a: a * 2.0 if tf.reduce_sum(a) > 0.0 else a  # noqa: E731
        return scale(x), results

    return f(tf.constant([1.0, -1.0]))


@feature
def no_outputs() -> Any:
    v = tf.Variable(0.0)

    @tf.function
    def f() -> None:
        v.assign_add(1.0)

    f()
    f()
    return v.read_value()
