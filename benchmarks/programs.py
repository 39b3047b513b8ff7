"""The programs whose steps the overhead benchmark measures.

Each program is a small healthy training, written as a function `program(num_steps) -> list of seconds`. The function
returns the time of each step in order. The first step includes tracing. The programs do not depend on any recorder.
`STEP_HOOKS` run between steps.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

Program = Callable[[int], list[float]]

SEED = 1

STEP_HOOKS: list[Callable[[int], None]] = []
"""Functions that are called at the end of each step with the number of the next step. The step includes their time."""


class StepClock:
    """Measures the time from each tick to the next, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def tick(self) -> None:
        """Ends a step."""
        for hook in STEP_HOOKS:
            hook(len(self.seconds) + 1)
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


class StepTimes(keras.callbacks.Callback):  # type: ignore[misc]
    """Ticks a clock at the end of each batch of `fit`. The first step counts from the start of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = StepClock()

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        """Starts the clock."""
        self.clock = StepClock()

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Ends a step."""
        self.clock.tick()


def eager_loop(num_steps: int) -> list[float]:
    """Runs 200 eager ops a step on 32x32 tensors, without a gradient."""
    keras.utils.set_random_seed(SEED)
    kernel = tf.constant(np.random.default_rng(SEED).normal(size=(32, 32)).astype(np.float32) / 6)
    state = tf.ones((32, 32))
    clock = StepClock()
    for _ in range(num_steps):
        for _ in range(50):
            state = tf.matmul(state, kernel)
            state = tf.add(state, 0.5)
            state = tf.multiply(state, 0.9)
            state = tf.tanh(state)
        state.numpy()
        clock.tick()
    return clock.seconds


def mlp(num_steps: int, *, jit_compile: bool | None = None) -> list[float]:
    """Trains an MLP in a custom loop: model and loss are tf.functions, the tape and Keras's Adam are eager."""
    keras.utils.set_random_seed(SEED)
    generator = np.random.default_rng(SEED)
    sizes = (784, 256, 128, 10)
    layers = [
        (
            tf.Variable(generator.normal(scale=(2 / inputs) ** 0.5, size=(inputs, outputs)).astype(np.float32)),
            tf.Variable(tf.zeros(outputs)),
        )
        for inputs, outputs in itertools.pairwise(sizes)
    ]
    variables = [variable for layer in layers for variable in layer]

    @tf.function(jit_compile=jit_compile)
    def model(images: tf.Tensor) -> tf.Tensor:
        outputs = images
        for kernel, bias in layers[:-1]:
            outputs = tf.nn.relu(tf.matmul(outputs, kernel) + bias)
        kernel, bias = layers[-1]
        return tf.matmul(outputs, kernel) + bias

    @tf.function(jit_compile=jit_compile)
    def loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    optimizer = keras.optimizers.Adam(1e-3)
    images = tf.constant(generator.random(size=(100, 784), dtype=np.float32))
    labels = tf.constant(generator.integers(10, size=100), dtype=tf.int32)
    clock = StepClock()
    for _ in range(num_steps):
        with tf.GradientTape() as tape:
            batch_loss = loss(model(images), labels)
        gradients = tape.gradient(batch_loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        float(batch_loss)
        clock.tick()
    return clock.seconds


def cnn(num_steps: int, *, jit_compile: bool = False) -> list[float]:
    """Trains a convolutional classifier of 28x28 images with Keras's fit, in batches of 64."""
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    generator = np.random.default_rng(SEED)
    images = generator.random(size=(64 * num_steps, 28, 28, 1), dtype=np.float32)
    labels = generator.integers(10, size=64 * num_steps)
    return _fit(model, images, labels, batch_size=64, jit_compile=jit_compile)


def transformer(num_steps: int, *, jit_compile: bool = False) -> list[float]:
    """Trains a Transformer of two blocks (width 64, 4 heads, 64 tokens) with Keras's fit, in batches of 32."""
    keras.utils.set_random_seed(SEED)
    num_tokens, vocabulary, width = 64, 256, 64
    tokens = keras.Input((num_tokens,), dtype="int32")
    outputs = keras.layers.Embedding(vocabulary, width)(tokens)
    for _ in range(2):
        normed = keras.layers.LayerNormalization()(outputs)
        attended = keras.layers.MultiHeadAttention(num_heads=4, key_dim=width // 4)(normed, normed)
        outputs = keras.layers.Add()([outputs, attended])
        normed = keras.layers.LayerNormalization()(outputs)
        hidden = keras.layers.Dense(4 * width, activation="gelu")(normed)
        outputs = keras.layers.Add()([outputs, keras.layers.Dense(width)(hidden)])
    logits = keras.layers.Dense(vocabulary)(keras.layers.LayerNormalization()(outputs))
    model = keras.Model(tokens, logits)
    generator = np.random.default_rng(SEED)
    text = generator.integers(vocabulary, size=(32 * num_steps, num_tokens + 1))
    return _fit(model, text[:, :-1], text[:, 1:], batch_size=32, jit_compile=jit_compile)


def _fit(
    model: keras.Model, inputs: np.ndarray, labels: np.ndarray, *, batch_size: int, jit_compile: bool
) -> list[float]:
    """Trains for one epoch and returns the times of the steps in seconds."""
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=jit_compile,
    )
    times = StepTimes()
    model.fit(inputs, labels, batch_size=batch_size, epochs=1, shuffle=False, verbose=0, callbacks=[times])
    return times.clock.seconds


PROGRAMS: dict[str, Program] = {
    "eager_loop": eager_loop,
    "mlp": mlp,
    "cnn": cnn,
    "transformer": transformer,
    "mlp_xla": functools.partial(mlp, jit_compile=True),
    "cnn_xla": functools.partial(cnn, jit_compile=True),
    "transformer_xla": functools.partial(transformer, jit_compile=True),
}
"""The programs by name, in the order of the report."""
