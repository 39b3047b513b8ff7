"""TensorFlow's debugger reads nodes made by the optimizer as ops of the graphs from which the nodes come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

import tfdbg_arrow
from tfdbg_arrow.debugger_v2.export import ExportedRun, export_logdir

from .dumps import alerts, opened, read_by_tensorboard, rows

VALUES = [[-1.0, 2.0], [-3.0, 0.0]]
BAD = [[0.0, -np.inf], [np.log(np.float32(3.0)), -np.inf]]
"""The result of log(relu(-x)) for VALUES."""
FUSED = "bad/unary_ops_composition"


def run_fused() -> None:
    """Calls `fused` directly, from two functions at the same place, and in a loop. All ops of `fused` are fused."""

    @tf.function
    def fused(x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.nn.relu(-x), name="bad")  # the fused line

    @tf.function
    def first(x: tf.Tensor) -> tf.Tensor:
        return fused(x) + 1.0

    @tf.function
    def second(x: tf.Tensor) -> tf.Tensor:
        return fused(x) * 2.0

    @tf.function
    def looped(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(2):
            x = fused(x)
        return x

    @tf.function
    def dense(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), [np.inf, 0.0]))

    x = tf.constant(VALUES)
    for function in (fused, first, second, looped):
        function(x)
    dense(x, tf.eye(2))


def record(directory: Path, *, mode: str, graphs: str) -> ExportedRun:
    with tfdbg_arrow.capture(directory / "logdir", tensor_debug_mode=mode, graphs=graphs):
        run_fused()
    (run,) = export_logdir(directory / "logdir", directory / "dump")
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    """Returns a recording of the program with the values of its tensors."""
    return record(tmp_path_factory.mktemp("whole"), mode="FULL_TENSOR", graphs="executed")


@pytest.fixture(scope="module")
def health(tmp_path_factory: pytest.TempPathFactory) -> ExportedRun:
    """Returns a recording of the program with the counts of its tensors."""
    return record(tmp_path_factory.mktemp("health"), mode="FULL_HEALTH", graphs="executed")


def digest(reader: DebugDataReader, op_name: str) -> Any:
    """Returns the only op with a name in the graph of the fused function."""
    (found,) = [op for op in reader.graph_op_digests() if op.op_name == op_name and graph_name(reader, op) == "fused"]
    return found


def graph_name(reader: DebugDataReader, found: Any) -> str:
    return str(reader.graph_by_id(found.graph_id).name)


def test_a_fused_node_is_read_with_its_traces_and_values(whole: ExportedRun) -> None:
    with opened(whole.dump) as reader:
        op = digest(reader, FUSED)
        assert (op.op_type, op.input_names, op.num_outputs) == ("_UnaryOpsComposition", ("x:0",), 1)
        (trace,) = [trace for trace in reader.graph_execution_traces() if trace.op_name == FUSED]
        assert (trace.op_type, trace.output_slot, trace.graph_id) == ("_UnaryOpsComposition", 0, op.graph_id)
        assert reader.graph_execution_trace_to_tensor_id(trace) == op.output_tensor_ids[0]
        np.testing.assert_allclose(reader.graph_execution_trace_to_tensor_value(trace), np.float32(BAD), rtol=1e-6)


def test_a_fused_node_has_the_stack_of_its_program_op(health: ExportedRun) -> None:
    with opened(health.dump) as reader:
        fused, log = digest(reader, FUSED), digest(reader, "bad")
        assert log.op_type == "Log"
        host, stack = reader.read_graph_op_creation_stack_trace(fused)
        assert (host, stack) == reader.read_graph_op_creation_stack_trace(log)
        path, lineno, _ = next(frame for frame in reversed(stack) if frame[0] == __file__)
        assert "# the fused line" in reader.source_lines(host, path)[lineno - 1]
        assert (fused.wall_time, fused.host_name) == (log.wall_time, log.host_name)


def test_each_optimizer_node_is_written_once(health: ExportedRun) -> None:
    logdir = health.dump.parent / "logdir"
    with opened(health.dump) as reader:
        found = [(op.graph_id, op.op_name) for op in reader.graph_op_digests()]
    assert len(set(found)) == len(found)
    named = {(row["graph_id"], row["op_name"]) for row in rows(logdir, "tensor_health") if row["scope"] == "graph"}
    ops = {(row["graph_id"], row["op_name"]) for row in rows(logdir, "graph_op")}
    assert {(int(graph_id), op_name) for graph_id, op_name in found} == ops | named
    in_two_graphs = [row for row in rows(logdir, "executed_op") if row["node_name"] == f"PartitionedCall/{FUSED}"]
    assert len(in_two_graphs) == 2  # of `first` and `second`
    assert [op_name for _, op_name in found].count(f"PartitionedCall/{FUSED}") == 1
    with opened(health.dump) as reader:
        assert sum(trace.op_name == f"PartitionedCall/{FUSED}" for trace in reader.graph_execution_traces()) == 2


def test_inputs_from_other_graphs_name_the_graph(health: ExportedRun) -> None:
    with opened(health.dump) as reader:
        assert digest(reader, f"PartitionedCall/{FUSED}").input_names == ("first/x:0",)
        (in_loop,) = [
            op.op_name
            for op in reader.graph_op_digests()
            if op.op_name.startswith("while/") and op.op_name.endswith(FUSED)
        ]
        (name,) = digest(reader, in_loop).input_names
        assert name.startswith("looped/")
        assert sum(trace.op_name == in_loop for trace in reader.graph_execution_traces()) == 2


def test_a_fused_node_named_like_an_op_is_read_as_that_op(health: ExportedRun) -> None:
    (row,) = [row for row in rows(health.dump.parent / "logdir", "tensor_health") if row["op_type"] == "_FusedMatMul"]
    assert row["op_name"] == "Relu"
    with opened(health.dump) as reader:
        (trace,) = [trace for trace in reader.graph_execution_traces() if graph_name(reader, trace) == "dense"
                    and trace.op_name == "Relu"]  # fmt: skip
        assert (trace.op_type, trace.graph_id) == ("Relu", str(row["graph_id"]))
        assert trace.debug_tensor_value[5:8] == (0, 2, 0)


def test_the_monitor_and_tensorboard_show_a_fused_node(health: ExportedRun) -> None:
    found = [alert for alert in alerts(health.dump) if alert[1] == "_UnaryOpsComposition"]
    assert [alert[3:7] for alert in found[:3]] == [(4, 2, 0, 0)] * 3
    with opened(health.dump) as reader:
        op = digest(reader, FUSED)
        traces = reader.graph_execution_traces()
        assert {traces[alert[8]].op_name.removesuffix(FUSED) for alert in found} >= {"", "PartitionedCall/"}
    plugin, run = read_by_tensorboard(health.dump)
    info = plugin.GraphOpInfo(run, op.graph_id, FUSED)
    assert [(source["op_name"], source["data"]["op_type"]) for source in info["inputs"]] == [("x", "Placeholder")]
    consumers = plugin.GraphOpInfo(run, op.graph_id, "x")["consumers"][0]
    assert {consumer["op_name"]: consumer["data"]["op_type"] for consumer in consumers} == {
        "Neg": "Neg",
        FUSED: "_UnaryOpsComposition",
    }


def test_a_traced_recording_has_no_optimizer_nodes(tmp_path: Path) -> None:
    run = record(tmp_path, mode="FULL_TENSOR", graphs="traced")
    ops = {(str(row["graph_id"]), row["op_name"]) for row in rows(tmp_path / "logdir", "graph_op")}
    with opened(run.dump) as reader:
        assert {(op.graph_id, op.op_name) for op in reader.graph_op_digests()} == ops
        log = [trace for trace in reader.graph_execution_traces() if trace.op_name == "bad"]
        assert len(log) == 5
        assert {trace.op_type for trace in log} == {"Log"}
        np.testing.assert_allclose(reader.graph_execution_trace_to_tensor_value(log[0]), np.float32(BAD), rtol=1e-6)
