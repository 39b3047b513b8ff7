"""provenance: from a bad tensor back, hop by hop, to the ops where it went bad and the healthy tensors they took."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from pathlib import Path

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.events import KINDS, TensorEvent
from tfdbg_arrow.query.health import TensorHealth, health_facts
from tfdbg_arrow.query.info import read_runs
from tfdbg_arrow.query.logdir import opened
from tfdbg_arrow.query.origins import Origins
from tfdbg_arrow.query.provenance import DataFlow, Input
from tfdbg_arrow.query.stacks import Frame, StackReader, user_source
from tfdbg_arrow.query.why import explain

DEFAULT_LIMIT = 10_000


@dataclass(frozen=True, kw_only=True)
class Hop(TensorHealth):
    """One tensor on the way back from a bad one; None is "not measured in this mode", unknown, or does not apply.

    It also has the attributes of TensorHealth.

    Attributes:
        hop_index: Its place in Provenance.hops.
        user_hop_index: The hop whose op took it; None for the tensor that was asked for. Of a tensor that several took,
            the one through which it was found first.
        input_index: Which input of that op it is; None where unrecorded tensors lie between.
        how: The first border between it and its user: as `Producer.how`; `unrecorded` where unrecorded tensors lie
            between; `start` for the tensor that was asked for.
        role: `origin` (a kind came up in its op), `propagator` (an input brought all it holds), `candidate` (bad, and
            not proven to be either: an input was not recorded), `cause` (healthy input of an origin or candidate).
        is_on_path: Whether it lies on the way to the earliest origin or candidate, or is a cause of that one.
        execution_index: The execution, or the call in which its op ran.
        step: The training step, as marked.
        iteration: Iteration of the loop, from 0; None outside graphs.
        op_type: Type of the op that made it; None for a tensor from outside.
        op_name: That op's name in its graph; None outside graphs.
        graph_name: That graph's name; None outside graphs.
        output_slot: Which output of the op.
        why: One sentence on how the op made what is bad, where the counts prove it.
        source: The user's innermost frame in the stack that created the op, or None.
    """

    hop_index: int
    user_hop_index: int | None
    input_index: int | None
    how: str
    role: str
    is_on_path: bool
    execution_index: int | None
    step: int | None
    iteration: int | None
    op_type: str | None
    op_name: str | None
    graph_name: str | None
    output_slot: int | None
    why: str | None
    source: Frame | None


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a bad tensor came from.

    Attributes:
        run_id: The run.
        hops: The tensors on all ways back, in the order in which they were found; the first is the one asked for.
        is_cut: Whether there are more: the search ended at its limit.
    """

    run_id: str
    hops: tuple[Hop, ...]
    is_cut: bool

    @property
    def origin(self) -> Hop | None:
        """The earliest origin found, else the earliest candidate; None where the search was cut before either."""
        return next((hop for hop in self.path if hop.role in ("origin", "candidate")), None)

    @property
    def path(self) -> tuple[Hop, ...]:
        """The way from that origin, after its causes, to the tensor that was asked for."""
        on_path = [hop for hop in self.hops if hop.is_on_path]
        causes = [hop for hop in on_path if hop.role == "cause"]
        return (*causes, *reversed([hop for hop in on_path if hop.role != "cause"]))


def provenance(
    logdir: Engine | str | Path, event_index: int, *, run_id: str | None = None, limit: int = DEFAULT_LIMIT
) -> Provenance:
    """Follows a bad tensor back to where it went bad.

    The way leads over the data edges of that very call and iteration, and over borders: arguments, captured variables
    to their last assignment, nested calls, loops, eager tensors. A bad tensor is followed on through its bad inputs.

    Args:
        logdir: A logdir, opened or its path.
        event_index: The tensor's row in tensor_health.
        run_id: The run; None where the logdir holds one only.
        limit: At most so many tensors.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        QueryError: The run or the row is unknown, or not bad.
        BrokenPartError: A part cannot be read.
    """
    if limit < 1:
        raise QueryError(f"limit is {limit}, expected a number of tensors from 1 on.")
    with opened(logdir) as open_:
        run = _check_run(open_, run_id)
        return _Search(open_, run_id=run).run(event_index, limit=limit)


