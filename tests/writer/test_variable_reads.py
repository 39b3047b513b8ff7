"""Eager ops that take variables are recorded with the reads of these variables as their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

OPS = {
    "one variable": lambda v, w: tf.math.log(v),
    "a convolution": lambda v, w: tf.nn.conv2d(tf.ones([1, 4, 4, 1]), tf.reshape(v, [2, 2, 1, 1]), 1, "SAME"),
    "a list": lambda v, w: tf.stack([v, 2.0 * w, w]),
    "a variable twice": lambda v, w: tf.math.xlogy(v, v),
    "a sum": lambda v, w: tf.add_n([v, w]),
}


def results(op: Any) -> list[Any]:
    v, w = tf.Variable([[1.0, 2.0], [3.0, 4.0]]), tf.Variable([[4.0, 3.0], [2.0, 1.0]])
    with tf.GradientTape() as tape:
        result = op(v, w)
    gradients = tape.gradient(result, [v, w], unconnected_gradients="zero")
    return [array.numpy() for array in (result, *gradients)]


@pytest.mark.parametrize("name", OPS)
def test_results_and_gradients_are_as_without_a_recording(tmp_path: Path, name: str) -> None:
    expected = results(OPS[name])
    with tfdbg_arrow.capture(tmp_path):
        recorded = results(OPS[name])
    for one, other in zip(expected, recorded, strict=True):
        np.testing.assert_array_equal(one, other)
    with tfdbg_arrow.open_logdir(tmp_path) as logdir:
        takers = logdir.rows(
            "SELECT DISTINCT e.op_type FROM tensor_health AS t JOIN execution AS e USING (execution_index) "
            "WHERE t.scope = 'external' AND t.shape = [2, 2]"
        )
        reads = logdir.rows("SELECT count(*) FROM execution WHERE op_type = 'ReadVariableOp'")
    assert takers == [("AssignVariableOp",)], "only the initial values came from outside"
    assert reads[0][0] > 0


def test_the_input_of_an_op_is_followed_through_the_variable(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        spread = tf.Variable([2.0, 1.0])
        spread.assign_sub([3.0, 0.5])
        tf.math.log(spread)
    with tfdbg_arrow.open_logdir(tmp_path) as logdir:
        first = logdir.first_nonfinite()
        sources = logdir.rows(
            "SELECT source_op_type FROM tensor_input WHERE event_index = "
            "(SELECT event_index FROM tensor_health WHERE op_type = 'Log')"
        )
    assert first is not None
    assert [input_.producer.op_type for input_ in first.inputs if input_.producer is not None] == ["ReadVariableOp"]
    assert sources == [("ReadVariableOp",)]


def test_ops_that_take_the_resource_itself_get_it(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        v = tf.Variable(1.0)
        tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=tf.constant(2.0))
        assert tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32).numpy() == 3.0
        assert bool(tf.raw_ops.VarIsInitializedOp(resource=v.handle).numpy())


def test_the_error_of_a_read_has_no_frames_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("the value cannot be read")

    with tfdbg_arrow.capture(tmp_path):
        variable = tf.Variable([1.0, 2.0])
        monkeypatch.setattr(variable, "value", fail)
        with pytest.raises(ValueError, match="cannot be read") as caught:
            tf.math.log(variable)
    files = [str(entry.path) for entry in caught.traceback]
    assert not any("/tfdbg_arrow/writer/" in file for file in files)
