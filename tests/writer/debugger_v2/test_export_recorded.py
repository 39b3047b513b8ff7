"""Recordings exported as dumps: TensorFlow's reader and monitor find the same data as in our tables."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import debug_event_pb2

import tfdbg_arrow
from tfdbg_arrow.debugger_v2.export import ExportedRun, export_logdir
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.schema.dtypes import decode_strings

from .dumps import MODES, MONITORED, Alert, Row, alerts, messages, opened, rows
from .traced_program import run_program

RECORDED = (*MODES, "FULL_NUMERICS", "TRACED")
"""The modes of the recordings. TRACED is FULL_HEALTH with the program's ops. The other modes have the ops that ran."""
COUNTS = ("num_neg_inf", "num_pos_inf", "num_nan")


@pytest.fixture(scope="module")
def logdirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns the logdir of each recording of the program, by mode."""
    root = tmp_path_factory.mktemp("recorded")
    for mode in RECORDED:
        graphs = "traced" if mode == "TRACED" else "auto"
        with tfdbg_arrow.capture(root / mode, tensor_debug_mode=measured_mode(mode), graphs=graphs):
            tfdbg_arrow.mark(step=1)
            run_program()
    return {mode: root / mode for mode in RECORDED}


@pytest.fixture(scope="module")
def exported(logdirs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedRun]:
    """Returns each recording, exported as a dump."""
    root = tmp_path_factory.mktemp("exported")
    runs = {}
    for mode, logdir in logdirs.items():
        (runs[mode],) = export_logdir(logdir, root / mode)
    return runs


def measured_mode(mode: str) -> str:
    return "FULL_HEALTH" if mode == "TRACED" else mode


def written_mode(mode: str) -> str:
    return "FULL_HEALTH" if mode == "FULL_NUMERICS" else measured_mode(mode)


def graph_rows(logdir: Path) -> list[Row]:
    """Returns the rows that become traces, in the order of their arrival, with times that never decrease."""
    with open_logdir(logdir) as opened_logdir:
        query = "SELECT * FROM tensor_health WHERE scope = 'graph' ORDER BY event_index"
        found = opened_logdir.arrow(query).to_pylist()
    times = accumulate((row["wall_time_ns"] for row in found), max)
    return [{**row, "wall_time_ns": time} for row, time in zip(found, times, strict=True)]


def execution_rows(logdir: Path) -> list[Row]:
    return sorted(rows(logdir, "execution"), key=lambda row: row["execution_index"])


def expected_alerts(logdir: Path, mode: str) -> list[Alert]:
    """Returns the alerts that the monitor must find: first alerts of graphs, then of executions."""
    found: list[Alert] = []

    def add(row: Row, wall_time_ns: int, **places: int) -> None:
        if row["has_inf_or_nan"]:
            counts = [None] * 4 if mode == "CURT_HEALTH" else [row["size"], *(row[name] for name in COUNTS)]
            places_ = (places.get("execution"), places.get("trace"))
            found.append((wall_time_ns / 10**9, row["op_type"], row["output_slot"], *counts, *places_))

    for index, row in enumerate(graph_rows(logdir)):
        add(row, row["wall_time_ns"], trace=index)
    by_execution: dict[int, list[Row]] = defaultdict(list)
    for row in rows(logdir, "tensor_health"):
        if row["scope"] == "execution":
            by_execution[row["execution_index"]].append(row)
    for index, execution in enumerate(execution_rows(logdir)):
        for row in sorted(by_execution[execution["execution_index"]], key=lambda row: row["output_slot"]):
            add(row, execution["wall_time_ns"], execution=index)
    return found


@pytest.mark.parametrize("mode", [*MONITORED, "FULL_NUMERICS", "TRACED"])
def test_the_monitor_finds_the_bad_tensors_of_our_tables(
    mode: str, logdirs: dict[str, Path], exported: dict[str, ExportedRun]
) -> None:
    expected = expected_alerts(logdirs[mode], mode)
    assert alerts(exported[mode].dump) == expected
    kinds = {(alert[1], alert[7] is None) for alert in expected}
    if mode in ("NO_TENSOR", "SHAPE"):
        assert not expected
    else:  # in graphs and eagerly, in a loop, in an outermost backward graph, of complex numbers and in a slot above 0
        in_graphs = {"Log", "AddV2"} if mode == "TRACED" else {"_UnaryOpsComposition", "AddV2"}
        assert kinds >= {
            *((op_type, True) for op_type in in_graphs),
            ("Log", False),
            ("MatMul", True),
            ("RealDiv", False),
        }
        assert any(alert[2] > 0 for alert in expected)


@pytest.mark.parametrize("mode", RECORDED)
def test_each_execution_has_its_tensors_and_stack(
    mode: str, logdirs: dict[str, Path], exported: dict[str, ExportedRun]
) -> None:
    logdir = logdirs[mode]
    inputs, outputs = defaultdict(list), defaultdict(list)
    for row in sorted(rows(logdir, "execution_input"), key=lambda row: row["input_index"]):
        inputs[row["execution_index"]].append(row["tensor_id"])
    for row in sorted(rows(logdir, "execution_output"), key=lambda row: row["output_slot"]):
        outputs[row["execution_index"]].append(row["tensor_id"])
    stacks = frames_of_stacks(logdir)
    expected = [
        (
            row["wall_time_ns"] / 10**9,
            row["op_type"],
            tuple(inputs[row["execution_index"]]) or None,
            tuple(outputs[row["execution_index"]]) or None,
            None if row["graph_id"] is None else str(row["graph_id"]),
            stacks[row["stack_trace_id"]],
            written_mode(mode),
        )
        for row in execution_rows(logdir)
    ]
    with opened(exported[mode].dump) as reader:
        found = [
            (
                execution.wall_time,
                execution.op_type,
                execution.input_tensor_ids,
                execution.output_tensor_ids,
                execution.graph_id or None,
                reader.read_execution_stack_trace(execution)[1],
                debug_event_pb2.TensorDebugMode.Name(execution.tensor_debug_mode),
            )
            for execution in reader.executions()
        ]
        assert {execution.host_name for execution in reader.executions()} == {rows(logdir, "run")[0]["host_name"]}
    assert found == expected
    assert any(user[0] == run_program.__code__.co_filename for *_, stack, _ in found for user in stack)


def frames_of_stacks(logdir: Path) -> dict[int, list[tuple[str, int, str]]]:
    """Returns the frames of each stack, outermost first."""
    frames = {row["stack_frame_id"]: row for row in rows(logdir, "stack_frame")}
    stacks = defaultdict(list)
    for row in sorted(rows(logdir, "stack_trace"), key=lambda row: -row["depth"]):
        frame = frames[row["stack_frame_id"]]
        stacks[row["stack_trace_id"]].append((frame["file_path"], frame["lineno"], frame["func"]))
    return stacks


@pytest.mark.parametrize("mode", RECORDED)
def test_each_graph_tensor_is_a_trace_with_its_summary(
    mode: str, logdirs: dict[str, Path], exported: dict[str, ExportedRun]
) -> None:
    logdir = logdirs[mode]
    devices = {row["device_id"]: row["device_name"] for row in rows(logdir, "device")}
    outer = {row["graph_id"]: row["outer_graph_id"] for row in rows(logdir, "graph")}
    dtypes = {dtype.name: dtype.as_datatype_enum for dtype in (tf.float32, tf.int32, tf.bool, tf.int64, tf.string)}

    def graph_ids(graph_id: int) -> tuple[str, ...]:
        above = () if outer[graph_id] is None else graph_ids(outer[graph_id])
        return (*above, str(graph_id))

    def numbers(row: Row, tensor_id: int) -> tuple[float, ...] | None:
        counts = tuple(row[name] for name in COUNTS)
        signs = (row["num_neg_finite"], row["num_zero"], row["num_pos_finite"])
        dims = tuple(row["shape"])
        dtype = dtypes[row["dtype"]]
        return {
            "CURT_HEALTH": (tensor_id, row["has_inf_or_nan"]),
            "CONCISE_HEALTH": (tensor_id, row["size"], *counts),
            "FULL_HEALTH": (tensor_id, -1, dtype, row["rank"], row["size"], *counts, *signs),
            "SHAPE": (tensor_id, dtype, row["rank"], row["size"], *dims, *[0] * (6 - len(dims))),
            "FULL_TENSOR": None,
        }[written_mode(mode)]

    with opened(exported[mode].dump) as reader:
        expected = [
            (
                row["wall_time_ns"] / 10**9,
                row["op_type"],
                row["op_name"],
                row["output_slot"],
                graph_ids(row["graph_id"]),
                devices[row["device_id"]],
                numbers(row, reader.symbolic_tensor_id(str(row["graph_id"]), row["op_name"], row["output_slot"])),
            )
            for row in graph_rows(logdir)
        ]
        found = [
            (
                trace.wall_time,
                trace.op_type,
                trace.op_name,
                trace.output_slot,
                trace.graph_ids,
                trace.device_name,
                trace.debug_tensor_value,
            )
            for trace in reader.graph_execution_traces()
        ]
    assert found == expected
    assert exported[mode].num_records["graph_execution_traces"] == len(expected)
    assert bool(expected) == (mode != "NO_TENSOR")


def made_nodes(logdir: Path) -> list[Row]:
    """Returns the nodes that the optimizer made and that have tensors, with the program's ops and the inputs."""
    named = {(row["graph_id"], row["op_name"]) for row in graph_rows(logdir)}
    ops = {(row["graph_id"], row["op_name"]): row for row in rows(logdir, "graph_op")}
    nodes = {(row["executed_graph_id"], row["node_name"]): row for row in rows(logdir, "executed_op")}
    found = []
    for (executed_graph_id, name), node in nodes.items():
        if node["op_name"] is None and (node["graph_id"], name) in named:
            inputs = [
                (nodes[executed_graph_id, row["source_node_name"]]["op_name"], row["source_output_slot"])
                for row in rows(logdir, "executed_op_input")
                if (row["executed_graph_id"], row["node_name"]) == (executed_graph_id, name) and not row["is_control"]
            ]
            found.append({**node, "op": ops[node["graph_id"], node["made_for"]], "inputs": inputs})
    return sorted(found, key=lambda row: (row["graph_id"], row["node_name"]))


