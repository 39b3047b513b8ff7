"""Test that TensorBoard's Debugger V2 plugin answers each of its HTTP routes from an exported dump.

TensorBoard's own tests of the plugin check the same routes and the same facts with TensorFlow's dumps.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import tensorflow as tf
from tensorboard.plugins.debugger_v2 import debug_data_multiplexer
from werkzeug import test as werkzeug_test

import tfdbg_arrow
from tests.writer.debugger_v2.dumps import rows
from tfdbg_arrow.debugger_v2.export import export_logdir

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by an HTML parser that TensorBoard contains
    from tensorboard.backend import application
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.debugger_v2 import debugger_v2_plugin

RUN = "__default_debugger_run__"
NUM_CALLS = 3
CONCISE_HEALTH = 3
"""The number of this tensor debug mode in TensorFlow's protocol."""
Get = Callable[..., tuple[int, Any]]
"""Requests a route with parameters, and returns the status and the JSON."""


def run_program(x: tf.Tensor) -> tf.Tensor:
    """Calls a function with two inner functions, then runs eager ops on bad values. One inner function has a loop."""

    @tf.function
    def weighted(parts: tf.Tensor) -> tf.Tensor:
        a, b, c = tf.unstack(parts)
        return a * b + c

    @tf.function
    def doubled(value: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        i = tf.constant(0)
        while i < times:
            value *= 2.0
            i += 1
        return value

    @tf.function
    def outermost(parts: tf.Tensor) -> tf.Tensor:
        return doubled(weighted(parts), tf.constant(2))

    for _ in range(NUM_CALLS):
        result = outermost(x)  # the source line of the calls
    tf.math.log(tf.math.log(tf.math.log(x - 2.0)))  # [0, 1, 2]: -inf, then NaN, then another NaN
    return result


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded") / "logdir"
    tf.compat.v1.reset_default_graph()  # if another test put ops into this graph, it is recorded as the outermost graph
    x = tf.constant([2.0, 3.0, 4.0])
    with tfdbg_arrow.capture(directory, "CONCISE_HEALTH", graphs="traced"):
        assert float(run_program(x)) == 40.0
    return directory


@pytest.fixture(scope="module")
def get(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    dump = tmp_path_factory.mktemp("exported") / "dump"
    export_logdir(logdir, dump)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debug_data_multiplexer, "run_repeatedly_in_background", _run_once)
        yield _client(dump)


def _run_once(target: Callable[[], None], interval_sec: float) -> tuple[None, None]:
    """Reads the dump once, before the request is answered, instead of repeatedly in a thread."""
    del interval_sec
    target()
    return None, None


def _client(dump: Path) -> Get:
    plugin = debugger_v2_plugin.DebuggerV2Plugin(base_plugin.TBContext(logdir=str(dump)))
    client = werkzeug_test.Client(application.TensorBoardWSGI([plugin]))

    def get(route: str, **parameters: object) -> tuple[int, Any]:
        response = client.get(f"/data/plugin/debugger-v2{route}?{urlencode(parameters)}")
        assert response.headers["content-type"] == "application/json"
        return response.status_code, json.loads(response.get_data())

    return get


def answer(get: Get, route: str, **parameters: object) -> Any:
    status, found = get(route, run=RUN, **parameters)
    assert status == 200, found
    return found


def first_op(get: Get, op_type: str) -> tuple[str, str]:
    """Returns the graph and the name of the first op of a type that ran in a graph."""
    digests = answer(get, "/graph_execution/digests")["graph_execution_digests"]
    digest = next(each for each in digests if each["op_type"] == op_type)
    return digest["graph_id"], digest["op_name"]


def test_runs(get: Get, logdir: Path, tmp_path: Path) -> None:
    status, found = get("/runs")
    assert (status, found) == (200, {RUN: {"start_time": rows(logdir, "run")[0]["wall_time_ns"] / 10**9}})
    assert _client(tmp_path)("/runs") == (200, {})


def test_execution_data(get: Get, logdir: Path) -> None:
    found = answer(get, "/execution/data", begin=0, end=-1)
    assert (found["begin"], found["end"]) == (0, NUM_CALLS + 4)
    calls, eager = found["executions"][:NUM_CALLS], found["executions"][NUM_CALLS:]
    host = rows(logdir, "run")[0]["host_name"]
    assert {(each["host_name"], each["tensor_debug_mode"]) for each in calls + eager} == {(host, CONCISE_HEALTH)}
    assert all(each["stack_frame_ids"] for each in calls + eager)
    # Each call takes the same tensor and runs the same graph, but makes a different tensor.
    assert len({(each["graph_id"], *each["input_tensor_ids"]) for each in calls}) == 1
    assert len({output for each in calls for output in each["output_tensor_ids"]}) == NUM_CALLS
    assert [each["debug_tensor_values"] for each in calls] == [[[-1.0, 1.0, 0.0, 0.0, 0.0]]] * NUM_CALLS
    assert {each["graph_id"] for each in eager} == {""}
    assert [each["debug_tensor_values"] for each in eager] == [
        [[-1.0, 3.0, 0.0, 0.0, 0.0]],
        [[-1.0, 3.0, 1.0, 0.0, 0.0]],
        [[-1.0, 3.0, 1.0, 0.0, 1.0]],
        [[-1.0, 3.0, 0.0, 0.0, 3.0]],
    ]
    devices = [each["output_tensor_device_ids"] for each in calls + eager]
    assert devices == [devices[0]] * len(devices)
    assert len(devices[0]) == 1
    for before, after in pairwise(eager):
        assert after["input_tensor_ids"] == before["output_tensor_ids"]


def test_graph_execution_data(get: Get) -> None:
    digests = answer(get, "/graph_execution/digests")["graph_execution_digests"]
    found = answer(get, "/graph_execution/data", begin=0, end=-1)
    traces = found["graph_executions"]
    assert (found["begin"], found["end"], len(traces)) == (0, len(digests), len(digests))
    for digest, trace in zip(digests, traces, strict=True):
        assert {name: trace[name] for name in digest} == digest
        assert trace["graph_ids"][-1] == trace["graph_id"]
        assert trace["tensor_debug_mode"] == CONCISE_HEALTH
        assert trace["device_name"].endswith("CPU:0")
        size = 3.0 if trace["op_type"] == "Placeholder" else 1.0
        if trace["op_type"] in ("Unpack", "Mul", "AddV2"):
            assert trace["debug_tensor_value"][1:] == [size, 0.0, 0.0, 0.0]
    # A summary begins with the ID of its tensor. The outputs of an op have consecutive IDs.
    unpacked = [trace for trace in traces if trace["op_type"] == "Unpack"]
    (first,) = {trace["debug_tensor_value"][0] - trace["output_slot"] for trace in unpacked}
    ids = sorted(trace["debug_tensor_value"][0] for trace in unpacked)
    assert ids == [first] * NUM_CALLS + [first + 1] * NUM_CALLS + [first + 2] * NUM_CALLS
    part = answer(get, "/graph_execution/data", begin=1, end=3)
    assert part == {"begin": 1, "end": 3, "graph_executions": traces[1:3]}


def test_graph_info_leads_from_an_inner_graph_outwards(get: Get) -> None:
    graph_id, _ = first_op(get, "Unpack")
    inner = answer(get, "/graphs/graph_info", graph_id=graph_id)
    assert (inner["graph_id"], inner["name"], inner["inner_graph_ids"]) == (graph_id, "weighted", [])
    outer = answer(get, "/graphs/graph_info", graph_id=inner["outer_graph_id"])
    assert (outer["name"], outer["outer_graph_id"]) == ("outermost", None)  # see differences.default_graph
    children = {each: answer(get, "/graphs/graph_info", graph_id=each) for each in outer["inner_graph_ids"]}
    assert sorted(child["name"] for child in children.values()) == ["doubled", "weighted"]
    (doubled,) = [child for child in children.values() if child["name"] == "doubled"]
    loop = [answer(get, "/graphs/graph_info", graph_id=each) for each in doubled["inner_graph_ids"]]
    assert {"while_cond", "while_body"} <= {"_".join(each["name"].split("_")[:2]) for each in loop}
    assert all(each["outer_graph_id"] == doubled["graph_id"] for each in loop)
    status, error = get("/graphs/graph_info", run=RUN, graph_id="no such graph")
    assert (status, error) == (400, {"error": 'Not found: There is no graph with ID "no such graph"'})


def test_op_info_has_inputs_and_consumers(get: Get, logdir: Path) -> None:
    graph_id, op_name = first_op(get, "AddV2")
    found = answer(get, "/graphs/op_info", graph_id=graph_id, op_name=op_name)
    host = rows(logdir, "run")[0]["host_name"]
    assert (found["op_type"], found["op_name"], found["num_outputs"]) == ("AddV2", op_name, 1)
    assert (found["host_name"], found["graph_ids"][-1], len(found["graph_ids"])) == (host, graph_id, 2)
    assert len(found["output_tensor_ids"]) == 1
    assert found["stack_frame_ids"]
    product, third = found["inputs"]
    assert (product["output_slot"], product["data"]["op_type"]) == (0, "Mul")
    assert (third["output_slot"], third["data"]["op_type"], third["data"]["num_outputs"]) == (2, "Unpack", 3)
    assert product["data"]["graph_ids"] == found["graph_ids"]
    # For each output of the op that unpacks: its only consumer, and the index of the consumer's input.
    consumers = [[(each["op_name"], each["input_slot"]) for each in slot] for slot in third["data"]["consumers"]]
    assert consumers == [[(product["op_name"], 0)], [(product["op_name"], 1)], [(op_name, 1)]]
    ((consumer,),) = found["consumers"]
    assert (consumer["input_slot"], consumer["data"]["op_type"]) == (0, "Identity")
    assert consumer["data"]["inputs"] == [{"op_name": op_name, "output_slot": 0}]
    assert consumer["data"]["consumers"] == [[]]


def test_op_info_of_ops_at_the_border_of_a_graph(get: Get) -> None:
    graph_id, _ = first_op(get, "Unpack")
    result = answer(get, "/graphs/op_info", graph_id=graph_id, op_name="Identity")
    assert [(each["output_slot"], each["data"]["op_type"]) for each in result["inputs"]] == [(0, "AddV2")]
    assert result["consumers"] == [[]]
    argument = answer(get, "/graphs/op_info", graph_id=graph_id, op_name="parts")
    assert (argument["op_type"], argument["inputs"], argument["num_outputs"]) == ("Placeholder", [], 1)
    assert [[each["data"]["op_type"] for each in slot] for slot in argument["consumers"]] == [["Unpack"]]
    status, error = get("/graphs/op_info", run=RUN, graph_id=graph_id, op_name="absent")
    expected = f'Not found: There is no op named "absent" in graph with ID "{graph_id}"'
    assert (status, error) == (400, {"error": expected})


def test_source_files(get: Get, logdir: Path) -> None:
    listed = answer(get, "/source_files/list")
    mine = [rows(logdir, "run")[0]["host_name"], __file__]
    found = answer(get, "/source_files/file", index=listed.index(mine))
    lines = Path(__file__).read_text("utf-8").split("\n")
    assert found == {"host_name": mine[0], "file_path": mine[1], "lines": lines}
    status, error = get("/source_files/file", run=RUN, index=len(listed))
    assert (status, error) == (400, {"error": f"Not found: There is no source-code file at index {len(listed)}"})


def test_stack_frames(get: Get, logdir: Path) -> None:
    (execution,) = answer(get, "/execution/data", begin=0, end=1)["executions"]
    frame_ids = execution["stack_frame_ids"]
    found = answer(get, "/stack_frames/stack_frames", stack_frame_ids=",".join(frame_ids))["stack_frames"]
    assert len(found) == len(frame_ids)
    host = rows(logdir, "run")[0]["host_name"]
    assert all(frame[0] == host and frame[1] and frame[2] >= 1 and frame[3] for frame in found)
    lines = Path(__file__).read_text("utf-8").split("\n")
    mine = [(lines[lineno - 1], function) for _, path, lineno, function in found if path == __file__]
    assert [function for _, function in mine] == ["logdir", "run_program"]  # the outermost frame comes first
    assert mine[-1][0].endswith("# the source line of the calls")


def test_alerts(get: Get) -> None:
    found = answer(get, "/alerts", begin=0, end=-1)
    names = ("op_type", "size", "num_neg_inf", "num_pos_inf", "num_nan", "execution_index")
    expected = [("Log", 3.0, 1.0, 0.0, 0.0, 4), ("Log", 3.0, 1.0, 0.0, 1.0, 5), ("Log", 3.0, 0.0, 0.0, 3.0, 6)]
    alerts = [
        {
            "alert_type": "InfNanAlert",
            "output_slot": 0,
            "graph_execution_trace_index": None,
            **dict(zip(names, values, strict=True)),
        }
        for values in expected
    ]
    whole = {
        "begin": 0,
        "end": 3,
        "num_alerts": 3,
        "alerts_breakdown": {"InfNanAlert": 3},
        "per_type_alert_limit": 1000,
        "alert_type": None,
        "alerts": alerts,
    }
    assert found == whole
    assert answer(get, "/alerts", begin=0, end=0) == {**whole, "end": 0, "alerts": []}
    some = answer(get, "/alerts", begin=1, end=-1, alert_type="InfNanAlert")
    assert some == {**whole, "begin": 1, "alert_type": "InfNanAlert", "alerts": alerts[1:]}
    status, error = get("/alerts", run=RUN, begin=0, end=-1, alert_type="Other")
    message = "Invalid argument: Filtering of alerts failed: alert type Other does not exist"
    assert (status, error) == (400, {"error": message})
