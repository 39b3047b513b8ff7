"""Test alert rules: each rule fires on its own case and stays silent on a near miss."""

from __future__ import annotations

import dataclasses
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Alerts, alerts, builtin_rules, open_logdir
from tfdbg_arrow.query.alert_rules import answer
from tfdbg_arrow.query.present.answers import blocks_of
from tfdbg_arrow.query.present.text import text_of
from tfdbg_arrow.query.wording import unjudged_text

from .builder import CLEAN, INF, NAN, GraphBuilder, RunBuilder, counts

Build = Callable[[RunBuilder], None]


def numbers(
    *, mean: float = 0.0, stddev: float = 1.0, max_abs: float = 2.0, size: int = 100, zero: int = 0, subnormal: int = 0
) -> dict[str, Any]:
    """Returns the health columns of a tensor in FULL_NUMERICS mode."""
    return {
        **counts(zero=zero, pos=size - zero),
        "min_finite": -max_abs,
        "max_finite": max_abs,
        "mean_finite": mean,
        "stddev_finite": stddev,
        "max_abs_finite": max_abs,
        "num_subnormal": subnormal,
    }


def series(
    op_type: str,
    tensors: Iterable[Mapping[str, Any]],
    *,
    op_name: str = "x",
    graph: str = "model",
    is_loop: bool = False,
    role: str | None = None,
) -> Build:
    """Returns a program that runs one op once for each tensor: in separate calls, or in the iterations of a loop."""

    def build(run: RunBuilder) -> None:
        one = run.graph(graph).op(op_name, op_type, role=role)
        for step, tensor in enumerate(tensors):
            run.tensor(one, op_name, tensor, step=0 if is_loop else step, iteration=step if is_loop else 0)

    return build


def backward(tensors: Iterable[Mapping[str, Any]], *, is_loop: bool = False) -> Build:
    return series("MatMul", tensors, graph="__backward_model_12", is_loop=is_loop)


def reads_of_variables(*, frozen: Iterable[float], trained: Iterable[float]) -> Build:
    def build(run: RunBuilder) -> None:
        graph = run.graph("model").op("frozen", "ReadVariableOp").op("trained", "ReadVariableOp")
        for step, (a, b) in enumerate(zip(frozen, trained, strict=True)):
            run.tensors(graph, {"frozen": numbers(mean=a), "trained": numbers(mean=b)}, step=step)

    return build


def update(*, sizes: Iterable[float], of: float, role: str | None = None) -> Build:
    """Returns a program that reads a variable and subtracts an update from it, once for each of the sizes."""

    def build(run: RunBuilder) -> None:
        graph = run.graph("train").op("variable", "Placeholder", dtypes=["resource"])
        graph.op("read", "ReadVariableOp", inputs=["variable"], role=role).op("scaled", "Mul")
        graph.op("assign", "AssignSubVariableOp", inputs=["variable", "scaled"], dtypes=[])
        for step, size in enumerate(sizes):
            run.tensor(graph, "read", numbers(mean=of, stddev=0.0), step=step)
            run.tensor(graph, "scaled", numbers(mean=size, stddev=0.0), step=step)

    return build


def descent(*, gradients: Iterable[float], rate: float, of: float) -> Build:
    """Returns a program that applies gradients to a variable with ResourceApplyGradientDescent."""

    def build(run: RunBuilder) -> None:
        graph = run.graph("train").op("variable", "Placeholder", dtypes=["resource"]).op("rate", "Const")
        graph.op("read", "ReadVariableOp", inputs=["variable"]).op("gradient", "Mul")
        graph.op("apply", "ResourceApplyGradientDescent", inputs=["variable", "rate", "gradient"], dtypes=[])
        for step, gradient in enumerate(gradients):
            run.tensor(graph, "read", numbers(mean=of, stddev=0.0), step=step)
            run.tensor(graph, "rate", numbers(mean=rate, stddev=0.0, size=1), step=step)
            run.tensor(graph, "gradient", numbers(mean=gradient, stddev=0.0), step=step)

    return build


