"""Test nested graphs, their ops, and the links between a graph and its callers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.display.graph_borders import Border, Iterations, borders, called_graphs, callers
from tfdbg_arrow.query.display.graph_ops import OpFilter, op_facts, op_window
from tfdbg_arrow.query.display.graph_runs import graph_list, graph_path, graph_run, inner_runs, user_names

from .builder import CLEAN, CPU, NAN, RunBuilder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a logdir with five graphs.

    `step` (0) calls `double` (1), has a loop with `body` (2) and `cond` (3), and may run the branch `yes` (4). The loop
    has 3 iterations in step 1. In the second iteration, the Mul of the body is bad (event 4).
    """
    run = RunBuilder("run-a")
    step = run.graph("step").op("x", "Placeholder").op("w", "Placeholder").op("pred", "Placeholder", dtypes=("bool",))
    step.op("call", "PartitionedCall", ["x", "w"]).op("while", "While", ["n", "call", "w"], dtypes=("int32", "float32"))
    step.op("if", "If", ["pred", "while:1"]).op("y", "Neg", ["if"])
    double = (
        run.graph("double").op("a", "Placeholder").op("captured", "Placeholder").op("mul", "Mul", ["a", "captured"])
    )
    double.function("__inference_double_1", ["a"], ["mul"], captures=["captured"])
    body = run.graph("body").op("i", "Placeholder").op("v", "Placeholder").op("k", "Placeholder")
    body.op("next", "Add", ["i"]).op("Mul", "Mul", ["v", "k"])
    body.function("body_fn", ["i", "v", "k"], ["next", "Mul", "k"])
    cond = run.graph("cond").op("i", "Placeholder").op("less", "Less", ["i"]).function("cond_fn", ["i"], ["less"])
    yes = run.graph("yes").op("b", "Placeholder").op("exp", "Exp", ["b"]).function("yes_fn", ["b"], ["exp"])
    step.calls("call", "__inference_double_1", double)
    step.calls("while", "body_fn", body, attribute="body").calls("while", "cond_fn", cond, attribute="cond")
    step.calls("if", "yes_fn", yes, attribute="then_branch")
    step.function("__inference_step_9", ["x", "w", "pred"], ["y"])
    for row in run.rows["graph"][1:]:
        row["outer_graph_id"] = 0
    execution = run.execution("__inference_step_9", graph=step)
    run.tensor(step, "x", CLEAN, execution=execution)
    run.tensor(double, "mul", CLEAN, execution=execution, site="call")
    for iteration, health in enumerate((CLEAN, NAN, NAN)):
        run.tensor(body, "Mul", health, execution=execution, site="while/body", frame=9, iteration=iteration)
    run.tensor(step, "while:1", NAN, execution=execution)
    run.tensor(yes, "exp", NAN, execution=execution, site="if/then")
    return run.write(tmp_path_factory.mktemp("logdir"))


def test_graphs_are_listed_by_bad_tensors_then_by_size_and_those_that_never_ran_last(path: Path) -> None:
    with open_logdir(path) as logdir:
        graphs = graph_list(logdir, run_id="run-a")
        found = graph_list(logdir, run_id="run-a", name="O", limit=1)
        way = graph_path(logdir, 2, run_id="run-a")
    rows = [
        (row.graph_name, row.outer_name, row.num_ops, row.num_tensors, row.num_bad, row.has_run) for row in graphs.rows
    ]
    assert rows == [
        ("body", "step", 5, 3, 2, True),
        ("step", None, 7, 2, 1, True),
        ("yes", "step", 2, 1, 1, True),
        ("double", "step", 3, 1, 0, True),
        ("cond", "step", 2, 0, 0, False),
    ]
    assert (graphs.num_graphs, graphs.num_never_run) == (5, 1)
    assert ([row.graph_name for row in found.rows], found.num_graphs, found.num_never_run) == (["body"], 3, 1)
    assert [one.graph_name for one in way] == ["step", "body"]


