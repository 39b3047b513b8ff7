"""Test answers as Arrow, Polars and pandas data.

The data has one column for each attribute, distinguishes NULL from NaN, and has fixed types.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from tfdbg_arrow.errors import MissingDependencyError, QueryError
from tfdbg_arrow.query import (
    Alert,
    CaptureStat,
    Frame,
    HistoryRow,
    Hop,
    NonFinite,
    UnobservedOps,
    open_logdir,
    to_arrow,
    to_pandas,
    to_polars,
)

from .builder import CLEAN, NAN, RunBuilder

FORWARD = [
    f"forward_{name}" for name in ("op_type", "op_name", "graph_name", "layer", *Frame.__dataclass_fields__, "order")
]


def columns_of(row_type: type) -> list[str]:
    names = [*row_type.__dataclass_fields__]  # type: ignore[attr-defined]
    if row_type is NonFinite:
        place = names.index("forward")
        names[place : place + 1] = FORWARD
    return names


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    stack = run.stack(("train.py", 3, "f", "log(x)", "user"))
    graph = run.graph("f").op("x", "Exp").op("y", "Log", inputs=["x"], stack=stack).op("z", "Exp", not_recorded="xla")
    run.tensors(graph, {"x": {**CLEAN, "min_finite": -0.0}, "y": NAN})
    return run.write(tmp_path / "logdir")


def test_nested_dataclasses_are_structs_and_tuples_are_lists(logdir: Path) -> None:
    with open_logdir(logdir) as opened:
        (found,) = to_arrow(opened.nonfinite()).to_pylist()
        (expected,) = opened.nonfinite()
    assert (found["op_name"], found["shape"], found["num_nan"], found["min_finite"]) == ("y", [2], 1, None)
    line = {"file_path": "train.py", "lineno": 3, "func": "f", "code": "log(x)", "owner": "user"}
    assert found["source"] == {**line, "colno": None, "end_colno": None}
    (input_,) = found["inputs"]
    assert (input_["index"], input_["health"]["event_index"], input_["producer"]["op_name"]) == (0, 0, "x")
    assert list(found) == columns_of(NonFinite)
    assert found["called_from"] == []
    assert found["left_out"] == list(expected.left_out) == []


@pytest.mark.parametrize("row_type", [NonFinite, Alert, HistoryRow, Hop, CaptureStat, UnobservedOps, Frame])
def test_the_columns_without_rows(row_type: type) -> None:
    assert to_arrow([], row_type).num_rows == 0
    assert to_arrow([], row_type).column_names == columns_of(row_type)


def test_the_columns_of_the_forward_op(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    stack = run.stack(("train.py", 3, "f", "sqrt(x)", "user"))
    graph = run.graph("f").op("x", "Sqrt", stack=stack).op("y", "SqrtGrad", inputs=["x"])
    run.rows["graph_op"][-1].update(role="gradient", forward_graph_id=graph.graph_id, forward_op_name="x")
    run.tensors(graph, {"x": CLEAN, "y": NAN})
    with open_logdir(run.write(tmp_path / "logdir")) as opened:
        (found,) = to_arrow(opened.nonfinite()).to_pylist()
    forward = {name: value for name, value in found.items() if name.startswith("forward_")}
    assert forward == {
        "forward_op_type": "Sqrt",
        "forward_op_name": "x",
        "forward_graph_name": "f",
        "forward_layer": None,
        "forward_file_path": "train.py",
        "forward_lineno": 3,
        "forward_func": "f",
        "forward_code": "sqrt(x)",
        "forward_owner": "user",
        "forward_colno": None,
        "forward_end_colno": None,
        "forward_order": 1,
    }


def test_types_are_the_same_with_and_without_rows(logdir: Path) -> None:
    with open_logdir(logdir) as opened:
        provenance = opened.provenance(1)
        answers = {NonFinite: opened.nonfinite(), Hop: provenance.hops, Alert: opened.alerts().alerts}
        answers[UnobservedOps] = opened.coverage().unobserved
    for row_type, rows in answers.items():
        assert rows
        assert to_arrow(rows).schema == to_arrow([], row_type).schema


@dataclass(frozen=True)
class Row:
    number: float | None
    values: tuple[object, ...] | None = None


def test_null_nan_and_negative_zero_are_preserved() -> None:
    numbers = [math.nan, None, -0.0, 0.0, math.inf]
    rows = [Row(number) for number in numbers]
    assert repr(to_arrow(rows)["number"].to_pylist()) == repr(numbers)
    assert repr(to_polars(rows)["number"].to_list()) == repr(numbers)


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([(True, False), None], pa.bool_(), [[True, False], None]),
        ([(1, 2), (2**63 - 1,)], pa.int64(), [[1, 2], [2**63 - 1]]),
        ([(1,), (0.5,)], pa.float64(), [[1.0], [0.5]]),
        ([(2**64 - 1,)], pa.float64(), [[2.0**64]]),
        ([(1j,), (0.5,)], pa.string(), [["1j"], ["0.5"]]),
        ([(), None], pa.float64(), [[], None]),
    ],
)
def test_the_type_of_a_list_holds_all_of_its_elements(
    values: list[tuple[object, ...] | None], type_: pa.DataType, expected: list[object]
) -> None:
    found = to_arrow([Row(None, value) for value in values])["values"]
    assert (found.type.value_type, found.to_pylist()) == (type_, expected)


def test_errors_for_invalid_rows() -> None:
    for rows, message in (
        ([], "there are no rows to take the columns from"),
        ([1], "rows are int, expected a dataclass"),
        ([Row(1.0), Frame("f", 1, "g", None, "user")], "a row is a Frame, expected only Row"),
    ):
        with pytest.raises(QueryError, match=message):
            to_arrow(rows)


def test_sql_results_as_arrow_and_polars(logdir: Path) -> None:
    query = "SELECT op_name, min_finite, 'nan'::DOUBLE AS x FROM tensor_health WHERE num_nan >= $n ORDER BY event_index"
    with open_logdir(logdir) as opened:
        rows = opened.arrow(query, {"n": 0}).to_pylist()
        frame = opened.polars(query, {"n": 1})
        assert opened.arrow("CREATE TEMP TABLE t (a INTEGER)").num_rows == 0
        with pytest.raises(QueryError, match="no_such_table"):
            opened.arrow("SELECT * FROM no_such_table")
    assert repr(rows) == (
        "[{'op_name': 'x', 'min_finite': -0.0, 'x': nan}, {'op_name': 'y', 'min_finite': None, 'x': nan}]"
    )
    assert isinstance(frame, pl.DataFrame)
    assert frame["op_name"].to_list() == ["y"]


def test_the_error_for_a_missing_package_has_its_pip_command(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, call in (("polars", to_polars), ("pandas", to_pandas)):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependencyError, match=f"pip install {module}"):
            call([], Frame)
    monkeypatch.setitem(sys.modules, "pytz", None)
    with open_logdir(logdir) as opened:
        with pytest.raises(MissingDependencyError, match="pip install pytz"):
            opened.rows("SELECT now()")
        with pytest.raises(MissingDependencyError, match="pip install pandas"):
            opened.pandas("SELECT 1")
        assert opened.arrow("SELECT now() AS t").num_rows == 1


def test_pandas_distinguishes_null_from_nan(logdir: Path) -> None:

    with open_logdir(logdir) as opened:
        frame = opened.pandas("SELECT 'nan'::DOUBLE AS a, NULL::DOUBLE AS b, 1::BIGINT AS c")
    assert pa.Table.from_pandas(frame).to_pylist() == [{"a": pytest.approx(math.nan, nan_ok=True), "b": None, "c": 1}]