class _Search:
    """One search; bad tensors are followed earliest first, which leads back in time soonest."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._run_id = run_id
        self._flow = DataFlow(logdir, run_id=run_id)
        self._origins = Origins(self._flow, kinds=KINDS)
        self._stacks = StackReader(logdir, run_id=run_id)
        self._hops: list[Hop] = []
        self._found: dict[int, int] = {}

    def run(self, event_index: int, *, limit: int) -> Provenance:
        event = self._flow.events.event(event_index)
        if event is None:
            raise QueryError(f"event {event_index} of run {self._run_id} is no row of tensor_health.")
        if not event.has_inf_or_nan:
            raise QueryError(
                f"event {event_index} of run {self._run_id} holds no infinity and no NaN; give the event_index of "
                "a bad tensor, as SELECT event_index FROM nonfinite_tensor has them."
            )
        self._add(event, user=None, input_index=None, how="start", role="propagator")
        waiting = [(event_index, event)]
        is_cut = False
        while waiting:
            if len(self._hops) >= limit:
                is_cut = True
                break
            _, row = heapq.heappop(waiting)
            for source in self._expand(row):
                heapq.heappush(waiting, (source.event_index, source))
        return Provenance(run_id=self._run_id, hops=self._marked(), is_cut=is_cut)

    def _expand(self, event: TensorEvent) -> list[TensorEvent]:
        """Adds what a bad tensor's op took; returns the bad ones among it that are new."""
        own = self._found[event.event_index]
        verdict = self._origins.verdict(event)
        direct = [(input_, self._rows(input_)) for input_ in self._flow.inputs_of(event)]
        found: list[tuple[int | None, str, TensorEvent]] = []
        for input_, rows in direct:
            how = "variable" if input_.trace.dtype == "resource" else input_.trace.how
            found += [(input_.index, how, row) for row in rows]
        known = {row.event_index for _, _, row in found}
        between = [row for row in self._flow.sources_of(event).events if row.event_index not in known]
        found += [(None, "unrecorded", row) for row in between]
        role = "origin" if verdict.is_origin else "propagator" if verdict.causes else "candidate"
        inputs = {index: row for index, _, row in found if index is not None}
        why = explain(event, inputs) if role != "propagator" and len(inputs) == len(direct) else None
        self._hops[own] = replace(self._hops[own], role=role, why=why)
        new = []
        for index, how, row in found:
            is_bad = bool(row.has_inf_or_nan)
            if row.event_index in self._found or (role == "propagator" and not is_bad):
                continue
            self._add(row, user=own, input_index=index, how=how, role="propagator" if is_bad else "cause")
            if is_bad:
                new.append(row)
        return new

    def _rows(self, input_: Input) -> list[TensorEvent]:
        """The recorded tensors that one input stands for; several where a variable was updated in place."""
        trace = input_.trace
        if trace.dtype != "resource":
            row = trace.event or trace.health
            return [] if row is None else [row]
        write = input_.write
        if write is None:
            return []
        how = "eager" if write.graph_id is None else "graph"
        traces = [self._flow.trace(value, how=how, near=2**63 - 1) for value in write.values]
        rows = [trace.event or trace.health for trace in traces] + [write.old_value]
        return [row for row in rows if row is not None]

    def _add(self, event: TensorEvent, *, user: int | None, input_index: int | None, how: str, role: str) -> None:
        self._found[event.event_index] = len(self._hops)
        op = None
        if event.graph_id is not None and event.op_name is not None:
            op = self._flow.graphs.op(event.graph_id, event.op_name)
        stack_trace_id = None if op is None else op.stack_trace_id
        if event.scope != "graph" and event.execution_index is not None:
            execution = self._flow.events.execution(event.execution_index)
            stack_trace_id = None if execution is None else execution.stack_trace_id
        self._hops.append(
            Hop(
                hop_index=len(self._hops),
                user_hop_index=user,
                input_index=input_index,
                how=how,
                role=role,
                is_on_path=False,
                **health_facts(event),
                execution_index=event.execution_index,
                step=event.step,
                iteration=event.iteration,
                op_type=event.op_type,
                op_name=event.op_name,
                graph_name=None if event.graph_id is None else self._flow.graphs.names.get(event.graph_id),
                output_slot=event.output_slot,
                why=None,
                source=user_source(self._stacks.stack(stack_trace_id)),
            )
        )

    def _marked(self) -> tuple[Hop, ...]:
        """The hops, those on the way to the earliest origin marked; a proven one goes before a candidate."""
        hops = list(self._hops)
        ends = [hop for hop in hops if hop.role == "origin"] or [hop for hop in hops if hop.role == "candidate"]
        if not ends:
            return tuple(hops)
        end = min(ends, key=lambda hop: hop.event_index)
        on_path = {hop.hop_index for hop in hops if hop.user_hop_index == end.hop_index and hop.role == "cause"}
        at: int | None = end.hop_index
        while at is not None:
            on_path.add(at)
            at = hops[at].user_hop_index
        return tuple(replace(hop, is_on_path=hop.hop_index in on_path) for hop in hops)


def _check_run(logdir: Engine, run_id: str | None) -> str:
    known = [run.run_id for run in read_runs(logdir)]
    if run_id is None and len(known) == 1:
        return known[0]
    if run_id not in known:
        what = f"{logdir.path} holds {len(known)} runs" if run_id is None else f"run {run_id!r} is not in {logdir.path}"
        raise QueryError(f"{what}; give run_id as one of {', '.join(known) or '(it holds none)'}.")
    return run_id
