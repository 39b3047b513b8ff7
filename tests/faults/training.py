"""A TensorFlow training, with or without a recording, while file operations fail."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

import tfdbg_arrow
from tests.faults.program import arm
from tests.faults.server import serve
from tests.faults.shim import Shim

NUM_STEPS = 12
# Optimizations whose results round differently when tensors are recorded (docs/executed_graphs.md).
UNFUSED = {
    "remapping": False,
    "layout_optimizer": False,
    "pin_to_host_optimization": False,
    "constant_folding": False,
    "arithmetic_optimization": False,
}


def train(job: Mapping[str, Any]) -> Mapping[str, object]:
    """Trains a small network. Returns a hash of the final weights."""
    tf.config.optimizer.set_experimental_options(UNFUSED)
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(1)
    shim = Shim()
    weights = [tf.Variable(tf.random.normal([4, 8])), tf.Variable(tf.random.normal([8, 1]))]

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ weights[0]) @ weights[1]) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    if job["is_recorded"]:
        tfdbg_arrow.enable(Path(job["logdir"]), "FULL_TENSOR")
        arm(shim, job)
    for number in range(NUM_STEPS):
        tfdbg_arrow.mark(step=number)
        step(tf.random.stateless_normal([16, 4], seed=[number, 1]))
        if number % 4 == 3:
            tfdbg_arrow.flush()
    tfdbg_arrow.disable()
    found = b"".join(weight.numpy().tobytes() for weight in weights)
    return {"weights": hashlib.sha256(found).hexdigest(), "operations": shim.disarm()}


if __name__ == "__main__":
    serve(train)
