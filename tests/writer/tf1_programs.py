"""Programs in TensorFlow's graph mode, for the tests of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1

Step = tuple[Any, dict[Any, Any]]
"""The fetches and feeds of one run."""


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        build: Adds ops to the default graph and returns the runs.
        is_v2: Whether the control flow of the program uses functions.
        has_references: Whether the variables of the program are references.
    """

    build: Callable[[], list[Step]]
    is_v2: bool = False
    has_references: bool = False


@dataclass
class Made:
    """The results of the runs of a program.

    Attributes:
        values: The fetched values of each run.
        stats: The runtime's trace of each run. Empty if no trace was requested.
    """

    values: list[Any] = field(default_factory=list)
    stats: list[Any] = field(default_factory=list)


def unoptimized() -> Any:
    """Returns session settings with which each op of the graph runs unchanged."""
    options = tf1.GraphOptions(optimizer_options=tf1.OptimizerOptions(opt_level=tf1.OptimizerOptions.L0))
    options.rewrite_options.disable_meta_optimizer = True
    return tf1.ConfigProto(graph_options=options, intra_op_parallelism_threads=1)


@contextmanager
def behaviour(program: Program) -> Iterator[None]:
    """Sets the process-wide TensorFlow switches that a program needs."""
    had_v2, had_resources = tf1.control_flow_v2_enabled(), tf1.resource_variables_enabled()
    (tf1.enable_control_flow_v2 if program.is_v2 else tf1.disable_control_flow_v2)()
    (tf1.disable_resource_variables if program.has_references else tf1.enable_resource_variables)()
    try:
        yield
    finally:
        (tf1.enable_control_flow_v2 if had_v2 else tf1.disable_control_flow_v2)()
        (tf1.enable_resource_variables if had_resources else tf1.disable_resource_variables)()


def run(program: Program, *, is_traced: bool = False, is_optimized: bool = False) -> Made:
    """Builds a program and performs its runs in a new session."""
    made = Made()
    with behaviour(program), tf.Graph().as_default():
        tf1.set_random_seed(7)
        steps = program.build()
        with tf1.Session(config=None if is_optimized else unoptimized()) as session:
            for fetches, feeds in steps:
                options = metadata = None
                if is_traced:
                    options, metadata = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), tf1.RunMetadata()
                made.values.append(session.run(fetches, feeds, options=options, run_metadata=metadata))
                if metadata is not None:
                    made.stats.append(metadata.step_stats)
    return made


def feeds() -> list[Step]:
    x = tf1.placeholder(tf.float32, [None, 2], name="x")
    y = tf1.placeholder_with_default(np.float32([1.0, 2.0]), [2], name="y")
    never_fed = tf1.placeholder(tf.float32, name="never_fed")
    names = tf1.placeholder(tf.string, name="names")
    square = tf.square(x, name="square")
    total = tf.add(square, y, name="total")
    low, high = tf.split(total, 2, axis=1, name="halves")
    length = tf.strings.length(names, name="length")
    unreached = never_fed * 2.0
    assert unreached is not None
    data = np.float32([[1.0, -2.0], [0.0, np.inf]])
    return [
        (total, {x: data}),
        ([low, {"high": high}], {x: data, y: [0.0, 0.0]}),
        ((square.op, "total:0", []), {x: data}),
        (total, {square: data}),  # the producer of a fed tensor does not run
        ([high], {low: data[:, :1], x: data}),  # one output of an op is fed, the other output is computed
        ([x, total], {x: data}),
        (length, {names: ["a", "bc"]}),
    ]


def side_effects() -> list[Step]:
    counter = tf1.get_variable("counter", [], initializer=tf.zeros_initializer())
    queue = tf.queue.FIFOQueue(4, tf.float32, [[]])
    fill = queue.enqueue_many(np.float32([1.0, 2.0, 3.0]))
    taken = queue.dequeue(name="taken")
    bump = counter.assign_add(1.0, read_value=False)
    doubled = counter * 2.0
    with tf.control_dependencies([bump]):
        after = tf.identity(counter.read_value(), name="after")
    return [
        (tf1.global_variables_initializer(), {}),
        (fill, {}),
        (doubled, {}),
        (after, {}),
        ([taken, doubled], {}),
        (queue.size(), {}),
        (counter, {}),
    ]


