"""Exported traces are in the order of data flow, so that TensorFlow's monitor names the op that made the bad value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from tensorflow.python.debug.lib.debug_events_monitors import InfNanMonitor
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

import tfdbg_arrow
from tfdbg_arrow.debugger_v2 import export_order
from tfdbg_arrow.debugger_v2.export import export_logdir
from tfdbg_arrow.debugger_v2.export_order import CALL_COLUMNS, CallOrder, CallRow, ordered_calls
from tfdbg_arrow.debugger_v2.export_tables import KeyedRows, RunTables, to_rows

from .dumps import messages, rows
from .traced_program import run_program

NUM_RECORDINGS = 10
SIZE = 30_000
"""Elements of the tensors: so many that TensorFlow runs ops at the same time, and they arrive in any order."""
Build = Callable[[], Callable[[], Any]]
"""Builds a program and returns the function that runs it."""
PROGRAMS: dict[str, Build] = {}


def program(build: Build) -> Build:
    PROGRAMS[build.__name__] = build
    return build


@program
def one_log() -> Callable[[], Any]:
    @tf.function
    def slope(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.math.log(x))
        return loss, tape.gradient(loss, x)  # 1 / x does not depend on the log, and may be computed before it

    return lambda: slope(tf.range(float(SIZE)))


@program
def functions_that_call_each_other() -> Callable[[], Any]:
    @tf.function
    def even(x: tf.Tensor, depth: int) -> tf.Tensor:
        return tf.sin(x) + tf.cos(x) if depth == 0 else odd(x - 1.0, depth - 1) * tf.sin(x)

    @tf.function
    def odd(x: tf.Tensor, depth: int) -> tf.Tensor:
        return even(tf.math.reciprocal(x), depth - 1) - 0.5

    return lambda: even(tf.range(float(SIZE)), 4)


@program
def layer_with_a_gradient() -> Callable[[], Any]:
    layer = tf.keras.layers.Dense(3, activation=tf.math.log, kernel_initializer="zeros")
    layer.build((None, 2))

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    return lambda: step(tf.ones([SIZE // 3, 2]))


@program
def loop_that_goes_bad_late() -> Callable[[], Any]:
    @tf.function
    def shrink(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(5):
            x = tf.exp(tf.math.log(x - 1.0)) * 1.0  # 3, 2, 1, 0: log(0) in the third iteration
        return x

    return lambda: shrink(tf.range(3.0, 3.0 + SIZE))


@program
def branch() -> Callable[[], Any]:
    @tf.function
    def safe_or_not(x: tf.Tensor) -> tf.Tensor:
        y = x * 2.0
        if tf.reduce_sum(y) > 0.0:
            z = tf.math.rsqrt(y - 2.0)
            z = tf.sin(z) + tf.sqrt(z)
        else:
            z = y + 1.0
        return tf.reduce_max(z * 2.0)

    return lambda: safe_or_not(tf.range(1.0, 1.0 + SIZE))


Named = tuple[str, str, int]
"""The id of a graph, and the name and the output slot of an op."""


def first_alert(dump: Path) -> Named | None:
    """Returns the graph tensor that TensorFlow's monitor reports first."""
    with DebugDataReader(str(dump)) as reader:
        monitor = InfNanMonitor(reader)
        reader.update()
        index = monitor.alerts()[0].graph_execution_trace_index
        if index is None:
            return None
        trace = reader.graph_execution_traces()[index]
        return trace.graph_id, trace.op_name, trace.output_slot


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_alert_names_the_origin(name: str, tmp_path: Path) -> None:
    found = []
    for number in range(NUM_RECORDINGS):
        logdir, dump = tmp_path / f"logdir{number}", tmp_path / f"dump{number}"
        with tfdbg_arrow.capture(logdir):
            PROGRAMS[name]()()
        export_logdir(logdir, dump)
        origin = tfdbg_arrow.first_nonfinite(logdir)
        assert origin is not None
        (row,) = [row for row in rows(logdir, "tensor_health") if row["event_index"] == origin.event_index]
        found.append((first_alert(dump), (str(row["graph_id"]), row["op_name"], row["output_slot"])))
    assert sum(alert == origin for alert, origin in found) == NUM_RECORDINGS, found