def test_graphs_of_keras_have_the_name_of_the_models_method(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    trainer = "/site/keras/src/backend/tensorflow/trainer.py"
    names = (
        (("fit",), "one_step_on_data"),
        (("predict",), "one_step_on_data"),
        (("fit",), "multi_step_on_iterator"),
        (("fit",), "helper"),
        (("evaluate", "fit"), "one_step_on_data"),  # the validation
    )
    for number, (methods, name) in enumerate(names):
        graph = run.graph(name).op("x", "Relu")
        run.rows["graph_op"][-1].update(layer=None if number == 2 else "digits/dense", role="forward")
        callers = ((trainer, 5, f"TensorFlowTrainer.{method}", None, "framework") for method in methods)
        stack = run.stack(*callers, ("/a.py", 1, "main", None, "user"))
        run.rows["graph"][graph.graph_id]["stack_trace_id"] = stack
    with open_logdir(run.write(tmp_path)) as logdir:
        assert user_names(logdir, run_id="run-a") == {
            0: "train_step of digits",
            4: "test_step of digits",
            1: "predict_step of digits",
            2: "train_function",
        }
        found = graph_list(logdir, run_id="run-a", name="predict").rows
    assert [(row.graph_id, row.user_name, row.graph_name) for row in found] == [
        (1, "predict_step of digits", "one_step_on_data")
    ]


def test_queries_end_on_a_cycle_of_outer_graphs(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for number in range(3):
        run.graph(f"g{number}").op("x")
    for row, outer in zip(run.rows["graph"], (2, 0, 1), strict=True):
        row["outer_graph_id"] = outer
    with open_logdir(run.write(tmp_path)) as logdir:
        assert [row.graph_name for row in graph_list(logdir, run_id="run-a").rows] == ["g0", "g1", "g2"]
        assert [one.graph_name for one in graph_path(logdir, 0, run_id="run-a")] == ["g1", "g2", "g0"]
        assert graph_path(logdir, 7, run_id="run-a") == ()


def test_filters_and_windows_of_ops(path: Path) -> None:
    def names(filter_: OpFilter, **asked: int) -> tuple[list[str], int, int]:
        with open_logdir(path) as logdir:
            window = op_window(logdir, filter_, run_id="run-a", graph_id=0, **asked)
        return [row.op_name for row in window.rows], window.num_matching, window.num_before

    assert names(OpFilter(), limit=2) == (["x", "w"], 7, 0)
    assert names(OpFilter(), first=2, limit=2) == (["pred", "call"], 7, 2)
    assert names(OpFilter(), before=4, limit=2) == (["pred", "call"], 7, 2)
    assert names(OpFilter(name="CALL")) == (["call"], 1, 0)
    assert names(OpFilter(op_type="Placeholder", name="w")) == (["w"], 1, 0)
    assert names(OpFilter(is_bad=True)) == (["while"], 1, 0)
    assert names(OpFilter(name="nothing")) == ([], 0, 0)


def test_every_bad_op_of_a_window_is_marked(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f")
    for number in range(2100):
        graph.op(f"op{number}", "Log")
        run.tensor(graph, f"op{number}", NAN)
    with open_logdir(run.write(tmp_path)) as logdir:
        window = op_window(logdir, OpFilter(is_bad=True), run_id="run-a", graph_id=0, first=2099)
    assert ([row.num_bad for row in window.rows], window.num_matching) == ([1], 2100)


def test_every_branch_of_an_op_is_a_called_graph(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("inner").op("x").function("inner_fn", ["x"])
    outer = run.graph("outer").op("case", "Case")
    for branch in range(2100):
        outer.calls("case", "inner_fn", inner, attribute="branches", branch=branch)
    with open_logdir(run.write(tmp_path)) as logdir:
        assert len(called_graphs(logdir, ["case"], run_id="run-a", graph_id=outer.graph_id)["case"]) == 2100


def test_the_callers_of_a_graph_are_counted(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    inner = run.graph("inner").op("x").function("inner_fn", ["x"])
    outer = run.graph("outer")
    for number in range(60):
        outer.op(f"call{number}", "PartitionedCall").calls(f"call{number}", "inner_fn", inner)
    with open_logdir(run.write(tmp_path)) as logdir:
        found, num_callers = callers(logdir, inner.graph_id, run_id="run-a")
    assert (len(found), num_callers) == (50, 60)


def border(kind: str, op: str, index: int, caller: str, attribute: str, *, to: tuple[int, str, str, int]) -> Border:
    graph_id, name, op_name, slot = to
    return Border(
        kind=kind,
        op_name=op,
        output_slot=0 if kind == "result" else None,
        index=index,
        caller_graph_id=0,
        caller_graph_name="step",
        caller_op_name=caller,
        attribute=attribute,
        other_graph_id=graph_id,
        other_graph_name=name,
        other_op_name=op_name,
        other_output_slot=slot,
    )


@pytest.mark.parametrize(
    ("graph_id", "op_name", "expected"),
    [
        (1, "a", [border("argument", "a", 0, "call", "f", to=(0, "step", "x", 0))]),
        (1, "captured", [border("capture", "captured", 1, "call", "f", to=(0, "step", "w", 0))]),
        (1, "mul", [border("result", "mul", 0, "call", "f", to=(0, "step", "call", 0))]),
        (
            2,
            "v",
            [
                border("argument", "v", 1, "while", "body", to=(0, "step", "call", 0)),
                border("loop", "v", 1, "while", "body", to=(2, "body", "Mul", 0)),
            ],
        ),
        (3, "less", []),
        (
            3,
            "i",
            [
                border("argument", "i", 0, "while", "cond", to=(0, "step", "n", 0)),
                border("loop", "i", 0, "while", "cond", to=(2, "body", "next", 0)),
            ],
        ),
        (4, "b", [border("argument", "b", 0, "if", "then_branch", to=(0, "step", "while", 1))]),
        (0, "x", []),
    ],
)
def test_borders_between_a_graph_and_its_caller(
    path: Path, graph_id: int, op_name: str, expected: list[Border]
) -> None:
    with open_logdir(path) as logdir:
        assert list(borders(logdir, [op_name], run_id="run-a", graph_id=graph_id)) == expected


def test_an_invariant_of_a_loop_comes_only_from_outside(path: Path) -> None:
    with open_logdir(path) as logdir:
        found = borders(logdir, ["k"], run_id="run-a", graph_id=2)
    assert [one.kind for one in found] == ["argument", "result"]


def test_calls_have_the_entry_op_the_number_of_bad_tensors_and_the_iterations(path: Path) -> None:
    with open_logdir(path) as logdir:
        calls = called_graphs(logdir, ["call", "while", "y"], run_id="run-a", graph_id=0)
        outside, _ = callers(logdir, 2, run_id="run-a")
    assert {
        (one.op_name, one.attribute): (one.graph_name, one.entry_op_name, one.num_bad, one.iterations)
        for some in calls.values()
        for one in some
    } == {
        ("call", "f"): ("double", "mul", 0, None),
        ("while", "body"): ("body", "Mul", 2, Iterations(num_loops=1, fewest=3, most=3)),
        ("while", "cond"): ("cond", "less", 0, None),
    }
    assert [(one.graph_name, one.op_name, one.attribute) for one in outside] == [("step", "while", "body")]


def test_one_run_of_a_graph_has_its_iterations_its_caller_and_its_calls(path: Path) -> None:
    with open_logdir(path) as logdir:
        second = graph_run(logdir, 4, run_id="run-a")
        outer = graph_run(logdir, 1, run_id="run-a")
        inner = {op: inner_runs(logdir, outer, op, run_id="run-a") for op in ("call", "while", "if", "y")}
    assert (second.graph_id, second.op_name, second.previous_event_index, second.next_event_index) == (2, "Mul", 3, 5)
    assert (second.outer_graph_id, second.outer_op_name) == (0, "while")
    assert second.outer_event_index == 6
    assert (outer.outer_graph_id, outer.previous_event_index, outer.next_event_index) == (None, None, None)
    found = {op: [(run.attribute, run.event_index) for run in runs] for op, runs in inner.items()}
    assert found == {"call": [("f", 2)], "while": [("body", 4)], "if": [("then_branch", 7)], "y": []}


def test_the_error_for_an_event_that_is_not_a_tensor_of_a_graph(path: Path) -> None:
    with (
        open_logdir(path) as logdir,
        pytest.raises(QueryError, match="event 99 of run run-a is not a recorded"),
    ):
        graph_run(logdir, 99, run_id="run-a")


def test_facts_of_an_op(path: Path) -> None:
    with open_logdir(path) as logdir:
        facts = op_facts(logdir, "while", run_id="run-a", graph_id=0)
        assert op_facts(logdir, "nothing", run_id="run-a", graph_id=0) is None
    assert (facts.op_index, facts.op_type, facts.devices, facts.num_inputs) == (4, "While", (CPU,), 3)
    assert [(input_.op_name, input_.op_type, input_.output is None) for input_ in facts.inputs] == [
        ("n", None, True),
        ("call", "PartitionedCall", False),
        ("w", "Placeholder", False),
    ]
    assert [(use.op_name, use.output_slot, use.input_index) for use in facts.consumers] == [("if", 1, 1)]
    bad = facts.outputs[1].health
    assert (bad.num_bad, bad.first_bad_event_index) == (1, 6)
