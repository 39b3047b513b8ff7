"""spread: follows a bad tensor to the tensors, variables and function results that it made bad."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.bad_tensor import BadTensorReader, run_and_row
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.logdir.opening import opened
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.query.recorded import KINDS, EagerValue, Execution, Place, TensorEvent, Trace
from tfdbg_arrow.query.trace_back import DEFAULT_LIMIT, HopReader, HopRows, TensorHop, bad_start

_BATCH = 1024
"""Number of bad tensors that are read at a time. Bounds the memory, and the rows that are read in vain."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SpreadHop(TensorHop):
    """One bad tensor that was computed from the start of the search.

    The class also has the attributes of TensorHop.

    Attributes:
        source_hop_index: The hop that the op of this tensor took; None for the start of the search. If the op took
            several hops, this is the hop from which the search first found this tensor.
        variables: The variables that the tensor was written to, or that were updated with the tensor. Each variable is
            given by the tensor ID of its handle, in ascending order.
        returned_by: The distinct functions that returned the tensor to eager code, as `name:output`, in the order in
            which the search found them.
    """

    source_hop_index: int | None
    variables: tuple[int, ...]
    returned_by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Spread(HopRows):
    """The tensors that a bad tensor made bad.

    Attributes:
        run_id: The run.
        hops: The tensors, in the order in which the search found them. The first hop is the start of the search. If a
            tensor has several rows because it crossed borders, its hop is the row at the op that computed it.
        is_cut: Whether the search reached its limit before it found all tensors.
        effect: Where the bad value ended up, as in `NonFinite`; None if the effect is not known, or if the start of the
            search is not an origin.
        expected_reason: Why the bad value did no harm, as in `NonFinite`; None if the value did harm or may have done
            harm.
        ended_in_error: Whether the program got an error instead of a result, as in `NonFinite`.
    """

    hop_type: ClassVar[type[TensorHop]] = SpreadHop

    run_id: str
    hops: tuple[SpreadHop, ...]
    is_cut: bool
    effect: str | None = None
    expected_reason: str | None = None
    ended_in_error: bool = False

    @property
    def variables(self) -> tuple[int, ...]:
        """The tensor IDs of the handles of the affected variables, in the order in which the search found them."""
        return tuple(dict.fromkeys(variable for hop in self.hops for variable in hop.variables))

    @property
    def returned_by(self) -> tuple[str, ...]:
        """The functions that returned an affected tensor to eager code, as `name:output`.

        The functions are in the order in which the search found them.
        """
        return tuple(dict.fromkeys(name for hop in self.hops for name in hop.returned_by))


def spread(
    logdir: Engine | str | Path, tensor: NonFinite | int, *, run_id: str | None = None, limit: int = DEFAULT_LIMIT
) -> Spread:
    """Follows a bad tensor to all bad tensors that were computed from it.

    This is the reverse of `provenance`: the search crosses the same borders, and follows only bad tensors. Bad values
    that the gradient of an op created count as bad values of the op, as in `first_nonfinite`.

    Args:
        logdir: An open logdir or its path.
        tensor: The result of `first_nonfinite`, or the event_index of a bad tensor.
        run_id: The run of the tensor. None means the newest run.
        limit: Maximum number of tensors.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: The run is unknown, the run has no such tensor, or the tensor is not bad.
        BrokenPartError: A part cannot be read.
    """
    if limit < 1:
        raise QueryError(f"limit is {limit}; expected 1 or more tensors.")
    with opened(logdir) as open_:
        run, event_index = run_and_row(open_, tensor, run_id)
        search = _Search(open_.of_run(run), run_id=run)
        with search.flow.lock:
            return search.run(event_index, limit=limit)


@dataclass(frozen=True)
class _Edge:
    """An edge of the data flow, from a tensor to another tensor (`user`) whose op took the first one."""

    user: TensorEvent
    input_index: int | None
    how: str


