"""Test the neighbourhood of an op: the ops and edges around it, the limits, and the states of the ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.display.neighbourhood import Neighbourhood, neighbourhood
from tfdbg_arrow.query.recorded import Context

from .builder import CLEAN, NAN, GraphBuilder, RunBuilder


def around(run: RunBuilder, path: Path, op_name: str, *, graph_id: int = 0, **asked: Any) -> Neighbourhood:
    with open_logdir(run.write(path)) as logdir:
        found = neighbourhood(logdir, op_name, run_id=run.run_id, graph_id=graph_id, **asked)
    assert found is not None
    return found


def levels(found: Neighbourhood) -> dict[str, int]:
    return {node.op_name: node.level for node in found.nodes}


def edges(found: Neighbourhood) -> set[tuple[str, str]]:
    return {(edge.source_op_name, edge.op_name) for edge in found.edges}


def waits(graph: GraphBuilder, op_name: str, source: str, index: int = 0) -> None:
    graph.run.add(
        "graph_op_input",
        graph_id=graph.graph_id,
        op_name=op_name,
        input_index=index,
        is_control=True,
        source_op_name=source,
    )


def test_the_distance_limits_a_chain(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a")
    for name, source in zip("bcdefg", "abcdef", strict=True):
        graph.op(name, "Neg", [source])
    found = around(run, tmp_path, "d", up=2, down=1)
    assert levels(found) == {"d": 0, "c": -1, "e": 1, "b": -2}
    assert edges(found) == {("b", "c"), ("c", "d"), ("d", "e")}
    assert (found.num_inputs_left_out, found.num_consumers_left_out, found.is_cut) == (0, 0, False)
    assert [(node.num_inputs, node.num_consumers) for node in found.nodes] == [(1, 1)] * 4
    assert levels(around(run, tmp_path, "d", up=0, down=0)) == {"d": 0}


def test_a_diamond_has_each_op_once_and_all_edges(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("top").op("left", "Neg", ["top"]).op("right", "Exp", ["top"])
    graph.op("bottom", "Mul", ["left", "right"]).op("square", "Mul", ["bottom", "bottom:0"])
    found = around(run, tmp_path, "bottom")
    assert levels(found) == {"bottom": 0, "left": -1, "right": -1, "square": 1, "top": -2}
    assert edges(found) == {
        ("top", "left"),
        ("top", "right"),
        ("left", "bottom"),
        ("right", "bottom"),
        ("bottom", "square"),
    }
    assert [edge.input_indexes for edge in found.edges if edge.op_name == "square"] == [(0, 1)]


def test_control_edges_are_included_by_default(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a").op("b", "Assign").op("c", "Neg", ["a"])
    waits(graph, "c", "b")
    found = around(run, tmp_path, "c")
    assert {(edge.source_op_name, edge.is_control, edge.source_output_slot) for edge in found.edges} == {
        ("a", False, 0),
        ("b", True, None),
    }
    assert levels(around(run, tmp_path, "c", has_control=False)) == {"c": 0, "a": -1}


def test_too_many_consumers_are_cut_and_counted_and_bad_ones_come_first(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x")
    for number in range(600):
        graph.op(f"y{number:03}", "Neg", ["x"])
    run.tensor(graph, "y555", NAN)
    found = around(run, tmp_path, "x", max_fan=5)
    assert list(levels(found)) == ["x", "y555", "y000", "y001", "y002", "y003"]
    assert (found.num_consumers_left_out, found.is_cut) == (595, True)
    assert found.nodes[0].num_consumers == 600
    room = around(run, tmp_path, "x", max_ops=4, max_fan=1000)
    assert (len(room.nodes), room.num_consumers_left_out, room.is_cut) == (4, 597, True)


def test_bad_neighbours_come_first_in_a_graph_of_many_bad_ops(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x")
    for number in range(400):
        graph.op(f"other{number}", "Neg")
        run.tensor(graph, f"other{number}", NAN)
    graph.op("y0", "Neg", ["x"]).op("y1", "Neg", ["x"])
    run.tensor(graph, "y1", NAN)
    assert list(levels(around(run, tmp_path, "x", max_fan=1))) == ["x", "y1"]


def test_edges_that_are_left_out_are_counted(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.graph("f").op("x").op("y", "Pack", ["x"] * 4100)
    found = around(run, tmp_path, "y")
    assert (len(found.edges[0].input_indexes), found.num_edges_left_out, found.is_cut) == (4000, 100, False)


def test_too_many_inputs_are_cut_and_counted(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f")
    for number in range(500):
        graph.op(f"x{number:03}", "Const")
    graph.op("sum", "AddN", [f"x{number:03}" for number in reversed(range(500))])
    found = around(run, tmp_path, "sum")
    assert (list(levels(found))[:3], len(found.nodes)) == (["sum", "x499", "x498"], 25)
    assert found.num_inputs_left_out == 476


def test_the_state_of_an_op_is_the_worst_of_its_outputs(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = (
        run.graph("f")
        .op("bad", "Split", dtypes=("float32", "float32"))
        .op("healthy", "Mul", ["bad:1"])
        .op("unmeasured", "Mul", ["healthy"])
        .op("idle", "Mul", ["healthy"])
        .op("hidden", "Shape", ["healthy"], not_recorded="dtype")
        .op("nothing", "NoOp", dtypes=())
        .op("orphan", "Mul", ["lost"])
    )
    waits(graph, "nothing", "healthy")
    run.tensor(graph, "bad:0", CLEAN)
    first_bad = run.tensor(graph, "bad:1", NAN)
    run.tensor(graph, "bad:1", NAN, step=2)
    run.tensors(graph, {"healthy": CLEAN, "unmeasured": {"has_inf_or_nan": None}})
    found = around(run, tmp_path, "healthy")
    assert {node.op_name: node.state for node in found.nodes} == {
        "bad": "bad",
        "healthy": "healthy",
        "unmeasured": "unmeasured",
        "idle": "not computed",
        "hidden": "not recorded",
        "nothing": "no output",
    }
    health = next(node for node in found.nodes if node.op_name == "bad").outputs[1].health
    assert (health.num_tensors, health.num_bad, health.num_nan, health.first_bad_event_index) == (2, 2, 2, first_bad)
    (lost,) = [node for node in around(run, tmp_path, "orphan").nodes if node.op_name == "lost"]
    assert (lost.op_type, lost.state, lost.outputs) == (None, "unknown", ())


def test_health_of_one_call_and_iteration(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x").op("y", "Neg", ["x"])
    for step, iteration, health in ((1, 0, CLEAN), (1, 1, NAN), (2, 0, CLEAN)):
        for name in "xy":
            run.tensor(graph, name, health, step=step, frame=7, iteration=iteration, site="while/body")
    states = {
        (step, iteration): {
            node.state
            for node in around(run, tmp_path, "y", context=Context(step, None, "while/body", 7, iteration)).nodes
        }
        for step, iteration in ((1, 0), (1, 1), (2, 0), (3, 0))
    }
    assert states == {(1, 0): {"healthy"}, (1, 1): {"bad"}, (2, 0): {"healthy"}, (3, 0): {"not computed"}}
    assert {node.state for node in around(run, tmp_path, "y").nodes} == {"bad"}


def test_two_graphs_with_the_same_name_are_distinguished(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.graph("f").op("a").op("x", "Neg", ["a"])
    other = run.graph("f").op("b").op("x", "Exp", ["b"])
    run.tensor(other, "x", NAN)
    assert [(node.op_name, node.state) for node in around(run, tmp_path, "x", graph_id=0).nodes] == [
        ("x", "not computed"),
        ("a", "not computed"),
    ]
    found = around(run, tmp_path, "x", graph_id=1)
    assert (found.nodes[0].op_name, found.nodes[0].op_type, found.nodes[0].state) == ("x", "Exp", "bad")


@pytest.mark.parametrize("name", ["größe/∇ß", "a'b\"c;--", "<script>", "x" * 5000, "%_"])
def test_names_are_taken_literally(name: str, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.graph("f").op(name).op("y", "Neg", [name])
    assert levels(around(run, tmp_path, name)) == {name: 0, "y": 1}


def test_a_missing_op_has_no_neighbourhood(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.graph("f").op("x")
    with open_logdir(run.write(tmp_path)) as logdir:
        assert neighbourhood(logdir, "y", run_id="run-a", graph_id=0) is None
        assert neighbourhood(logdir, "x", run_id="run-a", graph_id=1) is None
        assert neighbourhood(logdir, "x", run_id="run-b", graph_id=0) is None


def test_the_search_ends_on_a_cycle(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("enter", "Enter").op("merge", "Merge", ["enter", "next"])
    graph.op("body", "Mul", ["merge"]).op("next", "NextIteration", ["body"])
    found = around(run, tmp_path, "body", up=8, down=8)
    assert set(levels(found)) == {"body", "merge", "next", "enter"}
    assert ("next", "merge") in edges(found)
