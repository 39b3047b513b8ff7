"""Roots: follows candidates back, across functions, loops and variables, to the first pair that diverges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from tfdbg_arrow.query.diff.comparing import HARD
from tfdbg_arrow.query.diff.tolerance import Tolerance
from tfdbg_arrow.query.diff.workspace import Workspace
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.origins import ProgramOrder
from tfdbg_arrow.query.recorded import TensorEvent

_MAX_CANDIDATES = 1000
_MAX_VISITED = 5000
_MAX_THROUGH = 200
"""Maximum number of tensors without a counterpart that are examined for one op."""
_READS = frozenset({"ReadVariableOp", "ReadVariablesOp", "ResourceGather", "ResourceGatherNd", "VariableV2"})
"""Op types whose output is the sum of what was written to a variable."""


@dataclass(frozen=True)
class Pair:
    """A row of the table `compared`; see its documentation."""

    event_a: int
    event_b: int
    op_id: int | None
    kind: str | None
    difference: float | None
    scale: float | None
    slack: float
    rtol: float
    relative: float
    excess: float
    is_candidate: bool

    @property
    def is_hard(self) -> bool:
        """Whether the difference has no measure."""
        return self.excess >= HARD and self.kind in ("shape", "dtype", "nonfinite")


@dataclass(frozen=True)
class Found:
    """The first divergence.

    Attributes:
        event: The tensor in A.
        pair: The comparison with its counterpart.
        sources: The tensors that it was made from in A, each with its pair, or None if it has no counterpart.
        is_proven: Whether everything that it was made from was recorded, aligned and agrees.
    """

    event: TensorEvent
    pair: Pair
    sources: tuple[tuple[TensorEvent, Pair | None], ...]
    is_proven: bool


@dataclass(frozen=True)
class _Sources:
    events: tuple[TensorEvent, ...]
    is_complete: bool


class Roots:
    """Finds the first divergence of two runs.

    Args:
        work: The workspace with the tables `compared` and `candidate`.
        flow: The data flow of A.
        tolerance: The differences that count as rounding.

    Attributes:
        is_cut: Whether the search ended before all candidates were examined.
    """

    def __init__(self, work: Workspace, flow: DataFlow, tolerance: Tolerance) -> None:
        self._work = work
        self._flow = flow
        self._growth = tolerance.growth
        self._order = ProgramOrder(flow).key
        self._pairs: dict[int, Pair | None] = {}
        self._sources: dict[int, _Sources] = {}
        self.is_cut = False

    def first(self) -> Found | None:
        """Returns the first divergence, or None.

        The candidates are examined by execution and, within an execution, in the order of the program. The order of
        arrival within an execution does not follow the data flow and varies from run to run. Each candidate is
        followed back through everything that differs. The result is the first root, in program order, that is found.
        """
        rows = self._work.rows(
            f"SELECT position, event_a FROM candidate ORDER BY position, event_a LIMIT {_MAX_CANDIDATES + 1}"
        )
        self.is_cut = len(rows) > _MAX_CANDIDATES
        for _, group in groupby(rows[:_MAX_CANDIDATES], key=lambda row: row[0]):
            events = [event for _, index in group if (event := self._flow.events.event(index)) is not None]
            roots = (self._root_of(event) for event in sorted(events, key=self._order))
            if (root := next((root for root in roots if root is not None), None)) is not None:
                self.is_cut = False
                return self._found(root)
        return None

    def pair(self, event_index: int) -> Pair | None:
        """Returns the comparison of a tensor of A with its counterpart, or None if it has none."""
        self._read([event_index])
        return self._pairs[event_index]

    def _found(self, event: TensorEvent) -> Found:
        sources = self._sources_of(event)
        pair = self.pair(event.event_index)
        assert pair is not None
        pairs = tuple((source, self.pair(source.event_index)) for source in sources.events)
        agree = all(found is not None and found.kind is not None and found.excess <= 1 for _, found in pairs)
        return Found(event, pair, pairs, is_proven=sources.is_complete and agree)

    def _root_of(self, start: TensorEvent) -> TensorEvent | None:
        above: dict[int, tuple[int, ...]] = {}
        roots: dict[int, TensorEvent] = {}
        waiting = [start]
        while waiting:
            event = waiting.pop()
            if event.event_index in above:
                continue
            if len(above) >= _MAX_VISITED:
                self.is_cut = True
                break
            sources = self._sources_of(event).events
            self._read([source.event_index for source in sources])
            pairs = [(source, self._pairs[source.event_index]) for source in sources]
            apart = [source for source, pair in pairs if pair is not None and pair.excess > 1]
            above[event.event_index] = tuple(source.event_index for source in apart)
            waiting += apart
            if self._is_root(event, [pair for _, pair in pairs if pair is not None]):
                roots[event.event_index] = event
        first = [root for index, root in roots.items() if not _reaches(above, index, roots)]
        return min(first or roots.values(), key=self._order, default=None)

    def _is_root(self, event: TensorEvent, inputs: list[Pair]) -> bool:
        pair = self.pair(event.event_index)
        if pair is None or not pair.is_candidate:
            return False
        relative = pair.relative
        if event.op_type in _READS and pair.difference is not None and not pair.is_hard:
            # A variable near zero is a sum that cancelled: the sum of its old content and what was added.
            magnitude = max([pair.scale or 0.0, *(source.scale or 0.0 for source in inputs)])
            if pair.difference <= pair.slack + pair.rtol * magnitude:
                return False
            relative = pair.difference / magnitude
        return all(relative > self._growth * source.relative for source in inputs)

    def _sources_of(self, event: TensorEvent) -> _Sources:
        """Returns the tensors that a tensor was made from. One without a counterpart is replaced by its own sources."""
        known = self._sources.get(event.event_index)
        if known is not None:
            return known
        direct = self._flow.sources_of(event)
        found: dict[int, TensorEvent] = {}
        is_complete = direct.is_complete
        seen: set[int] = set()
        waiting = list(direct.events)
        while waiting:
            source = waiting.pop()
            if source.event_index in seen:
                continue
            seen.add(source.event_index)
            if self.pair(source.event_index) is not None:
                found[source.event_index] = source
            elif len(seen) > _MAX_THROUGH:
                is_complete = False
            else:
                more = self._flow.sources_of(source)
                # A tensor of only one run that was made from nothing, such as a constant, is not known to agree.
                is_complete = is_complete and more.is_complete and bool(more.events)
                waiting += more.events
        sources = _Sources(tuple(found[index] for index in sorted(found)), is_complete)
        self._sources[event.event_index] = sources
        return sources

    def _read(self, event_indexes: Iterable[int]) -> None:
        missing = [index for index in event_indexes if index not in self._pairs]
        if not missing:
            return
        rows = self._work.rows(
            "SELECT c.event_a, c.event_b, c.op_id, c.kind, c.difference, c.scale, c.slack, c.rtol, c.relative, "
            "c.excess, k.event_a IS NOT NULL FROM compared AS c LEFT JOIN candidate AS k ON k.event_a = c.event_a "
            "WHERE c.event_a IN (SELECT unnest(?))",
            [missing],
        )
        self._pairs.update(dict.fromkeys(missing))
        self._pairs.update((row[0], Pair(*row)) for row in rows)


def _reaches(above: dict[int, tuple[int, ...]], start: int, roots: dict[int, TensorEvent]) -> bool:
    """Returns whether another root is among the ancestors of a root."""
    seen = {start}
    waiting = list(above.get(start, ()))
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        if index in roots:
            return True
        seen.add(index)
        waiting += above.get(index, ())
    return False
