"""Compare the circular buffer with a twin that processes one event at a time."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.spool.circular_buffer import MAX_DUMPS, CircularBuffer, Dump, Retention
from tfdbg_arrow.spool.records import NO_VALUE, RECORD_DTYPE, Batch, Flag, Kind, Records

EVENTS = st.lists(st.sampled_from(["execution", "tensor", "tensor", "tensor", "inf", "nan"]), max_size=80)
"""An execution, or a graph tensor, which may be bad."""


def expected(events: list[str], retention: Retention) -> tuple[list[int], list[int]]:
    """Returns the positions of the events that are kept at once, and of the events that are kept at the end."""
    kept: list[int] = []
    executions, tensors = deque[int](maxlen=retention.size), deque[int](maxlen=retention.size)
    last_bad: dict[str, int] = {}
    num_dumps = {"inf": 0, "nan": 0}
    num_left = 0
    for position, event in enumerate(events):
        if num_left:
            kept.append(position)
            num_left -= 1
        else:
            (executions if event == "execution" else tensors).append(position)
        if event not in num_dumps:
            continue
        is_new = event not in last_bad or position - last_bad[event] > retention.size
        last_bad[event] = position
        if is_new and num_dumps[event] < MAX_DUMPS:
            kept += [*executions, *tensors]
            executions.clear()
            tensors.clear()
            num_dumps[event] += 1
            num_left = retention.num_after
    return sorted(kept), [] if retention.only_bad else sorted([*executions, *tensors])


def records_of(events: list[str]) -> Records:
    records = np.zeros(len(events), RECORD_DTYPE)
    records["commit"] = np.arange(len(events)) + 1
    records["execution_index"] = NO_VALUE
    for position, event in enumerate(events):
        records["kind"][position] = Kind.EXECUTION if event == "execution" else Kind.GRAPH_TENSOR
        records["flags"][position] = Flag.COVERED | (Flag.BAD if event in ("inf", "nan") else 0)
        records["num_nan"][position] = event == "nan"
    is_execution = records["kind"] == Kind.EXECUTION
    records["execution_index"][is_execution] = np.arange(is_execution.sum())
    return records


def positions(dump: Dump) -> list[int]:
    batch, values = dump
    assert values == {position: str(position).encode() for position in batch.event_index.tolist()}
    return batch.event_index.tolist()


@given(
    events=EVENTS,
    size=st.integers(1, 9),
    num_after=st.integers(0, 9),
    only_bad=st.booleans(),
    cuts=st.lists(st.integers(0, 80), max_size=5),
)
def test_it_keeps_what_its_twin_keeps(
    events: list[str], size: int, num_after: int, only_bad: bool, cuts: list[int]
) -> None:
    retention = Retention(size=size, num_after=num_after, only_bad=only_bad)
    buffer = CircularBuffer(retention)
    kept: list[int] = []
    for records in np.split(records_of(events), sorted(cuts)):
        if len(records):
            batch = Batch(records)
            kept += positions(buffer.add(batch, values={n: str(n).encode() for n in batch.event_index.tolist()}))
    rest = positions(buffer.rest())
    assert (kept, rest) == expected(events, retention)
    assert buffer.num_kept_back == len(events) - len(kept) - len(rest)
    assert positions(buffer.rest()) == []


@pytest.mark.parametrize("num_bad", [MAX_DUMPS - 1, MAX_DUMPS, MAX_DUMPS + 1])
def test_the_number_of_dumps_is_bounded(num_bad: int) -> None:
    retention = Retention(size=1, num_after=0, only_bad=True)
    events = ["tensor", "tensor", "inf"] * num_bad + ["nan"]
    kept = positions_of_all(events, retention)
    assert kept == expected(events, retention)[0]
    assert len(kept) == min(num_bad, MAX_DUMPS) + 1


def positions_of_all(events: list[str], retention: Retention) -> list[int]:
    return CircularBuffer(retention).add(Batch(records_of(events)), values={})[0].event_index.tolist()
