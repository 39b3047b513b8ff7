"""Test the lines that answers name: the line that made a Keras object, a part of a line, and the call of a function."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.query import Frame, SourceLine, alerts, open_logdir
from tfdbg_arrow.query.nonfinite_search import tensor_callers
from tfdbg_arrow.query.wording import carets, nonfinite_facts
from tfdbg_arrow.viewer.source_text import highlighted

from .builder import CLEAN, NAN, RunBuilder, counts

FIT = ("train.py", 20, "<module>", "model.fit(x, y)", "user")
KERAS = ("/site/keras/optimizer.py", 7, "apply", "a / b", "framework")
GRADIENT = ("/site/tensorflow/backprop.py", 9, "imperative_grad", "f()", "framework")
ADAM = ("train.py", 12, "main", "opt = Adam(epsilon=0.0)", "user")
DENSE = ("train.py", 9, "main", "x = Dense(3)(x)", "user")


def test_the_line_that_made_a_part_of_keras(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    fit, adam, dense = run.stack(KERAS, FIT), run.stack(KERAS, ADAM), run.stack(DENSE)
    graph = run.graph("train_step")
    graph.op("x", "Placeholder", stack=fit)
    graph.op("y", "Div", ["x"], stack=fit, role="forward", layer="dense", part_stack_trace_id=dense)
    gradient = {"role": "gradient", "layer": "dense", "forward_graph_id": 0, "forward_op_name": "y"}
    graph.op("dy", "RealDivGrad", ["y"], stack=fit, **gradient)
    graph.op("update", "RealDiv", ["x"], stack=fit, role="optimizer", part_stack_trace_id=adam)
    graph.op("own", "Log", ["x"], stack=dense, role="forward", layer="dense", part_stack_trace_id=dense)
    graph.op("old", "Exp", ["x"], stack=fit, role="forward", layer="older")
    run.tensor(graph, "x", CLEAN)
    names = ("y", "dy", "update", "own", "old")
    events = {run.tensor(graph, name, NAN): name for name in names}
    with open_logdir(run.write(tmp_path / "logdir")) as opened:
        found = {events[each.event_index]: each for each in opened.nonfinite()}
        hops = {name: opened.provenance(found[name]).hops[0].made_at for name in names}
    lines = {"y": Frame(*DENSE), "dy": Frame(*DENSE), "update": Frame(*ADAM), "own": None, "old": None}
    assert {name: each.made_at for name, each in found.items()} == lines
    assert hops == lines
    assert ("created at", "train.py:12: opt = Adam(epsilon=0.0)") in nonfinite_facts(found["update"])


def test_the_call_of_a_function_without_steps(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stacks = [run.stack(("train.py", line, "step", "tf.sqrt(x)", "user")) for line in (3, 3, 8)]
    graphs = [run.graph("step").op("x", "Placeholder").op("y", "Sqrt", ["x"], stack=stack) for stack in stacks]
    for number, graph in enumerate(graphs):
        run.add("graph_function", function_name=f"__inference_step_{number}", graph_id=graph.graph_id)
    for number in (0, 2, 1, 0):  # the graphs 0 and 1 belong to the same function
        execution = run.execution(f"__inference_step_{number}", graph=graphs[number])
        run.tensors(graphs[number], {"x": CLEAN, "y": NAN}, execution=execution, step=execution + 1)
    with open_logdir(run.write(tmp_path / "logdir")) as opened:
        calls = [each.call for each in opened.nonfinite()]
        assert [(call.function, call.number) for call in calls if call] == [("step", number) for number in (1, 1, 2, 3)]
        assert ("call", "2 of step, execution 2") in nonfinite_facts(opened.nonfinite()[2])
    for row in run.rows["tensor_health"]:
        row["step"] = 5
    with open_logdir(run.write(tmp_path / "with_steps")) as opened:
        assert {each.call for each in opened.nonfinite()} == {None}
    for row in run.rows["tensor_health"]:
        row["step"] = None
    del run.rows["execution"][1]
    with open_logdir(run.write(tmp_path / "cut")) as opened:
        assert {each.call for each in opened.nonfinite()} == {None}, "an execution is missing"


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ([KERAS, GRADIENT, FIT], Frame(*DENSE)),
        (
            [("train.py", 30, "grad", "dy * 0.0", "user"), GRADIENT, FIT],
            Frame("train.py", 30, "grad", "dy * 0.0", "user"),
        ),
    ],
    ids=["TensorFlow's gradient", "the program's gradient"],
)
def test_alerts_about_gradients_name_the_forward_line(
    stack: list[tuple[str, int, str, str | None, str]], line: Frame, tmp_path: Path
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("train_step").op("x", "Placeholder")
    graph.op("y", "Sqrt", ["x"], stack=run.stack(DENSE), role="forward")
    forward = {"forward_graph_id": 0, "forward_op_name": "y"}
    graph.op("dy", "SqrtGrad", ["y"], stack=run.stack(*stack), role="gradient", **forward)
    run.tensors(graph, {"x": CLEAN, "y": CLEAN, "dy": NAN})
    logdir = run.write(tmp_path / "logdir")
    found = alerts(logdir).alerts
    assert {alert.source for alert in found if alert.op_name == "dy"} == {line}
    assert {alert.kind for alert in found if alert.op_name == "dy"} >= {"nonfinite", "nonfinite_origin"}
    with open_logdir(logdir) as opened:
        assert [each.source for each in opened.nonfinite()] == [line]


def frame(text: str, part: str) -> Frame:
    start = text.index(part) + 1
    return Frame("train.py", 3, "f", text.strip(), "user", start, start + len(part))


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("    return f(x) / g(x)", "g(x)", "                  ^^^^"),
        ("\ty = f(漢)  + g(x)", "f(漢)", "        ^^^^^"),
        ("    return f(x)", "return f(x)", None),
    ],
)
def test_the_part_of_a_line_is_underlined(text: str, part: str, expected: str | None) -> None:
    marked = frame(text, part)
    assert carets(marked, text) == expected
    lines = [SourceLine(2, "def f(x):"), SourceLine(3, text)]
    plain, html = highlighted(lines), highlighted(lines, marked)
    assert html[0] == plain[0]
    assert html[1].replace("<mark>", "").replace("</mark>", "").striptags() == plain[1].striptags()
    if expected is None:
        assert html == plain
    else:
        inner = html[1][html[1].index("<mark>") : html[1].index("</mark>")]
        assert inner.striptags() == part


@pytest.mark.parametrize("columns", [(None, None), (5, 200), (0, 2), (4, 4)])
def test_no_part_is_underlined_if_the_columns_are_unknown_or_wrong(columns: tuple[int | None, int | None]) -> None:
    assert carets(Frame("train.py", 3, "f", "f(x)", "user", *columns), "f(x) / g(x)") is None


LOG = ("train.py", 5, "scaled", "return tf.math.log(x)", "user")
FIRST = ("train.py", 10, "step", "first = scaled(x)", "user")
SECOND = ("train.py", 11, "step", "second = scaled(y)", "user")
MAIN = ("train.py", 20, "<module>", "step(x)", "user")


def callers(run: RunBuilder, path: Path) -> list[tuple[str, ...]]:
    """Returns the code of the callers of each bad tensor, in the order of the tensors."""
    with open_logdir(run.write(path)) as opened:
        bad = sorted(opened.nonfinite(), key=lambda tensor: tensor.event_index)
        return [
            tuple(frame.code or "" for frame in tensor_callers(opened, each.event_index, run_id=each.run_id))
            for each in bad
        ]


def test_the_callers_in_python(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("step").op("x", "Placeholder")
    run.rows["graph"][0]["stack_trace_id"] = run.stack(KERAS, MAIN)
    graph.op("Log", "Log", ["x"], stack=run.stack(KERAS, LOG, FIRST, MAIN))
    graph.op("Log_1", "Log", ["x"], stack=run.stack(KERAS, LOG, SECOND, MAIN))
    graph.function("__inference_step_1", ["x"], ["Log"])
    call = run.execution("__inference_step_1", graph=graph, stack=run.stack(MAIN))
    run.tensors(graph, {"x": CLEAN, "Log": NAN, "Log_1": NAN}, execution=call)
    assert callers(run, tmp_path / "graph") == [("first = scaled(x)", "step(x)"), ("second = scaled(y)", "step(x)")]
    run.rows["graph"][0]["stack_trace_id"] = None
    unknown = callers(run, tmp_path / "unknown")
    assert unknown == [("step(x)",)] * 2, "the frames of the function are not known"


def test_the_callers_of_a_traced_function(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    step = run.graph("step").op("x", "Placeholder")
    step.op("call", "PartitionedCall", ["x"], stack=run.stack(FIRST, MAIN))
    step.op("call_1", "PartitionedCall", ["x"], stack=run.stack(SECOND, MAIN))
    step.function("__inference_step_1", ["x"], ["call"])
    scaled = run.graph("scaled").op("a", "Placeholder").op("Log", "Log", ["a"], stack=run.stack(LOG, FIRST, MAIN))
    scaled.function("scaled_fn", ["a"], ["Log"])
    step.calls("call", "scaled_fn", scaled).calls("call_1", "scaled_fn", scaled)
    run.rows["graph"][0]["stack_trace_id"] = run.stack(MAIN)
    run.rows["graph"][1].update(stack_trace_id=run.stack(FIRST, MAIN), outer_graph_id=0)
    call = run.execution("__inference_step_1", graph=step, stack=run.stack(MAIN))
    run.tensor(scaled, "Log", NAN, execution=call, site="call")
    run.tensor(scaled, "Log", NAN, execution=call, site="call_1")
    assert callers(run, tmp_path) == [("first = scaled(x)", "step(x)"), ("second = scaled(y)", "step(x)")]


@pytest.mark.parametrize(
    ("bad_index", "expected"), [(0, ("first = scaled(x)", "step(x)")), (1, ("second = scaled(y)", "step(x)"))]
)
def test_the_callers_of_an_op_that_ran_on_several_tensors_are_those_of_the_op_on_the_bad_tensor(
    tmp_path: Path, bad_index: int, expected: tuple[str, ...]
) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("step").op("x", "Placeholder").op("y", "Neg", ["x"]).op("axis", "Const")
    run.rows["graph"][0]["stack_trace_id"] = run.stack(MAIN)
    graph.op("Log", "Log", ["x"], stack=run.stack(LOG, FIRST, MAIN))
    graph.op("Log_1", "Log", ["y"], stack=run.stack(LOG, SECOND, MAIN))
    graph.op("concat", "ConcatV2", ["Log", "Log_1", "axis"])
    graph.function("__inference_step_1", ["x"], ["concat"])
    executed = run.executed(graph).argument("x").node("y", "Neg", ["x"]).node("axis", "Const")
    executed.node("concat", "ConcatV2", ["x", "y", "axis"]).node("Log", "Log", ["concat"]).result("Log")
    call = run.execution("__inference_step_1", graph=graph, stack=run.stack(MAIN))
    bad = counts(nan=1, pos=3) | {"first_bad_index": 2 * bad_index}
    run.tensors(graph, {"x": CLEAN, "y": CLEAN, "concat": counts(pos=4), "Log": bad}, execution=call)
    assert callers(run, tmp_path) == [expected]


def test_the_callers_of_a_gradient_are_those_of_the_forward_op(tmp_path: Path) -> None:
    tape = ("train.py", 15, "step", "tape.gradient(loss, w)", "user")
    run = RunBuilder("run-a")
    step = run.graph("step").op("x", "Placeholder")
    for name, line in (("call", FIRST), ("call_1", SECOND)):
        step.op(name, "PartitionedCall", ["x"], stack=run.stack(line, MAIN))
    for name, forward in (("grad", "call"), ("grad_1", "call_1")):
        gradient = {"role": "gradient", "forward_graph_id": 0, "forward_op_name": forward}
        step.op(name, "PartitionedCall", [forward], stack=run.stack(tape, MAIN), **gradient)
    step.function("__inference_step_1", ["x"], ["grad"])
    scaled = run.graph("scaled").op("a", "Placeholder").op("Sqrt", "Sqrt", ["a"], stack=run.stack(LOG, FIRST, MAIN))
    scaled.function("scaled_fn", ["a"], ["Sqrt"])
    backward = run.graph("backward").op("dy", "Placeholder")
    gradient = {"role": "gradient", "forward_graph_id": 1, "forward_op_name": "Sqrt"}
    backward.op("SqrtGrad", "SqrtGrad", ["dy"], stack=run.stack(KERAS), **gradient)
    backward.function("backward_fn", ["dy"], ["SqrtGrad"])
    step.calls("call", "scaled_fn", scaled).calls("call_1", "scaled_fn", scaled)
    step.calls("grad", "backward_fn", backward).calls("grad_1", "backward_fn", backward)
    for graph, frames in zip(run.rows["graph"], ((MAIN,), (FIRST, MAIN), (FIRST, MAIN)), strict=True):
        graph["stack_trace_id"] = run.stack(*frames)
    call = run.execution("__inference_step_1", graph=step, stack=run.stack(MAIN))
    run.tensor(backward, "SqrtGrad", NAN, execution=call, site="grad")
    run.tensor(backward, "SqrtGrad", NAN, execution=call, site="grad_1")
    assert callers(run, tmp_path) == [("first = scaled(x)", "step(x)"), ("second = scaled(y)", "step(x)")]


def test_a_loop_is_no_caller(tmp_path: Path) -> None:
    loop = ("train.py", 9, "step", "for _ in tf.range(3):", "user")
    run = RunBuilder("run-a")
    step = run.graph("step").op("x", "Placeholder").op("while", "While", ["x"], stack=run.stack(loop, MAIN))
    step.function("__inference_step_1", ["x"], ["while"])
    body = run.graph("body").op("v", "Placeholder")
    body.op("Log", "Log", ["v"], stack=run.stack(LOG, FIRST, loop, MAIN)).function("body_fn", ["v"], ["Log"])
    step.calls("while", "body_fn", body, attribute="body")
    run.rows["graph"][0]["stack_trace_id"] = run.stack(MAIN)
    run.rows["graph"][1].update(stack_trace_id=run.stack(loop, MAIN), outer_graph_id=0)
    call = run.execution("__inference_step_1", graph=step, stack=run.stack(MAIN))
    run.tensor(body, "Log", NAN, execution=call, site="while/body", frame=9, iteration=0)
    assert callers(run, tmp_path) == [("first = scaled(x)", "step(x)")]
