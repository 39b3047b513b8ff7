"""With `graphs="traced"`, each covered tensor that is computed has one row, compared with an independent count."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.schema import TABLES

from .counting import UNSEEN, Counting, Expected, forget_cached_tensors, plain
from .features import FEATURES
from .programs import PROGRAMS, THEN, Program

Rows = list[dict[str, Any]]

_HAS_NO_LOOPS = (
    *("reduce_retracing", "input_signature", "generator", "custom_gradient", "vectorized_map"),
    *("jacobians", "forward_mode", "ragged", "sparse", "indexed_slices", "strings", "keras_random", "complex_numbers"),
    *("devices_and_scopes", "methods_and_closures", "extension_type", "distributed_values", "quantized_and_float8"),
    *("mixed_precision", "empty_and_scalar", "no_outputs"),
)
COVERED: dict[str, Program] = {
    **PROGRAMS,
    **{name: Program(run=FEATURES[name]) for name in _HAS_NO_LOOPS},
    "map_fn": Program(run=FEATURES["map_fn"], iterations=3),
    "tensor_array": Program(run=FEATURES["tensor_array"], iterations=4),
    "random_ops": Program(run=FEATURES["random_ops"], iterations=2),
    "control_dependencies": Program(run=FEATURES["control_dependencies"], branches=THEN),
    "recurrent": Program(run=FEATURES["recurrent"], iterations=5, elements={"ParallelMapDatasetV2": 4}),
    "run_eagerly": Program(run=FEATURES["run_eagerly"], elements={"ParallelMapDatasetV2": 2}),
}
_OF_OTHER_OPS = (
    *("jacobians", "forward_mode", "ragged", "sparse", "indexed_slices", "strings", "keras_random", "random_ops"),
    *("complex_numbers", "extension_type", "quantized_and_float8", "empty_and_scalar", "methods_and_closures"),
)
"""Only `make exhaustive` runs these programs. Other programs have the same kinds of graphs, calls and threads."""
_LONG = ("keras_fit", "recurrent", "nested_loop_gradients", "deep_gradients", "run_eagerly")
"""`make slow` runs these programs. Shorter programs have the same kinds of graphs, calls and threads."""


class Recorded:
    """The tables of a recorded program."""

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self.health = self.rows("tensor_health")
        self.arguments = {(row["graph_id"], row["op_name"]) for row in self.rows("graph_function_input")}
        self.executions = sorted(self.rows("execution"), key=lambda row: row["execution_index"])

    def rows(self, table: str) -> Rows:
        return ds.dataset(self._logdir / table).to_table().to_pylist()

    def of_scope(self, scope: str) -> Rows:
        return [row for row in self.health if row["scope"] == scope]


def record(program: Program, logdir: Path, **settings: Any) -> tuple[Any, Recorded]:
    forget_cached_tensors()
    with tfdbg_arrow.capture(logdir, graphs="traced", **settings):
        result = program.run()
    return result, Recorded(logdir)


def assert_same(actual: Any, expected: Any) -> None:
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == object:
            assert a.tolist() == b.tolist()
        else:  # with TensorFlow's fusing passes on, unfused kernels give slightly different numbers
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def counted(recorded: Recorded, rows: Rows) -> Counter[str]:
    """Counts tensors by op type. An argument is a Placeholder in the runtime's function."""
    return Counter(
        "Placeholder" if (row["graph_id"], row["op_name"]) in recorded.arguments else plain(row["op_type"])
        for row in rows
        if row["op_type"] not in UNSEEN
    )


def keys_of(rows: Rows) -> list[tuple[Any, ...]]:
    names = ("step_id", "frame_id", "iteration", "call_site", "graph_id", "op_name", "output_slot")
    return [tuple(row[name] for name in names) for row in rows]


def assert_every_graph_tensor_has_one_row(recorded: Recorded, expected: Expected) -> None:
    rows = recorded.of_scope("graph")
    assert counted(recorded, rows) == sum(expected.calls, expected.apart.copy())
    keys = keys_of(rows)
    assert all(None not in key for key in keys)
    assert len(set(keys)) == len(keys)


