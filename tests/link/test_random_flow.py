"""Test the view `tensor_input` against what the tensors of random programs were really made from."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
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
    """Returns edges that a program does not have although the view has them, and those that the view lacks."""
    interpreter = Interpreter(program)
    logdir = interpreter.run.write(path)
    rows = {row.event_index: row for row in interpreter.rows.values()}
    made_from: dict[Row, set[Row]] = defaultdict(set)
    for row in rows.values():
        made_from[row] = {_computed(source) for source in oracle.sources(row)}
    (run,) = open_logdir(logdir)
    with open_for_queries(logdir) as opened:
        view = {(rows[user], _computed(rows[source])) for user, _, source in edges_of_view(opened, run)}
        unknown = {rows[event] for (event,) in opened.rows(_UNKNOWN)}
    wrong = [(user, source) for user, source in view if source not in _behind(user, made_from)]
    lost = [(user, source) for user in rows.values() for source in _not_in_view(user, made_from[user], made_from, view)]
    return [
        *(f"{user.event_index} is not made from {source.event_index}" for user, source in wrong),
        *(f"{user.event_index} lacks {source.event_index}" for user, source in lost if user not in unknown),
    ]


_UNKNOWN = """
WITH RECURSIVE behind(event_index, node_id, kind) AS (
    SELECT event_index, source_node_id, source_kind FROM tensor_input WHERE event_index IS NOT NULL
    UNION
    SELECT b.event_index, i.source_node_id, i.source_kind FROM behind AS b
    JOIN tensor_input AS i ON i.node_id = b.node_id WHERE b.node_id < 0
)
SELECT DISTINCT event_index FROM behind WHERE kind = 'not recorded'"""
"""The tensors with an input that is not recorded."""


def _not_in_view(
    user: Row, sources: set[Row], made_from: dict[Row, set[Row]], view: set[tuple[Row, Row]]
) -> Iterator[Row]:
    """Yields the sources that the view lacks.

    After an op added to a variable, the interpreter takes the last read before for what the variable held. The view
    takes what this read was made from.
    """
    for source in sources:
        if (user, source) in view:
            continue
        if _is_read(user) and _is_read(source):
            yield from _not_in_view(user, made_from[source], made_from, view)
        else:
            yield source


def _is_read(row: Row) -> bool:
    return [border for border, _ in row.inputs] == ["variable"]


def _computed(row: Row) -> Row:
    """Returns the row of the op that computed a tensor, for one that has only crossed borders since."""
    while row.passed is not None:
        row = row.passed
    return row


def _behind(row: Row, made_from: dict[Row, set[Row]]) -> set[Row]:
    behind: set[Row] = set()
    to_follow = [row]
    while to_follow:
        new = made_from[to_follow.pop()] - behind
        behind |= new
        to_follow += new
    return behind


@pytest.mark.slow
@QUICK
@given(programs())
def test_a_random_program_has_all_edges_of_the_view(tmp_path_factory: pytest.TempPathFactory, program: Program) -> None:
    path = tmp_path_factory.mktemp("random")
    assert wrong_edges(program, path) == []
    shutil.rmtree(path)
