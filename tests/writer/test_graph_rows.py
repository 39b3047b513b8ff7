"""Properties of the native description of graphs, compared with TensorFlow's own protocol buffers."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework.graph_pb2 import GraphDef

from tfdbg_arrow.writer.backend import native_core
from tfdbg_arrow.writer.graphs.node_defs import OWN_NAME_PREFIX, attribute_json
from tfdbg_arrow.writer.hooks.runtime import parse_attribute, serialized_graph

SCOPE = SimpleNamespace(layer="dense", role="gradient", forward_op=(7, "MatMul"), part_stack=-1)


def json_of(serialized: bytes) -> str:
    """Returns a serialized AttrValue as JSON."""
    return attribute_json(parse_attribute(serialized))


class Described:
    """A GraphRows object for one graph."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(graph_id=3, layers={}, creations=native_core().Creations())
        self.rows = native_core().GraphRows(lambda graph: self.state, lambda: SCOPE, json_of)

    def describe(
        self,
        graph: Any,
        *,
        ops: list[Any] | None = None,
        first_new: int = 0,
        known_inputs: dict[str, int] | None = None,
    ) -> Any:
        """Returns the result of `describe` for a graph."""
        ops = graph.get_operations() if ops is None else ops
        return self.rows.describe(self.state.creations, serialized_graph(graph), ops, first_new, known_inputs or {})


def rows_of(columns: dict[str, list[Any]], *names: str) -> list[tuple[Any, ...]]:
    """Returns some columns as rows."""
    return list(zip(*(columns[name] for name in names), strict=True))


