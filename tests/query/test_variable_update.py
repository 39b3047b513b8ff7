"""Test the view `variable_update` against the arrays of a training."""

from __future__ import annotations

import re
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdbg_arrow.query import open_logdir, training_curves

from .builder import RunBuilder, numerics


def rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(array**2)))


def training(contents: list[np.ndarray], op_type: str, *, rate: float) -> tuple[RunBuilder, list[float]]:
    """Returns a program whose variable has the given contents at each read, and the root mean square of each update."""
    run = RunBuilder("run-a")
    graph = run.graph("train").op("variable", "Placeholder", dtypes=["resource"]).op("rate", "Const")
    graph.op("read", "ReadVariableOp", inputs=["variable"], role="forward").op("gradient", "Mul")
    inputs = ["variable", "rate", "gradient"] if op_type == "ResourceApplyGradientDescent" else ["variable", "gradient"]
    graph.op("write", op_type, inputs=inputs, dtypes=[]).function("train", captures=["variable"])
    for step, (content, after) in enumerate(pairwise(contents)):
        call = run.execution("train", graph=graph)
        factor = rate if "rate" in inputs else 1.0
        for name, array in (("read", content), ("rate", np.array([rate])), ("gradient", (after - content) / factor)):
            run.tensor(graph, name, numerics(*array), step=step, execution=call)
    return run, [rms(after - content) for content, after in pairwise(contents)]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("op_type", ["AssignSubVariableOp", "ResourceApplyGradientDescent", "ResourceApplyAdam"])
def test_an_update_is_that_of_the_program_or_at_least_as_large_as_said(op_type: str, data: st.DataObject) -> None:
    number = st.floats(-8, 8, allow_subnormal=False)
    size, length = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 5))
    contents = [np.array(data.draw(st.lists(number, min_size=size, max_size=size))) for _ in range(length)]
    run, updates = training(contents, op_type, rate=data.draw(st.sampled_from([0.5, -2.0])))
    with tempfile.TemporaryDirectory() as directory, open_logdir(run.write(Path(directory) / "logdir")) as logdir:
        rows = logdir.rows(
            "SELECT op_name, read_op_name, update_rms, variable_rms, is_smallest FROM variable_update "
            "ORDER BY event_index"
        )
        same_place = logdir.rows(
            "SELECT u.update_step, u.update_execution_index, h.step, h.execution_index FROM variable_update AS u "
            "JOIN tensor_health AS h ON h.run_id = u.run_id AND h.event_index = u.update_event_index"
        )
    assert len(same_place) == len(rows)
    assert all(place[:2] == place[2:] for place in same_place)
    is_smallest = op_type == "ResourceApplyAdam"
    assert len(rows) == len(updates) - is_smallest
    for row, update, content in zip(rows, updates, contents, strict=False):
        expected = pytest.approx(update, abs=1e-6)
        assert row[:2] == ("write", "read")
        assert row[2] <= update + 1e-6 if is_smallest and size > 1 else row[2] == expected
        assert row[3:] == (pytest.approx(rms(content), abs=1e-9), is_smallest)


@pytest.mark.parametrize("op_type", ["ResourceApplyGradientDescent", "ResourceApplyAdam"])
def test_a_variable_that_an_optimizer_op_trains_has_curves(op_type: str, tmp_path: Path) -> None:
    run, _ = training([np.array([2.0**step]) for step in range(5)], op_type, rate=0.5)
    curves = training_curves(run.write(tmp_path / "logdir"))
    found = {curve.name: [value for value in curve.values if value is not None] for curve in curves.curves}
    assert found["weight_norm"] == [1.0, 2.0, 4.0, 8.0]
    assert found["update_ratio"] == pytest.approx([1.0] * (3 if op_type == "ResourceApplyAdam" else 4))


def test_the_rows_that_are_joined_grow_with_the_graph_and_not_with_its_square(tmp_path: Path) -> None:
    run, num_variables = RunBuilder("run-a"), 400
    graph = run.graph("train")
    for number in range(num_variables):
        graph.op(f"variable{number}", "Placeholder", dtypes=["resource"]).op(f"gradient{number}", "Mul")
        graph.op(f"read{number}", "ReadVariableOp", inputs=[f"variable{number}"])
        graph.op(f"write{number}", "AssignSubVariableOp", inputs=[f"variable{number}", f"gradient{number}"], dtypes=[])
    graph.function("train", captures=[f"variable{number}" for number in range(num_variables)])
    call = run.execution("train", graph=graph)
    for number in range(num_variables):
        for name in (f"read{number}", f"gradient{number}"):
            run.tensor(graph, name, numerics(1.0), step=0, execution=call)
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        assert logdir.rows("SELECT count(*) FROM variable_update") == [(num_variables,)]
        plan = logdir.rows("EXPLAIN (ANALYZE, FORMAT JSON) SELECT count(*) FROM variable_update")[0][1]
    num_rows = [int(number) for number in re.findall(r'"intermediate_rows": (\d+)', plan)]
    assert max(num_rows) <= 10 * num_variables
