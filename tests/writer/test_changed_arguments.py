"""Arguments whose memory the program changes between two calls, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

SIZE = 1 << 19


@pytest.fixture(autouse=True)
def recording_ends() -> Iterator[None]:
    yield
    tfdbg_arrow.disable()


def aligned_array(size: int = SIZE) -> np.ndarray:
    """Returns an array at an address that TensorFlow's kernels accept."""
    memory = np.zeros(size * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size * 4].view(np.float32)


def aliased_by_dlpack(array: np.ndarray) -> tf.Tensor:
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def test_an_argument_that_changed_in_place_is_counted_anew(tmp_path: Path) -> None:
    array = aligned_array()
    tensor = aliased_by_dlpack(array)
    function = tf.function(lambda x: tf.reduce_sum(x * 2.0))
    bad = [0, 0, 0, 3, 1, 0, 7]
    with tfdbg_arrow.capture(tmp_path):
        for count in bad:
            array[:] = 1.0
            array[:count] = np.nan
            assert np.isnan(function(tensor).numpy()) == bool(count)
    with tfdbg_arrow.open_logdir(tmp_path) as logdir:
        found = logdir.rows(
            "SELECT num_nan FROM tensor_health JOIN graph_op USING (run_id, graph_id, op_name)"
            " WHERE tensor_health.op_type = 'Placeholder' ORDER BY event_index"
        )
    assert [count for (count,) in found] == bad
