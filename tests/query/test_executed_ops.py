"""Test queries on graphs that TensorFlow's optimizer changed: it fused, folded, merged and created ops."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdbg_arrow
from tfdbg_arrow.query.alert_rules.answer import Alert
from tfdbg_arrow.query.explanation import Explanation, read_reasons
from tfdbg_arrow.query.flow.data_flow import DataFlow, Sources
from tfdbg_arrow.query.flow.element_counts import COUNTS, NUMBERS, reciprocal
from tfdbg_arrow.query.flow.executed_graphs import read_dtypes
from tfdbg_arrow.query.nonfinite_search import NonFinite

from .builder import CLEAN, INF, NAN, NEG_INF, RunBuilder, counts


def written(run: RunBuilder, tmp_path: Path) -> tfdbg_arrow.Logdir:
    return tfdbg_arrow.open_logdir(run.write(tmp_path / "logdir"))


def first(run: RunBuilder, tmp_path: Path) -> NonFinite:
    tensor = tfdbg_arrow.first_nonfinite(run.write(tmp_path / "logdir"))
    assert tensor is not None
    return tensor


def reason(run: RunBuilder, event_index: int, tmp_path: Path) -> Explanation:
    """Returns the explanation of a tensor. The run must have been written before."""
    explanation = read_reasons(tmp_path / "logdir", event_index, run_id=run.run_id).explanation
    assert explanation is not None
    return explanation


def sources(run: RunBuilder, tmp_path: Path, event_index: int) -> Sources:
    flow = DataFlow(written(run, tmp_path), run_id=run.run_id)
    event = flow.events.event(event_index)
    assert event is not None
    return flow.sources_of(event)


def call(run: RunBuilder, graph: object, *, argument: int = 1, health: dict[str, Any] = CLEAN) -> int:
    """Adds a call of `f` with one argument and one result."""
    index = run.execution("f", inputs=[argument], outputs={2: "float32"}, graph=graph)  # type: ignore[arg-type]
    run.external(argument, health, execution=index)
    return index


def origins(logdir: tfdbg_arrow.Logdir) -> list[Alert]:
    return [alert for alert in logdir.alerts().alerts if alert.kind == "nonfinite_origin"]


class TestFused:
    def build(self) -> RunBuilder:
        """Returns a run in which log(softmax(x)) ran as LogSoftmax."""
        run = RunBuilder("run-a")
        graph = run.graph("f").op("x", "Placeholder").op("Softmax", inputs=["x"]).op("Log", inputs=["Softmax"])
        graph.function("f", ["x"], ["Log"])
        run.executed(graph).argument("x").node("Log", "LogSoftmax", ["x"]).result("Log")
        index = call(run, graph)
        run.tensor(graph, "x", CLEAN, execution=index)
        run.tensor(graph, "Log", NAN, execution=index, op_type="LogSoftmax")
        run.eager(index, NAN, tensor_id=2)
        return run

    def test_the_answer_names_the_executed_op_and_the_ops_of_the_program(self, tmp_path: Path) -> None:
        tensor = first(self.build(), tmp_path)
        assert (tensor.op_name, tensor.op_type, tensor.ran_as) == (
            "Log",
            "Log",
            "LogSoftmax in place of Softmax and Log",
        )
        assert tensor.is_origin
        assert tensor.effect == "result"
        (softmax,) = tensor.inputs
        assert (softmax.producer.op_type, softmax.producer.event_index, softmax.health) == ("Softmax", None, None)

    def test_its_sources_are_the_inputs_of_all_ops_it_stands_for(self, tmp_path: Path) -> None:
        run = self.build()
        found = sources(run, tmp_path, 3)
        assert found.is_complete
        assert [event.scope for event in found.events] == ["external"]

    def test_the_op_fate_view(self, tmp_path: Path) -> None:
        with written(self.build(), tmp_path) as logdir:
            rows = logdir.rows("SELECT op_name, fate, executed_type, num_nodes FROM op_fate ORDER BY op_name")
            coverage = logdir.coverage()
        assert rows == [("Log", "replaced", "LogSoftmax", 1), ("Softmax", "absorbed", None, 0), ("x", "ran", None, 1)]
        assert coverage.is_complete
        (changed,) = coverage.changed
        assert (changed.num_ops, changed.num_replaced, changed.num_folded, changed.num_absorbed) == (3, 1, 0, 1)


def test_an_op_merged_into_an_identical_op_has_its_value(tmp_path: Path) -> None:
    """TensorFlow computes `a` and `b` as one op, `a`. The bad value of `b` is traced back to `a`."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("a", "Log", ["x"]).op("b", "Log", ["x"])
    graph.op("sum", "Neg", ["b"]).function("f", ["x"], ["sum"])
    run.executed(graph).argument("x").node("a", "Log", ["x"]).node("sum", "Neg", ["a"]).result("sum")
    index = call(run, graph)
    run.tensors(graph, {"x": CLEAN, "a": NEG_INF, "sum": NAN | NEG_INF}, execution=index)
    run.eager(index, NEG_INF, tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.effect, tensor.ran_as) == ("a", "result", None)