def adam(contents: Iterable[float], *, missing: str = "", is_capture: bool = True) -> Build:
    """Returns a program that applies gradients with ResourceApplyAdam.

    Args:
        contents: The mean of the variable at each read.
        missing: `execution` means that the second-to-last execution is not recorded. `dropped` means that tensors were
            dropped.
        is_capture: Whether all calls read the same variable.
    """

    def build(run: RunBuilder) -> None:
        graph = run.graph("train").op("variable", "Placeholder", dtypes=["resource"])
        graph.op("read", "ReadVariableOp", inputs=["variable"])
        graph.op("apply", "ResourceApplyAdam", inputs=["variable"], dtypes=[])
        names = ["variable"]
        graph.function("train", captures=names) if is_capture else graph.function("train", arguments=names)
        for step, content in enumerate(contents):
            call = run.execution("train", graph=graph)
            run.tensor(graph, "read", numbers(mean=content, stddev=content), step=step, execution=call)
        if missing == "execution":
            del run.rows["execution"][call - 1]
        elif missing:
            run.add(
                "capture_stat", event_index=0, wall_time_ns=1, stat=missing, subject="events", reason="", num_events=1
            )

    return build


GROWING = [1.5**step for step in range(16)]


def graphs(names: Iterable[str], *, num_calls: int = 1) -> Build:
    def build(run: RunBuilder) -> None:
        for number, name in enumerate(names):
            graph = run.graph(name).op("x", "Mul")
            for _ in range(num_calls):
                run.execution(f"__inference_{name}_{number}", graph=graph)
            run.tensor(graph, "x", CLEAN)

    return build


def product(op_type: str, tensors: Iterable[Mapping[str, Any]], *, of: Mapping[str, Any]) -> Build:
    """Returns a program that runs an op on the tensor `of`. The op runs once for each of its output `tensors`."""

    def build(run: RunBuilder) -> None:
        graph = run.graph("model").op("before", "Relu").op("x", op_type, inputs=["before"])
        for step, tensor in enumerate(tensors):
            run.tensors(graph, {"before": of, "x": tensor}, step=step)

    return build


def beside_constant(op_type: str, magnitude: float, *, constant: float) -> Build:
    """Returns a program with a constant and an op."""

    def build(run: RunBuilder) -> None:
        graph = run.graph("model").op("constant", "Const").op("x", op_type)
        run.tensors(graph, {"constant": numbers(max_abs=constant), "x": numbers(max_abs=magnitude)})

    return build


def edge(before: Mapping[str, Any], after: Mapping[str, Any], *, step_after: int = 1) -> Build:
    def build(run: RunBuilder) -> None:
        graph = run.graph("model").op("before", "Placeholder").op("x", "Log", inputs=["before"])
        run.tensor(graph, "before", before)
        run.tensor(graph, "x", after, step=step_after)

    return build


def shapes(lengths: Iterable[int]) -> Build:
    return series("Mul", [counts(pos=length) for length in lengths])


