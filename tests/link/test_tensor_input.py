"""Test the view `tensor_input`: what its rows are, when it is computed, and that hostile logdirs do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.query.builder import CLEAN, NAN, RunBuilder
from tfdbg_arrow.link import LINKED_TABLES, linked_run
from tfdbg_arrow.query import export, open_logdir
from tfdbg_arrow.query.logdir.live_views import mentioned_tables
from tfdbg_arrow.query.sql_sandbox import Sandbox

INPUTS = "SELECT node_id, input_index, source_event_index, source_kind, source_op_name FROM tensor_input ORDER BY ALL"


def rows(logdir: Path, query: str = INPUTS) -> list[tuple[Any, ...]]:
    with open_logdir(logdir) as opened:
        return opened.rows(query)


def called_twice(run: RunBuilder) -> RunBuilder:
    """Adds a call of a function that calls another function twice: f(x) = g(g(x))."""
    inner = run.graph("g").op("y", "Placeholder").op("Exp", inputs=["y"]).function("g_1", ["y"], ["Exp"])
    outer = run.graph("f").op("x", "Placeholder").op("a", "StatefulPartitionedCall", ["x"])
    outer.op("b", "StatefulPartitionedCall", ["a"]).function("f_1", ["x"], ["b"])
    for name in ("a", "b"):
        outer.calls(name, "g_1", inner)
    call = run.execution("f_1", inputs=[5], outputs={6: "float32"}, graph=outer)
    run.external(5, CLEAN, execution=call)
    for site in ("a", "b/_3"):
        run.tensor(inner, "Exp", CLEAN, execution=call, site=site)
    run.eager(call, NAN, tensor_id=6)
    return run


def test_each_input_of_an_op_is_a_row(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("a", "Unpack", dtypes=["float32", "float32"]).op("b", "Sub", ["a:1", "a:0"])
    for name in ("a:0", "a:1", "b"):
        run.tensor(graph, name, CLEAN)
    assert rows(run.write(tmp_path)) == [(2, 0, 1, "tensor", "a"), (2, 1, 0, "tensor", "a")]


def test_arguments_and_results_lead_over_calls_without_rows_between(tmp_path: Path) -> None:
    logdir = called_twice(RunBuilder("run-a")).write(tmp_path)
    with open_logdir(logdir) as opened:
        found = opened.rows(
            "WITH RECURSIVE behind(event_index, node_id, kinds) AS ("
            "SELECT event_index, source_node_id, [source_kind] FROM tensor_input WHERE event_index IS NOT NULL "
            "UNION ALL SELECT b.event_index, i.source_node_id, list_append(b.kinds, i.source_kind) FROM behind AS b "
            "JOIN tensor_input AS i ON i.node_id = b.node_id WHERE b.node_id < 0) "
            "SELECT event_index, node_id, kinds FROM behind WHERE node_id >= 0 ORDER BY ALL"
        )
    assert found == [
        (2, 1, ["tensor", "argument", "argument"]),
        (3, 2, ["tensor", "argument", "result"]),
        (4, 3, ["result", "result"]),
    ]


def test_a_variable_holds_what_was_added_and_what_it_held_before(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.execution("VarHandleOp", outputs={1: "resource"})
    values = []
    for tensor_id, op_type in ((2, "AssignVariableOp"), (3, "AssignAddVariableOp"), (4, "AssignAddVariableOp")):
        made = run.execution("Exp", outputs={tensor_id: "float32"})
        values.append(run.eager(made, CLEAN, tensor_id=tensor_id))
        run.execution(op_type, inputs=[1, tensor_id])
    read = run.eager(run.execution("ReadVariableOp", inputs=[1], outputs={5: "float32"}), CLEAN, tensor_id=5)
    logdir = run.write(tmp_path)
    behind = (
        "WITH RECURSIVE behind(node_id) AS (SELECT source_node_id FROM tensor_input WHERE event_index = ? UNION "
        "SELECT i.source_node_id FROM behind AS b JOIN tensor_input AS i USING (node_id)) "
        "SELECT node_id FROM behind WHERE node_id >= 0 ORDER BY 1"
    )
    with open_logdir(logdir) as opened:
        assert opened.rows(behind, [read]) == [(value,) for value in values]
        assert opened.rows("SELECT DISTINCT source_kind FROM tensor_input") == [("variable",)]


def test_what_no_row_tells_is_not_recorded(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("b", "Neg", ["x"]).function("f_1", ["x"], ["b"])
    run.tensor(graph, "b", CLEAN, step=None)
    next_element = run.execution("IteratorGetNext", outputs={1: "float32"})
    run.eager(next_element, CLEAN, tensor_id=1)
    assert rows(run.write(tmp_path)) == [(0, None, None, "not recorded", None), (2, None, None, "not recorded", None)]


def test_windows_of_rows_have_the_rows_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunBuilder("run-a")
    for _ in range(3):
        called_twice(run)
    logdir = run.write(tmp_path)
    whole = rows(logdir)
    monkeypatch.setattr(linked_run, "WINDOW_ROWS", 2)
    assert rows(logdir) == whole
    assert len(whole) > 20


def test_all_runs_are_in_the_view_and_new_ones_after_a_refresh(tmp_path: Path) -> None:
    called_twice(RunBuilder("run-a")).write(tmp_path)
    with open_logdir(tmp_path) as opened:
        query = "SELECT run_id, count(*) FROM tensor_input GROUP BY run_id ORDER BY run_id"
        assert opened.rows(query) == [("run-a", 8)]
        called_twice(RunBuilder("run-b")).write(tmp_path)
        opened.refresh()
        assert opened.rows(query) == [("run-a", 8), ("run-b", 8)]
        assert opened.of_run("run-b").rows(query) == [("run-b", 8)]


def test_the_view_is_computed_only_for_statements_that_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logdir = called_twice(RunBuilder("run-a")).write(tmp_path)
    with open_logdir(logdir) as opened:
        with monkeypatch.context() as patched:
            patched.setattr("tfdbg_arrow.query.logdir.linked.LinkedRun", None)  # fails when called
            assert opened.rows("SHOW TABLES")
            with pytest.raises(duckdb.Error, match="the view tensor_input was not computed"):
                opened.connection.execute("SELECT * FROM tensor_input")
        assert len(opened.rows(INPUTS)) == 8


def test_all_tables_that_the_view_reads_are_fetched_from_a_url() -> None:
    assert mentioned_tables(INPUTS) == set(LINKED_TABLES)


def test_the_view_in_the_sandbox_and_in_an_export(tmp_path: Path) -> None:
    logdir = called_twice(RunBuilder("run-a")).write(tmp_path / "logdir")
    query = "SELECT * FROM tensor_input ORDER BY ALL"
    whole = rows(logdir, query)
    assert sorted(Sandbox(logdir).ask(query).rows, key=str) == sorted(whole, key=str)
    exported = export(logdir, tmp_path / "out", format="parquet", tables=["tensor_input"])
    assert [(table.kind, table.num_rows) for table in exported.tables] == [("rows of a view", 8)]
    (path,) = (tmp_path / "out").rglob("*.parquet")
    assert sorted((tuple(row.values()) for row in pq.read_table(path).to_pylist()), key=str) == sorted(whole, key=str)


def hostile(run: RunBuilder, *, iteration: int = 0, num_outputs: int = 1) -> RunBuilder:
    """Adds graphs that call each other, a graph that is the body of its own loop, and rows that refer to nothing."""
    first = run.graph("f").op("x", "Placeholder").op("a", "PartitionedCall", ["x", "a"]).function("f_1", ["x"], ["a"])
    second = run.graph("g").op("y", "Placeholder").op("a", "While", ["y"]).function("g_1", ["y"], ["a:9", "none"])
    first.calls("a", "g_1", second).calls("a", "none", second, attribute="then_branch")
    second.calls("a", "f_1", first).calls("a", "g_1", second, attribute="body").calls(
        "a", "g_1", second, attribute="cond"
    )
    run.rows["graph_op"][-1]["num_outputs"] = num_outputs
    call = run.execution("f_1", inputs=[1, -5, 2**62], outputs={1: "float32", 2**62: "float32"}, graph=first)
    run.tensor(first, "a", NAN, execution=call, site="a/body/a/a/then")
    run.tensor(second, "a", NAN, execution=call, site="a", frame=7, iteration=iteration)
    run.tensor(second, "a", NAN, execution=99, site="a/" * 5000 + "body", frame=7, iteration=iteration, step=-3)
    run.tensor(second, "a:70", NAN, site="", frame=-1, iteration=-1, step=2**63 - 1)
    run.executed().node("n", "Merge", ["n", "m"], of=second, op=None, made_for="a", site="a").node("m", "Exp", ["m:9"])
    return run


@pytest.mark.parametrize(
    ("iteration", "num_outputs"),
    [(0, -1), (0, 2**31 - 1), (20_000_000, 1), (2**40, 1), (2**63 - 1, 1)],
)
def test_numbers_and_cycles_of_a_hostile_logdir_do_no_harm(tmp_path: Path, iteration: int, num_outputs: int) -> None:
    logdir = hostile(RunBuilder("run-a"), iteration=iteration, num_outputs=num_outputs).write(tmp_path)
    found = rows(logdir, "SELECT DISTINCT event_index FROM tensor_input WHERE event_index IS NOT NULL ORDER BY 1")
    assert set(found) <= {(event,) for event in range(6)}


def test_a_variable_of_a_session_holds_what_its_last_run_wrote(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("session").op("x", "Placeholder").op("v", "VarHandleOp", dtypes=["resource"])
    graph.op("read", "ReadVariableOp", ["v"]).op("loss", "Mul", ["read", "x"]).op("grad", "Exp", ["read"])
    graph.op("write", "AssignSubVariableOp", ["v", "grad"], dtypes=[])
    functions = [
        ("train", '["write"]', ["x"], ["loss"]),
        ("evaluate", "[]", ["read"], ["loss"]),
        ("read", "[]", [], ["read"]),
    ]
    for index, (name, targets, feeds, fetches) in enumerate(functions):
        graph.function(name, feeds, fetches)
        run.rows["graph_function"][index] |= {"session_index": 0, "session_targets": targets}
    for row in run.rows["graph_function_input"]:
        row["output_slot"] = 0
    events = {}
    for tensor_id, (name, recorded) in enumerate(
        [("train", ["x", "read", "grad", "loss"]), ("evaluate", ["loss"]), ("read", ["read"])], start=1
    ):
        call = run.execution(name, inputs=[tensor_id] if name != "read" else [], graph=graph)
        events["fed", name] = run.external(tensor_id, CLEAN, execution=call)
        for op_name in recorded:
            events[name, op_name] = run.tensor(graph, op_name, CLEAN, execution=call, step=tensor_id)
    logdir = run.write(tmp_path)
    inputs = rows(logdir, "SELECT event_index, input_index, source_event_index, source_kind FROM tensor_input")
    assert (events["train", "x"], 0, events["fed", "train"], "argument") in inputs
    assert (events["train", "loss"], 0, events["train", "read"], "tensor") in inputs
    assert (events["evaluate", "loss"], 0, None, "tensor") in inputs, "`read` is fed, and has no row"
    assert (None, 0, events["fed", "evaluate"], "argument") in inputs
    behind_read = (
        "SELECT i.source_event_index FROM tensor_input AS r JOIN tensor_input AS i ON i.node_id = r.source_node_id "
        "WHERE r.event_index = ? AND r.source_kind = 'variable'"
    )
    with open_logdir(logdir) as opened:
        written = opened.rows(behind_read, [events["read", "read"]])
        before = opened.rows(behind_read, [events["train", "read"]])
    assert written == [(events["train", "grad"],)], "the run of `train` wrote it, which `evaluate` did not"
    assert before == [], "the run itself writes after its read"
