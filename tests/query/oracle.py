"""Computes the expected answers about a program by brute force, from the true dependencies of its tensors."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from .interpreter import Row

KINDS = ("nan", "inf")


@dataclass(frozen=True)
class ExpectedHop:
    """An expected hop. The attributes are those of Hop."""

    event_index: int
    user_hop_index: int | None
    input_index: int | None
    how: str
    role: str


@dataclass(frozen=True)
class Answer:
    """The expected answer of provenance.

    Attributes:
        hops: The hops in the order of the search, which follows the earliest bad tensor first.
                origin: The event_index of the origin.
                path: The event_indexes from the origin to the start, without the causes.
                causes: The event_indexes of the healthy tensors that the origin was made from.
    """

    hops: tuple[ExpectedHop, ...]
    origin: int
    path: tuple[int, ...]
    causes: frozenset[int]


@dataclass(frozen=True)
class ExpectedSpreadHop:
    """An expected hop of a spread. The attributes are those of SpreadHop."""

    event_index: int
    source_hop_index: int | None
    input_index: int | None
    how: str
    variables: tuple[int, ...]
    returned_by: tuple[str, ...]


def sources(row: Row) -> list[Row]:
    """Returns the rows that a tensor was made from, without duplicates."""
    return list({id(source): source for _, rows in row.inputs for source in rows}.values())


def role(row: Row, kinds: tuple[str, ...] = KINDS) -> str | None:
    """Returns `origin` or `propagator`, or None if the row has none of the kinds."""
    own = row.kinds & set(kinds)
    if not own:
        return None
    brought = {kind for source in sources(row) for kind in source.kinds}
    return "origin" if own - brought else "propagator"


def blamed(row: Row, kinds: tuple[str, ...], found: dict[Row, None] | None = None) -> list[Row]:
    """Returns the rows to blame for a bad row: bad rows of ops without bad inputs that explain them."""
    found = {} if found is None else found
    if row in found:
        return []
    found[row] = None
    bad = [source for source in sources(row) if source.kinds & set(kinds)]
    own = row.kinds & set(kinds)
    causes = bad if role(row, kinds) == "origin" else [source for source in bad if source.kinds & own]
    return [root for cause in causes for root in blamed(cause, kinds, found)] if causes else [row]


def first_nonfinite(rows: dict[int, Row], kinds: tuple[str, ...]) -> int | None:
    """Returns the event_index of the culprit: the first row in program order that did the worst harm.

    Returns None if no row is bad.
    """
    bad = [row for row in rows.values() if row.kinds & set(kinds)]
    for harmed in ([row for row in bad if row.variables], [row for row in bad if is_result(row)], bad):
        is_harm = harmed is not bad
        roots = [root for row in harmed for root in blamed(row, kinds)]
        found = {root.event_index: root for root in (_behind(root, rows, kinds) if is_harm else root for root in roots)}
        # A tensor can do harm through a kind that was not asked for.
        harmful = [root for root in found.values() if effect(root, rows) != "absorbed"]
        if found:
            return min(harmful or found.values(), key=order).event_index
    return None


def _behind(root: Row, rows: dict[int, Row], kinds: tuple[str, ...]) -> Row:
    """Returns the row to blame instead of a gradient: that of its forward op, if it was bad in the same call."""
    if root.forward is None:
        return root
    found = {root: None}
    blamed_too = [
        first for row in _forward(root, rows) if row.kinds & set(kinds) for first in blamed(row, kinds, found)
    ]
    return min(blamed_too, key=order, default=root)


def _forward(row: Row, rows: dict[int, Row]) -> list[Row]:
    """Returns the rows of the forward op of a gradient in the same call."""
    return [each for each in rows.values() if row.forward and (each.op, each.execution) == (row.forward, row.execution)]


def order(row: Row) -> tuple[object, ...]:
    """Returns the sort key of a row in program order."""
    return row.execution, row.forward is not None, row.creation, row.slot, row.event_index


def is_result(row: Row) -> bool:
    """Returns whether eager code received the tensor and did not use it, or an op chose a branch by its NaN."""
    return row.decides or (row.scope == "execution" and not row.is_used)


def effect(start: Row, rows: dict[int, Row]) -> str:
    """Returns where the bad values that come from a tensor end: `variable`, `result` or `absorbed`."""
    spoilt, waiting = {start}, [start]
    users: dict[Row, list[Row]] = {}
    for row in rows.values():
        for source in sources(row):
            users.setdefault(source, []).append(row)
        if blamed(row, KINDS) == [row]:
            for forward in _forward(row, rows):
                users.setdefault(forward, []).append(row)
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.kinds and user not in spoilt:
                spoilt.add(user)
                waiting.append(user)
    if any(row.variables for row in spoilt):
        return "variable"
    return "result" if any(is_result(row) for row in spoilt) else "absorbed"


def provenance(start: Row) -> Answer:
    """Returns all paths back from a bad tensor."""
    hops: list[ExpectedHop] = []
    found: dict[int, int] = {}
    users: dict[int, set[int]] = {}
    rows: list[Row] = []

    def add(row: Row, user: int | None, input_index: int | None, how: str) -> None:
        found[row.event_index] = len(hops)
        hops.append(ExpectedHop(row.event_index, user, input_index, how, role(row) or "cause"))
        rows.append(row)

    add(start, None, None, "start")
    waiting = [(start.event_index, 0)]
    while waiting:
        _, index = heapq.heappop(waiting)
        row = rows[index]
        for input_index, (how, sources_) in enumerate(row.inputs):
            for source in sources_:
                if source.kinds:
                    users.setdefault(source.event_index, set()).add(row.event_index)
                if source.event_index in found or (role(row) == "propagator" and not source.kinds):
                    continue
                add(source, index, input_index, how)
                if source.kinds:
                    heapq.heappush(waiting, (source.event_index, found[source.event_index]))
    ends = [hop for hop in hops if hop.role == "origin"]
    below = {hop.event_index: _users(hop.event_index, users) for hop in ends}
    first = [
        hop for hop in ends if not any(end is not hop and hop.event_index in below[end.event_index] for end in ends)
    ]
    origin = min(first, key=lambda hop: hop.event_index)
    path = []
    at: int | None = found[origin.event_index]
    while at is not None:
        path.append(hops[at].event_index)
        at = hops[at].user_hop_index
    made_from = sources(rows[found[origin.event_index]])
    causes = frozenset(source.event_index for source in made_from if not source.kinds)
    return Answer(tuple(hops), origin.event_index, tuple(path), causes)


def spread(start: Row, rows: dict[int, Row]) -> tuple[ExpectedSpreadHop, ...]:
    """Returns all bad tensors that were made from a bad one. The search follows the tensor recorded first."""
    users: dict[int, list[tuple[Row, int | None, str]]] = {}
    for _, row in sorted(rows.items()):
        if row.passed is None and row.kinds:
            for input_index, (how, taken) in enumerate(row.inputs):
                for source in taken:
                    users.setdefault(source.event_index, []).append((row, input_index, how))
            if blamed(row, KINDS) == [row]:
                for forward in _forward(row, rows):
                    users.setdefault((forward.passed or forward).event_index, []).append((row, None, "gradient"))
    start = start.passed or start
    hops = [ExpectedSpreadHop(start.event_index, None, None, "start", *_reached(start))]
    found = {start.event_index: 0}
    waiting = [start.event_index]
    while waiting:
        source_index = heapq.heappop(waiting)
        for user, input_index, how in users.get(source_index, ()):
            if user.event_index not in found:
                found[user.event_index] = len(hops)
                heapq.heappush(waiting, user.event_index)
                hops.append(ExpectedSpreadHop(user.event_index, found[source_index], input_index, how, *_reached(user)))
    return tuple(hops)


def _reached(row: Row) -> tuple[tuple[int, ...], tuple[str, ...]]:
    return tuple(sorted(row.variables)), tuple(row.returned_by)


def _users(event_index: int, users: dict[int, set[int]]) -> set[int]:
    """Returns the bad tensors that a bad tensor reached through bad tensors."""
    seen: set[int] = set()
    waiting = [event_index]
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return seen
