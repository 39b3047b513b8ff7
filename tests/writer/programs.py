"""Small TensorFlow programs. Each program says how often its loops and branches run, so that tests can count tensors.

Each program builds new functions, so that it can be run with and without a recording in one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import keras
import numpy as np
import tensorflow as tf

on_thread_start: list[Callable[[], None]] = []
"""Programs call these functions at the start of code that TensorFlow runs in another thread."""


Times = int | Fraction
Branches = tuple[Times, ...]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, and how often its loops and branches run.

    Attributes:
        run: Runs the program once and returns numbers to compare.
        iterations: The average number of iterations in a run of each loop op, by the name of the op. A list has one
            number for each call from eager code. A single number applies to all loops.
        branches: How often each branch runs on average in a run of its conditional op, by the name of the op. A tuple
            has the branches in the order (else, then), or in the order of the list of branches. A list has one tuple
            for each call from eager code. A single tuple applies to all conditionals.
        elements: How often the function of a data set's op runs, by op type. A list has one number for each op of the
            type.
    """

    run: Callable[[], Any]
    iterations: Times | Mapping[str, Times | list[Times]] = field(default_factory=dict)
    branches: Branches | Mapping[str, Branches | list[Branches]] = field(default_factory=dict)
    elements: Mapping[str, int | list[int]] = field(default_factory=dict)


ELSE, THEN = (1, 0), (0, 1)
"""How often the branches of a conditional run, as (else, then)."""


def eager_ops() -> Any:
    x = tf.constant([[1.0, -2.0], [0.5, 4.0]])
    y = tf.linalg.matmul(x, x, transpose_b=True)
    parts = tf.split(y, 2, axis=1)
    values, _ = tf.nn.top_k(y, k=2)
    variable = tf.Variable(tf.zeros([2, 2]))
    variable.assign_add(y)
    variable[0, 1].assign(3.0)
    return tf.add_n([*parts, parts[0]]) + tf.reduce_sum(values) + variable.read_value() + np.ones([2, 2], np.float32)


def eager_gradients() -> Any:
    x = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape(persistent=True) as outer:
        with tf.GradientTape() as inner:
            y = tf.reduce_sum(tf.sin(x) * x**3.0)
        first = inner.gradient(y, x)
        z = tf.reduce_sum(first * first)
    return first, outer.gradient(z, x), outer.jacobian(first, x, experimental_use_pfor=False)


def same_function_twice() -> Any:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x) * 2.0

    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return inner(x) + inner(inner(x) - 1.0)

    return [outer(tf.constant([1.0, -1.0, 3.0])) for _ in range(3)]


def retraced() -> Any:
    @tf.function
    def f(x: tf.Tensor, power: int) -> tf.Tensor:
        y = x
        for _ in range(power):
            y = y * x
        return y

    return [f(tf.ones([n]), p) for n, p in ((2, 1), (3, 1), (2, 3), (2, 1))] + [f(tf.ones([2], tf.float64), 2)]


def conditional() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        if tf.reduce_sum(x) > 0.0:  # noqa: SIM108
            y = tf.sqrt(x) + 1.0
        else:
            y = x * x * x
        return y - 1.0

    return [f(tf.constant([s, s])) for s in (1.0, -1.0, 2.0, 3.0)]