def training() -> list[Step]:
    x = tf1.placeholder(tf.float32, [None, 4], name="x")
    hidden = tf.nn.relu(x @ tf1.get_variable("kernel", [4, 8]) + tf1.get_variable("bias", [8]))
    weights = tf1.get_variable("weights", [8, 3])
    loss = tf.reduce_mean(tf.nn.log_softmax(hidden @ weights)[:, 0])
    train = tf1.train.AdamOptimizer(0.1).minimize(loss)
    data = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    step: Step = ([train, loss], {x: data})
    return [(tf1.global_variables_initializer(), {}), step, step, (loss, {x: data}), (tf1.trainable_variables(), {})]


def loops() -> list[Step]:
    x = tf1.placeholder(tf.float32, [3], name="x")

    def inner(i: Any, a: Any) -> Any:
        return i + 1, tf.sin(a, name="inner_sin")

    def body(i: Any, a: Any) -> Any:
        b = tf.math.exp(a, name="body_exp")
        _, b = tf1.while_loop(lambda j, _: j < i, inner, [tf.constant(0), b])
        c = tf1.cond(
            tf.reduce_sum(b) > 1.0,
            lambda: tf1.cond(i > 1, lambda: tf.sqrt(b, name="both"), lambda: tf.negative(b, name="one")),
            lambda: tf.tanh(b + x, name="none"),
        )
        return i + 1, c

    _, result = tf1.while_loop(lambda i, _: i < 4, body, [tf.constant(0), x])
    (gradient,) = tf1.gradients(result, x)
    return [(result, {x: [0.1, 0.2, 0.3]}), ([result, gradient], {x: [-3.0, 0.2, 0.3]})]


def branches() -> list[Step]:
    x = tf1.placeholder(tf.float32, [3], name="x")

    def positive() -> Any:
        return tf1.cond(x[1] > 0.0, lambda: tf.sqrt(x, name="both"), lambda: tf.exp(x, name="one"))

    result = tf1.cond(x[0] > 0.0, positive, lambda: tf.tanh(x, name="none"))
    chosen = tf.switch_case(tf.cast(x[2], tf.int32), [lambda: tf.sin(x, name="sin"), lambda: tf.cos(x, name="cos")])
    total = tf.add(result, chosen, name="total")
    return [
        (total, {x: [0.5, 0.25, 0.0]}),
        (total, {x: [0.5, -0.25, 1.0]}),
        (total, {x: [-0.5, 0.25, 1.0]}),
        (total, {result: [1.0, 2.0, 3.0], x: [0.1, 0.2, 0.3]}),
    ]


def kinds() -> list[Step]:
    x = tf1.placeholder(tf.float32, [2, 6], name="x")
    values, places = tf.math.top_k(x, 2)
    pieces = tf.unstack(x, axis=1)
    small = tf.cast(x, tf.bfloat16)
    wave = tf.signal.fft(tf.cast(x, tf.complex64))
    image = tf.reshape(x, [1, 2, 2, 3])
    normed = tf1.nn.fused_batch_norm(image, tf.ones([3]), tf.zeros([3]), is_training=True)
    array = tf.TensorArray(tf.float32, 2).unstack(x)
    texts = tf.strings.as_string(x)
    random = tf.random.uniform([3], seed=3)
    data = np.arange(12, dtype=np.float32).reshape(2, 6)
    return [
        ([values, places, pieces[1], small, wave, normed, array.stack(), texts, random], {x: data}),
        (random, {}),
    ]


PROGRAMS: dict[str, Program] = {
    "feeds": Program(build=feeds),
    "side_effects": Program(build=side_effects),
    "side_effects_references": Program(build=side_effects, has_references=True),
    "training": Program(build=training),
    "training_references": Program(build=training, has_references=True),
    "loops": Program(build=loops),
    "loops_v2": Program(build=loops, is_v2=True),
    "branches": Program(build=branches),
    "branches_v2": Program(build=branches, is_v2=True),
    "kinds": Program(build=kinds),
}