# (rule, a program on which it fires, the expected value, a near miss on which it stays silent)
CASES: list[tuple[str, Build, float, Build]] = [
    ("nonfinite_origin", edge(CLEAN, NAN), 1, edge(CLEAN, CLEAN)),
    ("nonfinite_origin", edge(NAN, NAN, step_after=2), 1, series("Placeholder", [CLEAN])),
    ("nonfinite", series("Log", [CLEAN, INF, NAN]), 2, series("Log", [CLEAN])),
    ("overflow_near", series("Exp", [numbers(max_abs=1e38)]), 1e38, series("Exp", [numbers(max_abs=1e37)])),
    (
        "overflow_near",
        beside_constant("AddV2", 1.5e38, constant=1e38),
        1.5e38,
        beside_constant("AddV2", 1.001e38, constant=1e38),
    ),
    (
        "underflow",
        series("Mul", [numbers()] * 4 + [numbers(subnormal=30)] * 4),
        0.3,
        series("Mul", [numbers(subnormal=30)] * 8),
    ),
    (
        "growth_trend",
        series("Mul", [numbers(max_abs=10.0**power) for power in range(8)]),
        1e6,
        series("Mul", [numbers(max_abs=10.0 ** (power % 4)) for power in range(8)]),
    ),
    (
        "growth_trend",
        series("Mul", [numbers(max_abs=10.0**power) for power in range(8)], role="forward"),
        1e6,
        series("Mul", [numbers(max_abs=10.0**power) for power in range(8)], role="optimizer"),
    ),
    ("exploding_gradient", backward([numbers(max_abs=5000)]), 5000, series("MatMul", [numbers(max_abs=5000)])),
    (
        "vanishing_gradient",
        backward([numbers(max_abs=1e-9)] * 3),
        1e-9,
        backward([numbers(max_abs=1e-9)] * 3 + [numbers()]),
    ),
    (
        "vanishing_gradient",
        backward([numbers(max_abs=1e-9)] * 3),
        1e-9,
        series("Sum", [numbers(max_abs=1e-9)] * 3, graph="__backward_model_12"),
    ),
    (
        "gradient_norm_spike",
        backward([numbers(stddev=1)] * 10 + [numbers(stddev=50)]),
        50,
        backward([numbers(stddev=1)] * 9 + [numbers(stddev=50)]),
    ),
    (
        "gradient_norm_spike",
        backward([numbers(stddev=1)] * 10 + [numbers(stddev=50)]),
        50,
        backward([numbers(stddev=1)] * 10 + [numbers(stddev=50)], is_loop=True),
    ),
    (
        "dead_relu",
        series("Relu", [numbers()] * 3 + [numbers(zero=99)] * 5),
        0.99,
        series("Relu", [numbers(zero=99)] * 4 + [numbers(zero=98)]),
    ),
    (
        "saturated_activation",
        series("Tanh", [numbers(mean=0, stddev=0.99)] * 5),
        1 - 0.99**2,
        series("Tanh", [numbers(mean=0, stddev=0.9)] * 5),
    ),
    (
        "saturated_activation",
        series("Sigmoid", [numbers(mean=0.5, stddev=0.499)] * 5),
        4 * (0.25 - 0.499**2),
        series("Sigmoid", [numbers(mean=0.5, stddev=0.4)] * 5),
    ),
    (
        "all_zero",
        series("MatMul", [numbers(zero=100)] * 10),
        10,
        series("MatMul", [numbers(zero=100)] * 9 + [numbers(zero=99)]),
    ),
    (
        "all_zero",
        product("Conv2D", [numbers(zero=100)] * 10, of=numbers(zero=99)),
        10,
        product("Conv2D", [numbers(zero=100)] * 10, of=numbers(zero=100)),
    ),
    ("all_zero", series("MatMul", [numbers(zero=100)] * 10), 10, series("Mul", [numbers(zero=100)] * 10)),
    (
        "unchanged_variable",
        reads_of_variables(frozen=[1.0] * 10, trained=range(10)),
        10,
        reads_of_variables(frozen=[1.0] * 10, trained=[1.0] * 10),
    ),
    ("weight_update_ratio", update(sizes=[0.01] * 10 + [2] * 4 + [3], of=4), 0.5, update(sizes=[2] * 14 + [1.9], of=4)),
    ("weight_update_ratio", update(sizes=[2] * 15, of=4), 0.5, update(sizes=[2] * 14, of=4)),
    (
        "weight_update_ratio",
        update(sizes=[2] * 15, of=4, role="forward"),
        0.5,
        update(sizes=[2] * 15, of=4, role="optimizer"),
    ),
    (
        "weight_update_ratio",
        descent(gradients=[-20] * 15, rate=0.1, of=4),
        0.5,
        descent(gradients=[-20] * 15, rate=0.09, of=4),
    ),
    ("weight_update_ratio", adam(GROWING), 0.5, adam([*GROWING[:-1], GROWING[-1] * 0.99])),
    ("weight_update_ratio", adam(GROWING), 0.5, adam(GROWING, missing="execution")),
    ("weight_update_ratio", adam(GROWING), 0.5, adam(GROWING, missing="dropped")),
    ("weight_update_ratio", adam([1, -1] * 8), 2, adam([1, -1] * 8, is_capture=False)),
    ("poor_initialisation", series("MatMul", [numbers(stddev=1e4)]), 1e4, backward([numbers(stddev=1e4)])),
    ("shape_change", shapes([1, 2, 3, 4]), 4, shapes([1, 2, 3, 3])),
    ("retracing", graphs(["train"] * 6), 6, graphs(["train"] * 5)),
    ("retracing", graphs(["train"] * 6, num_calls=2), 6, graphs(["train"] * 6, num_calls=3)),
    ("retracing", graphs(["train"] * 6), 6, graphs(["train"] * 6, num_calls=0)),
]


