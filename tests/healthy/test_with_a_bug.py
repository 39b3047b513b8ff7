"""What is harmless in a healthy program is harmless beside a bug, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.writer.subprocesses import run_python
from tfdbg_arrow.query import alerts, first_nonfinite

_CROSS_ENTROPY = """
import sys
import keras, numpy as np, tensorflow as tf, tfdbg_arrow

class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.logits = keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)

    def call(self, x):
        hidden = self.hidden(x)
        total = tf.reduce_sum(tf.abs(hidden))
        return self.logits(hidden / (total - total))

keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
model = Scaled()
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
with tfdbg_arrow.capture(sys.argv[1]):
    model.fit(np.ones([32, 5], "float32"), np.arange(32) % 3, batch_size=8, verbose=0)
"""


@pytest.mark.slow
def test_the_constant_of_cross_entropy_is_no_error_beside_a_bug(tmp_path: Path) -> None:
    """Under op determinism, TensorFlow selects its losses from a constant NaN where a label is invalid."""
    logdir = str(tmp_path / "logdir")
    run_python(tmp_path / "program.py", _CROSS_ENTROPY, logdir)
    culprit = first_nonfinite(logdir)
    assert culprit is not None
    assert (culprit.op_type, culprit.effect) == ("RealDiv", "variable")
    origins = [alert for alert in alerts(logdir).alerts if alert.kind == "nonfinite_origin"]
    errors = {alert.op_type for alert in origins if alert.severity == "error"}
    assert errors == {"RealDiv"}
    assert culprit.event_index in {alert.first_event_index for alert in origins}
    (constant,) = (alert for alert in origins if alert.op_type == "Const")
    assert constant.is_expected
    assert "in place of a value that was NaN already" in constant.message
