"""Test layer_differences on small runs, and compare it with layer_health and a plain search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Cell, LayerDifferences, LayerHealth, Parting, layer_differences, layer_health, open_logdir

from .builder import NAN, RunBuilder, numerics
from .test_model_health import programs

F32 = 16 * 2.0**-23


def run(
    path: Path,
    tensors: Iterable[tuple[str, int | None, list[float]]],
    *,
    run_id: str = "run-a",
    mode: str = "FULL_NUMERICS",
    dtype: str = "float32",
) -> Path:
    """Writes a run of the layers `net/a` and `net/b`, a gradient `db` of `net/b`, and an op `rate` of the optimizer.

    Args:
        path: The logdir.
        tensors: (op, step, elements) of each tensor.
        run_id: The run.
        mode: The mode. Only FULL_NUMERICS measures magnitudes.
        dtype: The dtype.
    """
    built = RunBuilder(run_id, tensor_debug_mode=mode)
    graph = built.graph("step")
    for name, layer, role in (("a", "net/a", "forward"), ("b", "net/b", "forward"), ("rate", None, "optimizer")):
        graph.op(name, "Mul", layer=layer, role=role)
    graph.op("db", "Mul", ["b"], layer="net/b", role="gradient", forward_graph_id=graph.graph_id, forward_op_name="b")
    for name, step, elements in tensors:
        columns = {**numerics(*elements, dtype=dtype), "step": step}
        if mode != "FULL_NUMERICS":
            columns = {key: value for key, value in columns.items() if not key.endswith("_finite") or "num" in key}
        built.tensor(graph, name, columns, execution=built.execution("f", graph=graph) if step is None else None)
    return built.write(path)


def steps(number: int, change: Callable[[str, int], list[float] | None] = lambda name, step: None) -> list[Any]:
    """Returns the tensors of all ops in each step. The elements are [1, 2], unless `change` returns other elements."""
    return [
        (name, step, change(name, step) or [1.0, 2.0]) for step in range(number) for name in ("a", "b", "db", "rate")
    ]


def differences(a: Path, b: Path, **arguments: Any) -> LayerDifferences:
    found = layer_differences(a, b, **arguments)
    assert found is not None
    return found


def names(found: LayerDifferences, partings: Iterable[Parting | None]) -> list[tuple[str, str, int, str] | None]:
    return [
        None if place is None else (found.rows[place.row].layer, found.rows[place.row].side, place.first, place.measure)
        for place in partings
    ]


def test_the_layer_that_parted_first(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(6))
    b = run(tmp_path / "b", steps(6, lambda name, step: [1.0, 4.0] if name in ("a", "b") and step >= 3 else None))
    found = differences(a, b)
    assert found.sentence == ("The layer net/a parted first, in step 3: largest magnitude 2 in A against 4 in B.")
    assert found.notes == ()
    assert [(row.layer, row.side) for row in found.rows] == [
        ("net", "forward"), ("net", "gradient"), ("net/a", "forward"), ("net/b", "forward"), ("net/b", "gradient"),
        ("optimizer", "forward"),
    ]  # fmt: skip
    assert found.origin == Cell(row=2, column=3)
    assert found.first_parting == Parting(
        row=2, column=3, first=3, last=3, measure="max_abs", a=2.0, b=4.0, num_bad_a=0, num_bad_b=0
    )
    assert names(found, found.partings) == [("net/a", "forward", 3, "max_abs"), ("net/b", "forward", 3, "max_abs")]
    assert found.values["max_abs"][2] == (0, 0, 0, 0.5, 0.5, 0.5)
    assert found.values_a["max_abs"][2] == (2,) * 6
    assert found.values_b["max_abs"][2] == (2, 2, 2, 4, 4, 4)
    assert found.values["difference"][4] == (0,) * 6
    assert (found.large_parting, found.rtol, found.only_a, found.only_b) == (None, F32, (), ())
    assert (found.range_a, found.range_b, found.run_a, found.run_b) == ((0, 5), (0, 5), "run-a", "run-a")


def test_gradients_part_after_the_forward_side_and_in_the_order_of_the_flow(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(4))
    b = run(tmp_path / "b", steps(4, lambda name, step: [1.0, 4.0] if name == "db" and step >= 2 else None))
    assert differences(a, b).sentence == (
        "The gradient of the layer net/b parted first, in step 2: largest magnitude 2 in A against 4 in B."
    )


@pytest.mark.slow
def test_only_one_run_is_bad(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(4))
    b = run(tmp_path / "b", steps(4, lambda name, step: [math.nan, 2.0] if name == "b" and step >= 2 else None))
    found = differences(a, b)
    assert found.sentence == ("The layer net/b parted first, in step 2: number of bad tensors 0 in A against 1 in B.")
    assert found.bad == ((0, 0, 1, 1), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 0, 0), (0, 0, 0, 0))
    assert found.large_parting == found.first_parting
    both = differences(b, b, run_a="run-a", run_b="run-a")
    assert (both.first_parting, both.bad_a, sum(map(sum, both.bad))) == (None, found.bad_b, 0)


@pytest.mark.slow
def test_the_exact_step_within_a_column_of_several_steps(tmp_path: Path) -> None:
    def change(name: str, step: int) -> list[float] | None:
        # In the column of the steps 600 to 799, the optimizer differs first, then net/b, and then net/a.
        since = {"rate": 610, "b": 611, "a": 700}.get(name)
        return None if since is None or step < since else [1.0, 2.25]

    a, b = run(tmp_path / "a", steps(1000)), run(tmp_path / "b", steps(1000, change))
    found = differences(a, b, max_columns=5)
    place = Parting(row=3, column=3, first=611, last=611, measure="max_abs", a=2, b=2.25, num_bad_a=0, num_bad_b=0)
    assert (found.first_parting, found.origin) == (place, Cell(row=3, column=3))
    assert names(found, found.partings) == [
        ("net/b", "forward", 611, "max_abs"), ("net/a", "forward", 600, "max_abs"),
        ("optimizer", "forward", 600, "max_abs"),
    ]  # fmt: skip


def test_runs_that_are_apart_from_the_first_step_on(tmp_path: Path) -> None:
    def change(name: str, step: int) -> list[float] | None:
        return {"a": [1.0, 2.5], "b": [1.0, 2000.0] if step >= 3 else None}.get(name)

    found = differences(run(tmp_path / "a", steps(5)), run(tmp_path / "b", steps(5, change)))
    assert found.sentence == (
        "The runs are apart from the first step on, first in the layer net/a, in step 0: largest magnitude 2 in A "
        "against 2.5 in B."
    )
    assert found.notes == (
        "They are far apart in step 3, first in the layer net/b: largest magnitude 2 in A against 2000 in B.",
    )
    assert found.origin == Cell(row=3, column=3)
    assert found.outlined_parting == found.large_parting


@pytest.mark.slow
def test_what_is_outside_all_layers_is_a_note_unless_nothing_else_parted(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(5))
    both = run(
        tmp_path / "b", steps(5, lambda name, step: [1.0, 3.0] if name == "rate" or (name, step) == ("b", 4) else None)
    )
    alone = run(tmp_path / "c", steps(5, lambda name, step: [1.0, 3.0] if name == "rate" and step >= 2 else None))
    found = differences(a, both)
    assert found.sentence.startswith("The layer net/b parted first, in step 4: ")
    assert found.notes == ("Outside all layers, they were apart before: optimizer from step 0.",)
    assert differences(a, alone).sentence.startswith("The optimizer parted first, in step 2: ")


@pytest.mark.slow
def test_steps_and_layers_that_only_one_run_has(tmp_path: Path) -> None:
    a = run(tmp_path / "a", [each for each in steps(8) if each[0] != "a"])
    b = run(tmp_path / "b", [(name, step + 5, elements) for name, step, elements in steps(9) if name != "db"])
    found = differences(a, b)
    assert [(column.first, column.last) for column in found.columns] == [(5, 5), (6, 6), (7, 7)]
    assert (found.range_a, found.range_b) == ((0, 7), (5, 13))
    assert [(row.layer, row.side) for row in found.only_a] == [("net", "gradient"), ("net/b", "gradient")]
    assert [(row.layer, row.side) for row in found.only_b] == [("net/a", "forward")]
    assert found.first_parting is not None  # net has other tensors in the two runs
    assert names(found, found.partings) == [("net", "forward", 5, "norm")]
    zoomed = differences(a, b, positions=(6, 7))
    assert [(column.first, column.last) for column in zoomed.columns] == [(6, 6)]
    nothing = differences(a, b, positions=(None, 4))
    assert (nothing.columns, nothing.rows, nothing.sentence) == ((), (), "The runs have no step in common.")


@pytest.mark.slow
def test_without_steps_executions_are_compared(tmp_path: Path) -> None:
    marked = run(tmp_path / "a", steps(3))
    with_executions = [("a", None, [1.0, 2.0]), ("b", None, [3.0])]
    b = run(tmp_path / "b", with_executions)
    c = run(tmp_path / "c", [with_executions[0], ("b", None, [4.0])])
    found = differences(b, c)
    assert (found.axis, names(found, found.partings)) == ("execution", [("net/b", "forward", 1, "max_abs")])
    assert found.sentence.startswith("The layer net/b parted first, in execution 1: ")
    other = differences(marked, b)
    assert (other.axis, other.columns) == ("execution", ())


def test_a_mode_without_magnitudes_compares_shares(tmp_path: Path) -> None:
    def change(name: str, step: int) -> list[float] | None:
        return [0.0, 0.0] if name == "a" and step >= 1 else None

    a = run(tmp_path / "a", steps(3), mode="FULL_HEALTH")
    b = run(tmp_path / "b", steps(3, change), mode="FULL_HEALTH")
    found = differences(a, b)
    assert [measure.name for measure in found.measures] == ["difference", "bad_share", "zero_share"]
    assert found.sentence == "The layer net/a parted first, in step 1: share of zeros 0 % in A against 100 % in B."
    assert found.large_parting == found.first_parting


def test_nothing_can_be_compared(tmp_path: Path) -> None:
    built = RunBuilder("run-a", tensor_debug_mode="SHAPE")
    graph = built.graph("f").op("x", "Mul", layer="net")
    built.tensor(graph, "x", {"step": 0, "has_inf_or_nan": None})
    found = differences(built.write(tmp_path / "a"), tmp_path / "a")
    assert (found.sentence, found.measures, found.values) == (
        "Nothing could be compared: the runs have no measure in common.", (), {}
    )  # fmt: skip
    assert layer_differences(tmp_path / "a", RunBuilder("run-b").write(tmp_path / "b")) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "factor", "is_apart"),
    [
        ("float32", 1 + 1e-6, False), ("float32", 1 + 3e-6, True), ("float16", 1.01, False), ("float16", 1.03, True),
        ("bfloat16", 1.1, False), ("bfloat16", 1.2, True), ("int32", 1 + 1e-9, True),
    ],
)  # fmt: skip
def test_the_tolerance_is_that_of_the_coarsest_dtype(tmp_path: Path, dtype: str, factor: float, is_apart: bool) -> None:
    a = run(tmp_path / "a", steps(2), dtype=dtype)
    b = run(tmp_path / "b", steps(2, lambda name, step: [factor, 2 * factor]), dtype=dtype)
    assert (differences(a, b).first_parting is not None) == is_apart
    assert differences(a, b, rtol=0.5).first_parting is None
    assert differences(a, b, rtol=0).first_parting is not None


def test_rounding_of_sums_is_no_difference(tmp_path: Path) -> None:
    a = run(tmp_path / "a", steps(2), dtype="float64")
    b = run(tmp_path / "b", steps(2, lambda name, step: [1 + 1e-13, 2.0]), dtype="float64")
    found = differences(a, b, rtol=0)
    assert (found.first_parting, found.rtol) == (None, 1e-12)
    assert found.sentence.endswith("all measures agree within 1e-12.")


def test_runs_of_one_logdir_and_errors(tmp_path: Path) -> None:
    run(tmp_path, steps(2))
    run(tmp_path, steps(2, lambda name, step: [5.0]), run_id="run-b")
    with open_logdir(tmp_path) as logdir:
        found = logdir.layer_differences()
        assert (found.run_a, found.run_b) == ("run-a", "run-b")
        assert repr(found).startswith("<LayerDifferences The runs are apart from the first step on")
        assert "<svg" in found._repr_html_()
        assert "parted here" in found._repr_html_()
        for arguments, text in (
            ({"rtol": -1.0}, "rtol is -1.0; expected 0 or more"),
            ({"max_columns": 0}, "max_columns is 0; expected 1 or more"),
            ({"run_a": "nothing"}, "nothing"),
        ):
            with pytest.raises(QueryError, match=text):
                logdir.layer_differences(**arguments)  # type: ignore[arg-type]


def test_a_bad_value_that_both_have_is_no_difference(tmp_path: Path) -> None:
    built = RunBuilder("run-a", tensor_debug_mode="CURT_HEALTH")
    graph = built.graph("f").op("x", "Mul", layer="net")
    built.tensor(graph, "x", {**NAN, "step": 0})
    path = built.write(tmp_path)
    same = differences(path, path, run_a="run-a", run_b="run-a")
    assert same.sentence == "No layer parted in step 0: all measures agree within 1.9e-06."
    with pytest.raises(QueryError, match=r"has one run \(run-a\); name the logdir of another run"):
        layer_differences(path)


def ends(answer: LayerHealth) -> list[tuple[int, int]]:
    """Returns the first and the last position of each column."""
    return [(column.first, column.last) for column in answer.columns]


def relative(found: LayerDifferences, name: str, at: tuple[int, int]) -> float | None:
    """Returns the difference of a measure in a cell as documented; None if a run does not have the measure."""
    a, b = value(found.values_a, name, at), value(found.values_b, name, at)
    if a is None or b is None:
        return None
    if name in ("bad_share", "zero_share"):
        return b - a
    if a == b:
        return 0.0
    if name not in ("mean", "stddev"):
        return (b - a) / max(abs(a), abs(b))
    sides = (found.values_a, found.values_b)
    return (b - a) / max(math.hypot(*(value(side, each, at) or 0 for each in ("mean", "stddev"))) for side in sides)


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=programs(), second=programs(), max_columns=st.integers(1, 12))
def test_the_cells_are_those_of_layer_health(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any, max_columns: int
) -> None:
    path = tmp_path_factory.mktemp("logdirs")
    a, b = first.run.write(path / "a"), second.run.write(path / "b")
    found, swapped = (layer_differences(*pair, max_columns=max_columns) for pair in ((a, b), (b, a)))
    assert (found is None) == (swapped is None)
    if found is None or swapped is None or not found.columns:
        return
    positions = (found.columns[0].first, found.columns[-1].last + 1)
    # Without the other run, a run that lacks the first or the last step would have other columns, and a run with steps
    # would have another axis.
    sides = [layer_health(each, positions=positions, max_columns=max_columns) for each in (a, b)]
    for side, values, bad in zip(sides, (found.values_a, found.values_b), (found.bad_a, found.bad_b), strict=True):
        rows = {(row.kind, row.layer, row.side): index for index, row in enumerate(side.rows)}
        if (side.axis, ends(side)) != (found.axis, ends(found)):
            continue
        for index, row in enumerate(found.rows):
            there = rows[row.kind, row.layer, row.side]
            assert bad[index] == side.bad[there]
            for name, numbers in values.items():
                for column, number in enumerate(numbers[index]):
                    expected = value(side.values, name, (there, column))
                    assert (number is None) == (expected is None), (name, number, expected)
                    # The two answers sum the tensors of a cell in different orders.
                    assert number is None or number == pytest.approx(expected, rel=1e-12)
    apart: dict[int, int] = {}
    for index in range(len(found.rows)):
        for column in range(len(found.columns)):
            at = (index, column)
            shown = {name: value(found.values, name, at) for name in found.values if name != "difference"}
            for name, difference in shown.items():
                expected = relative(found, name, at)
                assert (difference is None) == (expected is None)
                assert expected is None or difference == pytest.approx(expected, rel=1e-9, abs=1e-12)
            known = [abs(each) for each in shown.values() if each is not None]
            if found.values:
                assert value(found.values, "difference", at) == (max(known) if known else None)
            is_bad_in_one = (found.bad_a[index][column] > 0) != (found.bad_b[index][column] > 0)
            if found.bad[index][column] or max(known, default=0) > found.rtol:
                apart.setdefault(index, column)
            assert not found.bad[index][column] or is_bad_in_one
    assert {place.row for place in found.partings} <= set(apart)
    assert all(apart[place.row] == place.column for place in found.partings)
    assert bool(apart) == (found.first_parting is not None)
    of_layers = [column for row, column in apart.items() if found.rows[row].kind != "role"] or [*apart.values()]
    if found.first_parting is not None:
        assert found.first_parting.column == min(of_layers)
    assert (swapped.first_parting is None) == (found.first_parting is None)
    assert {(row.layer, row.side) for row in swapped.rows} == {(row.layer, row.side) for row in found.rows}


def value(values: Any, name: str, at: tuple[int, int]) -> float | None:
    """Returns the number of a cell, or None if the runs do not have the measure."""
    number: float | None = values[name][at[0]][at[1]] if name in values else None
    return number


@pytest.mark.slow
def test_a_call_that_gets_a_bad_result_is_not_where_the_runs_parted(tmp_path: Path) -> None:
    import tensorflow as tf

    import tfdbg_arrow

    @tf.function
    def inner(x: Any) -> Any:
        doubled = x * 2.0
        return tf.math.log(doubled)  # the origin

    for name, sign in (("a", 1.0), ("b", -1.0)):
        with tfdbg_arrow.capture(tmp_path / name, tensor_debug_mode="FULL_NUMERICS"):
            for step in range(4):
                tfdbg_arrow.mark(step=step)
                inner(tf.constant([3.0, 4.0]) * (sign if step >= 2 else 1.0))
    found = differences(tmp_path / "a", tmp_path / "b")
    place = found.large_parting
    lines = Path(__file__).read_text().splitlines()
    origin = next(number for number, line in enumerate(lines, start=1) if line.endswith("# the origin"))
    assert (found.rows[place.row].name, place.first, place.measure) == (f"test_layer_differences.py:{origin}", 2, "bad")
    assert (place.num_bad_a, place.num_bad_b) == (0, 1)


@pytest.mark.slow
def test_the_origin_is_in_a_line_that_only_one_run_has(tmp_path: Path) -> None:
    import tensorflow as tf

    import tfdbg_arrow

    @tf.function
    def fixed(x: Any) -> Any:
        return tf.nn.relu(x)

    @tf.function
    def wrong(x: Any) -> Any:
        return tf.math.log(x)  # only this run has the line

    for name, call in (("a", fixed), ("b", wrong)):
        with tfdbg_arrow.capture(tmp_path / name, tensor_debug_mode="CONCISE_HEALTH"):
            for step in range(3):
                tfdbg_arrow.mark(step=step)
                tf.identity(call(tf.constant([1.0, 1.0 - step])))
    lines = Path(__file__).read_text().splitlines()
    origin = next(number for number, line in enumerate(lines, start=1) if line.endswith("# only this run has the line"))
    note = f"The bad value began in line test_layer_differences.py:{origin}, which only B has."
    assert differences(tmp_path / "a", tmp_path / "b").notes[-1] == note


@pytest.mark.slow
def test_runs_of_one_program_from_two_directories(tmp_path: Path) -> None:
    import tensorflow as tf

    import tfdbg_arrow

    text = """
def train(tf, step):
    @tf.function
    def inner(x):
        doubled = x * 2.0
        return tf.math.log(doubled)  # the origin
    return inner
"""
    for name in ("a", "b"):
        file = tmp_path / "checkouts" / name / "train.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        program: dict[str, Any] = {}
        exec(compile(text, str(file), "exec"), program)
        inner = program["train"](tf, 0)
        with tfdbg_arrow.capture(tmp_path / name, tensor_debug_mode="FULL_NUMERICS"):
            for step in range(4):
                tfdbg_arrow.mark(step=step)
                inner(tf.constant([3.0, -4.0 if name == "b" and step >= 2 else 4.0]))
    found = differences(tmp_path / "a", tmp_path / "b")
    lines = [row.layer for row in found.rows if row.kind == "line"]
    in_a = str(tmp_path / "checkouts" / "a" / "train.py")
    assert [line for line in lines if line.startswith(in_a)] == [f"{in_a}:5", f"{in_a}:6"]
    assert not [row for row in (*found.only_a, *found.only_b) if "train.py" in row.layer]
    place = found.large_parting
    assert place is not None
    assert (found.rows[place.row].layer, place.first, place.measure) == (f"{in_a}:6", 2, "bad")
    assert found.notes == ()
