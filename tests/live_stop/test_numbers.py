"""A recording with `on_nonfinite` changes no number of a healthy program.

graphs="traced" turns off TensorFlow's passes that fuse and reorder ops, so the unrecorded training turns them off, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ..writer.subprocesses import run_python

TRAINING = """
import sys, tempfile
import keras
import numpy as np
import tensorflow as tf
import tfdbg_arrow

tf.config.experimental.enable_op_determinism()
graphs = sys.argv[2]
if graphs == "traced":
    passes = "remapping layout_optimizer pin_to_host_optimization constant_folding arithmetic_optimization"
    tf.config.optimizer.set_experimental_options(dict.fromkeys(passes.split(), False))

def train():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([
        keras.layers.Input([8, 8, 1]), keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.BatchNormalization(), keras.layers.MaxPooling2D(), keras.layers.Flatten(),
        keras.layers.Dropout(0.2), keras.layers.Dense(3),
    ])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = np.random.default_rng(1).normal(size=[64, 8, 8, 1]).astype(np.float32)
    history = model.fit(data, np.arange(64) % 3, batch_size=16, epochs=2, verbose=0)
    return np.concatenate([history.history["loss"], *(weight.ravel() for weight in model.get_weights())])

found = [train()]
for backend in ("native", "tensorflow"):
    for on_nonfinite in ("record", "raise", print):
        settings = {"health_backend": backend, "on_nonfinite": on_nonfinite, "graphs": graphs}
        with tfdbg_arrow.capture(tempfile.mkdtemp(dir=sys.argv[1]), **settings):
            found.append(train())
assert np.isfinite(found[0]).all()
print([int((each != found[0]).sum()) for each in found])
"""


@pytest.mark.parametrize(
    "graphs", [pytest.param("executed", marks=pytest.mark.slow), pytest.param("traced", marks=pytest.mark.exhaustive)]
)
def test_a_healthy_training_has_the_same_numbers(tmp_path: Path, graphs: str) -> None:
    printed = run_python(tmp_path / "training.py", TRAINING, tmp_path, graphs)
    assert printed.split("\n")[-2] == str([0] * 7)