def switch() -> Any:
    @tf.function
    def f(index: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return tf.switch_case(index, [lambda: x + 1.0, lambda: tf.exp(x) * tf.sin(x), lambda: x])

    return [f(tf.constant(i), tf.constant([0.5])) for i in (0, 1, 1, 2)]


def while_loop() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        while tf.reduce_max(x) < 100.0:
            x = x * 2.0 + 1.0
        return x

    return f(tf.constant([1.0, 0.0])), f(tf.constant([40.0, 0.0])), f(tf.constant([100.0]))


def nested_loops() -> Any:
    @tf.function
    def scaled(x: tf.Tensor) -> tf.Tensor:
        return x * 0.5

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for i in tf.range(4):
            for _ in tf.range(i):
                x = scaled(x) + 1.0
            if i % 2 == 0:
                x = x - scaled(scaled(x))
        return x

    return f(tf.constant([1.0, 2.0]))


def for_over_rows() -> Any:
    @tf.function
    def f(rows: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([2])
        for row in rows:
            total += row * row
        return total

    return f(tf.reshape(tf.range(6.0), [3, 2]))


def for_over_data_set() -> Any:
    @tf.function
    def f(data: tf.data.Dataset) -> tf.Tensor:
        total = tf.zeros([2])
        for row in data:
            total += row * 3.0
        return total

    return f(tf.data.Dataset.from_tensor_slices(np.arange(10, dtype=np.float32).reshape(5, 2)))


def gradient_outside() -> Any:
    @tf.function
    def f(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.tanh(tf.linalg.matmul(x, w)))

    w = tf.Variable(tf.ones([2, 3]) * 0.1)
    gradients = []
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = f(tf.constant([[1.0, 2.0]]), w)
        gradients.append(tape.gradient(loss, w))
        w.assign_sub(gradients[-1] * 0.1)
    return gradients


def gradient_inside() -> Any:
    w = tf.Variable([0.5, 0.25])

    @tf.function
    def loss_of(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.exp(x * w))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(persistent=True) as tape:
            loss = loss_of(x)
            twice = loss * 2.0
        first, second = tape.gradient(loss, w), tape.gradient(twice, w)
        w.assign_sub(0.01 * (first + second))
        return loss

    return [step(tf.constant([1.0, -1.0])) for _ in range(3)]


def second_order() -> Any:
    @tf.function
    def cubed(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x**3.0)

    @tf.function
    def inside(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = cubed(x)
            first = inner.gradient(y, x)
        return outer.gradient(first, x)

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cubed(x)
        first = inner.gradient(y, x)
    return inside(x), outer.gradient(first, x)


def loop_gradients() -> Any:
    w = tf.Variable(0.9)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.sin(x * w)
        return x

    @tf.function
    def inside(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = f(x)
        return tape.gradient(y, w)

    with tf.GradientTape() as tape:
        y = f(tf.constant(2.0))
    return tape.gradient(y, w), inside(tf.constant(2.0))


def branch_gradients() -> Any:
    w = tf.Variable(0.9)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.cond(x > 0.0, lambda: tf.exp(x * w), lambda: x)
        return tape.gradient(y, w)

    return f(tf.constant(1.0)), f(tf.constant(2.0))


def deep_gradients() -> Any:
    w = tf.Variable([0.9, 1.1])

    @tf.function
    def scaled(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x * w)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for i in tf.range(4):
            if i % 2 == 0:  # noqa: SIM108
                x = scaled(x) + 1.0
            else:
                x = scaled(scaled(x))
        return x

    @tf.function
    def inside(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(f(x))
        return tape.gradient(y, w)

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = f(x)
    return tape.gradient(y, w), inside(x), inside(x)


def nested_loop_gradients() -> Any:
    w = tf.Variable([0.9, 1.1])

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            for _ in tf.range(3):
                if x[0] > -10.0:
                    x = tf.sin(x * w)
        return x

    x = tf.constant([1.0, 2.0])
    before = f(x)
    with tf.GradientTape() as tape:
        y = f(x)
    return before, tape.gradient(y, w), f(x)


class Scaled(keras.layers.Layer):
    """A layer that multiplies by a weight, partly in its own tf.function."""

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        return self.scaled(inputs)

    @tf.function
    def scaled(self, inputs: Any) -> Any:
        return inputs * self.scale + 0.1


class CustomModel(keras.Model):
    """A model with its own train_step."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=prediction)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def data(*, num: int = 24, width: int = 4) -> tuple[Any, Any]:
    """Returns features and labels, which are the same in each call."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(num, width)).astype(np.float32)
    return features, (features.sum(axis=1) > 0).astype(np.int32)


def keras_fit() -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, activation="relu")(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = Scaled()(x)
    x = keras.layers.Dropout(0.25)(x)
    model = CustomModel(inputs, keras.layers.Dense(2)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, jit_compile=False)
    features, labels = data()
    history = model.fit(features, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
    evaluated = model.evaluate(features, labels, batch_size=8, verbose=0)
    return history.history["loss"], evaluated, model.predict(features, batch_size=8, verbose=0), model.get_weights()


def data_set_map() -> Any:
    @tf.function
    def doubled(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    data_set = tf.data.Dataset.from_tensor_slices(np.arange(12, dtype=np.float32))
    data_set = data_set.map(lambda x: tf.sqrt(doubled(x)) + 1.0, num_parallel_calls=2).filter(lambda x: x > 2.0)
    return list(data_set)


def python_function_thread() -> Any:
    def python(x: Any) -> Any:
        for callback in on_thread_start:
            callback()
        return tf.exp(x) * 2.0

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        y = tf.py_function(python, [x], tf.float32)
        y.set_shape(x.shape)
        return y + 1.0

    # A data set runs this function in a thread that Python did not start.
    data_set = tf.data.Dataset.from_tensor_slices(np.ones([3], np.float32)).map(f, num_parallel_calls=1)
    return list(data_set)


def two_threads() -> Any:
    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.tanh(x) + 0.5
        return x

    results: dict[int, Any] = {}

    def work(index: int) -> None:
        x = tf.fill([4], float(index))
        for _ in range(5):
            x = f(x) * 2.0
        results[index] = x

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[index] for index in range(2)]


PROGRAMS: dict[str, Program] = {
    "eager_ops": Program(run=eager_ops),
    "eager_gradients": Program(run=eager_gradients),
    "same_function_twice": Program(run=same_function_twice),
    "retraced": Program(run=retraced),
    "conditional": Program(run=conditional, branches={"cond": [THEN, ELSE, THEN, THEN]}),
    "switch": Program(run=switch, branches={"switch_case/indexed_case": [(1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 1)]}),
    # The loop runs six times from 1 to 127, twice from 40 to 163, and never from 100.
    "while_loop": Program(run=while_loop, iterations={"while": [6, 2, 0]}),
    "nested_loops": Program(
        run=nested_loops,
        iterations={"while": 4, "while/while": Fraction(0 + 1 + 2 + 3, 4)},
        branches={"while/cond": (Fraction(1, 2), Fraction(1, 2))},
    ),
    "for_over_rows": Program(run=for_over_rows, iterations={"while": 3}),
    # tf.data does not run a function that only passes its arguments on, such as the function of the ReduceDataset here.
    "for_over_data_set": Program(run=for_over_data_set, elements={"ScanDataset": 5, "ReduceDataset": 0}),
    "gradient_outside": Program(run=gradient_outside),
    "gradient_inside": Program(run=gradient_inside),
    "second_order": Program(run=second_order),
    "loop_gradients": Program(run=loop_gradients, iterations=3),
    "branch_gradients": Program(run=branch_gradients, branches=THEN),
    "deep_gradients": Program(run=deep_gradients, iterations=4, branches=(Fraction(1, 2), Fraction(1, 2))),
    "nested_loop_gradients": Program(run=nested_loop_gradients, iterations=3, branches=THEN),
    "keras_fit": Program(run=keras_fit, elements={"ParallelMapDatasetV2": [6, 3, 3]}),
    "data_set_map": Program(run=data_set_map, elements={"ParallelMapDatasetV2": 12, "FilterDataset": 12}),
    "python_function_thread": Program(run=python_function_thread, elements={"ParallelMapDatasetV2": 3}),
    "two_threads": Program(run=two_threads, iterations={"while": 3}),
}
"""All programs, by name."""
