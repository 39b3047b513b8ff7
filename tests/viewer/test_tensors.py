"""Test the page of tensors: windows, filters, and jumps to an event, a step or the next bad tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.storage.marker import mark_logdir
from tfdbg_arrow.viewer.page import parameters_of
from tfdbg_arrow.viewer.pages.tensors import TensorsPage, read_tensors

from ..query.builder import CLEAN, INF, NAN, RunBuilder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes events 0 to 9 of `x` in graph f (even) and `y` in graph Other (odd), and an eager op at event 11.

    Events 4, 8 and 11 are bad. The step of an event is half its index.
    """
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    other = run.graph("Other").op("y", "Add")
    for number in range(10):
        health = NAN if number in (4, 8) else CLEAN
        is_even = number % 2 == 0
        run.tensor(graph if is_even else other, "x" if is_even else "y", {**health, "step": number // 2})
    execution = run.execution("Sub", outputs={7: "float16"})
    run.eager(execution, {**INF, "dtype": "float16", "step": 5}, tensor_id=7)
    return run.write(tmp_path_factory.mktemp("logdir"), parts=3)


def tensors(path: Path, **asked: Any) -> TensorsPage:
    with open_logdir(path) as logdir:
        return read_tensors(logdir, parameters_of(**{"run": "run-a", "at": 0, **asked}))


def events(page: TensorsPage) -> list[int]:
    return [row.event_index for row in page.rows]


def test_windows_follow_each_other_without_a_gap(path: Path) -> None:
    first = tensors(path, limit=4)
    assert (events(first), first.num_before, first.num_matching, first.num_after) == ([0, 1, 2, 3], 0, 11, 7)
    second = tensors(path, at=4, limit=4)
    assert (events(second), second.num_before, second.num_after) == ([4, 5, 6, 7], 4, 3)
    assert events(tensors(path, before=4, limit=4)) == events(first)
    last = tensors(path, before=2**63 - 1, limit=4)
    assert (events(last), last.num_before, last.num_after) == ([7, 8, 9, 11], 7, 0)


def test_a_window_before_an_event_that_is_far_away(path: Path) -> None:
    assert events(tensors(path, before=8, limit=2)) == [6, 7]
    assert events(tensors(path, before=8, limit=5)) == [3, 4, 5, 6, 7]
    assert events(tensors(path, bad=1, before=11, limit=5)) == [4, 8]
    assert events(tensors(path, before=0, limit=5)) == []


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"op_type": "Add"}, [1, 3, 5, 7, 9]),
        ({"name": "OTHER"}, [1, 3, 5, 7, 9]),
        ({"name": "sub"}, [11]),
        ({"graph": 0}, [0, 2, 4, 6, 8]),
        ({"dtype": "float16"}, [11]),
        ({"scope": "execution"}, [11]),
        ({"first_step": 1, "last_step": 2}, [2, 3, 4, 5]),
        ({"bad": 1}, [4, 8, 11]),
        ({"execution": 0}, [11]),
        ({"bad": 1, "graph": 0, "first_step": 3}, [8]),
        ({"name": "%"}, []),
    ],
)
def test_filters(path: Path, asked: dict[str, Any], expected: list[int]) -> None:
    page = tensors(path, **asked)
    assert (events(page), page.num_matching) == (expected, len(expected))


def test_jumps(path: Path) -> None:
    assert events(tensors(path, step=4, limit=2)) == [8, 9]
    assert events(tensors(path, at=10, limit=2)) == [11]
    assert events(tensors(path, at=10**18)) == []
    middle = tensors(path, at=5, limit=2)
    assert (middle.previous_bad_event_index, middle.next_bad_event_index) == (4, 8)
    filtered = tensors(path, scope="execution", limit=1)
    assert (filtered.previous_bad_event_index, filtered.next_bad_event_index) == (None, None)


def test_a_window_at_a_place_among_the_filtered_rows(path: Path) -> None:
    page = tensors(path, op_type="Add", place=3, limit=4)
    assert (events(page), page.num_before, page.num_matching) == ([7, 9], 3, 5)
    beyond = tensors(path, op_type="Add", place=10**18)
    assert (events(beyond), beyond.num_before) == ([9], 4)
    assert events(tensors(path, name="nothing", place=2)) == []


def test_choices_of_the_filters(path: Path) -> None:
    page = tensors(path)
    assert (page.op_types, page.dtypes) == (("Add", "Mul", "Sub"), ("float16", "float32"))
    assert [(graph.graph_id, graph.graph_name) for graph in page.graphs] == [(0, "f"), (1, "Other")]


def test_the_page_of_a_logdir_without_runs(tmp_path: Path) -> None:
    mark_logdir(tmp_path)
    page = tensors(tmp_path, run=None)
    assert (page.rows, page.num_matching, page.graphs) == ((), 0, ())
