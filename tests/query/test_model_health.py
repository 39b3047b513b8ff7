"""Test layer_health and training_curves on recorded programs, and compare them with a computation over the elements."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.programs.running import run_to_end
from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import (
    LayerHealth,
    LayerRow,
    TrainingCurves,
    builtin_rules,
    layer_health,
    open_logdir,
    training_curves,
)
from tfdbg_arrow.query.model_health.series import MAX_LABELS
from tfdbg_arrow.query.present.answers import blocks_of
from tfdbg_arrow.query.present.text import text_of

from .builder import CLEAN, RunBuilder, numerics

LAYERS = (None, "enc", "enc/a", "enc/a/x", "enc/b", "dec/c")
ROLES = (None, "forward", "loss", "optimizer", "metric")
STEPS = (None, -2, 0, 1, 2, 7)
ELEMENTS = st.lists(
    st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.5, 3e5, -1e-6, 1000.25, math.nan, math.inf, -math.inf]), max_size=4
)


def scalar(value: float) -> dict[str, Any]:
    return {**numerics(value), "rank": 0, "shape": [], "scalar_value": value}


@dataclass
class Output:
    """One output of an op for the plain computation. The output has a row, and tensors as (step, elements)."""

    layer: str | None
    role: str | None
    is_gradient: bool
    op_type: str
    is_variable_gradient: bool = False
    is_weight: bool = False
    is_eager: bool = False
    tensors: list[tuple[int | None, list[float]]] = field(default_factory=list)

    def key(self) -> tuple[object, ...]:
        return self.rows()[-1], self.role, self.op_type

    def rows(self) -> list[tuple[str, str, str]]:
        side = "gradient" if self.is_gradient else "forward"
        if self.layer is None:
            return [("role", self.role or "other", side)]
        parts = self.layer.split("/")
        return [("layer", "/".join(parts[:number]), side) for number in range(1, len(parts) + 1)]


@dataclass
class Program:
    """A run, and the tensors of the run for the plain computation."""

    run: RunBuilder
    outputs: list[Output]
    ratios: list[tuple[Output, int | None, float]] = field(default_factory=list)

    def add(self, output: Output) -> None:
        """Adds an output. Eager tensors with the same row, role and op type count as one output."""
        for known in self.outputs:
            if known.is_eager and known.key() == output.key():
                known.tensors += output.tensors
                return
        self.outputs.append(output)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Draws a run with eager ops, tensors from outside, and a graph that trains a variable."""
    run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
    layer, role = st.sampled_from(LAYERS), st.sampled_from(ROLES)
    graph = run.graph("train")
    graph.op("handle", "Placeholder", dtypes=("resource",))
    of: dict[str, Output] = {}

    def op(name: str, op_type: str, inputs: list[str], **labels: Any) -> Output:
        graph.op(name, op_type, inputs, **labels)
        own = labels.get("role")
        is_gradient = own == "gradient" or name.startswith("gradients/")
        forward = of.get(labels.get("forward_op_name") or "")
        of[name] = Output(
            layer=labels.get("layer") or (forward.layer if forward else None),
            role=(forward.role if forward else None) if is_gradient else own,
            is_gradient=is_gradient,
            op_type=op_type,
        )
        return of[name]

    read = op("read", "ReadVariableOp", ["handle"], layer=draw(layer), role=draw(role))
    read.is_weight = read.role in (None, "forward", "loss")
    for name in ("x", "y"):
        op_type = draw(st.sampled_from(("MatMul", "Relu", "Const", "Sigmoid", "Tanh")))
        op(name, op_type, ["read"], layer=draw(layer), role=draw(role))
    gradients = []
    for name in ("gradients/g", "h"):
        labels: dict[str, Any] = {"layer": draw(layer), "role": None if name.startswith("gradients/") else "gradient"}
        forward = draw(st.sampled_from((None, "x", "y")))
        if forward is not None:
            labels |= {"forward_graph_id": 0, "forward_op_name": forward}
        op(name, "MatMul", ["x"], **labels)
        gradients.append(name)
    taken = draw(st.lists(st.sampled_from(gradients), unique=True))
    takers = [draw(st.sampled_from((None, "optimizer"))) for _ in taken]
    for number, (name, taker) in enumerate(zip(taken, takers, strict=True)):
        op(f"take_{number}", "Mul", [name], role=taker)
    has_optimizer = "optimizer" in takers
    for name, taker in zip(taken, takers, strict=True):
        of[name].is_variable_gradient = taker == "optimizer" or not has_optimizer
    op("update", "Mul", ["x"], role="optimizer")
    graph.op("assign", "AssignSubVariableOp", ["handle", "update"], dtypes=(), role="optimizer")
    program = Program(run, list(of.values()))
    call = run.execution("__inference_train_1", graph=graph)
    for step_id in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from(STEPS))
        here = {name: draw(ELEMENTS) for name in draw(st.lists(st.sampled_from(sorted(of)), unique=True))}
        for name, elements in here.items():
            of[name].tensors.append((step, elements))
            run.tensor(
                graph, name, {**numerics(*elements, dtype="float64"), "step": step}, execution=call, step=step_id
            )
        update, weight = (np.array(here.get(name, [])) for name in ("update", "read"))
        if update.size and np.isfinite(update).all() and np.isfinite(weight).all() and weight.any():
            program.ratios.append((read, step, math.sqrt((update**2).mean() / (weight**2).mean())))
    for _ in range(draw(st.integers(0, 3))):
        own_role, op_type = draw(st.sampled_from((*ROLES, "gradient"))), draw(st.sampled_from(("Add", "Mul")))
        index = run.execution(op_type, outputs={100 + len(run.rows["execution"]): "float32"})
        run.rows["execution"][index] |= {"layer": draw(layer), "role": own_role}
        forward_index = draw(st.sampled_from((None, *range(index))))
        run.rows["execution"][index]["forward_execution_index"] = forward_index
        found = {} if forward_index is None else run.rows["execution"][forward_index]
        output = Output(
            layer=run.rows["execution"][index]["layer"] or found.get("layer"),
            role=found.get("role") if own_role == "gradient" else own_role,
            is_gradient=own_role == "gradient",
            op_type=op_type,
            is_eager=True,
        )
        step, elements = draw(st.sampled_from(STEPS)), draw(ELEMENTS)
        output.tensors.append((step, elements))
        run.eager(index, {**numerics(*elements, dtype="float64"), "step": step}, tensor_id=100 + index)
        program.add(output)
    if draw(st.booleans()):
        step, elements = draw(st.sampled_from(STEPS)), draw(ELEMENTS)
        run.external(7, {**numerics(*elements, dtype="float64"), "step": step}, execution=call)
        program.outputs.append(Output(None, "input", False, "", tensors=[(step, elements)]))
    return program