def created(logdir: Path) -> list[tuple[int, Row]]:
    """Returns the ops and the made nodes in the order of their creation, and their times in nanoseconds."""
    times: dict[tuple[int, str], int] = {}
    last: dict[int, int] = defaultdict(int)
    ops = sorted(rows(logdir, "graph_op"), key=lambda row: (row["graph_id"], row["op_index"]))
    for row in ops:
        last[row["graph_id"]] = max(last[row["graph_id"]], row["wall_time_ns"])
        times[row["graph_id"], row["op_name"]] = last[row["graph_id"]]
    found = [(times[row["graph_id"], row["op_name"]], row["graph_id"], row["op_index"], "", row) for row in ops]
    for node in made_nodes(logdir):
        op = node["op"]
        time = times[op["graph_id"], op["op_name"]]
        found.append((time, node["graph_id"], op["op_index"], node["node_name"], node))
    return [(time, row) for time, *_, row in sorted(found, key=lambda each: each[:4])]


@pytest.mark.parametrize("mode", ["FULL_HEALTH", "NO_TENSOR", "TRACED"])
def test_graphs_ops_and_sources_equal_our_tables(
    mode: str, logdirs: dict[str, Path], exported: dict[str, ExportedRun]
) -> None:
    logdir = logdirs[mode]
    graphs = {str(row["graph_id"]): row for row in rows(logdir, "graph")}
    inputs: dict[tuple[int, str], list[str]] = defaultdict(list)
    for row in sorted(rows(logdir, "graph_op_input"), key=lambda row: row["input_index"]):
        if not row["is_control"]:
            inputs[row["graph_id"], row["op_name"]].append(f"{row['source_op_name']}:{row['source_output_slot']}")
    outputs: dict[tuple[int, str], int] = defaultdict(int)
    for row in rows(logdir, "graph_op_output"):
        outputs[row["graph_id"], row["op_name"]] += 1
    stacks = frames_of_stacks(logdir)
    made = made_nodes(logdir)
    assert {row["op_type"] for row in made} == ({"_UnaryOpsComposition", "Const"} if mode == "FULL_HEALTH" else set())
    for row in made:
        inputs[row["graph_id"], row["node_name"]] = [f"{source}:{slot}" for source, slot in row["inputs"]]
        outputs[row["graph_id"], row["node_name"]] = 1
    expected = []
    for time, row in created(logdir):
        name = row["node_name"] if "node_name" in row else row["op_name"]
        key = row["graph_id"], name
        stack = stacks[row.get("op", row)["stack_trace_id"]]
        names = tuple(inputs[key]) or None
        expected.append((time / 10**9, str(row["graph_id"]), name, row["op_type"], names, outputs[key], stack))
    with opened(exported[mode].dump) as reader:
        found = [
            (
                op.wall_time,
                op.graph_id,
                op.op_name,
                op.op_type,
                op.input_names,
                op.num_outputs,
                reader.read_graph_op_creation_stack_trace(op)[1],
            )
            for op in reader.graph_op_digests()
        ]
        assert found == expected
        tensor_ids = [number for op in reader.graph_op_digests() for number in op.output_tensor_ids or ()]
        assert tensor_ids == list(range(1, len(tensor_ids) + 1))
        for graph_id, row in graphs.items():
            graph = reader.graph_by_id(graph_id)
            outer = None if row["outer_graph_id"] is None else str(row["outer_graph_id"])
            assert (graph.name, graph.outer_graph_id) == (row["graph_name"], outer)
            assert set(graph.inner_graph_ids) == {
                inner for inner, other in graphs.items() if str(other["outer_graph_id"]) == graph_id
            }
        host = rows(logdir, "run")[0]["host_name"]
        sources = {row["file_path"]: row["source_text"] for row in rows(logdir, "source_file")}
        assert set(reader.source_file_list()) == {(host, path) for path in sources}
        for path, text in sources.items():
            assert reader.source_lines(host, path) == ([] if text is None else text.split("\n"))
        run = rows(logdir, "run")[0]
        assert reader.tensorflow_version() == tf.__version__
        assert reader.tfdbg_run_id() == run["run_id"]
        assert reader.starting_wall_time() == run["wall_time_ns"] / 10**9