def test_an_input_has_the_constant_of_the_program_where_tensorflow_kept_an_equal_one(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("axis", "Const").op("end", "Const")
    graph.op("mean", "Mean", ["x", "axis"]).function("f", ["x"], ["mean"])
    run.executed(graph).argument("x").node("end", "Const").node("mean", "Mean", ["x", "end"]).result("mean")
    index = call(run, graph)
    run.tensors(graph, {"x": CLEAN, "mean": NAN}, execution=index)
    run.eager(index, NAN, tensor_id=2)
    assert first(run, tmp_path).inputs[1].producer.op_name == "axis"


@pytest.mark.parametrize("function", ["Sqrt", "Pow"])
def test_a_division_in_a_chain_of_functions_divides_one(function: str, tmp_path: Path) -> None:
    """The zeros of a root are those of its argument. The zeros of a power follow from the quotient."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("one", "Const").op("two", "Const")
    graph.op("root", function, ["x", "two"] if function == "Pow" else ["x"])
    graph.op("ratio", "RealDiv", ["one", "root"]).function("f", ["x"], ["ratio"])
    run.executed(graph).argument("x").node("ratio", "_UnaryOpsComposition", ["x"]).result("ratio")
    index = call(run, graph, health=counts(zero=1, pos=2))
    run.tensor(graph, "x", counts(zero=1, pos=2), execution=index)
    bad = run.tensor(graph, "ratio", counts(pos_inf=1, pos=2), execution=index, op_type="_UnaryOpsComposition")
    run.eager(index, counts(pos_inf=1, pos=2), tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_type, tensor.ran_as) == ("RealDiv", f"_UnaryOpsComposition in place of {function} and RealDiv")
    explanation = reason(run, bad, tmp_path)
    assert explanation.sentence == ("Division by 0: 1 of 3 elements is 0 in the divisor, and the quotient is infinite.")


def test_a_node_made_by_the_optimizer_has_the_source_line_and_labels_of_its_op(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    line = run.stack(("train.py", 7, "f", "tf.math.log(tf.abs(x))", "user"))
    graph = run.graph("f").op("x", "Placeholder").op("abs", "Abs", ["x"])
    graph.op("log", "Log", ["abs"], stack=line, layer="dense", role="forward").op("out", "Neg", ["log"])
    graph.function("f", ["x"], ["out"])
    made = "log/unary_ops_composition"
    run.executed(graph).argument("x").node(made, "_UnaryOpsComposition", ["x"], made_for="log").node(
        "out", "Neg", [made]
    ).result("out")
    index = call(run, graph, health=counts(zero=1, neg=1))
    run.tensor(graph, "x", counts(zero=1, neg=1), execution=index)
    graph.op_types[made] = "_UnaryOpsComposition"
    run.tensors(graph, {made: NEG_INF, "out": NEG_INF}, execution=index)
    run.eager(index, NEG_INF, tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.ran_as) == (
        "log",
        "Log",
        "_UnaryOpsComposition in place of Abs and Log",
    )
    assert (tensor.source.lineno, tensor.layer, tensor.role) == (7, "dense", "forward")
    assert reason(run, 3, tmp_path).sentence.startswith("Log of 0: 1 of 2 elements is 0")


def test_a_constant_computed_in_advance_is_an_origin_without_inputs(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("zero", "Const").op("log", "Log", ["zero"]).op("out", "Neg", ["log"])
    graph.function("f", [], ["out"])
    run.executed(graph).node("log", "Const").node("out", "Neg", ["log"]).result("out")
    index = run.execution("f", outputs={2: "float32"}, graph=graph)
    run.tensor(graph, "log", NEG_INF, execution=index, op_type="Const")
    run.tensor(graph, "out", NEG_INF, execution=index)
    run.eager(index, NEG_INF, tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.ran_as) == ("log", "Log", "Const in place of Log")
    assert tensor.is_origin


@pytest.mark.parametrize(
    ("earlier", "earlier_health", "is_origin"), [("Const", NAN, False), ("Const", CLEAN, True), ("RealDiv", NAN, True)]
)
def test_a_constant_computed_in_advance_may_come_from_another_one(
    earlier: str, earlier_health: dict[str, Any], is_origin: bool, tmp_path: Path
) -> None:
    """The graph that ran does not connect the constants. A constant takes nothing from an op that ran as it is."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("zero", "Const").op("share", "RealDiv", ["zero", "zero"])
    graph.op("slope", "Mul", ["share", "zero"]).op("out", "Neg", ["slope"]).function("f", [], ["out", "share"])
    executed = run.executed(graph).node("share", earlier).node("slope", "Const").node("out", "Neg", ["slope"])
    executed.result("out").result("share")
    index = run.execution("f", outputs={2: "float32", 3: "float32"}, graph=graph)
    share = run.tensor(graph, "share", earlier_health, execution=index, op_type=earlier)
    slope = run.tensor(graph, "slope", NAN, execution=index, op_type="Const")
    run.tensor(graph, "out", NAN, execution=index)
    run.eager(index, NAN, tensor_id=2)
    run.eager(index, earlier_health, tensor_id=3, slot=1)
    taken = [row.event_index for row in sources(run, tmp_path, slope).events]
    assert taken == ([] if is_origin else [share])


@pytest.mark.parametrize(
    ("maker", "later", "health", "expected"),
    [
        ("Pow", "Mul", NAN, "Pow and Mul"),
        ("Pow", "Neg", NAN, "Pow"),
        ("Pow", "Mul", NEG_INF, "Pow"),
        ("RealDiv", "Mul", NAN, "RealDiv and Mul"),
        ("Sqrt", "Mul", NAN, "Sqrt"),
        ("Log", "Mul", INF, "Log and Mul"),  # the logarithm makes only -Inf
        ("Log", "Mul", NEG_INF, "Log"),
    ],
)
def test_bad_constants_are_not_said_to_be_made_by_one_op_if_another_may_have_made_them_of_its_infinity(
    maker: str, later: str, health: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("zero", "Const").op("made", maker, ["zero", "zero"]).op("moved", "Reshape", ["made"])
    graph.op("later", later, ["moved", "moved"] if later == "Mul" else ["moved"]).op("out", "Neg", ["later"])
    graph.function("f", [], ["out"])
    run.executed(graph).node("later", "Const").node("out", "Neg", ["later"]).result("out")
    index = run.execution("f", outputs={2: "float32"}, graph=graph)
    run.tensor(graph, "later", health, execution=index, op_type="Const")
    run.tensor(graph, "out", health, execution=index)
    run.eager(index, health, tensor_id=2)
    tensor = first(run, tmp_path)
    sentence = reason(run, tensor.event_index, tmp_path)
    assert (tensor.op_type, tensor.ran_as) == (maker, f"Const in place of {maker}, Reshape and {later}")
    assert [input_.health for input_ in tensor.inputs] == [None, None]
    assert sentence.sentence.startswith(f"{expected} of constants: TensorFlow computed the result in advance, and it ")


def test_constant_factors_that_were_multiplied_in_advance(tmp_path: Path) -> None:
    """For (x * 1e30) * 1e30, TensorFlow runs x * Inf. The constant Inf is not the output of the program's product."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("a", "Const").op("mul", "Mul", ["x", "a"])
    graph.op("out", "Mul", ["mul", "a"]).function("f", ["x"], ["out"])
    run.executed(graph).argument("x").node("mul", "Const").node("out", "Mul", ["x", "mul"]).result("out")
    index = run.execution("f", inputs=[1], outputs={2: "float32"}, graph=graph)
    run.tensor(graph, "x", CLEAN, execution=index)
    bad = run.tensor(graph, "mul", INF, execution=index, op_type="Const")
    run.tensor(graph, "out", INF, execution=index)
    run.eager(index, INF, tensor_id=2)
    assert first(run, tmp_path).op_name == "mul"
    why = reason(run, bad, tmp_path)
    assert why.sentence.startswith("Mul by constants: TensorFlow multiplied the constant factors in advance, and")
    assert why.repair is not None
    assert why.repair.startswith("Use smaller constant factors")


@pytest.mark.parametrize(("later", "is_known"), [("Neg", True), ("Abs", False), ("Relu", False)])
def test_the_finite_elements_before_an_op_that_removes_signs_are_not_known(
    later: str, is_known: bool, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("log", "Log", ["x"]).op("out", later, ["log"])
    graph.function("f", ["x"], ["out"])
    run.executed(graph).argument("x").node("out", "_UnaryOpsComposition", ["x"]).result("out")
    index = run.execution("f", inputs=[1], outputs={2: "float32"}, graph=graph)
    run.tensor(graph, "x", counts(neg=1, pos=2), execution=index)
    run.tensor(graph, "out", counts(nan=1, pos=2), execution=index, op_type="_UnaryOpsComposition")
    run.eager(index, counts(nan=1, pos=2), tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_type, tensor.num_nan) == ("Log", 1)
    assert (tensor.num_neg_finite, tensor.num_pos_finite) == ((2, 0) if is_known else (None, None))


def nested(site: str) -> tuple[RunBuilder, int]:
    """Returns a run in which TensorFlow inlined a call of `inner` into `outer`, and the event_index of the inner op."""
    run = RunBuilder("run-a")
    inner = run.graph("inner").op("a", "Placeholder").op("neg", "Neg", ["a"]).function("inner", ["a"], ["neg"])
    outer = run.graph("outer").op("x", "Placeholder").op("log", "Log", ["x"]).op("call", "PartitionedCall", ["log"])
    outer.function("f", ["x"], ["call"]).calls("call", "inner", inner)
    run.executed(outer).argument("x").node("log", "Log", ["x"]).node(
        f"{site}/neg", "Neg", ["log"], of=inner, op="neg", site=site
    ).result(f"{site}/neg")
    index = call(run, outer)
    run.tensors(outer, {"x": CLEAN, "log": NEG_INF}, execution=index)
    event_index = run.tensor(inner, "neg", NEG_INF, execution=index, site=site)
    run.eager(index, NEG_INF, tensor_id=2)
    return run, event_index


def test_edges_cross_inlined_function_calls(tmp_path: Path) -> None:
    run, event_index = nested("call")
    assert [event.op_name for event in sources(run, tmp_path, event_index).events] == ["log"]
    answer = tfdbg_arrow.first_nonfinite(tmp_path / "logdir")
    assert (answer.op_name, answer.effect) == ("log", "result")
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        (alert,) = origins(logdir)
    assert alert.op_name == "log"


def test_the_result_of_a_conditional_comes_from_the_branch_that_ran(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    then = run.graph("then").op("a", "Placeholder").op("log", "Log", ["a"]).function("then", ["a"], ["log"])
    else_ = run.graph("else").op("b", "Placeholder").op("neg", "Neg", ["b"]).function("else", ["b"], ["neg"])
    outer = run.graph("f").op("p", "Placeholder", dtypes=["bool"]).op("x", "Placeholder").op("cond", "If", ["p", "x"])
    outer.op("out", "Abs", ["cond"]).function("f", ["p", "x"], ["out"])
    outer.calls("cond", "then", then, attribute="then_branch").calls("cond", "else", else_, attribute="else_branch")
    graph = run.executed().node("p", "_Arg", of=outer, op="p", index=0, dtypes='["bool"]')
    graph.node("x", "_Arg", of=outer, op="x", index=1).node("switch", "Switch", ["x", "p"])
    graph.node("cond/then/log", "Log", ["switch:1"], of=then, op="log", site="cond/then")
    graph.node("cond/else/neg", "Neg", ["switch"], of=else_, op="neg", site="cond/else")
    graph.node("merge", "Merge", ["cond/else/neg", "cond/then/log"]).node("out", "Abs", ["merge"], of=outer, op="out")
    graph.node("result", "_Retval", ["out"], index=0)
    index = run.execution("f", inputs=[3, 1], outputs={2: "float32"}, graph=outer)
    run.external(1, CLEAN, execution=index)
    run.tensor(outer, "x", CLEAN, execution=index)
    run.tensor(then, "log", NEG_INF, execution=index, site="cond/then")
    last = run.tensor(outer, "out", NEG_INF, execution=index)
    run.eager(index, NEG_INF, tensor_id=2)
    found = sources(run, tmp_path, last)
    assert ([event.op_name for event in found.events], found.is_complete) == (["log"], True)
    answer = tfdbg_arrow.first_nonfinite(tmp_path / "logdir")
    assert (answer.op_name, answer.effect) == ("log", "result")


def test_an_iteration_uses_the_values_of_the_previous_one(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    body = run.graph("body").op("state", "Placeholder").op("exp", "Exp", ["state"]).function("body", ["state"], ["exp"])
    cond = run.graph("cond").op("state", "Placeholder").function("cond", ["state"], [])
    outer = run.graph("f").op("x", "Placeholder").op("while", "While", ["x"]).op("out", "Neg", ["while"])
    outer.function("f", ["x"], ["out"]).calls("while", "body", body, attribute="body")
    outer.calls("while", "cond", cond, attribute="cond")
    site = "while/body/_1"
    graph = run.executed().node("x", "_Arg", of=outer, op="x", index=0)
    graph.node("enter", "Enter", ["x"]).node("merge", "Merge", ["enter", "next"]).node("switch", "Switch", ["merge"])
    graph.node("exp", "Exp", ["switch:1"], of=body, op="exp", site=site).node("next", "NextIteration", ["exp"])
    graph.node("exit", "Exit", ["switch"]).node("out", "Neg", ["exit"], of=outer, op="out")
    graph.node("result", "_Retval", ["out"], index=0)
    index = call(run, outer)
    run.tensor(outer, "x", CLEAN, execution=index)
    events = [
        run.tensor(body, "exp", health, execution=index, site=site, frame=5, iteration=iteration)
        for iteration, health in enumerate((CLEAN, NAN, NAN))
    ]
    last = run.tensor(outer, "out", NAN, execution=index)
    run.eager(index, NAN, tensor_id=2)
    flow = DataFlow(written(run, tmp_path), run_id=run.run_id)

    def sources_of(event_index: int) -> list[tuple[str | None, int | None]]:
        event = flow.events.event(event_index)
        assert event is not None
        found = flow.sources_of(event)
        assert found.is_complete
        return [(source.op_name, source.iteration) for source in found.events]

    assert sources_of(events[0]) == [(None, None)]  # the argument, which came from outside
    assert sources_of(events[1]) == [("exp", 0)]
    assert sources_of(events[2]) == [("exp", 1)]
    assert sources_of(last) == [("exp", 2)]
    found = tfdbg_arrow.first_nonfinite(tmp_path / "logdir")
    assert (found.op_name, found.iteration, found.effect) == ("exp", 1, "result")
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        edges = logdir.rows(
            "SELECT source_op_name, op_name, way FROM executed_edge WHERE op_name <> 'result' ORDER BY ALL"
        )
        (alert,) = origins(logdir)
    assert edges == [("exp", "exp", "next"), ("exp", "out", "loop"), ("x", "exp", "loop"), ("x", "out", "loop")]
    assert (alert.op_name, alert.first_event_index, alert.num_events) == ("exp", events[1], 1)


def test_sources_come_from_the_optimized_graph_that_produced_the_rows(tmp_path: Path) -> None:
    """TensorFlow keeps both ops if there is a gradient. Otherwise, TensorFlow fuses the two ops."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("Softmax", inputs=["x"]).op("Log", inputs=["Softmax"])
    graph.function("f", ["x"], ["Log"])
    run.executed(graph).argument("x").node("Log", "LogSoftmax", ["x"])
    run.executed(graph).argument("x").node("Softmax", "Softmax", ["x"]).node("Log", "Log", ["Softmax"])
    fused, split = call(run, graph), call(run, graph, argument=3)
    run.tensor(graph, "x", CLEAN, execution=fused, step=1)
    one = run.tensor(graph, "Log", NAN, execution=fused, step=1, op_type="LogSoftmax")
    run.tensors(graph, {"x": CLEAN, "Softmax": CLEAN}, execution=split, step=2)
    other = run.tensor(graph, "Log", NAN, execution=split, step=2)
    assert [event.scope for event in sources(run, tmp_path, one).events] == ["external"]
    assert [event.op_name for event in sources(run, tmp_path, other).events] == ["Softmax"]


def test_invalid_lists_of_dtypes_are_ignored(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("log", "Log", ["x"]).function("f", ["x"], ["log"])
    executed = run.executed(graph).argument("x")
    for name, dtypes in {"made/a": "[", "made/b": '{"a": 1}', "made/c": '[1, null, "float32"]', "made/d": None}.items():
        executed.node(name, "Neg", ["x"], made_for="log", dtypes=dtypes)
    flow = DataFlow(written(run, tmp_path), run_id=run.run_id)
    dtypes = flow.graphs.graph(graph.graph_id).dtypes
    assert {key: dtype for key, dtype in dtypes.items() if key[0].startswith("made")} == {("made/c", 2): "float32"}


def test_queries_end_on_cyclic_graphs(tmp_path: Path) -> None:
    """A logdir from an untrusted source can have arbitrary edges."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("log", "Log", ["x"]).op("exp", "Exp", ["log"])
    graph.op("neg", "Neg", ["exp"]).function("f", ["x"], ["neg"])
    executed = run.executed()
    executed.node("a", "Switch", ["b"]).node("b", "Switch", ["a"]).node("c", "Merge", ["c", "d"]).node(
        "d", "Exit", ["d"]
    )
    for level in range(12):
        executed.node(f"m{level}", "Merge", [f"m{level + 1}"] * 30)
    executed.node("m12", "NextIteration", ["c"])
    executed.node("log", "Log", ["a"], of=graph, op="log").node("exp", "Exp", ["c"], of=graph, op="exp")
    executed.node("neg", "Neg", ["m0"], of=graph, op="neg").node("result", "_Retval", ["neg"], index=0)
    index = call(run, graph)
    for name in ("log", "exp", "neg"):
        run.tensor(graph, name, NAN, execution=index)
    run.eager(index, NAN, tensor_id=2)
    assert first(run, tmp_path).op_name in ("log", "exp", "neg")
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        logdir.alerts()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", None),
        ("[", None),
        ('{"float32": 0}', None),
        ("[" * 100_000, None),
        ('["float32", null, 3]', ("float32", None, None)),
    ],
)
def test_dtypes_that_no_recorder_wrote(text: str | None, expected: tuple[str | None, ...] | None) -> None:
    assert read_dtypes(text) == expected


def chain(op_types: tuple[str, ...], taken: dict[str, Any], made: dict[str, Any]) -> tuple[RunBuilder, int]:
    """Returns a run in which one op replaced a chain of ops, and the event_index of the op's output."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("argument", "Placeholder").op("x", "RandomUniform", ["argument"]).op("one", "Const")
    before = "x"
    for name in op_types:
        taken_by = {"AddV2": [before, "one"], "Sub": [before, "one"], "RealDiv": ["one", before]}
        graph.op(name.lower(), name, taken_by.get(name, [before]))
        before = name.lower()
    graph.function("f", ["argument"], [before])
    node = f"{before}/unary_ops_composition"
    run.executed().node("argument", "_Arg", of=graph, op="argument", index=0).node(
        "x", "RandomUniform", ["argument"], of=graph, op="x"
    ).node(node, "_UnaryOpsComposition", ["x"], of=graph, made_for=before).node("result", "_Retval", [node], index=0)
    index = call(run, graph, health=taken)
    run.tensor(graph, "x", taken, execution=index)
    graph.op_types[node] = "_UnaryOpsComposition"
    event = run.tensor(graph, node, made, execution=index)
    run.eager(index, made, tensor_id=2)
    return run, event


ROOT_OF_NEGATIVE = "Sqrt of a negative number: 2 of 12 elements are below 0, and the result is NaN."
ROOT_AND_RECIPROCAL = [
    (counts(neg=2, pos=10), counts(nan=2, pos=10), "Sqrt", ROOT_OF_NEGATIVE),
    # The root makes a NaN, and the division makes an infinity.
    (counts(neg=2, zero=1), counts(nan=2, pos_inf=1), "RealDiv", "All inputs are finite, so one of RealDiv, Sqrt "),
]


@pytest.mark.parametrize(("taken", "made", "op_type", "sentence"), ROOT_AND_RECIPROCAL)
def test_the_reciprocal_of_a_root_is_nan_because_of_the_root(
    taken: dict[str, Any], made: dict[str, Any], op_type: str, sentence: str, tmp_path: Path
) -> None:
    run, event = chain(("Sqrt", "RealDiv"), taken, made)
    tensor = first(run, tmp_path)
    explanation = reason(run, event, tmp_path)
    assert tensor.op_type == op_type
    assert explanation.sentence.startswith(sentence)


def test_of_many_ops_that_ran_as_one_the_text_names_the_one_that_made_the_tensor(tmp_path: Path) -> None:
    run, _ = chain(("Abs", "Log", "Neg", "Reshape", "Relu"), counts(zero=1, pos=2), counts(pos_inf=1, pos=2))
    assert first(run, tmp_path).ran_as == "_UnaryOpsComposition in place of Log and 4 other ops"


RELU_AND_LOG = [
    (counts(neg=1, pos=2), counts(neg_inf=1, pos=2), "Log of 0: 1 of 3 elements is 0, and the logarithm of 0 is -Inf."),
    (counts(zero=3), counts(neg_inf=3), "Log of 0: 3 of 3 elements are 0, and the logarithm of 0 is -Inf."),
]


@pytest.mark.parametrize(("taken", "made", "sentence"), RELU_AND_LOG)
def test_the_reason_of_a_fused_op_follows_from_the_counts_of_its_input(
    taken: dict[str, Any], made: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    run, event = chain(("Relu", "Log"), taken, made)
    tensor = first(run, tmp_path)
    (relu,) = tensor.inputs
    assert (tensor.op_name, tensor.op_type, tensor.event_index) == ("log", "Log", event)
    assert (relu.producer.op_type, relu.health.num_neg_finite, relu.health.has_inf_or_nan) == ("Relu", 0, False)
    assert reason(run, event, tmp_path).sentence == sentence


@pytest.mark.parametrize(
    ("op_types", "taken", "made", "is_lost"),
    [
        (("AddV2", "Log", "Neg"), counts(zero=1, pos=2), counts(pos_inf=1, pos=2), True),
        (("Log", "Neg", "AddV2"), counts(zero=1, pos=2), counts(pos_inf=1, pos=2), False),
        # If the constant is 1, TensorFlow may have run Log1p or Expm1.
        (("AddV2", "Log", "Neg"), counts(neg=1, pos=2), counts(pos_inf=1, pos=2), False),
        (("Exp", "Sub", "Log"), counts(neg=3), counts(neg_inf=1, neg=2), False),
    ],
)
def test_a_sum_that_tensorflow_left_out_of_a_chain_added_0(
    op_types: tuple[str, ...], taken: dict[str, Any], made: dict[str, Any], is_lost: bool, tmp_path: Path
) -> None:
    half = {"dtype": "float16"}
    run, event = chain(op_types, {**taken, **half}, {**made, **half})
    tensor = first(run, tmp_path)
    assert (tensor.op_type, tensor.num_neg_inf, tensor.num_pos_inf) == ("Log", 1, 0)
    explanation = reason(run, event, tmp_path)
    assert explanation.sentence.startswith("Log of 0: 1 of 3 elements is 0, and the logarithm of 0 is -Inf.")
    assert ("is 0 in float16" in explanation.sentence) == is_lost


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_cast_of_a_constant_that_was_computed_in_advance_is_no_maker(is_folded: bool, tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("one", "Const").op("cast", "Cast", ["one" if is_folded else "x"])
    graph.op("sum", "MatMul", ["x", "cast"]).function("f", ["x"], ["sum"])
    run.executed(graph).argument("x").node("sum", "MatMul", ["x"]).result("sum")
    index = call(run, graph, health=counts(pos=3))
    run.tensor(graph, "x", counts(pos=3), execution=index)
    run.eager(index, counts(pos_inf=1, pos=2), tensor_id=2)
    event = run.tensor(graph, "sum", counts(pos_inf=1, pos=2), execution=index)
    flow = DataFlow(written(run, tmp_path), run_id=run.run_id)
    row = flow.events.event(event)
    assert row is not None
    made = flow.program_ops.maker(row)
    assert (made.op.op_type, made.others) == ("MatMul", () if is_folded else ("Cast",))


@pytest.mark.parametrize("epsilon", [False, True])
def test_the_reciprocal_of_a_root_is_the_division_of_the_program(epsilon: bool, tmp_path: Path) -> None:
    """TensorFlow ran x / sqrt(v) as x * rsqrt(v), even if the program adds an epsilon of 0 to the root."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("v", "Square", ["x"]).op("root", "Sqrt", ["v"])
    divisor = "root"
    if epsilon:
        graph.op("zero", "Const").op("sum", "AddV2", ["root", "zero"])
        divisor = "sum"
    graph.op("ratio", "RealDiv", ["x", divisor]).function("f", ["x"], ["ratio"])
    run.executed(graph).argument("x").node("v", "Square", ["x"]).node("root", "Rsqrt", ["v"]).node(
        "ratio", "Mul", ["x", "root"]
    ).result("ratio")
    index = call(run, graph, health=counts(zero=1, pos=2))
    run.tensors(graph, {"x": counts(zero=1, pos=2), "v": counts(zero=1, pos=2)}, execution=index)
    root = run.tensor(graph, "root", counts(pos_inf=1, pos=2), execution=index, op_type="Rsqrt")
    run.tensor(graph, "ratio", counts(nan=1, pos=2), execution=index, op_type="Mul")
    run.eager(index, counts(nan=1, pos=2), tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.event_index) == ("ratio", "RealDiv", root)
    assert tensor.ran_as == "Rsqrt in place of Sqrt and RealDiv"
    assert [each.health and (each.health.num_zero, each.health.num_pos_inf) for each in tensor.inputs] == [
        (1, 0),
        (1, 0),
    ]
    explanation = reason(run, root, tmp_path)
    assert explanation.sentence == "0 / 0: the divisor has 1 zero, the dividend 1 zero, and 0 / 0 is NaN."
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        named = {
            (hop.op_name, hop.op_type)
            for hop in logdir.provenance(root, run_id=run.run_id).hops
            if hop.role == "origin"
        }
        alerts = {(alert.op_name, alert.op_type) for alert in logdir.alerts(kinds=["nonfinite_origin"]).alerts}
    assert named == alerts == {("ratio", "RealDiv")}


@pytest.mark.parametrize(
    ("rate", "product", "is_known"),
    [
        (counts(pos=3), counts(nan=1, pos=2), True),
        (counts(neg=1, pos=2), counts(nan=1, pos=2), False),  # the sign of the quotient is unknown
        (counts(zero=1, pos=2), counts(nan=1, zero=1, pos=1), False),
        (counts(pos=3), counts(nan=1, pos_inf=1, pos=1), False),  # the product overflowed
    ],
)
def test_a_quotient_that_is_scaled_before_it_is_computed(
    rate: dict[str, Any], product: dict[str, Any], is_known: bool, tmp_path: Path
) -> None:
    """TensorFlow turned rate * (x / sqrt(v)) into x * (rate * rsqrt(v)), so the quotient was never computed."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("v", "Square", ["x"]).op("root", "Sqrt", ["v"])
    graph.op("rate", "Tanh", ["v"]).op("ratio", "RealDiv", ["x", "root"]).op("step", "Mul", ["rate", "ratio"])
    graph.function("f", ["x"], ["step"])
    executed = run.executed(graph).argument("x").node("v", "Square", ["x"])
    executed.node("rate", "Tanh", ["v"]).node("root", "Rsqrt", ["v"])
    executed.node("ratio", "Mul", ["rate", "root"])
    executed.node("step", "Mul", ["x", "ratio"]).result("step")
    some, infinite = counts(zero=1, pos=2), counts(pos_inf=1, pos=2)
    index = call(run, graph, health=some)
    events = {
        name: run.tensor(graph, name, health, execution=index)
        for name, health in (("x", some), ("v", some), ("rate", rate))
    }
    root = run.tensor(graph, "root", infinite, execution=index, op_type="Rsqrt")
    run.tensor(graph, "ratio", infinite, execution=index, op_type="Mul")
    run.tensor(graph, "step", product, execution=index)
    run.eager(index, product, tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.event_index) == ("ratio", "RealDiv", root)
    assert (tensor.num_nan, tensor.num_pos_inf) == ((1, 0) if is_known else (0, 1))
    assert reason(run, root, tmp_path).sentence == (
        "0 / 0: the divisor has 1 zero, the dividend 1 zero, and 0 / 0 is NaN."
        if is_known
        else "Rsqrt of 0: 1 of 3 elements is 0, and 1 / sqrt(0) is infinite."
    )
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        causes = {hop.event_index for hop in logdir.provenance(root, run_id=run.run_id).hops if hop.role == "cause"}
    assert causes == {events["v"], events["x"] - 1}  # the second one is the row of the argument, which stands for x


ZERO_BY_0 = "0 / 0: the divisor has 1 zero, the dividend 1 zero, and 0 / 0 is NaN."
BY_0 = "Division by 0: the divisor is 0, and the quotient is infinite."
BY_CONSTANT = (
    "RealDiv by a constant: TensorFlow divided another constant by it in advance, and that quotient holds 1 +Inf. If "
    "the other constant is finite, the divisor is 0 or next to 0."
)


@pytest.mark.parametrize(
    ("x", "constant", "dtype", "user", "said"),
    [
        (counts(zero=1), counts(pos_inf=1), "int32", "Mul", ZERO_BY_0),
        (counts(neg=1), counts(pos_inf=1), "int32", "Mul", BY_0),
        # The constant may have overflowed.
        (counts(zero=1), counts(pos_inf=1), "float64", "Mul", BY_CONSTANT),
        (counts(zero=1), counts(pos_inf=1), "int32", "Sub", BY_CONSTANT),
        # Nothing shows which elements of x are divided by the 0.
        (counts(zero=1, pos=1), counts(pos_inf=1, pos=1), "int32", "Mul", BY_CONSTANT),
    ],
)
def test_a_constant_that_is_divided_in_advance_is_no_quotient(
    x: dict[str, Any], constant: dict[str, Any], dtype: str, user: str, said: str, tmp_path: Path
) -> None:
    """TensorFlow replaced a * (x / c) by x * (a / c), because a and c are constants."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("a", "Const").op("c", "Const", dtypes=(dtype,))
    graph.op("divisor", "Cast", ["c"]).op("ratio", "RealDiv", ["x", "divisor"])
    graph.op("step", user, ["a", "ratio"]).function("f", ["x"], ["step"])
    executed = run.executed(graph).argument("x").node("ratio", "Const")
    executed.node("step", "Mul", ["x", "ratio"]).result("step")
    index = call(run, graph, health=x)
    run.tensor(graph, "x", x, execution=index)
    event = run.tensor(graph, "ratio", constant, execution=index, op_type="Const")
    run.tensor(graph, "step", counts(nan=x["size"]), execution=index)
    run.eager(index, counts(nan=x["size"]), tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.event_index) == ("ratio", "RealDiv", event)
    is_known = said != BY_CONSTANT
    assert (tensor.num_nan, tensor.num_pos_inf, tensor.num_neg_inf) == (
        (x["num_zero"], x["num_pos_finite"], x["num_neg_finite"]) if is_known else (0, 1, 0)
    )
    explanation = reason(run, event, tmp_path)
    assert explanation.sentence == said + (" The divisor is the constant 0." if is_known else "")


def test_the_reciprocal_of_a_constant_divisor_is_the_division_of_the_program(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Placeholder").op("c", "Const").op("ratio", "RealDiv", ["x", "c"])
    graph.function("f", ["x"], ["ratio"])
    made = "ConstantFolding/ratio_recip"
    run.executed(graph).argument("x").node(made, "Const", made_for="ratio").node("ratio", "Mul", ["x", made]).result(
        "ratio"
    )
    index = call(run, graph, health=counts(pos=3))
    run.tensor(graph, "x", counts(pos=3), execution=index)
    graph.op_types[made] = "Const"
    constant = run.tensor(graph, made, counts(pos_inf=2, pos=1), execution=index)
    run.tensor(graph, "ratio", counts(pos_inf=2, pos=1), execution=index, op_type="Mul")
    run.eager(index, counts(pos_inf=2, pos=1), tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.event_index) == ("ratio", "RealDiv", constant)
    assert reason(run, constant, tmp_path).sentence == (
        "Division by 0: 2 of 3 elements are 0 in the divisor, and the quotient is infinite."
    )


def test_a_reciprocal_of_an_outer_graph_is_the_division_of_the_called_one(tmp_path: Path) -> None:
    """TensorFlow inlined the call before it made the reciprocal, so the reciprocal belongs to the caller's graph."""
    run = RunBuilder("run-a")
    inner = run.graph("g").op("x", "Placeholder").op("c", "Const").op("ratio", "RealDiv", ["x", "c"])
    inner.op("later", "RealDiv", ["ratio", "c"]).function("g", ["x"], ["ratio"])
    outer = run.graph("f").op("x", "Placeholder").op("call", "PartitionedCall", ["x"])
    outer.function("f", ["x"], ["call"]).calls("call", "g", inner)
    made = "ConstantFolding/call/ratio_recip"
    executed = run.executed(outer).argument("x")
    executed.node(made, "Const", made_for="call")
    executed.node("call/later", "Mul", ["call/ratio", made], of=inner, op="later", site="call")
    executed.node("call/ratio", "Mul", ["x", made], of=inner, op="ratio", site="call")
    executed.result("call/ratio")
    index = call(run, outer, health=counts(zero=1, pos=2))
    outer.op_types[made] = "Const"
    constant = run.tensor(outer, made, counts(pos_inf=1, pos=2), execution=index)
    run.tensor(inner, "ratio", counts(nan=1, pos=2), execution=index, op_type="Mul", site="call")
    run.eager(index, counts(nan=1, pos=2), tensor_id=2)
    tensor = first(run, tmp_path)
    assert (tensor.op_name, tensor.op_type, tensor.graph_name) == ("ratio", "RealDiv", "g")
    assert (tensor.event_index, tensor.num_nan) == (constant, 1)
    assert [call_site.function for call_site in tensor.called_from] == ["g", "f"]
    assert reason(run, constant, tmp_path).sentence == ZERO_BY_0
    with tfdbg_arrow.open_logdir(tmp_path / "logdir") as logdir:
        assert [(alert.op_name, alert.graph_name) for alert in origins(logdir)] == [("ratio", "g")]


VALUES = st.lists(st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5, 3.0, np.inf, np.nan]), min_size=1, max_size=6)
FUNCTIONS = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "Sqrt": np.sqrt,
}


@pytest.mark.parametrize("op_type", FUNCTIONS)
@given(values=VALUES)
@settings(max_examples=100, deadline=None)
def test_worked_out_counts_are_those_of_the_op(op_type: str, values: list[float]) -> None:
    with np.errstate(invalid="ignore"):
        expected = FUNCTIONS[op_type](np.array(values))
    taken, made = (row_of(array) for array in (np.array(values), expected))
    assert COUNTS[op_type](taken) == {name: getattr(made, name) for name in NUMBERS}


@given(values=VALUES)
def test_the_counts_of_a_reciprocal_are_those_of_its_divisor(values: list[float]) -> None:
    with np.errstate(divide="ignore"):
        made = row_of(1 / np.array(values))
    divisor = reciprocal(made)
    assert divisor["num_zero"] == np.count_nonzero(np.array(values) == 0)
    assert divisor["num_nan"] == np.count_nonzero(np.isnan(values))


def row_of(values: np.ndarray) -> Any:
    finite = values[np.isfinite(values)]
    numbers = (
        np.isneginf(values), finite < 0, finite == 0, finite > 0, np.isposinf(values), np.isnan(values)
    )  # fmt: skip
    return SimpleNamespace(**{name: int(np.sum(number)) for name, number in zip(NUMBERS, numbers, strict=True)})


CHAINS = [
    # The program is log(exp(x) - 1). An infinity of Exp or of the difference would become +Inf or NaN.
    (("Exp", "Sub", "Log"), counts(neg_inf=1, neg=1, pos=1), "Log", "Log of 0: 1 of 3 elements is 0"),
    (("Exp", "Sub", "Log"), counts(pos_inf=1, pos=2), "Exp", "Overflow in Exp: its inputs are finite, "),
    (("Log", "Square"), counts(pos_inf=1, pos=2), "Log", None),
    (("Sqrt", "Log", "Neg"), counts(nan=1, pos_inf=1, pos=1), "Log", "Log of 0: 1 of 3 elements is 0"),
]


@pytest.mark.parametrize(("op_types", "made", "op_type", "sentence"), CHAINS)
def test_an_op_of_a_chain_that_cannot_make_the_kinds_of_its_bad_elements_is_not_named(
    op_types: tuple[str, ...], made: dict[str, Any], op_type: str, sentence: str | None, tmp_path: Path
) -> None:
    run, event = chain(op_types, counts(zero=1, pos=2), made)
    tensor = first(run, tmp_path)
    explanation = reason(run, event, tmp_path)
    assert explanation is not None
    assert tensor.op_type == op_type
    if sentence is not None:
        assert explanation.sentence.startswith(sentence)