def assert_calls_have_their_rows(recorded: Recorded, expected: Expected) -> None:
    graph = recorded.of_scope("graph")
    by_call: dict[int, Rows] = defaultdict(list)
    for row in graph:
        by_call[row["execution_index"]].append(row)
    calls = [row["execution_index"] for row in recorded.executions if row["graph_id"] is not None]
    assert [counted(recorded, by_call[index]) for index in calls] == expected.calls
    assert counted(recorded, by_call[None]) == expected.apart
    assert set(by_call) <= {*calls, None}


def assert_every_eager_tensor_has_one_row(recorded: Recorded, expected: Expected) -> None:
    rows = recorded.of_scope("execution")
    calls = {row["execution_index"] for row in recorded.executions if row["graph_id"] is not None}
    kinds = ["call" if row["execution_index"] in calls else plain(row["op_type"]) for row in rows]
    # Op callbacks, which compute the expected counts, do not see the op that finds the end of a data set.
    returned = [row for row in recorded.executions if (row["op_type"], row["num_outputs"]) != ("IteratorGetNext", 0)]
    assert len(returned) == expected.num_executions
    assert Counter(kinds) == +expected.eager
    assert len({(row["execution_index"], row["output_slot"]) for row in rows}) == len(rows)
    outside = recorded.of_scope("external")
    assert len(outside) == expected.num_external
    assert len({row["tensor_id"] for row in outside}) == len(outside)


def assert_keys_are_unique(recorded: Recorded) -> None:
    for table in TABLES:
        keys = Counter(tuple(row[name] for name in table.key) for row in recorded.rows(table.name))
        assert [key for key, times in keys.items() if times > 1] == [], table.name


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Returns the pytest marks of the test of a program."""
    return (pytest.mark.exhaustive,) * (name in _OF_OTHER_OPS) + (pytest.mark.slow,) * (name in _LONG)


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in COVERED])
def test_every_tensor_that_ran_has_one_row(name: str, tmp_path: Path) -> None:
    program = COVERED[name]
    bare, expected = Counting(program).run()
    result, recorded = record(program, tmp_path)

    assert recorded.rows("capture_stat") == []
    assert_every_graph_tensor_has_one_row(recorded, expected)
    assert_every_eager_tensor_has_one_row(recorded, expected)
    assert_keys_are_unique(recorded)
    if name != "two_threads":  # the calls of this program have no order
        assert_calls_have_their_rows(recorded, expected)
    assert_same(result, bare)


def test_rows_are_not_joined_to_the_call_of_another_thread(tmp_path: Path) -> None:
    """Each thread has its own number of zeros, so a row that is joined to the wrong call has a wrong count."""
    num_threads, num_calls, size = 4, 30, 64

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(5):
            x = tf.reverse(x * 2.0, [0])
        return x

    barrier = threading.Barrier(num_threads)
    zeros_of: dict[int, int] = {}

    def work(index: int) -> None:
        zeros_of[threading.get_ident()] = index
        x = tf.constant(np.arange(size) >= index, tf.float32)
        barrier.wait()
        for _ in range(num_calls):
            f(x)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(num_threads)]
    with tfdbg_arrow.capture(tmp_path):
        f(tf.zeros([size]))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    recorded = Recorded(tmp_path)
    expected = {row["execution_index"]: zeros_of.get(row["thread_id"]) for row in recorded.executions}
    tensors = [row for row in recorded.of_scope("graph") if row["op_type"] in ("Mul", "ReverseV2")]
    joined = [row for row in tensors if row["execution_index"] is not None]

    assert len(tensors) == (1 + num_threads * num_calls) * 10
    for row in joined:
        assert expected[row["execution_index"]] in (row["num_zero"], None)
    per_call = Counter(row["execution_index"] for row in joined)
    assert set(per_call.values()) == {10}
    # No other call ran at the same time as the first call.
    assert per_call[min(row["execution_index"] for row in recorded.executions if row["graph_id"] is not None)] == 10
