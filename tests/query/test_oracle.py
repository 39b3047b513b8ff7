"""Random programs: the answers are those that brute force over the true dependencies gives."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.query.origins import Origins
from tfdbg_arrow.query.provenance import DataFlow
from tfdbg_arrow.query.recorded import read_events
from tfdbg_arrow.schema import arrow_schema

from . import oracle
from .builder import RunBuilder
from .interpreter import Interpreter, Row
from .program_strategies import programs
from .programs import Program

QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logdir]:
    """A logdir whose tables each example puts its own rows in the place of: no file is written for it."""
    with open_logdir(RunBuilder("run-a").write(tmp_path_factory.mktemp("oracle"))) as opened:
        yield opened


def check(program: Program, logdir: Logdir) -> None:
    interpreter = Interpreter(program)
    for name, rows in interpreter.run.rows.items():
        logdir.connection.register(name, pa.Table.from_pylist(rows, schema=arrow_schema(name)))
    assert_inputs(interpreter.rows, logdir)
    for kinds in (("nan", "inf"), ("nan",), ("inf",)):
        found = logdir.first_nonfinite(kinds=kinds)
        assert (None if found is None else found.event_index) == oracle.first_nonfinite(interpreter.rows, kinds), kinds
        assert found is None or found.is_origin
    bad = [row for row in interpreter.rows.values() if row.kinds]
    for start in (*bad[:1], *bad[-2:]):
        assert_provenance(start, logdir)
        assert_spread(start, interpreter.rows, logdir)


def assert_inputs(rows: dict[int, Row], logdir: Logdir) -> None:
    """Every row has the sources, and the verdict, that it should, and they are known to be all."""
    flow = DataFlow(logdir, run_id="run-a")
    origins = Origins(flow, kinds=("nan", "inf"))
    for event in read_events(logdir, "event_index >= 0 ORDER BY event_index", ["run-a"]):
        row = rows[event.event_index]
        assert event.bad_kinds() == row.kinds
        expected = sorted(source.event_index for source in oracle.sources(row))
        found = flow.sources_of(event)
        assert ([source.event_index for source in found.events], found.is_complete) == (expected, True), event
        if row.kinds:
            assert origins.verdict(event).is_origin == (oracle.role(row) == "origin")


def assert_provenance(start: Row, logdir: Logdir) -> None:
    expected = oracle.provenance(start)
    found = logdir.provenance(start.event_index)
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


def assert_spread(start: Row, rows: dict[int, Row], logdir: Logdir) -> None:
    found = logdir.spread(start.event_index)
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
def test_every_answer_is_the_one_that_the_true_dependencies_give(program: Program, logdir: Logdir) -> None:
    check(program, logdir)


@pytest.mark.exhaustive
@LONG
@given(program=programs(max_ops=12, max_statements=14))
def test_so_are_those_of_larger_programs(program: Program, logdir: Logdir) -> None:
    check(program, logdir)