class _Search:
    """One search. The search goes over the bad tensors of the run in order, and finds the inputs of each tensor's op.

    An op's output may have been recorded before its inputs. Therefore, the search stores the inputs of each tensor, and
    marks a tensor as affected as soon as one of these inputs is affected.

    The search skips an execution unless the execution takes a tensor that an affected execution returned, or a variable
    that an affected execution could write to.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._run_id = run_id
        self.flow = DataFlow.of(logdir, run_id=run_id)
        self._hop_reader = HopReader(logdir, self.flow, run_id=run_id)
        self._reader = BadTensorReader(logdir, run_id=run_id, kinds=KINDS)
        self._origins = self._reader.origins
        self._gradients = self._reader.gradients
        self._edges: dict[int, list[_Edge]] = {}
        self._returned: dict[int, dict[str, None]] = {}
        self._spoilt: set[int] = set()
        self._touched: set[int] = set()
        """Executions that may contain affected tensors, because they take one of `_carriers`."""
        self._carriers: set[int] = set()
        """The tensor IDs of eager tensors, and of the handles of variables, that may have affected values."""
        self._eagerly_written = self.flow.resources.eagerly_written()
        self._handed_on = self.flow.events.handed_on()
        self._passed_over: dict[int, list[TensorEvent]] = {}
        self._takers: dict[int, set[int]] = {}
        """For each eager tensor, the skipped executions that take the tensor."""

    def run(self, event_index: int, *, limit: int) -> Spread:
        start = self.flow.computed(bad_start(self.flow, event_index, run_id=self._run_id))
        self._spoil(start)
        last = start.event_index
        for event in self._later(start):
            if self._may_be_spoilt(event):
                self._look_at(event)
            last = event.event_index
            if len(self._spoilt) > limit:
                break
        reached = self._walk(start, limit=limit)
        is_cut = len(self._spoilt) > len(reached)
        spoilt = {event.event_index for event, _, _ in reached}
        variables = self._written(start, spoilt, before=last + 1 if is_cut else 2**63 - 1)
        hops = tuple(
            SpreadHop(
                **self._hop_reader.facts(event),
                hop_index=index,
                input_index=edge.input_index if edge else None,
                how=edge.how if edge else "start",
                source_hop_index=source,
                variables=variables.get(event.event_index, ()),
                returned_by=tuple(self._returned.get(event.event_index, ())),
            )
            for index, (event, source, edge) in enumerate(reached)
        )
        effect = self._reader.own_effect(start)
        return Spread(
            run_id=self._run_id,
            hops=self._hop_reader.with_sources(hops),
            is_cut=is_cut,
            effect=effect.name,
            expected_reason=effect.expected_reason,
            ended_in_error=self._reader.ended_in_error(start, effect),
        )

    def _later(self, start: TensorEvent) -> Iterator[TensorEvent]:
        """Yields the bad tensors in the order of recording, beginning with the call in which `start` was computed."""
        after = start.event_index - 1
        if start.scope == "graph":
            execution = None if start.execution_index is None else self.flow.events.execution(start.execution_index)
            after = -1 if execution is None else execution.event_index
        while True:
            batch = self.flow.events.bad_events(KINDS, limit=_BATCH, after=after)
            yield from batch
            if len(batch) < _BATCH:
                return
            after = batch[-1].event_index

    def _look_at(self, event: TensorEvent) -> None:
        """Stores the inputs of a bad tensor or, if the tensor only crossed a border, the function that returned it."""
        computed = self.flow.computed(event)
        if computed.event_index != event.event_index:
            if event.scope == "execution" and event.op_type in self.flow.graphs.function_graphs:
                name = self.flow.graphs.names.get(self.flow.graphs.function_graphs[event.op_type], event.op_type)
                self._returned.setdefault(computed.event_index, {})[f"{name}:{event.output_slot}"] = None
            return
        is_spoilt = False
        direct: set[int] = set()
        for index, how, source in self.flow.taken_by(event, is_recent=True):
            is_spoilt |= self._note(source, _Edge(event, index, how))
            direct.add(source.event_index)
        for source in self.flow.recent_sources_of(event):
            if source.event_index not in direct:
                is_spoilt |= self._note(source, _Edge(event, None, "unrecorded"))
        if self._origins.is_root(event):
            for forward in self._gradients.forward_of(event):
                is_spoilt |= self._note(self.flow.computed(forward), _Edge(event, None, "gradient"))
        if is_spoilt:
            self._spoil(event)

    def _note(self, source: TensorEvent, edge: _Edge) -> bool:
        if not source.has_inf_or_nan:
            return False
        self._edges.setdefault(source.event_index, []).append(edge)
        return source.event_index in self._spoilt

    def _spoil(self, event: TensorEvent) -> None:
        unvisited = [event]
        while unvisited:
            row = unvisited.pop()
            if row.event_index in self._spoilt:
                continue
            self._spoilt.add(row.event_index)
            unvisited += [edge.user for edge in self._edges.get(row.event_index, ())]
            if row.tensor_id is not None:
                self._carry(row.tensor_id)
            if row.execution_index is not None and row.scope != "external":
                self._touch(row.execution_index)

    def _may_be_spoilt(self, event: TensorEvent) -> bool:
        """Returns whether a tensor's execution may have taken an affected tensor.

        If the execution cannot have taken one, marks the execution as skipped.
        """
        index = event.execution_index
        if index is None or index in self._touched or event.graph_id in self.flow.graphs.session_graphs:
            return True
        if self.flow.labels.execution(index).forward_execution_index in self._touched:
            self._touch(index)
            return True
        taken = self.flow.events.execution_inputs(index)
        if not taken or not self._carriers.isdisjoint(taken.values()):
            self._touch(index)
            return True
        if index not in self._passed_over:
            for tensor_id in taken.values():
                self._takers.setdefault(tensor_id, set()).add(index)
        self._passed_over.setdefault(index, []).append(event)
        return False

    def _touch(self, execution_index: int) -> None:
        if execution_index in self._touched:
            return
        self._touched.add(execution_index)
        execution = self.flow.events.execution(execution_index)
        for tensor_id, _ in self.flow.events.execution_outputs(execution_index).values():
            self._carry(tensor_id)
        if execution is not None:
            for input_index, tensor_id in self.flow.events.execution_inputs(execution_index).items():
                if self.flow.resources.can_write(execution, input_index):
                    self._carry(tensor_id)
        for event in self._passed_over.pop(execution_index, ()):
            self._look_at(event)

    def _carry(self, tensor_id: int) -> None:
        if tensor_id in self._carriers:
            return
        self._carriers.add(tensor_id)
        for taker in self._takers.pop(tensor_id, ()):
            self._touch(taker)
        for other in (*self._eagerly_written.get(tensor_id, ()), *self._handed_on.get(tensor_id, ())):
            self._carry(other)

    def _walk(self, start: TensorEvent, *, limit: int) -> list[tuple[TensorEvent, int | None, _Edge | None]]:
        """Returns the affected tensors, beginning with `start`.

        Each item is (tensor, index of the item from which the tensor was found, edge between these two tensors).
        """
        reached: list[tuple[TensorEvent, int | None, _Edge | None]] = [(start, None, None)]
        seen = {start.event_index}
        unvisited = [(start.event_index, 0)]
        while unvisited:
            index, hop_index = heapq.heappop(unvisited)
            for edge in sorted(self._edges.get(index, ()), key=lambda edge: edge.user.event_index):
                user = edge.user.event_index
                if user in seen:
                    continue
                if len(reached) >= limit:
                    return reached
                seen.add(user)
                heapq.heappush(unvisited, (user, len(reached)))
                reached.append((edge.user, hop_index, edge))
        return reached

    def _written(self, start: TensorEvent, spoilt: set[int], *, before: int) -> dict[int, tuple[int, ...]]:
        """Returns, for each tensor, the handles of the variables that the tensor was written to."""
        first = start.execution_index or 0

        def is_wanted(execution: Execution) -> bool:
            if execution.execution_index < first or execution.event_index >= before:
                return False
            if execution.execution_index in self._touched:
                return True
            return not self._carriers.isdisjoint(self.flow.events.execution_inputs(execution.execution_index).values())

        handles_of_tensor: dict[int, set[int]] = {}
        for write in self.flow.resources.all_writes(is_wanted=is_wanted):
            rows = [trace.row for trace in map(self._traced, write.values)]
            written = {row.event_index for row in rows if row is not None} & spoilt
            handles = [trace.place for trace in map(self._traced, write.handles)] if written else []
            for index in written:
                handles_of_tensor.setdefault(index, set()).update(
                    handle.tensor_id for handle in handles if isinstance(handle, EagerValue)
                )
        return {index: tuple(sorted(handles)) for index, handles in handles_of_tensor.items()}

    def _traced(self, place: Place) -> Trace:
        return self.flow.trace(place, how="graph", near=2**63 - 1)