@dataclass
class Expected:
    """The plain computation for one program.

    Attributes:
        measures: The value of each measure, by measure, row and column.
        curves: The value of each curve, by curve and column.
        bad: The number of bad tensors, by row and column.
        num_outputs: The number of outputs, by row.
    """

    first: int
    width: int
    num_columns: int
    measures: dict[str, dict[tuple[tuple[str, str, str], int], float]]
    curves: dict[str, dict[int, float]]
    bad: dict[tuple[tuple[str, str, str], int], int]
    num_outputs: dict[tuple[str, str, str], int]


def compute(program: Program, max_columns: int) -> Expected | None:
    """Returns the expected values, or None if no tensor has a step."""
    steps = [step for output in program.outputs for step, _ in output.tensors if step is not None]
    if not steps:
        return None
    first, last = min(steps), max(steps)
    width = math.ceil((last - first + 1) / max_columns)
    cells: dict[tuple[tuple[str, str, str], int], list[tuple[Output, list[float]]]] = defaultdict(list)
    all_: dict[int, list[tuple[Output, list[float]]]] = defaultdict(list)
    num_outputs: dict[tuple[str, str, str], int] = defaultdict(int)
    for output in program.outputs:
        placed = [(step, elements) for step, elements in output.tensors if step is not None]
        for row in output.rows() if placed else ():
            num_outputs[row] += 1
        for step, elements in placed:
            column = (step - first) // width
            all_[column].append((output, elements))
            for row in output.rows():
                cells[row, column].append((output, elements))
    measures: dict[str, dict[tuple[tuple[str, str, str], int], float]] = defaultdict(dict)
    with_gradients = {
        row for (row, _), some in cells.items() if row[2] == "gradient" and norm(some, of_gradients) is not None
    }
    for place, some in cells.items():
        elements = np.concatenate([np.array(each) for _, each in some])
        finite = elements[np.isfinite(elements)]
        put(measures["bad_share"], place, sum(map(is_bad, some)) / len(some))
        put(measures["zero_share"], place, (elements == 0).mean() if elements.size else None)
        if finite.size:
            put(measures["max_abs"], place, abs(finite).max())
            put(measures["mean"], place, finite.mean())
            put(measures["stddev"], place, finite.std())
        put(measures["norm"], place, norm(some, of_gradients if place[0] in with_gradients else lambda each: True))
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for output, step, ratio in program.ratios:
        if step is not None:
            column = (step - first) // width
            for row in output.rows():
                known = measures["update_ratio"].get((row, column), 0.0)
                measures["update_ratio"][row, column] = max(known, ratio)
            if output.is_weight:
                curves["update_ratio"][column] = max(curves["update_ratio"].get(column, 0.0), ratio)
    for column, some in all_.items():
        put(curves["bad_share"], column, sum(map(is_bad, some)) / len(some))
        for name, is_meant in (("gradient_norm", of_gradients), ("weight_norm", of_weights)):
            put(curves[name], column, norm(some, is_meant))
        active = [(output, each) for output, each in some if is_activation(output)]
        elements = np.concatenate([np.array(each) for _, each in active] or [np.array([])])
        of_unmasked = [np.array(each) for output, each in active if not is_masked(output, first, width)]
        unmasked = np.concatenate(of_unmasked or [np.array([])])
        unmasked = unmasked[np.isfinite(unmasked)]
        put(curves["max_activation"], column, abs(unmasked).max() if unmasked.size else None)
        put(curves["zero_share"], column, (elements == 0).mean() if elements.size else None)
        flat = [
            is_flat(output.op_type, np.array(each))
            for output, each in some
            if output.op_type in ("Sigmoid", "Tanh") and each and not is_bad((output, each))
        ]
        put(curves["saturated_share"], column, sum(flat) / len(flat) if flat else None)
    for name, is_meant in (("gradient_norm", of_gradients), ("weight_norm", of_weights)):
        if curves[name]:
            for column, some in all_.items():
                if any(is_bad(each) and is_meant(each) for each in some):
                    curves[name][column] = math.nan
    return Expected(
        first=first,
        width=width,
        num_columns=(last - first) // width + 1,
        measures=measures,
        curves=curves,
        bad={place: sum(map(is_bad, some)) for place, some in cells.items()},
        num_outputs=num_outputs,
    )


Tensor = tuple[Output, list[float]]


def put(values: dict[Any, float], place: object, value: float | None) -> None:
    if value is not None:
        values[place] = float(value)


def is_bad(tensor: Tensor) -> bool:
    return not np.isfinite(tensor[1]).all()


def is_activation(output: Output) -> bool:
    return (
        not output.is_gradient
        and output.role in (None, "forward")
        and output.op_type not in ("Const", "ReadVariableOp")
    )