def count_up(*, jit_compile: bool = False, inlines: bool = True) -> None:
    """Calls a function that adds to a tensor again and again, so that the values say the order of the data flow."""

    @tf.function(experimental_attributes=None if inlines else {"_noinline": True})
    def plus(x: tf.Tensor) -> tf.Tensor:
        return x + 1.0

    @tf.function(jit_compile=jit_compile)
    def count(x: tf.Tensor) -> tf.Tensor:
        x = plus(x)
        for i in tf.range(3):
            x = tf.abs(x) + 1.0
            x = plus(tf.abs(x)) if i % 2 == 0 else tf.abs(x) + 2.0
            for _ in tf.range(2 if jit_compile else i):  # the inner loop is not entered in the first iteration
                x = tf.abs(x) + 1.0
                for _ in tf.range(2):
                    x = plus(tf.abs(x))
            x = tf.abs(x) + 1.0
        while tf.reduce_sum(x) < 100.0:
            for _ in tf.range(2):  # nothing else is recorded in the outer loop
                x = tf.abs(x) + 7.0
        return plus(tf.abs(x))

    count(tf.constant([0.0]))


def recorded_rows(logdir: Path) -> tuple[RunTables, KeyedRows]:
    """Returns the tables of the only run, and its graph tensors."""
    tables = RunTables(logdir, rows(logdir, "run")[0]["run_id"])
    columns = (*CALL_COLUMNS, "op_type", "max_finite")
    return tables, tables.keyed("tensor_health", "event_index", columns, where=("scope", "graph"))


def calls_of(tables: RunTables, recorded: KeyedRows) -> Iterator[pa.Table]:
    """Yields the ordered rows of each known call."""

    def key(row: dict[str, Any]) -> tuple[int | None, int | None]:
        return row["execution_index"], row["step_id"] if row["execution_index"] is None else None

    for calls in ordered_calls(recorded, CallOrder(tables)):
        start = 0
        for call, found in groupby(calls.to_pylist(), key):
            num_rows = len(list(found))
            if call != (None, None):
                yield calls.slice(start, num_rows)
            start += num_rows


def sums(calls: pa.Table) -> list[float]:
    """Returns the values of the additions, in the order of the rows."""
    return [row["max_finite"] for row in calls.to_pylist() if row["op_type"] == "AddV2" and row["max_finite"]]


CHANGES = pytest.mark.parametrize(
    ("graphs", "jit_compile", "inlines"),
    [("executed", False, True), ("traced", False, True), ("executed", True, True), ("executed", False, False)],
)


@CHANGES
def test_values_that_only_grow_are_in_order(graphs: str, jit_compile: bool, inlines: bool, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, "FULL_NUMERICS", graphs=graphs):
        count_up(jit_compile=jit_compile, inlines=inlines)
    tables, recorded = recorded_rows(tmp_path)
    (call,) = [call for call in calls_of(tables, recorded) if call.num_rows > 3]
    found = sums(call)
    assert len(found) > 6  # of a compiled loop, only one or two iterations are recorded
    assert found == sorted(found)


@pytest.mark.parametrize("graphs", ["executed", "traced"])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_does_not_depend_on_the_arrival(graphs: str, seed: int, tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path, "FULL_NUMERICS", graphs=graphs):
        count_up()
        run_program()
    tables, recorded = recorded_rows(tmp_path)
    order = CallOrder(tables)
    names = ["call_site", "op_name", "frame_id", "iteration", "output_slot"]
    for call in calls_of(tables, recorded):
        shuffled = call.take(pa.array(np.random.default_rng(seed).permutation(call.num_rows)))
        arrived = [CallRow(*row) for row in to_rows(shuffled.select(CallRow._fields))]
        again = shuffled.take(pa.array(order.permutation(shuffled["step_id"].to_pylist(), arrived)))
        assert again.select(names).to_pylist() == call.select(names).to_pylist()


