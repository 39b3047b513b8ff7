"""Large arguments that a tf.data function gets in each call are not measured each time."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow

from .test_changed_arguments import aliased_by_dlpack, aligned_array

NUM_CALLS = 40
SHAPE = (1 << 10, 1 << 10)
COUNTED = "SELECT coalesce(sum(num_events), 0) FROM capture_stat WHERE stat = 'unchanged'"


def measured(logdir: Path) -> list[tuple[Any, ...]]:
    """Returns the shape and the number of NaN of each large argument that was measured, in order."""
    with tfdbg_arrow.open_logdir(logdir) as opened:
        return opened.rows(
            "SELECT shape, num_nan FROM tensor_health WHERE op_type = 'Placeholder' AND size >= 1024 "
            "ORDER BY event_index"
        )


def num_unchanged(logdir: Path) -> int:
    with tfdbg_arrow.open_logdir(logdir) as opened:
        return int(opened.rows(COUNTED)[0][0])


def batches(array: np.ndarray | tf.Tensor, number: int = NUM_CALLS) -> tf.data.Dataset:
    """Returns a dataset whose function gets the whole array for each batch, like the datasets of Keras's `fit`."""
    whole = tf.data.Dataset.from_tensors(array).repeat(number)
    numbers = tf.data.Dataset.range(number)
    return tf.data.Dataset.zip((numbers, whole)).map(lambda number, data: tf.gather(data, number) * 2.0)


def consume(dataset: Iterable[Any]) -> None:
    for _ in dataset:
        pass


@pytest.mark.parametrize("graphs", ["executed", "traced"])
def test_a_repeated_array_is_measured_in_some_calls_and_counted_in_the_others(tmp_path: Path, graphs: str) -> None:
    with tfdbg_arrow.capture(tmp_path, graphs=graphs):
        consume(batches(np.ones(SHAPE, np.float32)))
    rows = measured(tmp_path)
    assert 2 <= len(rows) < NUM_CALLS, "the first two calls at least"
    assert rows == [([*SHAPE], 0)] * len(rows)
    assert num_unchanged(tmp_path) == NUM_CALLS - len(rows)
    with tfdbg_arrow.open_logdir(tmp_path) as logdir:
        ((num_batches,),) = logdir.rows("SELECT count(*) FROM tensor_health WHERE op_type = 'GatherV2'")
        assert num_batches == NUM_CALLS
        assert not logdir.coverage().gaps


def test_a_bad_array_is_measured_in_each_call(tmp_path: Path) -> None:
    array = np.ones(SHAPE, np.float32)
    array[7, 7] = np.nan
    with tfdbg_arrow.capture(tmp_path):
        consume(batches(array))
    assert measured(tmp_path) == [([*SHAPE], 1)] * NUM_CALLS
    assert num_unchanged(tmp_path) == 0


def test_small_arrays_and_kept_elements_are_measured_in_each_call(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "small"):
        consume(batches(np.ones((64, 64), np.float32)))
    with tfdbg_arrow.capture(tmp_path / "kept", "FULL_TENSOR"):
        consume(batches(np.ones(SHAPE, np.float32), 4))
    assert len(measured(tmp_path / "small")) == NUM_CALLS
    assert len(measured(tmp_path / "kept")) == 4
    assert num_unchanged(tmp_path / "small") == num_unchanged(tmp_path / "kept") == 0


def test_other_arrays_are_measured_even_at_the_same_address(tmp_path: Path) -> None:
    def make(number: tf.Tensor) -> tf.Tensor:
        return tf.fill(SHAPE, tf.where(number == 30, np.nan, 1.0))

    with tfdbg_arrow.capture(tmp_path):
        consume(tf.data.Dataset.range(NUM_CALLS).map(make).map(lambda x: x[:3] + 1.0))
    # TensorFlow may call the functions of a pipeline ahead and in parallel, so the order can differ.
    assert sorted(num_nan for _, num_nan in measured(tmp_path)) == [0] * (NUM_CALLS - 1) + [SHAPE[0] * SHAPE[1]]
    assert num_unchanged(tmp_path) == 0


def test_what_eager_code_and_sessions_pass_is_measured_in_each_call(tmp_path: Path) -> None:
    array = np.ones(SHAPE, np.float32)
    tensor = tf.constant(array)
    function = tf.function(tf.reduce_mean)
    with tfdbg_arrow.capture(tmp_path):
        threads = [threading.Thread(target=lambda: [function(tensor) for _ in range(10)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, SHAPE)
            y = tf.reduce_mean(x)
            for _ in range(10):
                session.run(y, {x: array})
    with tfdbg_arrow.open_logdir(tmp_path) as logdir:
        ((num_calls,),) = logdir.rows("SELECT count(*) FROM tensor_health WHERE op_type = 'Mean' AND scope = 'graph'")
    assert num_calls == 40
    assert len(measured(tmp_path)) == 40
    assert num_unchanged(tmp_path) == 0


@pytest.mark.slow
def test_an_array_that_changes_outside_tensorflow_is_measured_again_after_a_while(tmp_path: Path) -> None:
    array = aligned_array(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    with tfdbg_arrow.capture(tmp_path):
        for number, _ in enumerate(batches(aliased_by_dlpack(array), SHAPE[0])):
            if number == 10:
                array[:] = np.nan
            time.sleep(0.002)
    counts = [num_nan for _, num_nan in measured(tmp_path)]
    # Counts in between are possible: a thread of tf.data may measure the array while this thread changes it.
    assert (counts[0], counts[-1]) == (0, array.size)
    assert counts == sorted(counts), "no row has the count of an earlier call"
    assert num_unchanged(tmp_path) == SHAPE[0] - len(counts) > 0


def test_an_array_is_freed_with_its_iterator(tmp_path: Path) -> None:
    array = aligned_array(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    with tfdbg_arrow.capture(tmp_path):
        dataset: Any = batches(aliased_by_dlpack(array))
        memory = weakref.ref(array.base)
        del array
        consume(dataset)
        assert memory() is not None
        del dataset
        gc.collect()
        assert memory() is None
    assert num_unchanged(tmp_path) > 0
