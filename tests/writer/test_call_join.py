from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfdbg_arrow.spool.call_join import CallJoin
from tfdbg_arrow.spool.records import NO_VALUE, RECORD_DTYPE, Batch, Flag, Kind, join_records

F, G, INNER = 1, 2, 3
"""Two outermost graphs, F and G, and the graph INNER, which runs inline in F only."""


class Graphs:
    def graph_id_of_function(self, function_name: str) -> int | None:
        return None

    def call_site(self, path: str, inner_graph_id: int) -> str:
        return path

    def reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        return graph_id == inner_graph_id or (graph_id, inner_graph_id) == (F, INNER)


class History:
    """Joins batches that are written as lists of (kind, graph or call, step or thread)."""

    def __init__(self) -> None:
        self._join = CallJoin(Graphs())
        self._num_events = 0

    def joined(self, *events: tuple[Any, ...]) -> list[int | None]:
        """Returns the call of each tensor of the batch."""
        records = np.zeros(len(events), RECORD_DTYPE)
        graphs = np.full(len(events), -1, dtype=np.int64)
        for place, event in enumerate(events):
            what, row = event[0], records[place]
            if what == "call":
                row["kind"], row["execution_index"], graphs[place] = Kind.EXECUTION, event[1], event[2]
                row["step_id"] = event[3] if len(event) > 3 else 100 + event[1]
            elif what == "end":
                row["kind"], row["execution_index"] = Kind.EXECUTION_END, event[1]
            else:
                row["kind"], graphs[place] = Kind.GRAPH_TENSOR, event[1]
                row["execution_index"] = event[3] if len(event) > 3 else NO_VALUE
                if what == "tensor":
                    row["flags"], row["step_id"] = Flag.CONTEXT, event[2]
        records["commit"] = self._num_events + np.arange(len(events)) + 1
        self._num_events += len(events)
        found = self._join.join(Batch(join_records([records])), graph_ids=graphs).tolist()
        return [i if i >= 0 else None for i, e in zip(found, events, strict=True) if e[0] in ("tensor", "stepless")]


def test_a_step_belongs_to_the_only_call_in_flight() -> None:
    events = [("call", 0, F), ("tensor", F, 50), ("tensor", INNER, 50), ("end", 0)]
    assert History().joined(*events, ("call", 1, F), ("tensor", F, 51), ("end", 1)) == [0, 0, 1]


def test_a_step_without_a_call_in_flight_has_no_call() -> None:
    events = [("tensor", F, 50), ("call", 0, F), ("end", 0), ("tensor", F, 51)]
    assert History().joined(*events) == [None, None]


def test_a_call_that_does_not_reach_the_graph_is_not_joined() -> None:
    assert History().joined(("call", 0, G), ("tensor", INNER, 50), ("end", 0)) == [None]


def test_two_calls_in_flight_are_distinguished_by_their_graphs() -> None:
    events = [("call", 0, F), ("call", 1, G), ("tensor", G, 51), ("tensor", F, 50), ("tensor", INNER, 50)]
    assert History().joined(*events) == [1, 0, 0]


def test_an_argument_with_the_tensor_id_of_a_call_decides_its_step() -> None:
    events = [("call", 0, F), ("call", 1, F), ("tensor", INNER, 50), ("tensor", F, 50, 1), ("tensor", F, 51, 0)]
    assert History().joined(*events) == [1, 1, 0]


def test_an_argument_of_another_graph_than_the_call_decides_nothing() -> None:
    events = [("call", 0, F), ("call", 1, F), ("tensor", INNER, 50, 1), ("tensor", G, 51, 0)]
    assert History().joined(*events) == [None, None]


def test_two_calls_of_one_function_at_once_are_never_guessed() -> None:
    events = [("call", 0, F), ("call", 1, F), ("tensor", F, 50), ("tensor", F, 51)]
    assert History().joined(*events) == [None, None]


def test_one_certain_tensor_of_a_step_decides_all_of_its_batch() -> None:
    events = [("call", 0, F), ("tensor", F, 50), ("call", 1, F), ("tensor", F, 51), ("end", 1), ("tensor", F, 50)]
    assert History().joined(*events) == [0, None, 0]