def is_masked(output: Output, first: int, width: int) -> bool:
    """Returns whether an output has the same large magnitude in several columns, and no other magnitude."""
    magnitudes: dict[tuple[int, int, bool], float] = {}
    for step, elements in output.tensors:
        finite = [abs(element) for element in elements if math.isfinite(element)]
        if step is not None and finite:
            key = (step - first) // width, len(finite), len(finite) < len(elements)
            magnitudes[key] = max(*finite, magnitudes.get(key, 0.0))
    is_constant = len(set(magnitudes.values())) == 1 and min(magnitudes.values()) >= 1e4
    return is_constant and len({column for column, _, _ in magnitudes}) > 1


def is_flat(op_type: str, elements: np.ndarray) -> bool:
    slope = (4 * elements * (1 - elements) if op_type == "Sigmoid" else 1 - elements**2).mean()
    return bool(slope <= 0.05)


def of_gradients(tensor: Tensor) -> bool:
    return tensor[0].is_variable_gradient


def of_weights(tensor: Tensor) -> bool:
    return tensor[0].is_weight


def norm(tensors: list[Tensor], is_meant: Callable[[Tensor], bool]) -> float | None:
    """Returns the norm: the root of a sum over outputs.

    Each output adds one term: the mean over the output's tensors of the sum of squares of a tensor.
    """
    squares: dict[int, list[float]] = defaultdict(list)
    for output, elements in tensors:
        finite = np.array(elements)[np.isfinite(elements)]
        is_left_out = is_meant in (of_gradients, of_weights) and is_bad((output, elements))
        if is_meant((output, elements)) and finite.size and not is_left_out:
            squares[id(output)].append((finite**2).sum())
    return math.sqrt(sum(np.mean(each) for each in squares.values())) if squares else None


def by_row(found: LayerHealth, name: str) -> dict[tuple[tuple[str, str, str], int], float]:
    return {
        ((row.kind, row.layer, row.side), column): value
        for row, values in zip(found.rows, found.values.get(name, ()), strict=False)
        for column, value in enumerate(values)
        if value is not None
    }


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs(), max_columns=st.sampled_from((1, 2, 3, 200)))
def test_every_cell_and_curve_equals_a_plain_computation(
    program: Program, max_columns: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not any(row["layer"] for table in ("graph_op", "execution") for row in program.run.rows[table]):
        program.run.rows["graph_op"][0]["layer"] = "elsewhere"
    expected = compute(program, max_columns)
    with open_logdir(program.run.write(tmp_path_factory.mktemp("random") / "logdir")) as logdir:
        found = layer_health(logdir, run_id="run-a", max_columns=max_columns)
        curves = training_curves(logdir, run_id="run-a", max_columns=max_columns)
    if expected is None:
        if found is not None:
            assert found.axis == "execution"
        return
    assert found.axis == curves.axis == "step"
    assert found.columns == curves.columns
    assert [column.first for column in found.columns] == [
        expected.first + index * expected.width for index in range(expected.num_columns)
    ]
    for name in ("bad_share", "max_abs", "mean", "stddev", "zero_share", "norm", "update_ratio"):
        assert by_row(found, name) == pytest.approx(expected.measures.get(name, {}), rel=1e-9, abs=1e-9), name
    assert [measure.name for measure in found.measures] == [name for name in found.values if by_row(found, name)]
    rows = {(row.kind, row.layer, row.side): row for row in found.rows}
    assert {key: row.num_outputs for key, row in rows.items()} == expected.num_outputs
    assert {
        ((row.kind, row.layer, row.side), column): number
        for row, numbers in zip(found.rows, found.bad, strict=True)
        for column, number in enumerate(numbers)
        if number
    } == {place: number for place, number in expected.bad.items() if number}
    for row in found.rows:
        inside = [each for each in found.rows if each.side == row.side and each.layer.startswith(row.layer + "/")]
        assert row.has_children == bool(inside and row.kind == "layer")
        assert row.num_bad == sum(found.bad[found.rows.index(row)])
    drawn = {curve.name: dict(enumerate(curve.values)) for curve in curves.curves if curve.name != "loss"}
    assert {
        name: {column: value for column, value in values.items() if value is not None} for name, values in drawn.items()
    } == {
        name: pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True)
        for name, values in expected.curves.items()
        if values
    }


TRAIN = "/home/me/train.py"


def training(*, has_layers: bool = True, steps: int = 4, bad_from: int | None = 2) -> RunBuilder:
    """Returns a run of a training that goes bad. The layer `dense` becomes NaN, and then the loss and the variable."""
    run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
    lines = [run.stack((TRAIN, line, "step", None, "user")) for line in range(1, 6)]

    def in_layer(layer: str | None, role: str) -> dict[str, Any]:
        return (
            {"layer": layer, "role": role} if has_layers else {"role": "gradient" if role == "gradient" else "forward"}
        )

    graph = run.graph("train")
    graph.op("x", "Placeholder", stack=lines[0], **in_layer(None, "forward"))
    graph.op("handle", "Placeholder", dtypes=("resource",))
    graph.op("kernel", "ReadVariableOp", ["handle"], stack=lines[1], **in_layer("net/dense", "forward"))
    graph.op("product", "MatMul", ["x", "kernel"], stack=lines[1], **in_layer("net/dense", "forward"))
    graph.op("log", "Log", ["product"], stack=lines[2], **in_layer("net/log", "forward"))
    graph.op("loss", "Mean", ["log"], stack=lines[3], **in_layer(None, "loss"))
    run.rows["graph_op_output"][-1]["static_shape"] = []
    of_log = {"forward_graph_id": 0, "forward_op_name": "log"}
    of_loss = {"forward_graph_id": 0, "forward_op_name": "loss"}
    of_product = {"forward_graph_id": 0, "forward_op_name": "product"}
    graph.op("loss_grad", "RealDiv", ["loss"], **in_layer(None, "gradient"), **of_loss)
    graph.op("log_grad", "RealDiv", ["loss_grad", "product"], **in_layer("net/log", "gradient"), **of_log)
    graph.op("product_grad", "MatMul", ["x", "log_grad"], **in_layer("net/dense", "gradient"), **of_product)
    graph.op("log_norm", "L2Loss", ["log_grad"], stack=lines[4], **in_layer(None, "forward"))
    graph.op("update", "Mul", ["product_grad"], stack=lines[4], **in_layer(None, "optimizer"))
    graph.op("assign", "AssignSubVariableOp", ["handle", "update"], dtypes=(), **in_layer(None, "optimizer"))
    graph.function("__inference_train_1", ["x"], ["loss"], captures=["handle"])
    for step in range(steps):
        is_bad = bad_from is not None and step >= bad_from
        call = run.execution(
            "__inference_train_1", graph=graph, inputs=[1, 2], outputs={10 + step: "float32"}, stack=lines[4]
        )
        first_bad = step == bad_from
        weight = NAN_PAIR if is_bad and not first_bad else (1.0, -2.0)
        kernel_known = {
            "x": (1.0, 1.0),
            "kernel": weight,
            "product": (3.0, 0.5) if not is_bad else (0.0, 1.0) if first_bad else NAN_PAIR,
            "log": (1.0, -1.0) if not is_bad else (-math.inf, 0.0) if first_bad else NAN_PAIR,
        }
        for name, elements in kernel_known.items():
            run.tensor(graph, name, {**numerics(*elements), "step": step}, execution=call, step=step)
        loss = 0.5 / (step + 1) if not is_bad else -math.inf if first_bad else math.nan
        run.tensor(graph, "loss", {**scalar(loss), "step": step}, execution=call, step=step)
        run.tensor(graph, "loss_grad", {**numerics(0.5, 0.5), "step": step}, execution=call, step=step)
        for name in ("log_grad", "product_grad", "update"):
            elements = (0.25, -0.5) if not is_bad else (math.inf, 0.5) if first_bad and name == "log_grad" else NAN_PAIR
            run.tensor(graph, name, {**numerics(*elements), "step": step}, execution=call, step=step)
    return run