def test_a_consumer_follows_its_inputs(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path):
        run_program()
    tables, recorded = recorded_rows(tmp_path)
    nodes = {(row["executed_graph_id"], row["node_name"]): row for row in rows(tmp_path, "executed_op")}
    num_edges = 0

    def name(node: dict[str, Any]) -> tuple[int, str, str]:
        return node["graph_id"], node["call_site"], node["op_name"] or node["node_name"]

    edges = [
        (name(nodes[row["executed_graph_id"], row["source_node_name"]]),
         name(nodes[row["executed_graph_id"], row["node_name"]]))
        for row in rows(tmp_path, "executed_op_input")
        if nodes[row["executed_graph_id"], row["source_node_name"]]["op_type"] != "NextIteration"
    ]  # fmt: skip
    for call in calls_of(tables, recorded):
        places: dict[tuple[int, int], dict[tuple[int, str, str], int]] = {}
        for place, row in enumerate(call.to_pylist()):
            context = places.setdefault((row["frame_id"], row["iteration"]), {})
            context.setdefault((row["graph_id"], row["call_site"], row["op_name"]), place)
        for context in places.values():
            known = [(context[source], context[node]) for source, node in edges if {source, node} <= context.keys()]
            assert [(source, node) for source, node in known if source >= node] == []
            num_edges += len(known)
    assert num_edges > 50


@pytest.mark.parametrize("window", [1, 7, 50])
def test_calls_that_do_not_end_in_a_window_are_written_whole(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tfdbg_arrow.capture(tmp_path):
        run_program()
        tf.raw_ops.DatasetToSingleElement(
            dataset=tf.data.Dataset.range(1).map(lambda i: tf.cast(i, tf.float32) + 1.0)._variant_tensor,
            output_types=[tf.float32], output_shapes=[[]],
        )  # fmt: skip
    tables, recorded = recorded_rows(tmp_path)
    expected = pa.concat_tables(ordered_calls(recorded, CallOrder(tables)))
    assert sorted(expected["event_index"].to_pylist()) == expected.sort_by("event_index")["event_index"].to_pylist()
    monkeypatch.setattr(export_order, "_WINDOW", window)
    assert pa.concat_tables(ordered_calls(recorded, CallOrder(tables))).equals(expected)


@pytest.mark.slow
def test_a_call_with_the_rows_of_an_earlier_one_is_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, once = one_log(), tf.function(lambda x: tf.sin(x) + tf.cos(x))
    with tfdbg_arrow.capture(tmp_path):
        for number in range(30):
            run()
            count_up()
            once(tf.constant(float(number)))
    tables, recorded = recorded_rows(tmp_path)
    found = pa.concat_tables(ordered_calls(recorded, CallOrder(tables)))
    monkeypatch.setattr(export_order, "_MAX_KNOWN_ROWS", 0)  # find each order anew
    assert pa.concat_tables(ordered_calls(recorded, CallOrder(tables))).equals(found)


def test_wall_times_never_fall_in_a_file(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        run_program()
        count_up()
    (run,) = export_logdir(tmp_path / "logdir", tmp_path / "dump")
    for name, found in messages(run.dump).items():
        times = [message.wall_time for message in found]
        assert times == sorted(times), name
    recorded = [row["wall_time_ns"] / 1e9 for row in rows(tmp_path / "logdir", "tensor_health")
                if row["scope"] == "graph"]  # fmt: skip
    (traces,) = [found for name, found in messages(run.dump).items() if name.endswith("graph_execution_traces")]
    # A time is changed only where calls overlap, by less than they do.
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


def test_an_output_that_was_not_measured_has_the_device_of_the_others(tmp_path: Path) -> None:
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        tf.nn.top_k(tf.constant([1.0, 2.0]))  # its indices are integers, which have no health
    (run,) = export_logdir(tmp_path / "logdir", tmp_path / "dump")
    with DebugDataReader(str(run.dump)) as reader:
        reader.update()
        (execution,) = [each for each in reader.executions() if each.op_type == "TopKV2"]
        names = [reader.device_name_by_id(number) for number in execution.output_tensor_device_ids]
    assert len(names) == 2
    assert names[0] == names[1] != "unknown"