def test_an_undecided_step_is_decided_by_a_later_batch() -> None:
    history = History()
    assert history.joined(("call", 0, F), ("call", 1, F), ("tensor", F, 51)) == [None]
    assert history.joined(("end", 0), ("tensor", F, 51), ("tensor", F, 51)) == [1, 1]


def test_an_undecided_step_is_never_joined_to_a_later_call() -> None:
    history = History()
    assert history.joined(("tensor", F, 50)) == [None]
    assert history.joined(("call", 0, F), ("tensor", F, 50)) == [None]


def test_a_decided_step_stays_with_its_call_across_batches_and_stragglers() -> None:
    history = History()
    assert history.joined(("call", 0, F), ("tensor", F, 50)) == [0]
    assert history.joined(("call", 1, F), ("tensor", F, 50), ("end", 0)) == [0]
    assert history.joined(("tensor", F, 50), ("tensor", F, 51)) == [0, 1]


def test_a_nested_call_is_distinguished_from_its_outer_call() -> None:
    events = [("call", 0, F, 9), ("tensor", F, 50), ("call", 1, G, 9), ("tensor", G, 51), ("end", 1)]
    assert History().joined(*events, ("tensor", F, 50), ("end", 0)) == [0, 1, 0]


def test_an_unfinished_call_ends_with_its_outer_call() -> None:
    events = [("call", 0, G, 9), ("call", 1, F, 9), ("end", 0)]
    assert History().joined(*events, ("call", 2, F, 9), ("tensor", F, 50)) == [2]


def test_tensors_without_a_step_are_joined_by_graph_between_calls() -> None:
    events = [("call", 0, F), ("stepless", F), ("stepless", INNER), ("end", 0), ("stepless", F)]
    assert History().joined(*events, ("call", 1, F), ("stepless", F), ("end", 1)) == [0, 0, None, 1]


def test_tensors_without_a_step_are_not_guessed_while_two_calls_reach_them() -> None:
    events = [("call", 0, F), ("stepless", F), ("call", 1, F), ("stepless", F), ("end", 0), ("stepless", F)]
    assert History().joined(*events) == [0, None, 1]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdbg_arrow.spool.call_join._MAX_STEPS", 5)
    monkeypatch.setattr("tfdbg_arrow.spool.call_join._MAX_CALLS", 4)
    history = History()
    events: list[tuple[Any, ...]] = []
    for call in range(40):
        events += [("call", call, G), ("tensor", G, call), ("tensor", F, 1000 + call)]
    history.joined(*events)
    join = history._join
    assert (len(join._undecided), len(join._in_flight)) == (5, 4)
    assert sum(len(stack) for stack in join._threads.values()) == 4


def _by_definition(events: list[tuple[Any, ...]]) -> list[int | None]:
    """Applies the definition of the rule to each tensor of one batch."""
    graphs = Graphs()
    spans: dict[int, list[int]] = {}
    for place, event in enumerate(events):
        if event[0] == "call":
            spans[event[1]] = [place, len(events)]
        elif event[0] == "end":
            spans[event[1]][1] = place
    of_call = {event[1]: event[2] for event in events if event[0] == "call"}
    candidates: dict[int, set[int]] = {}
    for place, event in enumerate(events):
        if event[0] == "tensor":
            fitting = {
                call
                for call, (start, end) in spans.items()
                if start < place < end and graphs.reaches(of_call[call], event[1])
            }
            candidates[event[2]] = candidates.get(event[2], fitting) & fitting
    answers = {step: next(iter(found)) if len(found) == 1 else None for step, found in candidates.items()}
    return [answers[event[2]] for event in events if event[0] == "tensor"]


@pytest.mark.parametrize("seed", range(30))
def test_the_grouped_join_equals_the_rule_for_each_tensor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    events: list[tuple[Any, ...]] = []
    open_calls: list[int] = []
    for number in range(200):
        chance = rng.random()
        if chance < 0.15:
            events.append(("call", number, int(rng.choice([F, G]))))
            open_calls.append(number)
        elif chance < 0.3 and open_calls:
            events.append(("end", open_calls.pop(int(rng.integers(len(open_calls))))))
        else:
            events.append(("tensor", int(rng.choice([F, G, INNER])), number // int(rng.integers(3, 9))))
    assert History().joined(*events) == _by_definition(events)