def write(build: Build, path: Path) -> Path:
    run = RunBuilder("run-a")
    build(run)
    return run.write(path)


@pytest.mark.parametrize(("build", "op_name"), [(edge(NAN, NAN), "before"), (series("Placeholder", [NAN]), "x")])
def test_a_bad_value_with_an_unknown_origin_is_an_alert(build: Build, op_name: str, tmp_path: Path) -> None:
    (found,) = alerts(write(build, tmp_path / "logdir"), kinds=["nonfinite_origin"]).alerts
    assert (found.op_name, found.severity) == (op_name, "error")
    assert found.message == "This value is bad, and its origin was not recorded."


@pytest.mark.parametrize(("kind", "build", "value", "nearly"), CASES, ids=[case[0] for case in CASES])
def test_each_rule_fires_on_its_case_and_not_on_a_near_miss(
    kind: str, build: Build, value: float, nearly: Build, tmp_path: Path
) -> None:
    found = alerts(write(build, tmp_path / "bad"), kinds=[kind]).alerts
    assert found != ()
    assert found[-1].kind == kind
    assert math.isclose(found[-1].value, value, rel_tol=1e-9)
    assert found[-1].op_name in ("x", "frozen", "read", None)
    assert alerts(write(nearly, tmp_path / "nearly"), kinds=[kind]).alerts == ()


def test_every_rule_has_a_case() -> None:
    assert {case[0] for case in CASES} == {rule.kind for rule in builtin_rules()}


