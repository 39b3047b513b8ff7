"""The outer graph of a graph, and the creator of an op, in cases where TensorFlow's callbacks do not show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdbg_arrow

from .tables import rows


@pytest.fixture(autouse=True)
def empty_default_graph() -> None:
    """Resets the default graph. With ops from other tests, this graph would be the outer graph of every function."""
    tf.compat.v1.reset_default_graph()


def outer_names(logdir: Path) -> dict[str, str | None]:
    """Returns the name of the outer graph of each graph, by the graph's name."""
    graphs = rows(logdir, "graph")
    names = {row["graph_id"]: row["graph_name"] for row in graphs}
    assert len(names) == len(graphs)
    return {
        row["graph_name"]: names[row["outer_graph_id"]] if row["outer_graph_id"] is not None else None for row in graphs
    }


def test_a_graph_without_ops_is_the_outer_graph_of_a_graph_traced_in_it(tmp_path: Path) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    @tf.function
    def outer() -> tf.Tensor:
        return inner(2.0)

    with tfdbg_arrow.capture(tmp_path):
        outer()

    assert outer_names(tmp_path) == {"inner": "outer", "outer": None}


def test_a_graph_that_never_becomes_a_function_has_a_row_if_it_is_an_outer_graph(tmp_path: Path) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return x * 2.0

    with tfdbg_arrow.capture(tmp_path):
        around = tf.__internal__.FuncGraph("around")
        with around.as_default():
            scratch = tf.__internal__.FuncGraph("scratch")
            with scratch.as_default():
                inner(tf.constant(1.0))
        inner(tf.constant(1.0))

    assert outer_names(tmp_path) == {"inner": "scratch", "scratch": "around", "around": None}
    stacks = {row["graph_name"]: row["stack_trace_id"] for row in rows(tmp_path, "graph")}
    assert stacks["inner"] is not None
    assert (stacks["scratch"], stacks["around"]) == (None, None)


def test_an_op_that_a_gradient_adds_to_the_loop_has_a_stack(tmp_path: Path) -> None:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.map_fn(lambda row: tf.reduce_sum(row * row), x)
        return tape.gradient(y, x)

    with tfdbg_arrow.capture(tmp_path):
        f(tf.ones([3, 2]))

    moved = [row for row in rows(tmp_path, "graph_op") if row["op_type"] == "TensorListElementShape"]
    frames = {row["stack_frame_id"]: row["func"] for row in rows(tmp_path, "stack_frame")}
    functions = {
        frames[row["stack_frame_id"]]
        for row in rows(tmp_path, "stack_trace")
        if row["stack_trace_id"] in {op["stack_trace_id"] for op in moved}
    }
    assert len(moved) == 1
    assert {"f", "_WhileGrad"} <= functions


def test_the_result_of_a_loop_condition_is_an_op_of_the_program_if_a_gradient_rewrote_the_loop(
    tmp_path: Path,
) -> None:
    @tf.function
    def f(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = tf.sin(y)
        return tape.gradient(y, x)

    with tfdbg_arrow.capture(tmp_path):
        f(tf.constant(1.0))

    ops = {(row["graph_id"], row["op_name"]) for row in rows(tmp_path, "graph_op")}
    results = {
        row["function_name"]: (row["graph_id"], row["op_name"]) for row in rows(tmp_path, "graph_function_output")
    }
    assert any("cond" in name and "rewritten" in name for name in results)
    assert set(results.values()) <= ops
