"""Program of the golden recordings: eager ops, a function with a gradient, a loop, steps, and a logarithm of zero."""

from __future__ import annotations

import platform
import sys

import tensorflow as tf

import tfdbg_arrow

logdir, mode = sys.argv[1:]
platform.platform = lambda: "Linux"
weight = tf.Variable([[1.0], [0.5]], name="weight")


@tf.function
def train(x):
    with tf.GradientTape() as tape:
        scaled = x @ weight
        for _ in tf.range(2):
            scaled = scaled - 1.0
        loss = tf.reduce_sum(tf.math.log(scaled))
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss


# A golden logdir must describe this program, not the machine that it ran on.
with tfdbg_arrow.capture(logdir, mode, redact="paths,source", on_nonfinite="keep", histograms=True):
    for step in range(3):
        tfdbg_arrow.mark(step=step, phase="training")
        train(tf.constant([[3.0 - step, 0.0]]))
    tf.strings.upper("done")
