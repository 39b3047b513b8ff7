"""Graphs of graph mode inside functions: wrapped, imported, or loaded from a SavedModel of TensorFlow 1."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import tensorflow as tf

import tfdbg_arrow
from tests.sampling import mostly_slow

from .tf1_programs import Program, behaviour

tf1 = tf.compat.v1
X = np.float32([0.1, 0.5])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """Returns a graph with a loop and a branch, as a GraphDef and as a SavedModel."""
    directory = str(tmp_path_factory.mktemp("saved") / "model")
    with behaviour(Program(build=list)), tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2], name="x")

        def body(i: Any, a: Any) -> Any:
            b = tf.sin(a, name="sin")
            c = tf1.cond(tf.reduce_sum(b) > 0.5, lambda: tf.exp(b, name="exp"), lambda: tf.negative(b, name="neg"))
            return i + 1, c

        _, result = tf1.while_loop(lambda i, _: i < 3, body, [0, x])
        output = tf.identity(result, name="output")
        with tf1.Session() as session:
            tf1.saved_model.simple_save(session, directory, {"x": x}, {"output": output})
    return graph.as_graph_def(), directory


def numpy_loop(x: Any) -> tuple[Any, Counter[str]]:
    """Returns the result of the graph, and how often each op runs."""
    counts: Counter[str] = Counter()
    for _ in range(3):
        x = np.sin(x)
        counts["sin"] += 1
        if x.sum() > 0.5:
            x = np.exp(x)
            counts["exp"] += 1
        else:
            x = -x
            counts["neg"] += 1
    return x, counts


def times(logdir: Path) -> Counter[str]:
    found = ds.dataset(logdir / "tensor_health").to_table().to_pylist()
    counts = Counter((row["op_name"] or "").split("/")[-1] for row in found)
    return Counter({name: counts[name] for name in ("sin", "exp", "neg") if counts[name]})


def stats(logdir: Path) -> list[Any]:
    return ds.dataset(logdir / "capture_stat").to_table().to_pylist()


@pytest.mark.parametrize(
    ("way", "backend", "graphs"),
    mostly_slow(
        [
            *((way, "native", graphs) for way in ("wrapped", "loaded", "nested") for graphs in ("auto", "traced")),
            ("nested", "tensorflow", "auto"),
        ],
        fast=[("loaded", "native", "auto"), ("nested", "native", "auto"), ("nested", "native", "traced")],
    ),
)
def test_loops_and_branches_of_graph_mode_in_functions(
    saved: tuple[Any, str], way: str, backend: str, graphs: str, tmp_path: Path
) -> None:
    graph_def, directory = saved

    def run() -> Any:
        def imported(x: Any) -> Any:
            return tf.import_graph_def(graph_def, {"x:0": x}, ["output:0"])[0]

        if way == "loaded":
            return tf.saved_model.load(directory).signatures["serving_default"](tf.constant(X))["output"].numpy()
        wrapped = tf1.wrap_function(imported, [tf.TensorSpec([2])])
        if way == "wrapped":
            return wrapped(tf.constant(X)).numpy()
        return tf.function(lambda x: wrapped(x) + wrapped(wrapped(x)))(tf.constant(X)).numpy()

    bare = run()
    with tfdbg_arrow.capture(tmp_path, health_backend=backend, graphs=graphs):
        recorded = run()
    after = run()
    assert bare.tobytes() == recorded.tobytes() == after.tobytes()
    assert stats(tmp_path) == []
    once, counts = numpy_loop(X)
    if way == "nested":
        counts = counts + counts + numpy_loop(once)[1]
    assert times(tmp_path) == counts


def test_a_wrapped_function_runs_only_ops_that_its_results_need(tmp_path: Path) -> None:
    def run() -> tuple[float, float]:
        variable = tf.Variable(0.0)

        def body(x: Any) -> Any:
            tf.multiply(tf1.placeholder(tf.float32, name="never_fed"), 2.0)
            variable.assign_add(1.0)
            return tf.square(x, name="square")

        wrapped = tf1.wrap_function(body, [tf.TensorSpec([])])
        return float(wrapped(tf.constant(3.0))), float(variable.numpy())

    bare = run()
    with tfdbg_arrow.capture(tmp_path):
        assert run() == bare == (9.0, 0.0)
    names = {row["op_name"] for row in ds.dataset(tmp_path / "tensor_health").to_table().to_pylist()}
    assert "square" in names
    assert "never_fed" not in names
    assert stats(tmp_path) == []
