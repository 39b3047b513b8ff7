"""Assigns graph tensors to the calls that computed them, by finding the execution of each step ID.

Each call of an outermost function gets a new step ID. The step belongs to the call in flight whose outermost graph
reaches the graphs of all tensors of the step. If several threads are inside the same function, several calls qualify.
The step then belongs to the call that has an argument in the same memory as an argument of the step. If there is no
such call, the execution is -1. This module never guesses.

The recorder writes the record of a call before the call runs, and the record of the end after the call returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.spool.records import Batch, Flag, Ints, Kind

NO_CALL = -1
"""Stands for no call, or for no certain call. The index of a call is at least 0."""
_MAX_STEPS = 8_192
"""Maximum number of steps to remember. The oldest steps are forgotten first."""
_MAX_CALLS = 4_096
"""Maximum number of calls in flight to remember. Without this limit, calls without an end could fill the memory."""
_MAX_STATE_STEPS = 1_024
"""Maximum number of steps in the state that `CallJoin.state` returns. The state has the last steps."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    execution_index: int
    graph_id: int
    thread_id: int
    start: int
    """The event_index of the EXECUTION record."""


@dataclass(kw_only=True)
class _Undecided:
    first: int
    """Smallest event_index of the step so far."""
    graphs: set[int] = field(default_factory=set)


