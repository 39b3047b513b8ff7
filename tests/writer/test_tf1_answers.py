"""The origin of a bad value in a graph-mode program: the op, its inputs, the line and the iteration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import NonFinite, first_nonfinite

from .tf1_programs import Program, behaviour, unoptimized

tf1 = tf.compat.v1
X = np.float32([4.0, 9.0])


@pytest.fixture(params=["executed", "traced"])
def graphs(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def session(graphs: str) -> Any:
    """Opens a session with TensorFlow's optimizations, or without them for `traced`."""
    return tf1.Session(config=unoptimized() if graphs == "traced" else None)


@pytest.fixture(params=["v1", "v2"])
def flow(request: pytest.FixtureRequest) -> Iterator[str]:
    with behaviour(Program(build=list, is_v2=request.param == "v2")):
        yield request.param


def the_first(logdir: Path) -> NonFinite:
    tensor = first_nonfinite(logdir)
    assert tensor is not None
    assert tensor.is_origin
    return tensor


def line_of(tensor: NonFinite) -> str:
    here = [frame for frame in tensor.stack if frame.file_path == __file__]
    return here[0].code or ""


def test_log_of_zero_in_a_loop(flow: str, graphs: str, tmp_path: Path) -> None:
    def body(i: Any, a: Any) -> Any:
        nested = tf1.cond(i > 0, lambda: a * 2.0, lambda: a * 1.0)
        return i + 1, tf.math.log(nested, name="bad")

    with tfdbg_arrow.capture(tmp_path, graphs=graphs), tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2], name="x")
        _, result = tf1.while_loop(lambda i, _: i < 4, body, [tf.constant(0), x])
        loss = tf.reduce_sum(result)
        with session(graphs) as runs:
            runs.run(loss, {x: X + 1000.0})
            runs.run(loss, {x: np.ones([2], np.float32)})

    tensor = the_first(tmp_path)
    assert (tensor.op_type, tensor.op_name, tensor.iteration) == ("Log", "bad" if flow == "v2" else "while/bad", 1)
    assert (tensor.num_neg_inf, tensor.num_nan) == (2, 0)
    assert 'name="bad"' in line_of(tensor)
    (given,) = tensor.inputs
    assert given.health is not None
    assert given.health.num_zero == 2
    assert given.producer is not None
    assert given.producer.op_type == "Mul"
    assert given.producer.execution_index == 1


def test_a_bad_feed_is_from_outside(graphs: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, graphs=graphs), tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2], name="x")
        result = tf.square(tf.sqrt(x)) + 1.0
        with session(graphs) as runs:
            runs.run(result, {x: X})
            runs.run(result, {x: np.float32([1.0, np.nan])})

    tensor = the_first(tmp_path)
    assert (tensor.op_type, tensor.num_nan, tensor.size) == (None, 1, 2)
    assert "np.nan" in line_of(tensor)


def test_a_bad_value_fed_in_place_of_an_intermediate_tensor(graphs: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, graphs=graphs), tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [2], name="x")
        root = tf.sqrt(x, name="root")
        result = tf.math.log(root, name="result")
        with session(graphs) as runs:
            runs.run(result, {x: X})
            runs.run(result, {root: np.float32([0.0, 1.0])})

    tensor = the_first(tmp_path)
    (given,) = tensor.inputs
    assert (tensor.op_name, tensor.num_neg_inf) == ("result", 1)
    assert given.producer is not None
    assert (given.producer.op_type, given.producer.how) == (None, "argument")
    assert given.health is not None
    assert given.health.num_zero == 1


@pytest.mark.slow
@pytest.mark.parametrize("has_references", [False, True])
def test_a_variable_holds_the_value_of_an_earlier_run(has_references: bool, graphs: str, tmp_path: Path) -> None:
    with (
        behaviour(Program(build=list, has_references=has_references)),
        tfdbg_arrow.capture(tmp_path, graphs=graphs),
        tf.Graph().as_default(),
    ):
        x = tf1.placeholder(tf.float32, [2], name="x")
        weights = tf1.get_variable("weights", initializer=X)
        loss = tf.reduce_sum(tf.math.log(weights * x, name="logits"))
        train = tf1.train.GradientDescentOptimizer(1.0).minimize(loss)
        with session(graphs) as runs:
            runs.run(tf1.global_variables_initializer())
            runs.run(loss, {x: X})
            runs.run(train, {x: X})  # weights -= 1 / weights
            runs.run(weights.assign([0.0, 1.0]))
            runs.run(loss, {x: X})
            runs.run(train, {x: X})
            runs.run(loss, {x: X})

    tensor = the_first(tmp_path)
    assert (tensor.op_type, tensor.op_name, tensor.num_neg_inf) == ("Log", "logits", 1)
    (product,) = tensor.inputs
    assert product.health is not None
    assert product.health.num_zero == 1
    assert product.producer is not None
    bad = tfdbg_arrow.nonfinite(tmp_path, limit=None)
    last_run = max(row.event_index for row in bad)
    assert last_run > tensor.event_index
    assert next(row.op_type for row in bad if row.is_origin) == "Log"
    # After the update the weights are bad, because of the earlier gradient.
    products = [row for row in bad if row.op_type == "Mul" and row.op_name == "mul"]
    assert [row.is_origin for row in products] == [False]
    read = products[0].inputs[0]
    assert read.producer is not None
    assert read.producer.how in ("graph", "variable")
    if has_references:
        assert (read.producer.op_type, read.producer.how) == ("ApplyGradientDescent", "variable")
        assert read.health is not None
        assert read.health.num_neg_inf + read.health.num_nan > 0


def test_two_sessions_have_separate_variables(graphs: str, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, graphs=graphs), tf.Graph().as_default():
        value = tf1.placeholder(tf.float32, [])
        variable = tf1.get_variable("variable", [], use_resource=True)
        assign = variable.assign(value, read_value=False)
        result = variable * 2.0
        one, two = session(graphs), session(graphs)
        one.run(assign, {value: 1.0})
        two.run(assign, {value: np.inf})
        assert one.run(result) == 2.0
        assert two.run(result) == np.inf

    bad = tfdbg_arrow.nonfinite(tmp_path, limit=None)
    product = next(row for row in bad if row.op_type == "Mul")
    read = next(row for row in bad if row.op_type == "ReadVariableOp")
    (source,) = read.inputs
    assert not product.is_origin
    assert not read.is_origin
    assert source.producer is not None
    assert (source.producer.op_type, source.producer.how) == ("AssignVariableOp", "variable")
    assert source.health is not None
    assert source.health.num_pos_inf == 1
    assert the_first(tmp_path).op_type is None