def test_whole_tensors_are_read_with_their_values(logdirs: dict[str, Path], exported: dict[str, ExportedRun]) -> None:
    logdir = logdirs["FULL_TENSOR"]
    health = {row["event_index"]: row for row in rows(logdir, "tensor_health")}
    eager: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
    in_graphs: dict[int, np.ndarray[Any, Any]] = {}
    for row in rows(logdir, "tensor_value"):
        value = elements(row)
        made = health[row["event_index"]]
        if made["scope"] == "execution":
            eager[made["execution_index"], made["output_slot"]] = value
        elif made["scope"] == "graph":
            in_graphs[row["event_index"]] = value
    with opened(exported["FULL_TENSOR"].dump) as reader:
        traces = reader.graph_execution_traces()
        for row, trace in zip(graph_rows(logdir), traces, strict=True):
            same_tensor(reader.graph_execution_trace_to_tensor_value(trace), in_graphs[row["event_index"]])
        seen = 0
        for row, execution in zip(execution_rows(logdir), reader.executions(), strict=True):
            for slot, found in enumerate(reader.execution_to_tensor_values(execution)):
                expected = eager.get((row["execution_index"], slot))
                assert (found is None) == (expected is None)
                if found is not None:
                    same_tensor(found, expected)
                    seen += 1
    assert seen == len(eager)
    assert {value.dtype.name for value in eager.values()} >= {
        "float16",
        "bfloat16",
        "complex64",
        "bool",
        "float64",
        "object",
    }
    strings = [value.tolist() for value in in_graphs.values() if value.dtype == np.object_]
    assert [[b"x", "ünï".encode()], [b"", b"zero\0"]] in strings
    assert [[b"X", "ÜNÏ".encode()], [b"", b"ZERO"]] in strings


