"""Origins: bad tensors whose bad elements none of their inputs brought.

A row is an *origin* of a kind (NaN; infinity) if it holds the kind and no tensor that it was
computed from does. It is a *propagator* if one does. Where an input that could be bad was not recorded and
none of the recorded ones is bad, neither is proven: such a row is a candidate for the first
origin, and `is_origin` is False.

An infinity that the program wrote itself (a mask of -Inf, the start of a running minimum) is a *literal*. An op that
makes a NaN from literals alone is to blame for it; an op that makes a NaN from an infinity that another op computed is
not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent

_LITERAL_TYPES = frozenset({"Const", "ReadVariableOp", "Placeholder", "PlaceholderWithDefault"})
"""Types of ops that give a value which the program wrote, where they are origins."""

OrderKey = tuple[int, bool, tuple[tuple[int, int], ...], int, int]


@dataclass(frozen=True)
class Verdict:
    """What is known of a bad tensor.

    Attributes:
        causes: The tensors that it was computed from and that hold the kinds it holds; empty for a candidate.
        is_origin: Whether it is proven that no input brought one of its kinds.
    """

    causes: tuple[TensorEvent, ...]
    is_origin: bool


class ProgramOrder:
    """Orders the tensors of one run as the program computes them, whatever arrived first.

    Args:
        flow: The run's data flow.
    """

    def __init__(self, flow: DataFlow) -> None:
        self._flow = flow

    def key(self, event: TensorEvent) -> OrderKey:
        """Returns the place of a tensor among those of the run.

        Executions come in the order of their start. Within a call forward ops come before those of gradients, then the
        order of creation decides: of the calling ops from the outermost graph on, with the iterations of loops, and of
        the op itself. The event_index decides only what is left.
        """
        is_gradient = self._flow.labels.of(event).role == "gradient"
        return self._start(event), is_gradient, self._creation(event), event.output_slot or 0, event.event_index

    def _start(self, event: TensorEvent) -> int:
        """Returns the event_index at which the call began that a tensor was made in."""
        index = event.execution_index
        execution = None if index is None else self._flow.events.execution(index)
        if execution is not None:
            return execution.event_index
        if event.step_id is None:
            return event.event_index
        visits = self._flow.events.site_visits(event.step_id, index)
        return min((visit.first_event_index for visit in visits), default=event.event_index)

    def _creation(self, event: TensorEvent) -> tuple[tuple[int, int], ...]:
        """Returns (order of creation, iteration) of each calling op, from the outermost, and of the op itself."""
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
    """Tells origins from propagators within one run, and orders them.

    Args:
        flow: The run's data flow.
        kinds: The kinds that count: `nan`, `inf` or both.
        is_allowed: Whether an origin may be bad: what it holds counts as a literal.

    Attributes:
        order: Returns the place of a tensor in the program.
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
        """Returns whether a bad tensor is an origin, and what made it bad if not."""
        own = event.bad_kinds(self._kinds)
        causes = [source for source in self._flow.recent_sources_of(event) if source.bad_kinds(own)]
        brought = frozenset(kind for cause in causes for kind in cause.bad_kinds(own))
        if own - brought:
            return Verdict((), is_origin=self._flow.sources_of(event).is_complete)
        return Verdict(tuple(causes), is_origin=False)

    def of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin that a bad tensor's badness goes back to; of several the first by `order`."""
        return min(self.roots([event], set()), key=self.order)

    def roots(self, events: Iterable[TensorEvent], seen: set[int]) -> list[TensorEvent]:
        """Returns the candidates that the badness of tensors goes back to, in no particular order.

        Args:
            events: Bad tensors.
            seen: The event indexes of tensors that were followed before. They are not followed again, and those that
                are followed now are added.
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
        # Without a root the rows cause each other in a circle, which only rows without context can seem to.
        return roots or start

    def _followed(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the tensors to which the badness of a tensor is followed: none where its own op is to blame."""
        verdict = self.verdict(event)
        if verdict.causes:
            return list(verdict.causes)
        bad = [source for source in self._flow.recent_sources_of(event) if source.bad_kinds(self._kinds)]
        return [source for source in bad if not self.is_literal(source)]

    def is_literal(self, event: TensorEvent) -> bool:
        """Returns whether a tensor holds only infinities that the program wrote, or values that may be bad."""
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
        """Notes that a tensor, and the tensors that were computed from it, are no literals."""
        at: int | None = event_index
        while at is not None:
            self._is_literal[at] = False
            at = takers[at]

    def _is_base_literal(self, origin: TensorEvent) -> bool:
        if self._is_allowed(origin):
            return True
        return origin.num_nan == 0 and _is_written(origin) and not self._flow.is_computed_in_advance(origin)


def _is_written(origin: TensorEvent) -> bool:
    """Whether an origin looks as if its author wrote infinities: alone or among zeros, as in a mask.

    A batch of data in which some elements are infinite holds other numbers too.
    """
    if origin.op_type is not None and origin.op_type not in _LITERAL_TYPES:
        return False
    if origin.num_pos_finite is None or origin.num_neg_finite is None:
        return False
    return not (origin.num_pos_finite or origin.num_neg_finite)
