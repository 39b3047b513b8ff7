"""One small program for each of TensorFlow's features that recording must not disturb."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

FEATURES: dict[str, Callable[[], Any]] = {}
"""All of them, by name. Each returns numbers to compare."""


def feature(run: Callable[[], Any]) -> Callable[[], Any]:
    FEATURES[run.__name__] = run
    return run


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
            x += tf.random.uniform([3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.dropout(x, 0.5) * noise
        return y, tf.random.normal([2], seed=3), tape.gradient(y, x)

    eager = tf.random.normal([2])
    results = [f(tf.ones([3])) for _ in range(2)]
    return eager, results, tf.random.uniform([2]), tf.random.Generator.from_seed(3).normal([2])


@feature
def keras_random() -> Any:
    keras.utils.set_random_seed(11)
    layer = keras.layers.Dropout(0.5)
    initial = keras.initializers.GlorotUniform()((3, 3))

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        return layer(x, training=True) + keras.random.normal((4,))

    return initial, [f(tf.ones([4])) for _ in range(3)], keras.random.uniform((2,))


@feature
def recurrent() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.LSTM(3), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=False)
    x = np.linspace(0.0, 1.0, 40, dtype=np.float32).reshape(4, 5, 2)
    model.fit(x, np.ones([4, 1], np.float32), epochs=2, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


@feature
def metrics_and_steps_per_execution() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(4, activation="gelu"), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"], steps_per_execution=2, jit_compile=False)
    x = np.linspace(0.0, 1.0, 32, dtype=np.float32).reshape(8, 4)
    history = model.fit(x, x.sum(axis=1), validation_split=0.25, epochs=2, batch_size=2, shuffle=False, verbose=0)
    return sorted(history.history.items()), model.get_weights()


@feature
def run_eagerly() -> Any:
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(optimizer="rmsprop", loss="mse", run_eagerly=True)
    x = np.linspace(0.0, 1.0, 16, dtype=np.float32).reshape(4, 4)
    model.fit(x, x.sum(axis=1), epochs=1, batch_size=2, shuffle=False, verbose=0)
    return model.get_weights()


@feature
def mixed_precision() -> Any:
    keras.utils.set_random_seed(5)
    layer = keras.layers.Dense(2, dtype="mixed_float16")
    return layer(tf.ones([2, 3])), tf.function(lambda x: tf.cast(x, tf.bfloat16) * 2)(tf.ones([2]))


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
def distributed_values() -> Any:
    strategy = tf.distribute.get_strategy()

    @tf.function
    def f(x: tf.Tensor) -> Any:
        return strategy.run(lambda a: tf.distribute.get_replica_context().all_reduce("SUM", a * 2.0), (x,))

    return f(tf.constant([1.0]))


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


@feature
def no_outputs() -> Any:
    v = tf.Variable(0.0)

    @tf.function
    def f() -> None:
        v.assign_add(1.0)

    f()
    f()
    return v.read_value()
