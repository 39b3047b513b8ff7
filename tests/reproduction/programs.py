"""Records programs, and runs repro scripts, one after the other in one process.

`python -m tests.reproduction.programs record KEPT DIRECTORY NAME…` records programs of this module and of the culprit
corpus, each into `DIRECTORY/NAME`. KEPT is `tensors` (mode FULL_TENSOR) or `inputs` (`on_nonfinite="keep"`).
`python -m tests.reproduction.programs run SCRIPT…` prints a line of JSON for each script: its path, what it printed,
and the exception that ended it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def eager_op() -> None:
    import tensorflow as tf

    tf.matmul(tf.fill([2, 3], 1e30), tf.fill([4, 3], 1e30), transpose_b=True)


def function() -> None:
    import tensorflow as tf

    @tf.function
    def loss(logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(tf.nn.softmax(logits)))

    loss(tf.constant([[0.0, 200.0], [1.0, 2.0]]))


def loop() -> None:
    import tensorflow as tf

    @tf.function
    def grow(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(6):
            x = tf.square(x)
        return x

    grow(tf.constant([10.0, 1.0]))


def gradient() -> None:
    import tensorflow as tf

    @tf.function
    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.sqrt(x) * 3.0
        return tape.gradient(y, x)

    slope(tf.constant([0.0, 4.0]))


def strings() -> None:
    import tensorflow as tf

    @tf.function
    def parse(texts: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_number(texts) * 2.0

    parse(tf.constant(["1", "nan", "2"]))


def bfloat16() -> None:
    import tensorflow as tf

    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        return x * x

    double(tf.constant([1e30, 2.0], tf.bfloat16))


def empty() -> None:
    import tensorflow as tf

    @tf.function
    def mean(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(x, axis=0)

    mean(tf.zeros([0, 3]))


def fused() -> None:
    import tensorflow as tf

    @tf.function
    def layer(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))

    layer(tf.fill([2, 3], 1e30), tf.fill([3, 4], 1e30), tf.ones([4]))


def fused_convolution() -> None:
    import tensorflow as tf

    @tf.function
    def layer(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=2, padding="SAME"), bias))

    layer(tf.fill([1, 4, 4, 2], 1e30), tf.fill([3, 3, 2, 3], 1e30), tf.ones([3]))


def fused_batch_norm() -> None:
    import tensorflow as tf

    @tf.function
    def layer(x: tf.Tensor, kernel: tf.Tensor, scale: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv2d(x, kernel, strides=1, padding="VALID")
        y, *_ = tf.compat.v1.nn.fused_batch_norm(y, scale, scale, scale, variance, is_training=False)
        return y

    layer(tf.ones([1, 4, 4, 2]), tf.ones([3, 3, 2, 3]), tf.ones([3]), tf.fill([3], -1.0))


def fused_unary_ops() -> None:
    import tensorflow as tf

    @tf.function
    def grow(x: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.square(tf.sqrt(tf.abs(x)))) + 1.0

    grow(tf.constant([1.0, 1000.0]))


def log_of_sigmoid() -> None:
    import tensorflow as tf

    @tf.function
    def loss(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.math.log(tf.sigmoid(-x)))

    loss(tf.constant([0.0, 1000.0]))


OWN: dict[str, tuple[Callable[[], None], str]] = {
    "eager_op": (eager_op, "traced"),
    "function": (function, "traced"),
    "loop": (loop, "traced"),
    "gradient": (gradient, "traced"),
    "strings": (strings, "traced"),
    "bfloat16": (bfloat16, "traced"),
    "empty": (empty, "traced"),
    "fused": (fused, "executed"),
    "fused_convolution": (fused_convolution, "executed"),
    "fused_batch_norm": (fused_batch_norm, "executed"),
    "fused_unary_ops": (fused_unary_ops, "executed"),
    "log_of_sigmoid": (log_of_sigmoid, "executed"),
    "loop_executed": (loop, "executed"),
}
"""The programs of this module, and which graphs are recorded of them."""


SETTINGS: dict[str, dict[str, Any]] = {
    "tensors": {"tensor_debug_mode": "FULL_TENSOR"},
    "inputs": {"on_nonfinite": "keep"},
}
"""How to record, by what is kept."""


def record(kept: str, directory: Path, names: list[str]) -> None:
    """Records programs."""
    import tensorflow as tf

    import tfdbg_arrow

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    corpus = {}
    if any(name not in OWN for name in names):
        from tests.culprit.corpus import programs
        from tests.culprit.record import run

        corpus = {program.name: program for program in programs()}
    for name in names:
        graphs = OWN[name][1] if name in OWN else "traced"
        recording = tfdbg_arrow.capture(directory / name, graphs=graphs, **SETTINGS[kept])
        if name in OWN:
            with recording:
                OWN[name][0]()
        else:
            with tempfile.TemporaryDirectory() as scratch:
                run(corpus[name], recording, scratch=Path(scratch))
        gc.collect()


def run_scripts(paths: list[str]) -> None:
    """Runs scripts, and prints what became of each."""
    for path in paths:
        printed, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(path, run_name="__main__")
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        print(json.dumps({"path": path, "printed": printed.getvalue(), "error": error}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        run_scripts(sys.argv[2:])
