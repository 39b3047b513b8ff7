"""Test the view `tensor_input` against what the tensors of random programs were really made from."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.query import oracle
from tests.query.interpreter import Interpreter, Row
from tests.query.program_strategies import programs
from tests.query.programs import Program
from tests.spec_reader.inputs import edges_of_view
from tests.spec_reader.reader import open_logdir
from tfdbg_arrow.query import open_logdir as open_for_queries

QUICK = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def wrong_edges(program: Program, path: Path) -> list[str]:
    """Returns edges that a program does not have although the view has them.

    The view may lack an edge of a program whose nested loops write variables, if the rows did not arrive in order.
    """
    interpreter = Interpreter(program)
    logdir = interpreter.run.write(path)
    rows = {row.event_index: row for row in interpreter.rows.values()}
    made_from: dict[Row, set[Row]] = defaultdict(set)
    for row in rows.values():
        made_from[row] = {_computed(source) for source in oracle.sources(row)}
    (run,) = open_logdir(logdir)
    with open_for_queries(logdir) as opened:
        view = {(rows[user], _computed(rows[source])) for user, _, source in edges_of_view(opened, run)}
    return [
        f"{user.event_index} is not made from {source.event_index}"
        for user, source in view
        if source not in _behind(user, made_from)
    ]


def _computed(row: Row) -> Row:
    """Returns the row of the op that computed a tensor, for one that has only crossed borders since."""
    while row.passed is not None:
        row = row.passed
    return row


def _behind(row: Row, made_from: dict[Row, set[Row]]) -> set[Row]:
    found: set[Row] = set()
    waiting = [row]
    while waiting:
        new = made_from[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.slow
@QUICK
@given(programs())
def test_the_view_has_no_edge_that_a_random_program_lacks(
    tmp_path_factory: pytest.TempPathFactory, program: Program
) -> None:
    path = tmp_path_factory.mktemp("random")
    assert wrong_edges(program, path) == []
    shutil.rmtree(path)
