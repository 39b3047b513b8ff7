"""Measures the time of a step that the schedule `steps=` leaves out, divided by the time of an unrecorded step.

Blocks of left-out and unrecorded steps alternate in one process, so that other load on the machine affects both kinds
of steps. There are two programs: a CNN, and a step of 200 eager ops. The CNN is traced once before the recording begins
and once during the recording. For the eager ops, a new recording begins for each block.

    python benchmarks/schedule.py [number of blocks]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdbg_arrow

_BLOCK = 25
_BATCH = 64
_EAGER_START = tf.ones([32, 32])
_EAGER_KERNEL = tf.constant(np.random.default_rng(1).normal(size=(32, 32)).astype(np.float32) / 6)


def _trained_step() -> Callable[[], Any]:
    """Returns a function that runs one traced training step."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            *(layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()),
            *(layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()),
            *(layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=False)
    generator = np.random.default_rng(1)
    images = generator.random(size=(4 * _BATCH, 28, 28, 1), dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((images, generator.integers(10, size=4 * _BATCH)))
    iterator = iter(data.batch(_BATCH, drop_remainder=True).cache().repeat())
    step = tf.function(lambda batches: model.train_step(next(batches)))
    step(iterator)  # creates the optimizer's variables
    concrete = step.get_concrete_function(iterator)
    return lambda: concrete(iterator)["loss"]


def _eager_step() -> Any:
    """Runs 200 eager ops on 32x32 tensors."""
    x = _EAGER_START
    for _ in range(100):
        x = tf.tanh(tf.matmul(x, _EAGER_KERNEL))
    return tf.reduce_sum(x)


def _seconds(step: Callable[[], Any]) -> float:
    """Returns the median time of a step in a block."""
    times = []
    for _ in range(_BLOCK):
        begin = time.perf_counter()
        float(step())
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _report(name: str, ratios: list[float]) -> None:
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"{name}: left out / unrecorded: {median:.3f} (quartiles {low:.3f} to {high:.3f})", flush=True)


def _cnn(num_blocks: int) -> list[float]:
    unrecorded = _trained_step()
    with tempfile.TemporaryDirectory() as logdir, tfdbg_arrow.capture(logdir, steps="0:1"):
        left_out = _trained_step()
        tfdbg_arrow.mark(step=1)
        ratios = []
        for number in range(num_blocks):
            order = (unrecorded, left_out) if number % 2 else (left_out, unrecorded)
            seconds = {step: _seconds(step) for step in order}
            ratios.append(seconds[left_out] / seconds[unrecorded])
    return ratios


def _eager(num_blocks: int) -> list[float]:
    ratios = []
    for _ in range(num_blocks):
        before = _seconds(_eager_step)
        with tempfile.TemporaryDirectory() as logdir, tfdbg_arrow.capture(logdir, steps="0:1"):
            tfdbg_arrow.mark(step=1)
            left_out = _seconds(_eager_step)
        ratios.append(left_out / statistics.mean([before, _seconds(_eager_step)]))
    return ratios


def main() -> None:
    """Prints the median and the quartiles of the ratio over the blocks. The first two blocks are a warm-up."""
    num_blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    for name, ratios in (("cnn", _cnn(num_blocks + 2)), ("eager ops", _eager(num_blocks + 2))):
        _report(name, ratios[2:])


if __name__ == "__main__":
    main()
