"""A fixture with dumps that TensorFlow recorded, one for each mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..subprocesses import run_python

MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE", "FULL_TENSOR")

PROGRAM = """
    import os, sys
    import tensorflow as tf

    v = None

    @tf.function
    def model(x):
        return tf.nn.softmax(x * v)

    @tf.function
    def inner(a):
        return a + 1.0

    @tf.function
    def loss(probs):
        t = inner(probs) - 1.0
        for i in tf.range(2):
            t = t * 1.0
        return -tf.reduce_mean(tf.math.log(probs) + t)  # the fault

    @tf.function
    def shout(text):
        return tf.strings.upper(text)

    def main(mode, dump_root):
        global v
        tf.debugging.experimental.enable_dump_debug_info(dump_root, tensor_debug_mode=mode, circular_buffer_size=-1)
        v = tf.Variable([[1.0, 200.0]])
        for step in range(2):
            probs = model(tf.constant([[3.0, 4.0]]))
            loss(probs)
            with tf.GradientTape() as tape:
                y = loss(model(tf.constant([[3.0, 4.0]])))
            tape.gradient(y, v)
        tf.unique(tf.constant([1, 2, 2]))
        tf.zeros([1] * 7) + 1.0
        shout(tf.constant(["text"]) + "s")
        tf.cast(tf.constant([1.5]), tf.float16) * 2
        tf.data.Dataset.range(2)
        tf.debugging.experimental.disable_dump_debug_info()

    for mode in sys.argv[2:]:
        # TensorFlow starts no thread before its first op.
        pid = os.fork()
        if pid == 0:
            main(mode, os.path.join(sys.argv[1], mode))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert status == 0, (mode, status)
"""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with a dump for each mode, named after the mode."""
    directory = tmp_path_factory.mktemp("dumps")
    run_python(directory / "program.py", PROGRAM, directory, *MODES)
    return directory
