"""Records models for pictures of the viewer: python tests/viewer/models.py LOGDIR [PROGRAM ...]

Each program is one run of the logdir LOGDIR/PROGRAM:

* `transformer`: a small convolutional network with two Transformer blocks, trained by Keras. From step 300 on, its
  schedule sets a learning rate that is a thousand times too large, so the training goes bad.
* `healthy`: the same network without the mistake.
* `gan`: a generator and a discriminator of plain variables in a custom loop, without layers. The generator learns too
  fast, the discriminator becomes certain, and the loss takes the logarithm of a probability of 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # must be set before TensorFlow is imported

import keras
import numpy as np
import tensorflow as tf

import tfdbg_arrow

NUM_STEPS = 550
BAD_FROM = 300
SEED = 3


class TransformerBlock(keras.layers.Layer):
    """Attention and a small network, each with a residual connection."""

    def __init__(self, width: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.attention = keras.layers.MultiHeadAttention(num_heads=2, key_dim=width // 2, name="attention")
        self.norm_1 = keras.layers.LayerNormalization(name="norm_1")
        self.expand = keras.layers.Dense(2 * width, activation="relu", name="expand")
        self.project = keras.layers.Dense(width, name="project")
        self.norm_2 = keras.layers.LayerNormalization(name="norm_2")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        attended = self.norm_1(inputs + self.attention(inputs, inputs))
        return self.norm_2(attended + self.project(self.expand(attended)))


class LogEnergy(keras.layers.Layer):
    """The logarithm of the mean activation of each channel. It is -Inf if a channel is 0 everywhere."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.reduce_mean(inputs, axis=[1]))


def transformer(logdir: Path, *, is_healthy: bool = False) -> None:
    """Trains the network with Transformer blocks."""
    keras.utils.set_random_seed(SEED)
    inputs = keras.Input((8, 8, 1), name="image")
    features = keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="conv_1")(inputs)
    features = keras.layers.MaxPooling2D(name="pool")(features)
    features = keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="conv_2")(features)
    features = keras.layers.Reshape((16, 8), name="tokens")(features)
    features = TransformerBlock(8, name="block_1")(features)
    features = TransformerBlock(8, name="block_2")(features)
    features = keras.layers.Dense(8, activation="softplus", name="energy")(features)
    features = LogEnergy(name="log_energy")(features)
    outputs = keras.layers.Dense(4, activation="softmax", name="classes")(features)
    model = keras.Model(inputs, outputs, name="digits")
    rates = [0.02, 0.02 if is_healthy else 20.0]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([BAD_FROM - 4], rates)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9), "sparse_categorical_crossentropy")
    random = np.random.default_rng(SEED)
    labels = random.integers(0, 4, 8 * NUM_STEPS // 10)
    images = random.normal(0, 0.4, (len(labels), 8, 8, 1)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 1
    with tfdbg_arrow.capture(logdir, tensor_debug_mode="FULL_NUMERICS"):
        model.fit(images, labels, batch_size=8, epochs=10, verbose=0)


def healthy(logdir: Path) -> None:
    """Trains the network without the mistake."""
    transformer(logdir, is_healthy=True)


def gan(logdir: Path) -> None:
    """Trains a generator against a discriminator in a custom loop."""
    tf.random.set_seed(SEED)
    generate_w = tf.Variable(tf.random.normal((4, 16), stddev=0.5), name="generate_w")
    generate_out = tf.Variable(tf.random.normal((16, 2), stddev=0.5), name="generate_out")
    judge_w = tf.Variable(tf.random.normal((2, 16), stddev=0.5), name="judge_w")
    judge_out = tf.Variable(tf.random.normal((16, 1), stddev=0.5), name="judge_out")

    def generate(noise: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(tf.matmul(noise, generate_w))
        return tf.matmul(hidden, generate_out)

    def judge(points: tf.Tensor) -> tf.Tensor:
        hidden = tf.nn.relu(tf.matmul(points, judge_w))
        return tf.sigmoid(tf.matmul(hidden, judge_out))

    @tf.function
    def train(real: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(persistent=True) as tape:
            fake = generate(noise)
            judge_loss = -tf.reduce_mean(tf.math.log(judge(real)) + tf.math.log(1.0 - judge(fake)))
            generate_loss = -tf.reduce_mean(tf.math.log(judge(fake)))
        for loss, variables, rate in (
            (judge_loss, (judge_w, judge_out), 0.05),
            (generate_loss, (generate_w, generate_out), 0.02),
        ):
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(rate * gradient)
        return judge_loss

    random = np.random.default_rng(SEED)
    with tfdbg_arrow.capture(logdir, tensor_debug_mode="FULL_NUMERICS"):
        for step in range(NUM_STEPS):
            tfdbg_arrow.mark(step=step)
            spread = 1.0 if step < BAD_FROM else 200.0  # the data are no longer normalized
            real = (spread * random.normal((2.0, -1.0), 0.3, (16, 2))).astype(np.float32)
            train(tf.constant(real), tf.constant(random.normal(size=(16, 4)).astype(np.float32)))


PROGRAMS = {"transformer": transformer, "healthy": healthy, "gan": gan}


def main() -> None:
    """Records the programs that the command line names, or all programs."""
    directory, *names = sys.argv[1:]
    for name in names or PROGRAMS:
        PROGRAMS[name](Path(directory) / name)


if __name__ == "__main__":
    main()
