"""Origins: bad tensors whose bad elements did not come from any of their inputs.

A row is an *origin* of a kind (NaN; infinity) if it holds the kind and no tensor that it was computed from does. It is
a *propagator* if one does. If an input that could be bad was not recorded and none of the recorded ones is bad, neither
is proven. Such a row is a candidate for the first origin, and its `is_origin` is False.

An infinity that the program wrote itself (a mask of -Inf, the initial value of a running minimum) is a *literal*. An op
that makes a NaN from literals alone created it. An op that makes a NaN from an infinity that another op computed did
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent

_LITERAL_TYPES = frozenset({"Const", "ReadVariableOp", "Placeholder", "PlaceholderWithDefault"})
"""Types of ops that return a value which the program wrote, if they are origins."""

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
    """Orders the tensors of one run as the program computes them, regardless of the order of arrival.

    Args:
        flow: The run's data flow.
    """

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
        index = event.execution_index
        execution = None if index is None else self._flow.events.execution(index)
        if execution is not None:
            return execution.event_index
        if event.step_id is None:
            return event.event_index
        visits = self._flow.events.site_visits(event.step_id, index)
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
        flow: The run's data flow.
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
