"""Origins: bad tensors whose bad elements none of their inputs brought.

A row is an *origin* of a kind (NaN; infinity) if it holds the kind and no tensor that it was
computed from does. It is a *propagator* if one does. Where an input that could be bad was not recorded and
none of the recorded ones is bad, neither is proven: such a row is a candidate for the first
origin, and `is_origin` is False.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent

_BATCH = 256
_MAX_ANCESTORS = 2000
"""Clean tensors of a call through which one looks for an origin that arrived late."""


@dataclass(frozen=True)
class Verdict:
    """What is known of a bad tensor.

    Attributes:
        causes: The tensors that it was computed from and that hold the kinds it holds; empty for a candidate.
        is_origin: Whether it is proven that no input brought one of its kinds.
    """

    causes: tuple[TensorEvent, ...]
    is_origin: bool


class Origins:
    """Tells origins from propagators within one run.

    Args:
        flow: The run's data flow.
        kinds: The kinds that count: `nan`, `inf` or both.
    """

    def __init__(self, flow: DataFlow, *, kinds: tuple[str, ...]) -> None:
        self._flow = flow
        self._kinds = kinds
        self._roots: dict[int, TensorEvent] = {}

    def verdict(self, event: TensorEvent) -> Verdict:
        """Returns whether a bad tensor is an origin, and what made it bad if not."""
        own = event.bad_kinds(self._kinds)
        causes = [source for source in self._flow.recent_sources_of(event) if source.bad_kinds(own)]
        brought = frozenset(kind for cause in causes for kind in cause.bad_kinds(own))
        if own - brought:
            return Verdict((), is_origin=self._flow.sources_of(event).is_complete)
        return Verdict(tuple(causes), is_origin=False)

    def of(self, event: TensorEvent) -> TensorEvent:
        """Returns the origin that a bad tensor's badness goes back to: of several the one that was recorded first."""
        return min((self._uppermost(root) for root in self._roots_of(event)), key=lambda root: root.event_index)

    def first(self, is_wanted: Callable[[TensorEvent], bool] = lambda _: True) -> TensorEvent | None:
        """Returns the earliest origin, or None where nothing is bad.

        Args:
            is_wanted: Origins for which it is false are passed over.

        Among the candidates that no other candidate is an ancestor of, it is the one with the least
        event_index. Arrival is not the order of data flow within a call: a tensor's health may be
        recorded before that of the tensors it was computed from, so the first rows to arrive are followed
        back to their candidates first.
        """
        best: TensorEvent | None = None
        after = -1
        while True:
            before = None if best is None else best.event_index
            batch = self._flow.events.bad_events(self._kinds, limit=_BATCH, after=after, before=before)
            for event in batch:
                if best is not None and event.event_index >= best.event_index:
                    return best
                for root in self._roots_of(event):
                    root = self._uppermost(root)
                    if (best is None or root.event_index < best.event_index) and is_wanted(root):
                        best = root
            if len(batch) < _BATCH:
                return best
            after = batch[-1].event_index

    def _roots_of(self, event: TensorEvent) -> list[TensorEvent]:
        """Returns the candidates that a bad tensor's badness goes back to."""
        roots = []
        seen = {event.event_index}
        waiting = [event]
        while waiting:
            row = waiting.pop()
            causes = self.verdict(row).causes
            if not causes:
                roots.append(row)
            for cause in causes:
                if cause.event_index not in seen:
                    seen.add(cause.event_index)
                    waiting.append(cause)
        # Without a root the rows cause each other in a circle, which only rows without context can seem to.
        return roots or [event]

    def _uppermost(self, candidate: TensorEvent) -> TensorEvent:
        """Returns the candidate, or the first one among its ancestors of the same call that arrived after it."""
        known = self._roots.get(candidate.event_index)
        if known is not None:
            return known
        best = candidate
        seen = {candidate.event_index}
        while True:
            above = self._late_ancestor(best, seen)
            if above is None:
                break
            best = above
        self._roots[candidate.event_index] = best
        return best

    def _late_ancestor(self, candidate: TensorEvent, seen: set[int]) -> TensorEvent | None:
        """Returns a candidate among the ancestors, behind clean tensors, that arrived later; or None."""
        if candidate.scope != "graph" or candidate.step_id is None:
            return None
        late = self._flow.events.later_bad_iteration(candidate.context, after=candidate.event_index, kinds=self._kinds)
        visited = {candidate.event_index}
        waiting = list(self._flow.recent_sources_of(candidate))
        while waiting and len(visited) < _MAX_ANCESTORS:
            row = waiting.pop()
            if row.event_index in visited or row.step_id != candidate.step_id:
                continue
            if not any(frame != row.frame_id or iteration <= (row.iteration or 0) for frame, iteration in late):
                continue
            visited.add(row.event_index)
            if row.bad_kinds(self._kinds) and row.event_index > candidate.event_index:
                root = min(self._roots_of(row), key=lambda event: event.event_index)
                if root.event_index not in seen:
                    seen.add(root.event_index)
                    return root
            waiting.extend(self._flow.recent_sources_of(row))
        return None