def elements(row: Row) -> np.ndarray[Any, Any]:
    if row["dtype"] == "string":
        strings = decode_strings(row["value"], math.prod(row["shape"]))
        return np.array(strings, np.object_).reshape(row["shape"])
    return np.frombuffer(row["value"], tf.as_dtype(row["dtype"]).as_numpy_dtype).reshape(row["shape"])


def same_tensor(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist() if found.dtype == np.object_ else found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", MONITORED)
def test_whole_tensors_can_be_exported_as_summaries(mode: str, logdirs: dict[str, Path], tmp_path: Path) -> None:
    (run,) = export_logdir(logdirs["FULL_TENSOR"], tmp_path / "dump", tensor_debug_mode=mode)
    assert run.tensor_debug_mode == mode
    expected = expected_alerts(logdirs["FULL_TENSOR"], mode) if mode.endswith("HEALTH") else []
    assert alerts(run.dump) == expected


def test_notes_list_what_a_dump_cannot_hold(logdirs: dict[str, Path], exported: dict[str, ExportedRun]) -> None:
    for mode in ("FULL_HEALTH", "TRACED"):
        external = [row for row in rows(logdirs[mode], "tensor_health") if row["scope"] == "external"]
        left_out = {item.table: item.num_rows for item in exported[mode].left_out}
        assert left_out == {"mark": 1, "tensor_health": len(external)}
    assert "no FULL_NUMERICS" in " ".join(exported["FULL_NUMERICS"].notes)
    assert "wait forever" in " ".join(exported["FULL_TENSOR"].notes)
    assert "no graph execution traces" in " ".join(exported["NO_TENSOR"].notes)
    assert exported["FULL_HEALTH"].notes == ()


def test_a_run_can_be_exported_while_it_records(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with tfdbg_arrow.capture(logdir):
        run_program()
        for number in range(3):
            (run,) = export_logdir(logdir, tmp_path / str(number))
            found = alerts(run.dump)  # the monitor's reader fails if something that it needs is missing
            # A part with tensors can be written before the row of their node. The export leaves these tensors out, so
            # that the places of later tensors differ.
            expected = {alert[:-2] for alert in expected_alerts(logdir, "FULL_HEALTH")}
            assert {alert[:-2] for alert in found} <= expected
    (run,) = export_logdir(logdir, tmp_path / "all")
    assert alerts(run.dump) == expected_alerts(logdir, "FULL_HEALTH") != []


def test_wall_times_never_fall_in_a_file(tmp_path: Path) -> None:
    threads = [threading.Thread(target=run_program) for _ in range(2)]
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        run_program()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (run,) = export_logdir(tmp_path / "logdir", tmp_path / "dump")
    for name, found in messages(run.dump).items():
        times = [message.wall_time for message in found]
        assert times == sorted(times), name
    recorded = [row["wall_time_ns"] / 1e9 for row in rows(tmp_path / "logdir", "tensor_health")
                if row["scope"] == "graph"]  # fmt: skip
    (traces,) = [found for name, found in messages(run.dump).items() if name.endswith("graph_execution_traces")]
    # A time is changed only where a tensor arrived before another tensor that has an earlier time.
    np.testing.assert_allclose([message.wall_time for message in traces], sorted(recorded), rtol=0, atol=1e-3)


def test_ops_are_in_the_order_of_their_creation(tmp_path: Path) -> None:
    @tf.function
    def late(x: tf.Tensor) -> tf.Tensor:
        return tf.sin(x)

    @tf.function
    def early(x: tf.Tensor) -> tf.Tensor:
        x = tf.exp(x)
        return tf.cos(late(x))

    with tfdbg_arrow.capture(tmp_path / "logdir"):
        early(tf.constant([1.0]))
    (run,) = export_logdir(tmp_path / "logdir", tmp_path / "dump")
    (found,) = [found for name, found in messages(run.dump).items() if name.endswith(".graphs")]
    ops = [each.graph_op_creation.op_type for each in found if each.HasField("graph_op_creation")]
    assert [op_type for op_type in ops if op_type in ("Exp", "Sin", "Cos")] == ["Exp", "Sin", "Cos"]