class CallJoin:
    """Tracks the calls in flight from batch to batch.

    Args:
        call_graph: The calls between graphs.
        max_looks: Limits the work: after this many checks of calls, tensors get no call. None means no limit. Data
            that no recorder wrote can then take forever.
    """

    def __init__(self, call_graph: GraphLinks, *, max_looks: int | None = None) -> None:
        self._call_graph = call_graph
        self._looks_left = math.inf if max_looks is None else max_looks
        self._in_flight: dict[int, _Call] = {}
        self._threads: dict[int, list[_Call]] = {}
        self._decided: dict[int, int] = {}
        self._undecided: dict[int, _Undecided] = {}
        self._reached: set[tuple[int, int]] = set()

    def join(self, batch: Batch, *, graph_ids: Ints) -> Ints:
        """Finds the calls of a batch's graph tensors.

        Args:
            batch: Records in the order of event_index. All records of earlier batches must come before them.
            graph_ids: One graph for each record: the graph of the node for a GRAPH_TENSOR, and the graph of the called
                function for an EXECUTION. -1 stands for a record without a graph.

        Returns:
            The execution_index for each record; NO_CALL if the record is not a graph tensor, or if its call is not
            certain.
        """
        calls = _Calls(*self._follow(batch, graph_ids), reaches=self._reaches)
        joined = np.full(len(batch), NO_CALL, dtype=np.int64)
        tensors = batch.kind == Kind.GRAPH_TENSOR
        context = (batch.flags & Flag.CONTEXT) != 0
        events = batch.event_index
        with_step, without = np.flatnonzero(tensors & context), np.flatnonzero(tensors & ~context)
        if len(with_step):
            steps = batch.field("step_id", with_step)
            self._take_hints(steps, batch.field("execution_index", with_step), graph_ids[with_step], calls)
            joined[with_step] = self._by_step(steps, graph_ids[with_step], events[with_step], calls)
        if len(without):
            joined[without] = _by_range(graph_ids[without], events[without], calls)
        return joined

    def state(self) -> dict[str, object]:
        """Returns the facts about earlier batches that later batches need. The size of these facts is limited."""
        calls = [[call.execution_index, call.graph_id, call.thread_id, call.start] for call in self._in_flight.values()]
        decided = [
            [step, execution_index]
            for step, execution_index in islice(reversed(self._decided.items()), _MAX_STATE_STEPS)
            if execution_index in self._in_flight
        ]
        undecided = [
            [step, undecided_step.first, sorted(undecided_step.graphs)]
            for step, undecided_step in islice(reversed(self._undecided.items()), _MAX_STATE_STEPS)
        ]
        return {"calls": calls, "decided": decided[::-1], "undecided": undecided[::-1]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state that `state` returned. Ignores data of another form."""
        for entry in _lists(state.get("calls")):
            match entry:
                case [int(execution_index), int(graph_id), int(thread_id), int(start)] if _fit(*entry):
                    call = _Call(execution_index=execution_index, graph_id=graph_id, thread_id=thread_id, start=start)
                    self._in_flight[execution_index] = call
                    self._threads.setdefault(thread_id, []).append(call)
        for entry in _lists(state.get("decided")):
            match entry:
                case [int(step), int(execution_index)] if _fit(step, execution_index):
                    self._decided[step] = execution_index
        for entry in _lists(state.get("undecided")):
            match entry:
                case [int(step), int(first), list(graphs)] if all(isinstance(graph, int) for graph in graphs) and _fit(
                    step, first, *graphs
                ):
                    self._undecided[step] = _Undecided(first=first, graphs=set(graphs))

    def _take_hints(self, steps: Ints, hints: Ints, graph_ids: Ints, calls: _Calls) -> None:
        """Assigns steps to calls if an argument of the step is known to be an argument of the call."""
        hinted = np.flatnonzero(hints >= 0)
        if not len(hinted):
            return
        fields = np.unique(np.stack([steps[hinted], hints[hinted], graph_ids[hinted]], axis=1), axis=0)
        for step, execution_index, graph_id in fields.tolist():
            # A function of a data set may take the same tensor, but it never runs the graph of the call.
            if calls.graph_of(execution_index) == graph_id:
                self._decided[step] = execution_index
                self._undecided.pop(step, None)

    def _reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        """Returns the result of `reaches` of the call graph. The result is cached if it is True."""
        pair = (graph_id, inner_graph_id)
        if pair in self._reached:
            return True
        if not self._call_graph.reaches(graph_id, inner_graph_id):
            return False
        self._reached.add(pair)
        return True

    def _follow(self, batch: Batch, graph_ids: Ints) -> tuple[list[_Call], list[int]]:
        """Processes the starts and ends of calls in a batch.

        Returns all calls that were in flight during the batch, sorted by start, and the ends of these calls.
        """
        kind = batch.kind
        rows = np.flatnonzero(((kind == Kind.EXECUTION) & (graph_ids >= 0)) | (kind == Kind.EXECUTION_END))
        calls = list(self._in_flight.values())
        ends: dict[int, int] = {}
        fields = zip(
            kind[rows].tolist(),
            batch.field("execution_index", rows).tolist(),
            graph_ids[rows].tolist(),
            batch.field("step_id", rows).tolist(),
            batch.event_index[rows].tolist(),
            strict=True,
        )
        for record_kind, execution_index, graph_id, thread_id, event in fields:
            if record_kind == Kind.EXECUTION:
                call = _Call(execution_index=execution_index, graph_id=graph_id, thread_id=thread_id, start=event)
                self._in_flight[execution_index] = call
                self._threads.setdefault(thread_id, []).append(call)
                calls.append(call)
            elif execution_index in self._in_flight:
                self._end(self._in_flight[execution_index], event, ends)
        while len(self._in_flight) > _MAX_CALLS:
            self._forget(next(iter(self._in_flight.values())))
        return calls, [ends.get(call.execution_index, MAX_INT64) for call in calls]  # a call without an end never ends

    def _end(self, call: _Call, event: int, ends: dict[int, int]) -> None:
        """Ends a call, and all calls within this call whose ends were not recorded."""
        stack = self._threads[call.thread_id]
        while stack:
            inner = stack.pop()
            self._in_flight.pop(inner.execution_index, None)
            ends[inner.execution_index] = event
            if inner is call:
                break
        if not stack:
            del self._threads[call.thread_id]

    def _forget(self, call: _Call) -> None:
        del self._in_flight[call.execution_index]
        stack = self._threads[call.thread_id]
        stack.remove(call)
        if not stack:
            del self._threads[call.thread_id]

    def _by_step(self, step_ids: Ints, graph_ids: Ints, events: Ints, calls: _Calls) -> Ints:
        starts, lengths = _runs(step_ids, graph_ids)
        steps, first_run, run_step = np.unique(step_ids[starts], return_index=True, return_inverse=True)
        first = events[starts[first_run]]
        last = np.empty(len(steps), dtype=np.int64)
        last[run_step] = events[starts + lengths - 1]  # a step can have several stretches; the last one is kept
        graphs, run_graph = np.unique(graph_ids[starts], return_inverse=True)
        pairs = np.unique(run_step * len(graphs) + run_graph)
        pair_graphs = graphs[pairs % len(graphs)].tolist()
        bounds = np.searchsorted(pairs, np.arange(len(steps) + 1) * len(graphs)).tolist()
        answers = np.empty(len(steps), dtype=np.int64)
        step_list, first_list, last_list = steps.tolist(), first.tolist(), last.tolist()
        for place in np.argsort(first).tolist():  # in the order of time, which _Calls handles faster
            call = self._decided.get(step_list[place])
            if call is None:
                reached = pair_graphs[bounds[place] : bounds[place + 1]]
                call = self._decide(step_list[place], first_list[place], last_list[place], reached, calls)
            answers[place] = call
        _forget_oldest(self._decided)
        _forget_oldest(self._undecided)
        return np.repeat(answers[run_step], lengths)

    def _decide(self, step: int, first: int, last: int, graphs: list[int], calls: _Calls) -> int:
        """Returns the only call that was in flight at all tensors of the step so far; NO_CALL if there are several."""
        so_far = self._undecided.setdefault(step, _Undecided(first=first))
        so_far.graphs.update(graphs)
        if self._looks_left < 0:
            return NO_CALL
        decided = calls.only(so_far.first, last, so_far.graphs)
        self._looks_left -= calls.num_active * len(so_far.graphs)
        if decided != NO_CALL:
            del self._undecided[step]
            self._decided[step] = decided
        return decided


class _Calls:
    """The calls in flight during a batch."""

    def __init__(self, calls: list[_Call], ends: list[int], *, reaches: Callable[[int, int], bool]) -> None:
        self._calls = calls
        self._reaches = reaches
        self._starts = np.array([call.start for call in calls], dtype=np.int64)
        self._ends = np.array(ends, dtype=np.int64)
        self._end_list = ends
        self._now = -1
        self._num_started = 0
        self._active: list[int] = []
        """Positions of the calls in flight at the event `_now`, sorted by start."""

    @property
    def num_active(self) -> int:
        """Number of calls in flight at the last event that was examined."""
        return len(self._active)

    def graph_of(self, execution_index: int) -> int:
        """Returns the graph of the function that a call runs; NO_CALL if the call is not in flight."""
        return next((call.graph_id for call in self._calls if call.execution_index == execution_index), NO_CALL)

    def changes(self) -> Ints:
        """Returns the event indexes at which a call starts or ends, in ascending order."""
        return np.sort(np.concatenate([self._starts, self._ends]))

    def only(self, first: int, last: int, graphs: set[int]) -> int:
        """Returns the only call that was in flight from `first` to `last` and reaches the graphs; otherwise NO_CALL."""
        only_call = NO_CALL
        for place in self._in_flight_at(first):
            if self._end_list[place] <= last:
                continue
            call = self._calls[place]
            if all(self._reaches(call.graph_id, graph) for graph in graphs):
                if only_call != NO_CALL:
                    return NO_CALL
                only_call = call.execution_index
        return only_call

    def _in_flight_at(self, event: int) -> list[int]:
        """Returns the positions of the calls in flight at an event.

        If the method is called with ascending events, it examines each call only once.
        """
        if event < self._now:
            return np.flatnonzero((self._starts < event) & (self._ends > event)).tolist()
        self._now = event
        while self._num_started < len(self._calls) and self._calls[self._num_started].start < event:
            self._active.append(self._num_started)
            self._num_started += 1
        self._active = [place for place in self._active if self._end_list[place] > event]
        return self._active


def _by_range(graph_ids: Ints, events: Ints, calls: _Calls) -> Ints:
    """Assigns calls to tensors whose step is unknown.

    The call of a tensor is the only call in flight that reaches the tensor's graph.
    """
    spans = np.searchsorted(calls.changes(), events)
    starts, lengths = _runs(spans, graph_ids)
    call_of: dict[tuple[int, int], int] = {}
    answers = np.empty(len(starts), dtype=np.int64)
    fields = zip(spans[starts].tolist(), graph_ids[starts].tolist(), events[starts].tolist(), strict=True)
    for place, (span, graph, event) in enumerate(fields):
        if (span, graph) not in call_of:
            call_of[span, graph] = calls.only(event, event, {graph})
        answers[place] = call_of[span, graph]
    return np.repeat(answers, lengths)


def _runs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Returns the start and the length of each stretch in which neither array changes its value."""
    changes = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1]).astype(np.int64)
    return starts, np.diff(starts, append=len(first))


def _lists(entries: object) -> list[list[Any]]:
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries[:_MAX_CALLS] if isinstance(entry, list)]


def _fit(*numbers: int) -> bool:
    return all(-(2**63) <= number < 2**63 for number in numbers)


def _forget_oldest(steps: dict[int, int] | dict[int, _Undecided]) -> None:
    for step in list(islice(steps, max(0, len(steps) - _MAX_STEPS))):
        del steps[step]