def test_all_attributes_of_an_alert(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(("/home/me/train.py", 3, "loss", "tf.math.log(x)", "user"))
    graph = run.graph("loss").op("Log", stack=stack)
    run.tensor(graph, "Log", CLEAN)
    run.tensor(graph, "Log", NAN)
    run.tensor(graph, "Log", INF)
    found = alerts(run.write(tmp_path / "logdir"))
    assert [(alert.severity, alert.kind) for alert in found.alerts] == [
        ("error", "nonfinite_origin"),
        ("warning", "nonfinite"),
    ]
    first = found.alerts[0]
    assert (first.graph_name, first.op_name, first.op_type, first.output_slot) == ("loss", "Log", "Log", 0)
    assert (first.first_event_index, first.last_event_index, first.num_events) == (1, 2, 2)
    assert first.message.startswith("A bad value originated here. Bad elements at first: 1.")
    assert (first.source.file_path, first.source.lineno) == ("/home/me/train.py", 3)


def test_an_eager_op_is_an_origin_only_if_its_inputs_are_healthy(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.eager_op("Log", NAN, tensor_id=7)
    run.eager_op("Neg", NAN, tensor_id=8, inputs=[7])
    found = alerts(run.write(tmp_path / "logdir"), kinds=["nonfinite_origin"]).alerts
    assert [alert.op_type for alert in found] == ["Log"]


@settings(max_examples=30)  # each example writes a logdir
@given(data=st.data())
def test_the_origins_are_the_bad_tensors_without_a_bad_input(data: st.DataObject) -> None:
    """Many op outputs stay bad once they are bad, and the rule leaves these out before it compares single tensors."""
    num_ops, num_executions = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    sources = [data.draw(st.sets(st.integers(0, op - 1))) if op else set() for op in range(num_ops)]
    onset = [data.draw(st.integers(0, num_executions)) for _ in range(num_ops)]
    changes = data.draw(st.sets(st.tuples(st.integers(0, num_executions - 1), st.integers(0, num_ops - 1))))
    run = RunBuilder("run-a")
    graph = run.graph("model")
    for op in range(num_ops):
        graph.op(f"op_{op}", "Mul", inputs=[f"op_{source}" for source in sorted(sources[op])])
    expected: dict[str, list[int]] = {}
    for execution in range(num_executions):
        is_known = data.draw(st.booleans())
        for iteration in range(2):
            is_bad = [(execution >= onset[op]) != ((execution, op) in changes) for op in range(num_ops)]
            for op in range(num_ops):
                event = run.tensor(
                    graph, f"op_{op}", NAN if is_bad[op] else CLEAN, step=execution, iteration=iteration,
                    execution=execution if is_known else None,
                )  # fmt: skip
                if is_bad[op] and not any(is_bad[source] for source in sources[op]):
                    expected.setdefault(f"op_{op}", []).append(event)
    (rule,) = (rule for rule in builtin_rules() if rule.kind == "nonfinite_origin")
    with tempfile.TemporaryDirectory() as path, open_logdir(run.write(Path(path, "logdir"))) as logdir:
        rows = logdir.rows(rule.sql())
        for limit in (0, 1):  # how many outputs the rule leaves out first
            assert logdir.rows(rule.sql().replace("LIMIT 50000", f"LIMIT {limit}")) == rows
    found = {op_name: (first, last, number) for _, _, op_name, _, _, first, last, number, _ in rows}
    assert found == {name: (events[0], events[-1], len(events)) for name, events in expected.items()}


def many(run: RunBuilder) -> None:
    graph: GraphBuilder = run.graph("model")
    for index in range(7):
        graph.op(f"op_{index}", "Log")
        run.tensor(graph, f"op_{index}", NAN)


@pytest.mark.slow
def test_finding_the_origin_among_many_bad_tensors_takes_little_memory(tmp_path: Path) -> None:
    """After the first NaN, nearly every tensor of a training is bad. A join of all bad tensors has millions of rows."""
    run = RunBuilder("run-a")
    run.eager_op("Log", INF, tensor_id=0)
    for tensor_id in range(1, 8000):
        run.eager_op("Mul", NAN, tensor_id=tensor_id, inputs=[tensor_id - 1])
    with open_logdir(run.write(tmp_path)) as logdir:
        logdir.connection.execute("SET memory_limit = '256MB'")
        logdir.connection.execute("SET temp_directory = ''")
        found = alerts(logdir, kinds=["nonfinite_origin"]).alerts
    assert [alert.op_type for alert in found] == ["Log"]


def test_alerts_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    logdir = write(many, tmp_path / "logdir")
    found = alerts(logdir, kinds=["nonfinite", "nonfinite_origin"], limit=3)
    assert [alert.op_name for alert in found.alerts] == ["op_0", "op_1", "op_2"] * 2
    assert (found.num_found, found.num_cut) == ({"nonfinite": 7, "nonfinite_origin": 7}, 8)
    assert alerts(logdir, kinds=["nonfinite"], limit=0).num_cut == 7


def test_alerts_that_were_not_checked_for_harm_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(many, tmp_path / "logdir")
    run = RunBuilder("run-b")
    many(run)
    logdir = run.write(tmp_path / "logdir")
    assert alerts(logdir, run_id="all").num_unjudged == 0
    monkeypatch.setattr(answer, "_MAX_JUDGED", 1)
    found = alerts(logdir, kinds=["nonfinite_origin"], run_id="run-b")
    assert (found.num_unjudged, len(found.alerts)) == (6, 7)
    assert unjudged_text(6) in text_of(blocks_of(found))
    assert alerts(logdir, kinds=["nonfinite_origin", "nonfinite"], run_id="all").num_unjudged == 6 + 7 + 7


def test_alerts_of_the_same_rule_layer_and_line_are_one_finding(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("train")
    lines = [run.stack(("train.py", number, "step", f"line {number}", "user")) for number in (3, 4)]
    places = [("a", 0, None), ("b", 0, None), ("c", 0, "encoder/dense"), ("d", 1, None)]
    for op_name, line, layer in places:
        graph.op(op_name, "Log", stack=lines[line], layer=layer)
    for step in range(5):
        for op_name, _, _ in places:
            event = run.tensor(graph, op_name, NAN, step=step)
            run.rows["tensor_health"][-1]["step"] = 10 + step
    logdir = run.write(tmp_path / "logdir")
    found = alerts(logdir, kinds=["nonfinite"], limit=1)
    shown = [(one.layer, one.source and one.source.lineno, one.num_alerts, one.num_events) for one in found.findings]
    assert shown == [(None, 3, 2, 10), ("encoder/dense", 3, 1, 5), (None, 4, 1, 5)]
    first = found.findings[0]
    assert (first.first_step, first.last_step, first.first_event_index, first.last_event_index) == (
        10,
        14,
        0,
        event - 2,
    )
    assert (first.first, found.num_found, found.num_cut) == (found.alerts[0], {"nonfinite": 4}, 3)


def test_element_counts_are_not_exploding_gradients(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("__backward_model_12")
    graph.op("size", "Const", dtypes=["int32"]).op("count", "Const").op("cast", "Cast", ["size"])
    graph.op("half", "Const", dtypes=["float16"]).op("widened", "Cast", ["half"])
    for op_name in ("count", "cast", "widened"):
        run.tensor(graph, op_name, numbers(max_abs=5000))
    found = alerts(run.write(tmp_path / "logdir"), kinds=["exploding_gradient"])
    assert [alert.op_name for alert in found.alerts] == ["widened"]


def test_a_scaled_loss_is_no_exploding_gradient(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("__backward_model_12").op("x", "MatMul").op("is_finite", "IsFinite", ["x"], dtypes=["bool"])
    run.tensor(graph, "x", numbers(max_abs=1e38))
    found = alerts(run.write(tmp_path / "logdir"), kinds=["exploding_gradient", "overflow_near"])
    assert found.alerts == ()


def test_the_recorded_role_decides_which_ops_are_gradients(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("train")
    graph.op("gradient_tape/a", "Mul", role="forward").op("b", "Mul", role="gradient").op("gradient_tape/c", "Mul")
    for op_name in ("gradient_tape/a", "b", "gradient_tape/c"):
        run.tensor(graph, op_name, numbers(max_abs=5000))
    logdir = run.write(tmp_path / "logdir")
    found = alerts(logdir, kinds=["exploding_gradient"])
    assert [alert.op_name for alert in found.alerts] == ["b", "gradient_tape/c"]


def test_a_parameter_changes_the_threshold_of_a_rule(tmp_path: Path) -> None:
    logdir = write(series("Exp", [numbers(max_abs=1e37)]), tmp_path / "logdir")
    found = alerts(logdir, kinds=["overflow_near"], parameters={"overflow_near": {"bits": 6}}).alerts
    assert [alert.message for alert in found] == [
        "A finite element of magnitude 1e+37 is within 6 doublings of the largest number of its dtype."
    ]


def test_the_alert_view_has_the_alerts_of_all_rules_with_default_parameters(tmp_path: Path) -> None:
    with open_logdir(write(many, tmp_path / "logdir")) as opened:
        rows = opened.rows("SELECT kind, op_name, value FROM alert ORDER BY ALL")
        found = opened.alerts().alerts
    assert rows == sorted((alert.kind, alert.op_name, alert.value) for alert in found)


def findings(found: Alerts) -> list[tuple[object, ...]]:
    """Returns alerts in a form that can be compared.

    Values are rounded, because the last digits of a mean or a norm depend on the order of summation. Values are texts,
    because NaN is not equal to itself.
    """
    return [(*dataclasses.astuple(replace(alert, value=0.0)), f"{alert.value:.9g}") for alert in found.alerts]


def programs(logdir: Path, *, parts: int = 1) -> Path:
    """Writes a logdir with one run for each program in CASES, and some runs with several programs."""
    builds = [build for case in CASES for build in (case[1], case[3])]
    for number in range(len(builds) + 10):
        run = RunBuilder(f"run-{number:03}", wall_time_ns=1_700_000_000_000_000_000 + number)
        run.stack(("/home/me/train.py", number, "train", "x = f(x)", "user"))
        for build in builds[number : number + 1] or random.Random(number).sample(builds, 5):
            build(run)
        for row in run.rows["graph_op"] + run.rows["graph"] + run.rows["execution"]:
            row["stack_trace_id"] = 0
        run.write(logdir, parts=parts)
    return logdir


@pytest.mark.slow
def test_a_scan_of_many_runs_finds_the_same_alerts_as_a_full_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {"growth_trend": {"growth": 50}}
    with open_logdir(programs(tmp_path, parts=3)) as logdir:
        whole = logdir.alerts(limit=3, parameters=parameters)
        monkeypatch.setattr("tfdbg_arrow.query.alert_rules.scan._LARGE_BYTES", 0)
        monkeypatch.setattr("tfdbg_arrow.query.alert_rules.scan._MAX_RUNS", 7)
        monkeypatch.setattr("tfdbg_arrow.query.alert_rules.scan._BATCH_BYTES", 20_000)
        scanned = logdir.alerts(limit=3, parameters=parameters)
    assert (scanned.num_found, scanned.num_cut) == (whole.num_found, whole.num_cut)
    assert findings(scanned) == findings(whole)
    assert all(whole.num_found.values())
    assert whole.num_cut


EXTREMES = st.sampled_from([0.0, 1e-200, 1e-9, 0.02, 0.9, 1.0, 30.0, 5e3, 1e38, 1e200])
TENSORS = st.builds(
    lambda mean, stddev, max_abs, zero, subnormal, size, is_bad: {
        **numbers(mean=mean, stddev=stddev, max_abs=max_abs, size=size, zero=min(zero, size), subnormal=subnormal),
        **({"has_inf_or_nan": True, "num_nan": 1} if is_bad else {}),
    },
    mean=EXTREMES,
    stddev=EXTREMES,
    max_abs=EXTREMES,
    zero=st.sampled_from([0, 0, 99, 100]),
    subnormal=st.sampled_from([0, 0, 30]),
    size=st.sampled_from([100, 100, 100, 7, 1]),
    is_bad=st.sampled_from([False] * 9 + [True]),
)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Generates the tensors of an op: a list of a few tensors that is repeated, followed by some other tensors."""
    common = draw(st.lists(TENSORS, min_size=1, max_size=4))
    return common * draw(st.integers(1, 12)) + draw(st.lists(TENSORS, max_size=3))


SERIES = st.builds(
    lambda op_type, tensors, graph: series(op_type, tensors, graph=graph),
    st.sampled_from(["Mul", "MatMul", "Relu", "Tanh", "Sigmoid", "ReadVariableOp"]),
    histories(),
    st.sampled_from(["model", "__backward_model_12"]),
)


@pytest.mark.slow
# Shrinking is off, because one example takes seconds.
@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(st.lists(SERIES, min_size=1, max_size=4), min_size=4, max_size=4))
def test_a_scan_of_random_runs_finds_the_same_alerts_as_a_full_read(programs: list[list[Build]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        for number, builds in enumerate(programs):
            run = RunBuilder(f"run-{number}")
            for build in builds:
                build(run)
            run.write(Path(directory), parts=1 + number % 3)
        with open_logdir(directory) as logdir:
            whole = logdir.alerts(limit=1000)
            patch.setattr("tfdbg_arrow.query.alert_rules.scan._LARGE_BYTES", 0)
            scanned = logdir.alerts(limit=1000)
            assert scanned.num_found == whole.num_found
            assert findings(scanned) == findings(whole)


def test_a_run_that_has_grown_is_read_again_after_a_refresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.query.alert_rules.scan._LARGE_BYTES", 0)
    with open_logdir(write(series("Log", [CLEAN] * 3), tmp_path)) as logdir:
        assert logdir.alerts().alerts == ()
        shutil.rmtree(tmp_path / "tensor_health")
        run = RunBuilder("run-a")
        series("Log", [CLEAN] * 3 + [NAN])(run)
        run.write(tmp_path, parts=2)
        logdir.refresh()
        assert [alert.kind for alert in logdir.alerts().alerts] == ["nonfinite_origin", "nonfinite"]


def shapes_of_one_size(run: RunBuilder) -> None:
    graph = run.graph("model")
    graph.op("x", "MatMul")
    for number in range(8):
        run.tensor(graph, "x", {**CLEAN, "shape": [[2, 6], [6, 2], [3, 4], [4, 3]][number % 4], "size": 12})


def test_alerts_of_one_run_after_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = {"run-a": shapes_of_one_size, "run-b": series("Log", [CLEAN, NAN])}
    for run_id, build in builds.items():
        run = RunBuilder(run_id)
        build(run)
        run.write(tmp_path)
    with open_logdir(tmp_path) as logdir:
        expected = {run_id: findings(logdir.alerts(run_id=run_id)) for run_id in ("run-a", "run-b", "all")}
        assert [len(found) for found in expected.values()] == [1, 2, 3]
        monkeypatch.setattr("tfdbg_arrow.query.alert_rules.scan._LARGE_BYTES", 0)
        for run_id in ("run-a", "run-b", "run-a", "all", "run-b"):
            assert findings(logdir.alerts(run_id=run_id)) == expected[run_id]
        assert findings(logdir.of_run("run-a").alerts(run_id="all")) == expected["run-a"]


RULE = """\
-- severity: warning
-- message: {value:.0f} of more than {least:g}.
-- parameter: least 2.0 The op must have more tensors than this.
-- One row is one op.
SELECT run_id, graph_id, op_name, op_type, output_slot, min(event_index) AS first_event_index,
    max(event_index) AS last_event_index, count(*) AS num_events, CAST(count(*) AS DOUBLE) AS value
FROM tensor_health GROUP BY run_id, graph_id, op_name, op_type, output_slot HAVING count(*) > {least};
"""


def test_custom_rules_from_a_directory(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "busy_op.sql").write_text(RULE)
    logdir = write(series("Mul", [CLEAN] * 4), tmp_path / "logdir")
    found = alerts(logdir, rules_directory=rules, kinds=["busy_op"])
    assert [alert.message for alert in found.alerts] == ["4 of more than 2."]
    assert "busy_op" in alerts(logdir, rules_directory=rules).num_found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (RULE.replace("-- severity: warning\n", ""), "has no line `-- severity: …`"),
        (RULE.replace("warning", "fatal"), "expected error, warning, info"),
        (RULE.replace("least 2.0", "least two"), "expected a name, a number and a description"),
        (RULE.replace("> {least}", "> {most}"), "uses {most}, which is not one of its parameters"),
        (RULE.replace("{value:.0f}", "{count}"), "cannot be formatted"),
        (RULE.replace("FROM tensor_health", "FROM nothing"), "the rule busy_op cannot be run"),
        (RULE.replace(" AS value", " AS number"), "the rule busy_op cannot be run"),
    ],
)
def test_the_error_for_an_invalid_rule(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "busy_op.sql").write_text(text)
    logdir = write(series("Mul", [CLEAN]), tmp_path / "logdir")
    with pytest.raises(QueryError, match=error.replace("{", r"\{").replace("}", r"\}")):
        alerts(logdir, rules_directory=tmp_path)


def test_errors_for_unknown_rules_parameters_and_runs(tmp_path: Path) -> None:
    logdir = write(series("Mul", [CLEAN]), tmp_path / "logdir")
    with pytest.raises(QueryError, match="rule 'nope' is unknown; there are all_zero"):
        alerts(logdir, kinds=["nope"])
    with pytest.raises(QueryError, match="has no parameter 'nope'; it has bits"):
        alerts(logdir, parameters={"overflow_near": {"nope": 1}})
    with pytest.raises(QueryError, match="is nan; expected a number"):
        alerts(logdir, parameters={"overflow_near": {"bits": math.nan}})
    with pytest.raises(QueryError, match="not one of the rules"):
        alerts(logdir, kinds=["nonfinite"], parameters={"overflow_near": {"bits": 1}})
    with pytest.raises(QueryError, match="run 'nope' is not in"):
        alerts(logdir, run_id="nope")
    with pytest.raises(QueryError, match="cannot be read"):
        alerts(logdir, rules_directory=tmp_path / "missing")


def test_a_value_that_the_mode_does_not_measure_is_shown_as_a_question_mark(tmp_path: Path) -> None:
    """CURT_HEALTH records whether a tensor is bad, but not how many elements are bad."""
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Log")
    unknown = {name: None for name in NAN if name.startswith("num_")}
    run.tensor(graph, "x", {**NAN, **unknown, "has_inf_or_nan": True})
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "own.sql").write_text(
        "-- severity: info\n-- message: {value:.2%} of it\n-- One row is one bad tensor.\n"
        "SELECT run_id, graph_id, op_name, op_type, output_slot, event_index AS first_event_index, "
        "event_index AS last_event_index, 1 AS num_events, CAST(NULL AS DOUBLE) AS value "
        "FROM tensor_health WHERE has_inf_or_nan\n"
    )
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        found = alerts(logdir, kinds=["nonfinite_origin", "own"], rules_directory=rules)
    assert {alert.kind: alert.message.partition(". No")[0] for alert in found.alerts} == {
        "nonfinite_origin": "A bad value originated here. Bad elements at first: ?",
        "own": "? of it",
    }
