"""Test answers about random programs against a brute-force search over their true dependencies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from tfdbg_arrow.query import public_views
from tfdbg_arrow.query.answers import Answers
from tfdbg_arrow.query.bad_tensor import BadTensorReader
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.origins import Origins
from tfdbg_arrow.query.recorded import read_events
from tfdbg_arrow.schema import arrow_schema

from . import oracle
from .builder import RunBuilder
from .interpreter import Interpreter, Row
from .program_strategies import programs
from .programs import Program

pytestmark = pytest.mark.slow

QUICK = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


class Tables(Answers):
    """The tables of a run in memory, without files. Each example replaces the run of the previous one."""

    path = Path("memory")

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self.take(RunBuilder("run-a"))
        for view in public_views():
            self._connection.execute(f"CREATE VIEW {view.name} AS {view.text}")

    def take(self, run: RunBuilder) -> None:
        self._kept: dict[Hashable, Any] = {}
        for name, rows in run.rows.items():
            self._connection.register("given", pa.Table.from_pylist(rows, schema=arrow_schema(name)))
            self._connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM given")

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, list(parameters)).fetchall()

    def kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def extent(self, table_name: str) -> tuple[int, int, int]:
        raise NotImplementedError


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables()


def check(program: Program, tables: Tables) -> None:
    interpreter = Interpreter(program)
    tables.take(interpreter.run)
    assert_inputs(interpreter.rows, tables)
    for kinds in (("nan", "inf"), ("nan",), ("inf",)):
        found = tables.first_nonfinite(kinds=kinds)
        assert (None if found is None else found.event_index) == oracle.first_nonfinite(interpreter.rows, kinds), kinds
        assert found is None or found.is_origin
    bad = [row for row in interpreter.rows.values() if row.kinds]
    assert_effects(bad, interpreter.rows, tables)
    for start in (*bad[:1], *bad[-2:]):
        assert_provenance(start, tables)
        assert_spread(start, interpreter.rows, tables)


def assert_inputs(rows: dict[int, Row], tables: Tables) -> None:
    """Checks that every row has the expected sources and verdict, and that its sources are known to be complete."""
    flow = DataFlow.of(tables, run_id="run-a")
    origins = Origins(flow, kinds=("nan", "inf"))
    for event in read_events(tables, "event_index >= 0 ORDER BY event_index", ["run-a"]):
        row = rows[event.event_index]
        assert event.bad_kinds() == row.kinds
        expected = sorted(source.event_index for source in oracle.sources(row))
        found = flow.sources_of(event)
        assert ([source.event_index for source in found.events], found.is_complete) == (expected, True), event
        if row.kinds:
            assert origins.verdict(event).is_origin == (oracle.role(row) == "origin")


def assert_effects(bad: list[Row], rows: dict[int, Row], tables: Tables) -> None:
    """Checks the effect of every bad tensor without bad inputs."""
    reader = BadTensorReader(tables, run_id="run-a", kinds=("nan", "inf"))
    for row in bad:
        if not any(source.kinds for source in oracle.sources(row)):
            event = reader.flow.events.event(row.event_index)
            assert event is not None
            assert reader.effects.of(event).name == oracle.effect(row, rows), event


def assert_provenance(start: Row, tables: Tables) -> None:
    expected = oracle.provenance(start)
    found = tables.provenance(start.event_index)
    hops = tuple(
        oracle.ExpectedHop(hop.event_index, hop.user_hop_index, hop.input_index, hop.how, hop.role)
        for hop in found.hops
    )
    assert hops == expected.hops
    assert [hop.hop_index for hop in found.hops] == list(range(len(hops)))
    assert found.origin is not None
    assert found.origin.event_index == expected.origin
    assert tuple(hop.event_index for hop in found.path if hop.role != "cause") == expected.path
    assert {hop.event_index for hop in found.path if hop.role == "cause"} == expected.causes


def assert_spread(start: Row, rows: dict[int, Row], tables: Tables) -> None:
    found = tables.spread(start.event_index)
    assert not found.is_cut
    hops = tuple(
        oracle.ExpectedSpreadHop(
            hop.event_index, hop.source_hop_index, hop.input_index, hop.how, hop.variables, hop.returned_by
        )
        for hop in found.hops
    )
    assert hops == oracle.spread(start, rows)


@QUICK
@given(program=programs())
def test_answers_about_small_programs(program: Program, tables: Tables) -> None:
    check(program, tables)


@pytest.mark.exhaustive
@LONG
@given(program=programs(max_ops=12, max_statements=14))
def test_answers_about_large_programs(program: Program, tables: Tables) -> None:
    check(program, tables)
