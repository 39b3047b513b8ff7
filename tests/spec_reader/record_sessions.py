"""Records a program that runs sessions of TensorFlow 1: `python -m tests.spec_reader.record_sessions LOGDIR GRAPHS`.

GRAPHS is `traced` or `executed`. The program feeds tensors, including intermediate tensors, and writes to both kinds of
variables. The program has loops, nested loops and branches, both as ops of its graph and as functions, with gradients.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

import tfdbg_arrow

v1 = tf.compat.v1


def build(*, has_functions: bool) -> tuple[dict[str, tf.Tensor], tf.Graph]:
    """Returns the fetches by name, and the graph. The loops and branches of the graph are functions or ops."""
    (v1.enable_control_flow_v2 if has_functions else v1.disable_control_flow_v2)()
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [2, 2], name="x")
        weights = v1.get_variable("weights", [2, 2], use_resource=True, initializer=v1.ones_initializer())
        scale = v1.get_variable("scale", [2], use_resource=False, initializer=v1.ones_initializer())
        hidden = tf.matmul(x, weights, name="hidden")
        scaled = tf.exp(hidden * 0.1) * scale

        def outer(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            _, inner = v1.while_loop(
                lambda j, _: j < i, lambda j, value: (j + 1, tf.sqrt(value + 1.0)), [0, total * weights[0, 0]]
            )
            return i + 1, v1.cond(inner > 1.5, lambda: tf.tanh(inner), lambda: tf.sigmoid(inner) + scale[0])

        _, total = v1.while_loop(lambda i, _: i < 3, outer, [0, tf.reduce_sum(scaled)])
        called = tf.function(lambda value: tf.sin(value) * weights[1, 1])(total)
        loss = tf.identity(called * 2.0, name="loss")
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(scaled) + loss)
        with tf.control_dependencies([train]):
            after = weights.read_value() + scale
        added = v1.assign_add(v1.assign(scale, scale * 0.5), [0.25, 0.25])
        fetches = {"loss": loss, "train": train, "after": after, "added": added, "hidden": hidden, "weights": weights}
        fetches["initialize"] = v1.global_variables_initializer()
    return fetches, graph


def main() -> None:
    """Records two sessions of the graph with loops as ops, and one session of the graph with loops as functions."""
    logdir, graphs = sys.argv[1:]
    v1.disable_eager_execution()
    with tfdbg_arrow.capture(logdir, graphs=graphs):
        for has_functions in (False, False, True):
            fetches, graph = build(has_functions=has_functions)
            with v1.Session(graph=graph) as session:
                session.run(fetches["initialize"])
                for step in range(2):
                    session.run([fetches["loss"], fetches["train"]], {"x:0": np.full((2, 2), 0.1 * step)})
                session.run(fetches["added"])
                session.run([fetches["after"], fetches["weights"]], {"x:0": np.ones((2, 2))})
                session.run(fetches["loss"], {fetches["hidden"]: np.ones((2, 2))})


if __name__ == "__main__":
    main()