NAN_PAIR = (math.nan, math.nan)


def row(
    layer: str, kind: str, side: str, *, role: str | None = None, children: bool = False, outputs: int = 1, bad: int = 0
) -> LayerRow:
    return LayerRow(
        layer=layer,
        kind=kind,
        name=layer.rpartition("/")[2],
        depth=layer.count("/") if kind == "layer" else 0,
        side=side,
        role=role or ("gradient" if side == "gradient" else "forward"),
        has_children=children,
        num_outputs=outputs,
        num_bad=bad,
    )


def answers(run: RunBuilder, directory: Path, **arguments: Any) -> tuple[LayerHealth, TrainingCurves]:
    with open_logdir(run.write(directory / "logdir")) as logdir:
        found, curves = logdir.layer_health(**arguments), logdir.training_curves(**arguments)
    assert (found.run_id, found.axis, found.columns) == (curves.run_id, curves.axis, curves.columns)
    return found, curves


def curve(curves: TrainingCurves, name: str) -> Any:
    return next((each for each in curves.curves if each.name == name), None)


@pytest.mark.slow
def test_a_run_that_goes_bad(tmp_path: Path) -> None:
    found, curves = answers(training(), tmp_path)
    assert found.rows == (
        row("forward", "role", "forward"),
        row("net", "layer", "forward", children=True, outputs=3, bad=4),
        row("net", "layer", "gradient", children=True, outputs=2, bad=4),
        row("net/dense", "layer", "forward", outputs=2, bad=2),
        row("net/dense", "layer", "gradient", bad=2),
        row("net/log", "layer", "forward", bad=2),
        row("net/log", "layer", "gradient", bad=2),
        row("loss", "role", "forward", role="loss", bad=2),
        row("loss", "role", "gradient"),
        row("optimizer", "role", "forward", role="optimizer", bad=2),
    )
    assert found.bad[:4] == ((0, 0, 0, 0), (0, 0, 1, 3), (0, 0, 2, 2), (0, 0, 0, 2))
    assert (found.origin.row, found.origin.column) == (5, 2)
    assert [(found.rows[each].name, found.rows[each].side) for each in found.path] == [
        ("log", "forward"),
        ("log", "gradient"),
        ("dense", "gradient"),
        ("optimizer", "forward"),
    ]
    assert found.values["update_ratio"][3] == (pytest.approx(0.25), pytest.approx(0.25), None, None)
    assert found.values["norm"][4] == (
        pytest.approx(math.hypot(0.25, 0.5)),
        pytest.approx(math.hypot(0.25, 0.5)),
        None,
        None,
    )
    assert found.sentence == "train.py:3 made -Inf in step 2."
    assert curves.first_bad == 2
    norms = curve(curves, "gradient_norm")  # only product_grad counts, because the optimizer takes it
    assert (norms.values[:2], norms.first_bad) == ((pytest.approx(math.hypot(0.25, 0.5)),) * 2, 2)
    loss = curve(curves, "loss")
    assert (loss.values[:3], loss.source, loss.first_bad) == ((0.5, 0.25, -math.inf), "loss:0", 2)
    assert math.isnan(loss.values[3])
    assert [each.name for each in curves.curves] == [
        "loss", "gradient_norm", "weight_norm", "update_ratio", "max_activation", "zero_share", "bad_share",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_healthy_run_names_what_changed_most(tmp_path: Path) -> None:
    found, curves = answers(training(bad_from=None), tmp_path)
    assert (found.origin, found.origin_event_index, found.path, curves.first_bad) == (None, None, (), None)
    assert found.sentence == (
        "No tensor is bad, and the largest magnitude of no layer changed by a factor of 10 or more."
    )
    run = training(bad_from=None)
    for _number, tensor in enumerate(run.rows["tensor_health"]):
        if tensor["op_name"] == "product":
            tensor["max_abs_finite"] = 2.0 * 4.0 ** tensor["step"]
    grown, _ = answers(run, tmp_path / "grown")
    assert grown.sentence == (
        "No tensor is bad; the largest magnitude of the layer net/dense changed most: it grew from 2 to 128, by a "
        "factor of 64."
    )


def test_the_constant_of_a_mask_is_no_large_activation(tmp_path: Path) -> None:
    run = training(bad_from=None)
    for tensor in run.rows["tensor_health"]:
        if tensor["op_name"] == "product":
            tensor["max_abs_finite"] = 2.4e38
    _, curves = answers(run, tmp_path)
    (activation,) = (curve for curve in curves.curves if curve.name == "max_activation")
    assert max(value for value in activation.values if value is not None) < 100.0


def test_the_sentence_says_what_had_grown(tmp_path: Path) -> None:
    run = training(steps=6, bad_from=5)
    for tensor in run.rows["tensor_health"]:
        if tensor["op_name"] == "kernel":
            tensor["max_abs_finite"] = 10.0 ** tensor["step"]
    assert answers(run, tmp_path)[0].sentence == (
        "train.py:3 made -Inf in step 5. A variable of the layer net/dense grew about 10 times a step "
        "since step 0: its largest magnitude rose from 1 to 1e+05."
    )


def test_a_bad_value_that_did_no_harm(tmp_path: Path) -> None:
    run = training(bad_from=None)
    mask = next(each for each in run.rows["tensor_health"] if each["op_name"] == "x")
    mask.update(numerics(-math.inf, 1.0))
    found, curves = answers(run, tmp_path)
    assert (found.origin, found.origin_event_index, curves.first_bad) == (None, None, None)
    assert found.sentence == (
        "No bad value is known to have done harm (1 tensor is bad), and the largest magnitude of no layer changed by a "
        "factor of 10 or more."
    )


def test_a_share_of_zeros_that_grew(tmp_path: Path) -> None:
    run = training(bad_from=None)
    for tensor in run.rows["tensor_health"]:
        if tensor["op_name"] == "log" and tensor["step"] == 3:
            tensor.update(num_zero=2, num_pos_finite=0, num_neg_finite=0)
    assert answers(run, tmp_path)[0].sentence == (
        "No tensor is bad; the share of zeros in the layer net/log changed most: it grew from 0% to 100%."
    )


def test_without_layers_rows_are_lines(tmp_path: Path) -> None:
    found, _ = answers(training(has_layers=False), tmp_path)
    assert [(each.layer, each.kind, each.name, each.side) for each in found.rows] == [
        (f"{TRAIN}:1", "line", "train.py:1", "forward"),
        (f"{TRAIN}:2", "line", "train.py:2", "forward"),
        (f"{TRAIN}:2", "line", "train.py:2", "gradient"),
        (f"{TRAIN}:3", "line", "train.py:3", "forward"),
        (f"{TRAIN}:3", "line", "train.py:3", "gradient"),
        (f"{TRAIN}:4", "line", "train.py:4", "forward"),
        (f"{TRAIN}:4", "line", "train.py:4", "gradient"),
        (f"{TRAIN}:5", "line", "train.py:5", "forward"),
    ]
    assert found.sentence == "train.py:3 made -Inf in step 2."


def test_without_steps_columns_are_executions(tmp_path: Path) -> None:
    run = training()
    for tensor in run.rows["tensor_health"]:
        tensor["step"] = None
    found, curves = answers(run, tmp_path)
    assert found.axis == "execution"
    assert [(column.first, column.last) for column in found.columns] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert found.origin.column == curves.first_bad == 2
    assert found.sentence == "train.py:3 made -Inf in call 3 of train."


@pytest.mark.slow
def test_tensors_before_the_first_step_are_in_no_column(tmp_path: Path) -> None:
    run = training(steps=2)
    for tensor in run.rows["tensor_health"]:
        tensor["step"] = None if tensor["step"] == 0 else tensor["step"]
    found, _ = answers(run, tmp_path)
    assert [(column.first, column.last) for column in found.columns] == [(1, 1)]
    run = training(bad_from=0, steps=2)
    for tensor in run.rows["tensor_health"]:
        tensor["step"] = None if tensor["step"] == 0 else tensor["step"]
    found, curves = answers(run, tmp_path / "bad")
    assert (found.origin, curves.first_bad) == (None, None)
    assert found.origin_event_index is not None
    assert found.sentence == "train.py:3 made -Inf in call 1 of train."


@pytest.mark.slow
def test_modes(tmp_path: Path) -> None:
    kept = {
        "FULL_HEALTH": ("has_inf_or_nan", "size", "shape", "rank", "num_"),
        "CONCISE_HEALTH": ("has_inf_or_nan", "size", "num_nan", "num_neg_inf", "num_pos_inf"),
        "CURT_HEALTH": ("has_inf_or_nan",),
        "SHAPE": ("size", "shape", "rank"),
    }
    told = {}
    for mode, prefixes in kept.items():
        run = training()
        run.rows["run"][0]["tensor_debug_mode"] = mode
        measured = ("rank", "shape", "size", "has_inf_or_nan", "num_", "_finite")
        for tensor in run.rows["tensor_health"]:
            for name in tensor:
                is_health = name.startswith(measured[:5]) or name.endswith("_finite")
                if (is_health and not name.startswith(prefixes)) or (
                    name.endswith("_finite") and not name.startswith("num_")
                ):
                    tensor[name] = None
            if mode == "SHAPE":
                tensor["scalar_value"] = None
        found, curves = answers(run, tmp_path / mode, run_id="run-a")
        told[mode] = ([each.name for each in found.measures], [each.name for each in curves.curves])
        assert found.sentence == (
            "The recording does not tell whether tensors are bad."
            if mode == "SHAPE"
            else f"train.py:3 made {'Inf or NaN' if mode == 'CURT_HEALTH' else '-Inf'} in step 2."
        )
        if mode != "SHAPE":
            loss = curve(curves, "loss")
            assert loss.values[:3] == (0.5, 0.25, -math.inf)
            assert math.isnan(loss.values[3])
        assert curves.notes == (
            (
                (
                    "The loss is not known, because the mode SHAPE keeps no values. Record in the mode FULL_HEALTH, or "
                    "mark it: tfdbg_arrow.mark(step=step, loss=loss)."
                ),
            )
            if mode == "SHAPE"
            else ()
        )
    assert told == {
        "FULL_HEALTH": (["bad_share", "zero_share"], ["loss", "zero_share", "bad_share"]),
        "CONCISE_HEALTH": (["bad_share"], ["loss", "bad_share"]),
        "CURT_HEALTH": (["bad_share"], ["loss", "bad_share"]),
        "SHAPE": ([], []),
    }


def test_a_range_of_executions_does_not_count_the_marks_after_it(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for number in range(4):
        run.add("mark", event_index=run.next_event_index, label="rate", value=str(number))
        run.eager_op("Mul", CLEAN, tensor_id=number)
    found = training_curves(run.write(tmp_path), positions=(0, 2))
    assert (found.axis, curve(found, "rate").values) == ("execution", (1.0, 2.0))


@pytest.mark.slow
def test_zoom(tmp_path: Path) -> None:
    found, curves = answers(training(), tmp_path, positions=(1, 3), max_columns=1)
    assert [(column.first, column.last) for column in found.columns] == [(1, 2)]
    assert found.origin.column == 0
    assert curve(curves, "bad_share").values == (pytest.approx(5 / 18),)
    found, curves = answers(training(), tmp_path / "none", positions=(100, None))
    assert (found.columns, found.rows, found.measures, curves.curves) == ((), (), (), ())
    assert found.sentence == "train.py:3 made -Inf in step 2."


def test_a_marked_loss(tmp_path: Path) -> None:
    run = training()
    texts = {0: "2.5", 1: "tf.Tensor(1.5, shape=(), dtype=float32)", 2: "[nan]", 3: "unknown"}
    for step, text in texts.items():
        run.add("mark", event_index=run.next_event_index, step=step, label="loss", value=text)
    run.add("mark", event_index=run.next_event_index, step=1, label="loss", value="0.5")
    loss = curve(answers(run, tmp_path)[1], "loss")
    assert (loss.values[:2], loss.values[3], loss.source, loss.first_bad) == ((2.5, 1.0), None, "mark(loss=…)", 2)
    assert math.isnan(loss.values[2])


def test_the_texts_of_marked_numbers(tmp_path: Path) -> None:
    number_of_text = {
        "1": 1.0, "-1.5e-3": -0.0015, "np.float32(2.5)": 2.5, "inf": math.inf, "-Infinity": -math.inf, "[[0.25]]": 0.25,
        " .5": 0.5, "a 1": None, "": None, "1.2.3": None, "nano": None, "3 apples": None, "1/10": None, "[1. 2.]": None,
        "tf.Tensor(nan, shape=(), dtype=float32)": math.nan, "1" * 400: math.inf,
    }  # fmt: skip
    run = training()
    for index, text in enumerate(number_of_text):
        run.add("mark", event_index=run.next_event_index, step=1, label=f"text{index}", value=text)
    _, curves = answers(run, tmp_path)
    found = [curve(curves, f"text{index}") for index in range(len(number_of_text))]
    assert repr([each and each.values[1] for each in found]) == repr([*number_of_text.values()])


def test_marked_numbers_have_curves(tmp_path: Path) -> None:
    run = training()

    def mark(step: int, label: str, value: str) -> None:
        run.add("mark", event_index=run.next_event_index, step=step, label=label, value=value)

    for step in range(4):
        for label, value in (
            ("step", str(step)), ("epoch", "0"), ("phase", "train"), ("host", "gpu-7"), ("accuracy", str(step / 4)),
            ("logs/val_loss", "nan" if step == 3 else "0.5"), ("learning_rate", f"[{0.1 / 2**step}]"),
        ):  # fmt: skip
            mark(step, label, value)
    mark(1, "accuracy", "tf.Tensor(0.75, shape=(), dtype=float32)")
    mark(1, "accuracy", "0.5")
    mark(99, "late", "1")
    curves = answers(run, tmp_path)[1]
    told = {each.name: each for each in curves.curves}
    assert list(told)[:4] == ["loss", "accuracy", "learning_rate", "logs/val_loss"]
    assert told["accuracy"].values == (0.0, 0.5, 0.5, 0.75)
    assert (told["accuracy"].title, told["accuracy"].source) == ("accuracy", "mark(accuracy=…)")
    assert told["learning_rate"].values == (0.1, 0.05, 0.025, 0.0125)
    assert (told["learning_rate"].title, told["learning_rate"].scale) == ("Learning rate", "log")
    assert (told["logs/val_loss"].title, told["logs/val_loss"].source) == ("val_loss in Keras's logs", "Keras's logs")
    assert told["logs/val_loss"].first_bad == 3


def test_too_many_marked_numbers_are_cut(tmp_path: Path) -> None:
    run = training()
    for number in range(MAX_LABELS + 3):
        run.add("mark", event_index=number, step=1, label=f"{number}\x1b" + "x" * 1000, value="1")
    run.add("mark", event_index=99, step=1, label="loss", value="1")
    curves = answers(run, tmp_path)[1]
    marked = [each for each in curves.curves if each.source.startswith("mark(")]
    assert [each.name.partition("\x1b")[0] for each in marked] == ["loss", *map(str, range(MAX_LABELS - 1))]
    assert max(len(each.title) for each in marked) < 100
    assert curves.notes == (f"4 labels of marks have no curve, because there are more than {MAX_LABELS}.",)


def test_the_loss_is_found_before_many_later_scalars_of_losses(tmp_path: Path) -> None:
    run = training(bad_from=None)
    graph = run.graph("evaluation")
    for number in range(60):
        graph.op(f"later{number}", "Mean", role="loss")
        run.rows["graph_op_output"][-1]["static_shape"] = []
        forward = {"forward_graph_id": graph.graph_id, "forward_op_name": f"later{number}"}
        graph.op(f"gradient{number}", "Mul", role="gradient", **forward)
    assert curve(answers(run, tmp_path)[1], "loss").source == "loss:0"


def test_numbers_of_keras_and_tensorflow_in_graphs(tmp_path: Path) -> None:
    run = training(bad_from=None)
    graph = run.graph("update")
    keras, user = "/site-packages/keras/src/optimizers/base.py", "/home/me/train.py"

    def op(name: str, op_type: str, func: str, code: str, value: float, *, file: str = keras) -> None:
        stack = run.stack((file, len(graph.op_types) + 1, func, code, "framework" if file == keras else "user"))
        graph.op(name, op_type, stack=stack, role="optimizer")
        run.rows["graph_op_output"][-1]["static_shape"] = []
        for step in range(2):
            run.tensor(graph, name, {**scalar(value / (step + 1)), "step": step}, step=step)

    op("rate/pow", "Pow", "BaseOptimizer._get_current_learning_rate", "return self._learning_rate(step)", 7.0)
    op("rate/mul", "Mul", "BaseOptimizer._get_current_learning_rate", "return self._learning_rate(step)", 0.5)
    op("read", "ReadVariableOp", "Adam.update_step", "lr = ops.cast(learning_rate, variable.dtype)", 9.0)
    op("scale", "ReadVariableOp", "LossScaleOptimizer.scale_loss", "return loss * scale", 32768.0)
    op("other", "ReadVariableOp", "unscale_loss", "return loss * scale", 5.0)
    op("sum", "Sum", "global_norm", "ops.sum(values)", 4.0)
    op("norm", "Sqrt", "global_norm", "return ops.sqrt(squared_norm)", 2.0)
    op("mine", "Sqrt", "global_norm", "return tf.sqrt(x)", 1.0, file=user)
    curves = answers(run, tmp_path)[1]
    told = {each.name: (each.values[:2], each.source) for each in curves.curves}
    assert told["learning_rate"] == ((0.5, 0.25), "rate/mul:0")
    assert told["loss_scale"] == ((32768.0, 16384.0), "scale:0")
    assert told["global_norm"] == ((2.0, 1.0), "norm:0")
    graph = run.graph("other")
    run.rows["stack_frame"] = [row for row in run.rows["stack_frame"] if "_get_current" not in row["func"]]
    told = {each.name: each.source for each in answers(run, tmp_path / "constant")[1].curves}
    assert told["learning_rate"] == "read:0"


def test_the_loss_of_an_eager_program(tmp_path: Path) -> None:
    run = RunBuilder("run-a", tensor_debug_mode="FULL_NUMERICS")
    for step, value in enumerate((2.0, math.nan)):
        for op_type, role, elements in (
            ("Sum", None, 7.0),
            ("Mean", None, value),
            ("Abs", None, 9.0),
            ("Mul", "gradient", 1.0),
        ):
            index = run.execution(op_type, outputs={len(run.rows["execution"]): "float32"})
            run.rows["execution"][index]["role"] = role
            run.eager(index, {**scalar(elements), "step": step}, tensor_id=index)
        run.rows["execution"][index]["forward_execution_index"] = index - 2
    loss = curve(answers(run, tmp_path)[1], "loss")
    assert (loss.values[0], loss.source, loss.first_bad) == (2.0, "eager ops with a gradient", 1)


@pytest.mark.slow
def test_the_extremes_of_steps_do_not_overflow(tmp_path: Path) -> None:
    run = training(bad_from=None, steps=3)
    steps = (-(2**63), 0, 2**63 - 1)
    for tensor in run.rows["tensor_health"]:
        tensor["step"] = steps[tensor["step"]]
    for max_columns in (1, 3, 200):
        found, _ = answers(run, tmp_path / str(max_columns), max_columns=max_columns)
        assert (found.columns[0].first, found.columns[-1].last) == (steps[0], steps[-1])
        assert len(found.columns) == max_columns
        told = [index for index, value in enumerate(found.values["bad_share"][0]) if value is not None]
        assert told == sorted({(step - steps[0]) // -(-(2**64) // max_columns) for step in steps})
        assert [index for index, each in enumerate(found.columns) if each.first_event_index is not None] == told


@pytest.mark.slow
def test_too_many_layers_are_folded_into_those_around_them(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    graph = run.graph("g")
    for number in range(1500):
        graph.op(f"op_{number}", "Relu", layer=f"net/part_{number % 3}/unit_{number}", role="forward")
    graph.op("deep", "Relu", layer="a/" * 200_000, role="forward")
    for name in graph.op_types:
        run.tensor(graph, name, {**CLEAN, "step": 1})
    found, _ = answers(run, tmp_path)
    assert [each.layer for each in found.rows] == ["net", "net/part_0", "net/part_1", "net/part_2", "a", "a/a"]
    assert [each.num_outputs for each in found.rows] == [1500, 500, 500, 500, 1, 1]
    assert found.num_folded == 1501
    assert "1,501 layers or lines have no row of their own" in text_of(blocks_of(found))
    run = RunBuilder("run-a")
    graph = run.graph("g")
    for number in range(900):
        graph.op(f"op_{number}", "Relu", layer=f"net/part_{number}", role="forward")
    graph.op("deep", "Relu", layer="a/b/c/d/e", role="forward")
    for name in graph.op_types:
        run.tensor(graph, name, {**CLEAN, "step": 1})
    found, _ = answers(run, tmp_path / "wide")
    assert (len(found.rows), found.num_folded, found.rows[-1].layer) == (906, 0, "a/b/c/d/e")
    run = RunBuilder("run-a")
    graph = run.graph("g")
    for number in range(1500):
        graph.op(f"op_{number}", "Relu", layer=f"part_{number}", role="forward")
        run.tensor(graph, f"op_{number}", {**CLEAN, "step": 1})
    found, _ = answers(run, tmp_path / "flat")
    assert ([each.layer for each in found.rows], found.num_folded) == (["forward"], 1500)


@pytest.mark.slow
def test_the_run_is_the_newest_or_of_all_the_first_that_went_bad(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    for number, bad_from in enumerate((None, 2, 1, None)):
        run = training(bad_from=bad_from)
        run.run_id = f"run-{number}"
        for rows in run.rows.values():
            for each in rows:
                each["run_id"] = run.run_id
                if "wall_time_ns" in each:
                    each["wall_time_ns"] += number * 10**9
        run.write(logdir)
    shown = [layer_health(logdir, run_id=run_id).run_id for run_id in (None, "run-2", "all")]
    assert shown == ["run-3", "run-2", "run-1"]
    healthy = tmp_path / "healthy"
    for run_id in ("run-1", "run-2"):
        RunBuilder(run_id, wall_time_ns=int(run_id[-1])).write(healthy)
    assert layer_health(healthy) is training_curves(healthy) is None
    with pytest.raises(QueryError, match="run 'nothing' is not in"):
        layer_health(logdir, run_id="nothing")
    with pytest.raises(QueryError, match="max_columns is 0; expected 1 or more"):
        training_curves(logdir, max_columns=0)


def test_update_ratios_are_those_of_the_alert_rule(tmp_path: Path) -> None:
    run = training(bad_from=None)
    found, _ = answers(run, tmp_path)
    (rule,) = (rule for rule in builtin_rules() if rule.kind == "weight_update_ratio")
    with open_logdir(tmp_path / "logdir") as logdir:
        ((value,),) = logdir.rows(
            f"SELECT max(value) FROM ({rule.sql({'limit': 0.0, 'min_events': 1.0, 'warm_up': 0.0})}) AS rule"
        )
    assert max(each or 0.0 for values in found.values["update_ratio"] for each in values) == value


KERAS = """
    import sys
    import keras
    import numpy as np
    import tensorflow as tf
    import tfdbg_arrow

    keras.utils.set_random_seed(0)

    class Block(keras.layers.Layer):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.inner = keras.layers.Dense(4, activation="relu", name="inner")
            self.rate = self.add_weight(name="rate", shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.rate.assign_add(1.0)
            return self.inner(x) / tf.where(self.rate > 4.0, 0.0, 1.0)

    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1, name="head")(Block(name="block")(inputs))
    model = keras.Model(inputs, outputs, name="model")
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    with tfdbg_arrow.capture(sys.argv[1], tensor_debug_mode="FULL_NUMERICS"):
        model.fit(x, x[:, :1], batch_size=8, epochs=1, verbose=0)
"""


def recorded(program: str, tmp_path: Path) -> Path:
    """Runs a program that records itself, and returns the logdir."""
    file, logdir = tmp_path / "program.py", tmp_path / "logdir"
    file.write_text(textwrap.dedent(program))
    done = run_to_end(file, logdir)
    assert done.returncode == 0, done.stderr
    return logdir


@pytest.mark.slow
def test_a_keras_training(tmp_path: Path) -> None:
    with open_logdir(recorded(KERAS, tmp_path)) as logdir:
        found, curves = layer_health(logdir), training_curves(logdir)
    forward = [each.layer for each in found.rows if each.kind == "layer" and each.side == "forward"]
    assert forward == ["model", "model/block", "model/block/inner", "model/head"]
    assert (found.rows[found.origin.row].layer, found.rows[found.origin.row].side) == ("model/block", "forward")
    assert found.columns[found.origin.column].first == 4
    code = "`self.inner(x) / tf.where(self.rate > 4.0, 0.0, 1.0)`"
    assert found.sentence == f"{code} at program.py:18 made NaN and +Inf in step 4: every sample of the batch."
    names = [(found.rows[each].layer, found.rows[each].side) for each in found.path]
    assert names[0] == ("model/block", "forward")
    assert names[-1] == ("optimizer", "forward")
    assert [each.name for each in found.measures] == [
        "bad_share", "max_abs", "mean", "stddev", "zero_share", "norm", "update_ratio",
    ]  # fmt: skip
    loss = curve(curves, "loss")
    assert (loss.first_bad, curves.first_bad) == (4, 4)
    assert all(value > 0 for value in loss.values[:4])
    assert {"gradient_norm", "weight_norm", "update_ratio"} <= {each.name for each in curves.curves}


LOOP = """
import sys

import tensorflow as tf
import tfdbg_arrow

scale = tf.Variable(tf.ones([4, 1]))


@tf.function
def train_step(batch):
    with tf.GradientTape() as tape:
        spread = tf.sqrt(tf.reduce_mean(batch**2, axis=1, keepdims=True))
        loss = tf.reduce_mean(tf.matmul(batch / spread, scale))
    scale.assign_sub(0.1 * tape.gradient(loss, scale))


with tfdbg_arrow.capture(sys.argv[1]):
    for number in range(4):
        train_step(tf.ones([3, 4]) * [[1.0], [2.0], [1.0 if number < 2 else 0.0]])
"""


@pytest.mark.slow
def test_a_training_loop_without_steps(tmp_path: Path) -> None:
    """TensorFlow runs the division as a product with the reciprocal of the root. The root is on another line."""
    with open_logdir(recorded(LOOP, tmp_path)) as logdir:
        model, curves = layer_health(logdir), training_curves(logdir)
        zoomed = layer_health(logdir, max_columns=2)
    assert "program.py:14 made NaN in call 3 of train_step" in model.sentence
    assert model.rows[model.origin.row].name == "program.py:14"
    assert "program.py:13" not in [model.rows[row].name for row in model.path]
    assert model.calls == curves.calls
    assert model.calls.function == "train_step"
    assert model.calls.ranges[model.origin.column] == (3, 3)
    assert model.calls.ranges[0] == (0, 0)  # an op ran before the first call
    assert model.calls.ranges[-1][1] == 4
    assert [last for _, last in zoomed.calls.ranges][-1] == 4