@functools.cache
def make_graph() -> Any:
    """Returns a graph with a loop, a branch, control edges, constants of several types and ops with several outputs."""

    @tf.function  # type: ignore[untyped-decorator]
    def program(x: tf.Tensor, names: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            low, high = tf.split(x, 2)
        for _ in tf.range(3):
            low = low * 2.0 + tf.constant([float("nan"), 1.0])
        if tf.reduce_sum(high) > 0.0:
            low += 1.0
        with tf.control_dependencies([tf.debugging.assert_positive(high)]):
            joined = tf.strings.join([names, 'a "quoted" \\ text\n'])
        return low + tf.cast(tf.strings.length(joined), tf.float32)

    return program.get_concrete_function(tf.TensorSpec([4]), tf.TensorSpec([], tf.string)).graph


def expected_inputs(graph: Any) -> list[tuple[Any, ...]]:
    """Returns the rows of graph_op_input, read from the protocol buffer of the graph."""
    rows: list[tuple[Any, ...]] = []
    for node in graph.as_graph_def().node:
        data = [text for text in node.input if not text.startswith("^")]
        for index, text in enumerate(data):
            source, _, slot = text.partition(":")
            rows.append((node.name, index, False, source, int(slot or 0)))
        control = [text[1:] for text in node.input if text.startswith("^")]
        rows += [(node.name, index, True, source, None) for index, source in enumerate(control)]
    return rows


INPUTS = ("op_name", "input_index", "is_control", "source_op_name", "source_output_slot")


def test_the_rows_are_those_of_the_protocol_buffer() -> None:
    graph = make_graph()
    ops, inputs, described, functions = Described().describe(graph)
    nodes = list(graph.as_graph_def().node)
    assert rows_of(ops, "op_index", "op_name", "op_type", "device_name") == [
        (index, node.name, node.op, node.device or None) for index, node in enumerate(nodes)
    ]
    assert ops["attributes"] == [
        "{" + ",".join(f'"{key}":{attribute_json(node.attr[key])}' for key in sorted(node.attr)) + "}" for node in nodes
    ]
    assert all(json.loads(text) is not None for text in ops["attributes"])
    assert rows_of(inputs, *INPUTS) == expected_inputs(graph)
    assert described == [(index, node.name, node.op) for index, node in enumerate(nodes)]
    called = {nodes[index].op: {attribute for attribute, _, _ in found} for index, found in functions.items()}
    assert called["StatelessWhile"] == {"body", "cond"}
    assert called["StatelessIf"] == {"then_branch", "else_branch"}
    assert set(ops["stack_trace_id"]) == {None}
    assert set(ops["role"]) == set(ops["layer"]) == set(ops["forward_op_name"]) == {None}


def test_ops_in_another_order_than_their_nodes() -> None:
    graph = make_graph()
    ops = graph.get_operations()
    mixed = [*ops[1::2], *ops[::2]]
    found, inputs, _, _ = Described().describe(graph, ops=mixed)
    assert rows_of(found, "op_index", "op_name", "op_type") == [
        (index, op.name, op.type) for index, op in enumerate(mixed)
    ]
    assert sorted(rows_of(inputs, *INPUTS), key=str) == sorted(expected_inputs(graph), key=str)


def test_only_new_ops_and_new_inputs_of_older_ones_get_rows() -> None:
    graph = make_graph()
    ops = graph.get_operations()
    loop = next(index for index, op in enumerate(ops) if op.type == "StatelessWhile")
    found, inputs, described, functions = Described().describe(
        graph, first_new=len(ops) - 2, known_inputs={ops[loop].name: 1}
    )
    assert found["op_index"] == [len(ops) - 2, len(ops) - 1]
    assert [index for index, _, _ in described] == [loop, len(ops) - 2, len(ops) - 1]
    assert list(functions) == [loop]
    of_loop = [row for row in rows_of(inputs, *INPUTS) if row[0] == ops[loop].name]
    assert of_loop == [row for row in expected_inputs(graph) if row[0] == ops[loop].name and not row[2] and row[1] > 0]


def test_creations() -> None:
    graph = tf.Graph()
    described = Described()
    with graph.as_default():
        noted = tf.constant(1.0, name="noted")
        described.rows.note_created(noted.op)
        tf.identity(noted, name="noted/pfor/Identity")
        tf.identity(noted, name="unknown")
        described.rows.note_created(tf.identity(noted, name=OWN_NAME_PREFIX + "own").op)
    ops, inputs, _, _ = described.describe(graph)
    facts = rows_of(ops, "op_index", "op_name", "forward_graph_id", "forward_op_name", "layer", "role")
    assert facts == [
        (0, "noted", 7, "MatMul", "dense", "gradient"),
        (1, "noted/pfor/Identity", 7, "MatMul", "dense", "gradient"),
        (2, "unknown", None, None, None, None),
    ]
    stack_ids = ops["stack_trace_id"]
    assert stack_ids[0] is not None
    assert stack_ids[:2] == [stack_ids[0]] * 2
    assert stack_ids[2] is None
    assert described.state.layers == {"noted": "dense"}
    assert {row[0] for row in rows_of(inputs, *INPUTS)} == {"noted/pfor/Identity", "unknown"}
    assert described.describe(graph)[0]["stack_trace_id"][0] is None, "a creation is used once"


def test_an_unknown_op_is_an_error() -> None:
    graph = make_graph()
    foreign = tf.Graph()
    with foreign.as_default():
        tf.constant(1.0, name="foreign")
    with pytest.raises(RuntimeError, match="no op foreign"):
        Described().describe(graph, ops=foreign.get_operations())
    with pytest.raises(RuntimeError, match="no op foreign"):
        Described().describe(tf.Graph(), ops=foreign.get_operations())


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_graphs_give_rows_or_an_error(data: st.DataObject) -> None:
    graph = make_graph()
    whole = bytearray(serialized_graph(graph))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    described = Described()
    num_ops = len(GraphDef.FromString(serialized_graph(graph)).node)
    try:
        ops, _, found, _ = described.rows.describe(described.state.creations, damaged, graph.get_operations(), 0, {})
    except (RuntimeError, ValueError, DecodeError):
        return
    assert len(ops["op_name"]) == len(found) <= num_ops


def test_an_attribute_can_have_any_name() -> None:
    graph = tf.Graph()
    name = '"quoted" \\ and \x01 π'
    with graph.as_default():
        tf.constant(1.0).op._set_attr(name, tf.compat.v1.AttrValue(i=7))
    (text,) = Described().describe(graph)[0]["attributes"]
    assert json.loads(text)[name] == 7
