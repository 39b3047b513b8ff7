"""The program whose recording generate_logdir.py repeats: a small training whose loss becomes NaN at a given step.

The forward pass, the backward pass and the optimizer have separate graphs, because the tape is outside the functions.
The forward pass calls a function and loops, and eager ops run between the calls. In a bad step, the softmax of large
logits underflows to zero, and the logarithm of zero is the first bad value.

    python benchmarks/scale_program.py LOGDIR NUM_STEPS FIRST_BAD_STEP
"""

from __future__ import annotations

import itertools
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tfdbg_arrow

FEATURES, HIDDEN, CLASSES, BATCH, LAYERS, ROUNDS = 16, 32, 4, 32, 4, 4


class Model(tf.Module):
    """A classifier: dense layers, a loop that refines the output of the last layer, and a softmax."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()

        def variable(name: str, *shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(0, 1 / np.sqrt(shape[0]), shape).astype("float32"), name=name)

        sizes = [FEATURES] + [HIDDEN] * LAYERS
        self.kernels = [variable(f"kernel_{i}", *pair) for i, pair in enumerate(itertools.pairwise(sizes))]
        self.biases = [variable(f"bias_{i}", HIDDEN) for i in range(LAYERS)]
        self.refine = variable("refine", HIDDEN, HIDDEN)
        self.head = variable("head", HIDDEN, CLASSES)

    @tf.function
    def dense(self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        """Returns the output of one layer."""
        return tf.nn.relu(tf.matmul(x, kernel) + bias)

    @tf.function
    def loss(self, x: tf.Tensor, labels: tf.Tensor, sharpness: tf.Tensor) -> tf.Tensor:
        """Returns the mean loss of a batch. A large `sharpness` makes the softmax underflow to zero."""
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = self.dense(x, kernel, bias)
        for _ in tf.range(ROUNDS):
            x = tf.tanh(tf.matmul(x, self.refine))
        probability = tf.nn.softmax(tf.matmul(x, self.head) * sharpness)
        log_probability = tf.math.log(probability)
        return -tf.reduce_mean(tf.reduce_sum(labels * log_probability, axis=1))


class Momentum(tf.Module):
    """An optimizer: gradient descent with momentum."""

    def __init__(self, variables: list[tf.Variable]) -> None:
        super().__init__()
        self.targets = variables
        self.velocities = [tf.Variable(tf.zeros_like(variable), name="velocity") for variable in variables]

    @tf.function
    def apply(self, gradients: list[tf.Tensor]) -> None:
        """Updates the variables by one step."""
        for variable, velocity, gradient in zip(self.targets, self.velocities, gradients, strict=True):
            velocity.assign(velocity * 0.9 + gradient)
            variable.assign_sub(0.01 * velocity)


def main(logdir: str, num_steps: int, first_bad_step: int) -> None:
    """Trains for `num_steps` steps. Every step from `first_bad_step` on is bad."""
    rng = np.random.default_rng(0)
    with tfdbg_arrow.capture(logdir, tensor_debug_mode="FULL_NUMERICS"):
        model = Model(rng)
        optimizer = Momentum([*model.kernels, *model.biases, model.refine, model.head])
        for step in range(num_steps):
            tfdbg_arrow.mark(step=step)
            x = tf.constant(rng.normal(size=(BATCH, FEATURES)).astype("float32"))
            labels = tf.constant(np.eye(CLASSES, dtype="float32")[rng.integers(CLASSES, size=BATCH)])
            sharpness = tf.constant(1000.0 if step >= first_bad_step else 1.0)
            scaled = x / tf.math.reduce_std(x)
            with tf.GradientTape() as tape:
                loss = model.loss(scaled, labels, sharpness)
            gradients = tape.gradient(loss, optimizer.targets)
            norm = tf.linalg.global_norm(gradients)
            optimizer.apply([gradient / tf.maximum(norm, 1.0) for gradient in gradients])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
