"""Test that row windows, which use block counts and a short sort, equal row windows from a sort of all rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Logdir, open_logdir
from tfdbg_arrow.query.display.row_window import BLOCK_SIZE, Rows

from .builder import RunBuilder

INDEXES = (0, 1, 5, BLOCK_SIZE - 1, BLOCK_SIZE, 3 * BLOCK_SIZE + 7, 3 * BLOCK_SIZE + 8, 9 * BLOCK_SIZE)
"""The event_index of each row. A block has several rows, one row or no row. Some rows are at the ends of a block."""
PLACES = st.integers(0, 10) | st.just(2**62)
AT = st.sampled_from([near for index in INDEXES for near in (index, index + 1)]) | st.just(2**63 - 1)


@dataclass(frozen=True)
class Mark:
    event_index: int


def marks(logdir: Logdir, *, is_odd: bool = False) -> Rows[Mark]:
    chosen, value = ("m.value = ?", "1") if is_odd else ("m.run_id = ?", "run-a")

    def condition(low: int, end: int) -> tuple[str, list[object]]:
        return f"{chosen} AND m.event_index >= ? AND m.event_index < ?", [value, low, end]

    def read(condition: str, parameters: list[object], limit: int, offset: int) -> tuple[Mark, ...]:
        query = f"SELECT m.event_index FROM mark AS m WHERE {condition} ORDER BY 1 LIMIT {limit} OFFSET {offset}"
        return tuple(Mark(*row) for row in logdir.rows(query, parameters))

    return Rows(logdir=logdir, table="mark AS m", index="m.event_index", condition=condition, read=read)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logdir]:
    run = RunBuilder("run-a")
    for index in INDEXES:
        run.add("mark", event_index=index, label="step", value=str(index % 2))
    with open_logdir(run.write(tmp_path_factory.mktemp("logdir"), parts=3)) as logdir:
        yield logdir


@given(first=AT, before=st.none() | AT, place=st.none() | PLACES, limit=st.integers(1, 10), is_odd=st.booleans())
def test_a_window_equals_that_of_a_sort_of_all_rows(
    logdir: Logdir, first: int, before: int | None, place: int | None, limit: int, is_odd: bool
) -> None:
    indexes = [index for index in INDEXES if index % 2 or not is_odd]
    if place is not None:
        start = min(place, len(indexes) - 1)
        expected = indexes[start : start + limit]
    elif before is not None:
        earlier = [index for index in indexes if index < before]
        expected = earlier[-limit:]
        start = len(earlier) - len(expected)
    else:
        start = sum(index < first for index in indexes)
        expected = indexes[start : start + limit]

    rows = marks(logdir, is_odd=is_odd)
    window = rows.window(first=first, before=before, place=place, limit=limit)
    assert [rows.index_of(row) for row in window.rows] == expected
    assert (window.num_before, window.num_matching) == (start, len(indexes))


@given(index=AT)
def test_the_next_and_previous_rows_are_found_at_any_distance(logdir: Logdir, index: int) -> None:
    rows = marks(logdir)
    assert rows.next(index) == min((one for one in INDEXES if one > index), default=None)
    assert rows.next(index, is_backwards=True) == max((one for one in INDEXES if one < index), default=None)


def test_counts_follow_the_live_parts_after_a_refresh(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.add("mark", event_index=0)
    run.write(tmp_path)
    with open_logdir(tmp_path) as logdir:
        assert marks(logdir).window().num_matching == 1
        run.add("mark", event_index=1)
        run.write(tmp_path, parts=2)
        logdir.refresh()
        assert marks(logdir).window().num_matching == 2


def test_cached_counts_are_also_noted_as_questions(logdir: Logdir) -> None:
    def asked() -> list[str]:
        with logdir.questions.noted() as questions:
            marks(logdir).window()
        return [question.query for question in questions]

    assert asked() == asked()


def test_a_window_has_at_least_one_row(logdir: Logdir) -> None:
    with pytest.raises(QueryError, match="limit is 0, expected 1 or more"):
        marks(logdir).window(limit=0)
