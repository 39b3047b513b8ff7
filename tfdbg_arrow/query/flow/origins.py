"""Origins and effects: the bad tensors whose bad elements came from no input, and where their badness ends.

A row is an *origin* of a kind (NaN; infinity) if it holds the kind and no tensor that it was computed from does. It is
a *propagator* if one does. If an input that could be bad was not recorded and none of the recorded ones is bad, neither
is proven. Such a row is a candidate for the first origin, and its `is_origin` is False.

An infinity that the program wrote itself (a mask of -Inf, the initial value of a running minimum) is a *literal*. An op
that makes a NaN from literals alone created it. An op that makes a NaN from an infinity that another op computed did
not.

The badness of a tensor can end in these places, the most harmful first:

* in a variable (`variable`) that an op writes it to;
* in a result (`result`): a function or an eager op returns it to the program, or an op passes it out of TensorFlow, and
  nothing computes with it any more;
* in a metric (`metric`): only ops of metrics take it;
* nowhere (`absorbed`): every tensor that is computed from it is finite, or nothing is computed from it.

An absorbed value is expected, as it did no harm. There is one exception. An optimizer that scales the loss provokes
overflows, looks for them and skips the step. If the step is skipped because of a division by zero, or of a NaN that no
overflow caused, a smaller scale would not help and the step is lost for good. Such a value is absorbed but not
expected.

If the recording does not determine the effect (no call sites, an unrecorded function, too many tensors to follow), the
effect is None and the value is not expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.sinks import Sinks
from tfdbg_arrow.query.flow.walk import (
    ABSORBED,
    SKIPPED_STEP,
    CannotTellError,
    Frame,
    OutOfSightError,
    Walk,
    WalkedTensor,
)
from tfdbg_arrow.query.recorded import Context, TensorEvent

_LITERAL_TYPES = frozenset({"Const", "ReadVariableOp", "Placeholder", "PlaceholderWithDefault"})
"""Types of ops that return a value which the program wrote, if they are origins."""

_POLE_INPUT = {
    "Div": 1, "RealDiv": 1, "Xdivy": 1, "Inv": 0, "Log": 0, "Pow": 0, "Reciprocal": 0, "Rsqrt": 0, "SqrtGrad": 0,
}  # fmt: skip
"""Op types that make an infinity from a zero, and the index of the input that is zero."""
LITERAL = "the program wrote this infinity itself"
OrderKey = tuple[int, bool, tuple[tuple[int, int], ...], int, int]


@dataclass(frozen=True)
class Verdict:
    """Whether a bad tensor is an origin.

    Attributes:
        causes: The inputs that hold the same kinds of bad values; empty for a candidate.
        is_origin: True if it is proven that at least one of its kinds came from no input.
    """

    causes: tuple[TensorEvent, ...]
    is_origin: bool


class ProgramOrder:
    """Orders the tensors of one run as the program computes them, regardless of the order of arrival."""

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def key(self, event: TensorEvent) -> OrderKey:
        """Returns the sort key of a tensor among those of the run.

        Executions are ordered by their start. Within a call, forward ops come before those of gradients. Then the
        order of creation decides: that of the calling ops from the outermost graph on, with the iterations of loops,
        and that of the op itself. The event_index breaks the remaining ties.
        """
        is_gradient = self._flow.labels.of(event).role == "gradient"
        return self._start(event), is_gradient, self._creation(event), event.output_slot or 0, event.event_index

    def _start(self, event: TensorEvent) -> int:
        """Returns the event_index of the start of the call in which a tensor was made."""
        execution = self._flow.events.execution(event.execution_index)
        if execution is not None:
            return execution.event_index
        if event.step_id is None:
            return event.event_index
        visits = self._flow.events.site_visits(event.step_id, event.execution_index)
        return min((visit.first_event_index for visit in visits), default=event.event_index)

    def _creation(self, event: TensorEvent) -> tuple[tuple[int, int], ...]:
        """Returns (order of creation, iteration) for each calling op, from the outermost, and for the op itself."""
        if event.scope != "graph" or event.graph_id is None or event.op_name is None:
            return ()
        flow = self._flow
        path: list[tuple[int, int]] = []
        context, levels = event.context, flow.borders.levels(event.context, event.graph_id) or ()
        while levels:
            call = levels[-1].call
            iteration = (context.iteration or 0) if levels[-1].is_loop else 0
            path.append((self._op_index(call.graph_id, call.op_name), iteration))
            context, levels = flow.borders.outer_context(context, levels), levels[:-1]
        return (*reversed(path), (self._op_index(event.graph_id, event.op_name), 0))

    def _op_index(self, graph_id: int, op_name: str) -> int:
        op = self._flow.graphs.op(graph_id, op_name)
        return -1 if op is None else op.op_index


class Origins:
    """Distinguishes origins from propagators within one run, and orders them.

    Args:
        kinds: The kinds that count: `nan`, `inf` or both.
        is_allowed: Returns True for an origin that is allowed to be bad. Its values count as literals.

    Attributes:
        order: Returns the sort key of a tensor in the order of the program.
    """

    def __init__(
        self,
        flow: DataFlow,
        *,
        kinds: tuple[str, ...],
        is_allowed: Callable[[TensorEvent], bool] = lambda event: False,
    ) -> None:
        self._flow = flow
        self._kinds = kinds
        self._is_allowed = is_allowed
        self._is_literal: dict[int, bool] = {}
        self.order = ProgramOrder(flow).key

    def verdict(self, event: TensorEvent) -> Verdict:
        """Returns whether a bad tensor is an origin, and otherwise which tensors made it bad."""
        own = event.bad_kinds(self._kinds)
        causes = [source for source in self._flow.recent_sources_of(event) if source.bad_kinds(own)]
        brought = frozenset(kind for cause in causes for kind in cause.bad_kinds(own))
        if own - brought:
            return Verdict((), is_origin=self._flow.sources_of(event).is_complete)
        return Verdict(tuple(causes), is_origin=False)

    def of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin of a bad tensor; if there are several, the first by `order`."""
        return min(self.roots([event], set()), key=self.order)

    def roots(self, events: Iterable[TensorEvent], seen: set[int]) -> list[TensorEvent]:
        """Returns the candidates to which the badness of tensors goes back, in no particular order.

        Args:
            events: Bad tensors.
            seen: The event indexes of tensors that were followed before. These are not followed again. The tensors
                that are followed now are added.
        """
        roots: list[TensorEvent] = []
        start = [event for event in events if event.event_index not in seen]
        waiting = list(start)
        while waiting:
            row = waiting.pop()
            if row.event_index in seen:
                continue
            seen.add(row.event_index)
            causes = self._followed(row)
            waiting += causes
            if not causes:
                roots.append(row)
        # Without a root, the rows seem to cause each other in a cycle. This happens only for rows without context.
        return roots or start

    def _followed(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the tensors to follow from a bad tensor, or none if its own op created the badness."""
        verdict = self.verdict(event)
        if verdict.causes:
            return list(verdict.causes)
        bad = [source for source in self._flow.recent_sources_of(event) if source.bad_kinds(self._kinds)]
        return [source for source in bad if not self.is_literal(source)]

    def is_literal(self, event: TensorEvent) -> bool:
        """Returns whether a tensor holds only infinities that the program wrote, or values that are allowed."""
        takers: dict[int, int | None] = {event.event_index: None}
        waiting = [event]
        while waiting:
            row = waiting.pop()
            known = self._is_literal.get(row.event_index)
            causes = () if known is not None else self.verdict(row).causes
            if known is False or (known is None and not causes and not self._is_base_literal(row)):
                self._note_not_literal(row.event_index, takers)
                return False
            new = [cause for cause in causes if cause.event_index not in takers]
            takers.update((cause.event_index, row.event_index) for cause in new)
            waiting += new
        self._is_literal.update(dict.fromkeys(takers, True))
        return True

    def _note_not_literal(self, event_index: int, takers: Mapping[int, int | None]) -> None:
        """Records that a tensor, and the tensors that were computed from it, are not literals."""
        at: int | None = event_index
        while at is not None:
            self._is_literal[at] = False
            at = takers[at]

    def _is_base_literal(self, origin: TensorEvent) -> bool:
        if self._is_allowed(origin):
            return True
        return origin.num_nan == 0 and _is_written(origin) and not self._flow.is_computed_in_advance(origin)


def _is_written(origin: TensorEvent) -> bool:
    """Returns whether an origin looks like infinities that the program wrote: alone or among zeros, as in a mask.

    A batch of data with some infinite elements also holds other numbers.
    """
    if origin.op_type is not None and origin.op_type not in _LITERAL_TYPES:
        return False
    if origin.num_pos_finite is None or origin.num_neg_finite is None:
        return False
    return not (origin.num_pos_finite or origin.num_neg_finite)


@dataclass(frozen=True)
class Effect:
    """Where the badness of a tensor ends.

    Attributes:
        name: `variable`, `result`, `metric` or `absorbed`; None if the recording does not determine it.
        expected_reason: Why the value is expected; None if it is not.
    """

    name: str | None
    expected_reason: str | None


_UNKNOWN = Effect(None, None)


class Effects:
    """Determines where bad values end within one run."""

    def __init__(self, logdir: Engine, flow: DataFlow, origins: Origins, sinks: Sinks, *, run_id: str) -> None:
        self._flow = flow
        self._labels = flow.labels
        self._origins = origins
        self._sinks = sinks
        self._known: dict[int, Effect] = {}
        self._is_overflow: dict[int, bool] = {}
        self._logdir = logdir
        self._run_id = run_id

    def of(self, event: TensorEvent) -> Effect:
        """Returns where the badness of a tensor ends."""
        known = self._known.get(event.event_index)
        if known is None:
            known = self._known[event.event_index] = self._find(event)
        return known

    def _find(self, event: TensorEvent) -> Effect:
        computed = self._flow.computed(event)
        if self._origins.is_literal(computed):
            return Effect("absorbed", LITERAL)
        walk = Walk(self._flow, self._sinks)
        try:
            walk.follow(self._start(computed))
        except CannotTellError:
            return _UNKNOWN
        except OutOfSightError:
            if event.execution_index is not None and self._sinks.has_failed(event.execution_index):
                return Effect("result", None)  # the program got an error instead
            return Effect("absorbed", ABSORBED) if self._sinks.has_none else _UNKNOWN
        if walk.harm is not None:
            return Effect(walk.harm, None)
        is_lost = walk.reason == SKIPPED_STEP and self._is_lost(event, walk.skipped_graphs)
        return Effect("absorbed", None if is_lost else walk.reason)

    def _is_lost(self, event: TensorEvent, skipped_graphs: set[int]) -> bool:
        """Returns whether steps are lost for good: none was ever applied, and a smaller loss scale would not help."""
        ids = sorted(skipped_graphs)
        is_applied = self._logdir.rows(
            f"SELECT 1 FROM tensor_health WHERE run_id = ? AND graph_id IN ({', '.join('?' * len(ids))}) LIMIT 1",
            [self._run_id, *ids],
        )
        return not is_applied and not all(map(self._overflowed, self._beginnings(event)))

    def _beginnings(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the bad tensors at the start of the chains of bad tensors that lead to a bad tensor."""
        found, seen, waiting = [], {event.event_index}, [event]
        while waiting:
            row = waiting.pop()
            causes = [source for source in self._flow.recent_sources_of(row) if source.has_inf_or_nan]
            if not causes:
                found.append(row)
            waiting += [cause for cause in causes if cause.event_index not in seen]
            seen.update(cause.event_index for cause in causes)
        return found

    def _overflowed(self, origin: TensorEvent) -> bool:
        if origin.event_index not in self._is_overflow:
            self._is_overflow[origin.event_index] = not origin.num_nan and not self._is_at_pole(origin)
        return self._is_overflow[origin.event_index]

    def _is_at_pole(self, origin: TensorEvent) -> bool:
        index = _POLE_INPUT.get(origin.op_type or "")
        health = next((each.trace.health for each in self._flow.inputs_of(origin) if each.index == index), None)
        return health is not None and bool(health.num_zero)

    def _start(self, event: TensorEvent) -> WalkedTensor:
        if event.scope != "graph":
            if event.tensor_id is None:
                raise CannotTellError
            return WalkedTensor(None, "", event.tensor_id, is_metric=self._is_metric(event))
        if event.graph_id is None or event.op_name is None or event.output_slot is None:
            raise CannotTellError
        levels = self._flow.borders.levels(event.context, event.graph_id)
        if self._flow.borders.sessions.is_session_graph(event.graph_id) or self._labels.of(event).role == "input":
            raise OutOfSightError
        if levels is None:
            raise CannotTellError
        root_id = levels[0].call.graph_id if levels else event.graph_id
        outermost = Context(event.step_id, event.execution_index, "", 0, 0)
        frame = Frame(root_id, outermost if levels else event.context, None, None)
        for depth, level in enumerate(levels, start=1):
            if level.call.callee_graph_id is None:
                raise CannotTellError
            context = event.context
            for inner in range(len(levels), depth, -1):
                context = self._flow.borders.outer_context(context, levels[:inner])
            frame = Frame(level.call.callee_graph_id, context, level.call, frame)
        return WalkedTensor(frame, event.op_name, event.output_slot, is_metric=self._is_metric(event))

    def _is_metric(self, event: TensorEvent) -> bool:
        return self._labels.of(event).role == "metric"
