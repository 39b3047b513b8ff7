"""Test spread, which lists the bad tensors that a bad tensor caused, and test the rows of the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import open_logdir, provenance, spread

from .builder import CLEAN, INF, NAN, RunBuilder


def training(tmp_path: Path) -> Path:
    """Writes a run of two calls. The first one assigns a NaN to a variable and returns it. The second one reads it."""
    run = RunBuilder("run-a")
    stack = run.stack(("/home/me/train.py", 7, "step", "g = tf.math.log(x)", "user"))
    graph = run.graph("step").op("x", "Placeholder").op("handle", "Placeholder", dtypes=["resource"])
    graph.op("read", "ReadVariableOp", ["handle"]).op("Log", inputs=["x"], stack=stack).op("clip", "Minimum", ["Log"])
    graph.op("assign", "AssignVariableOp", ["handle", "Log"], dtypes=[]).op("loss", "Mul", ["read", "Log"])
    graph.op("Identity", inputs=["loss"])
    graph.function("__inference_step_1", ["x"], ["Identity"], captures=["handle"])
    for number, reads in enumerate((CLEAN, NAN)):
        call = run.execution(
            "__inference_step_1", graph=graph, inputs=[10 + number, 5], outputs={20 + number: "float32"}
        )
        log = NAN if number == 0 else CLEAN
        place = {"execution": call, "step": 70 + number}
        run.tensor(graph, "loss", NAN, **place)  # recorded before its inputs
        run.tensors(graph, {"x": CLEAN, "read": reads, "Log": log, "clip": CLEAN, "Identity": NAN}, **place)
        run.eager(call, NAN, tensor_id=20 + number)
    return run.write(tmp_path)


def test_the_spread_follows_variables_and_calls_to_the_returned_tensors(tmp_path: Path) -> None:
    found = spread(training(tmp_path), 4)
    assert [
        (
            hop.op_name,
            hop.execution_index,
            hop.source_hop_index,
            hop.input_index,
            hop.how,
            hop.variables,
            hop.returned_by,
        )
        for hop in found.hops
    ] == [
        ("Log", 0, None, None, "start", (5,), ()),
        ("loss", 0, 0, 1, "graph", (), ("step:0",)),
        ("read", 1, 0, 0, "variable", (), ()),
        ("loss", 1, 2, 0, "graph", (), ("step:0",)),
    ]
    assert (found.variables, found.returned_by, found.is_cut) == ((5,), ("step:0",), False)


def test_the_spread_starts_at_the_op_that_computed_the_tensor(tmp_path: Path) -> None:
    logdir = training(tmp_path)
    with open_logdir(logdir) as opened:
        ((last,),) = opened.rows("SELECT max(event_index) FROM tensor_health")
    assert [hop.op_name for hop in spread(logdir, last).hops] == ["loss"]


def test_a_limited_spread_is_marked_as_cut(tmp_path: Path) -> None:
    found = spread(training(tmp_path), 4, limit=2)
    assert ([hop.op_name for hop in found.hops], found.is_cut) == (["Log", "loss"], True)


def test_errors_for_a_healthy_tensor_and_an_invalid_limit(tmp_path: Path) -> None:
    logdir = training(tmp_path)
    with pytest.raises(QueryError, match="event 2 of run run-a holds no infinity and no NaN"):
        spread(logdir, 2)
    with pytest.raises(QueryError, match="limit is 0"):
        spread(logdir, 4, limit=0)


def test_rows_are_flat(tmp_path: Path) -> None:
    found = spread(training(tmp_path), 4)
    rows = found.rows()
    assert [tuple(row) for row in rows] == [found.columns()] * 4
    assert {key: rows[0][key] for key in ("shape", "variables", "returned_by", "file_path", "lineno")} == {
        "shape": "[2]",
        "variables": "5",
        "returned_by": "",
        "file_path": "/home/me/train.py",
        "lineno": 7,
    }


def test_a_recursive_query_finds_the_same_path_within_one_call(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a", "Exp").op("b", "Neg", ["a"]).op("c", "Sub", ["b", "a"]).op("d", "Abs")
    graph.op("e", "AddV2", ["c", "d"])
    run.tensors(graph, {"e": NAN, "a": INF, "b": INF, "c": NAN, "d": CLEAN})
    logdir = run.write(tmp_path)
    with open_logdir(logdir) as opened:
        way = opened.rows(
            "WITH RECURSIVE way(event_index, depth) AS (SELECT CAST(0 AS BIGINT), 0 UNION ALL "
            "SELECT i.source_node_id, w.depth + 1 FROM way AS w "
            "JOIN tensor_input AS i ON i.run_id = 'run-a' AND i.node_id = w.event_index "
            "JOIN nonfinite_tensor AS n ON n.run_id = 'run-a' AND n.event_index = i.source_node_id) "
            "SELECT event_index, min(depth) FROM way GROUP BY event_index ORDER BY event_index"
        )
    assert way == [(0, 0), (1, 2), (2, 2), (3, 1)]
    assert sorted(hop.event_index for hop in provenance(logdir, 0).hops) == [index for index, _ in way]
