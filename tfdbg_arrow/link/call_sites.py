"""CallSites: the tree of calls through which graphs ran, read from the texts in `tensor_health.call_site`.

A call site is a graph at a place of an outermost graph: a function that is called twice has two. See "Callers" in the
specification.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

LOOP = ("cond", "body")
BRANCHES = ("then_branch", "else_branch", "branches")
_SUFFIXES = {"then_branch": "/then", "else_branch": "/else", "cond": "/cond", "body": "/body"}
_MAX_DEPTH = 50
"""Calls within calls; here and below, more are only in a hostile logdir."""
_MAX_TEXT = 20_000
"""Characters of a call site."""
_MAX_SITES = 200_000
"""Call sites, before those without rows are left out."""


class Call(NamedTuple):
    """A row of `graph_call`: the op that calls, and the graph that it calls."""

    graph_id: int
    op_name: str
    attribute: str
    branch_index: int
    function_name: str
    callee_graph_id: int

    @property
    def suffix(self) -> str:
        """What follows the name of the op in a call site."""
        if self.attribute == "branches":
            return f"/branch{self.branch_index}"
        return _SUFFIXES.get(self.attribute, "")

    @property
    def is_loop(self) -> bool:
        """Whether it calls the condition or the body of a loop."""
        return self.attribute in LOOP


class Place(NamedTuple):
    """A graph at a call site of an outermost graph (-1 if no execution is known)."""

    root: int
    graph_id: int
    text: str


class CallSites:
    """The call sites of a run as dense numbers.

    Attributes:
        places: The graph and the text of each site.
        calls: The call that led to each site; None for an outermost graph, and if it is unknown.
        parents: The site of the calling op, -1 for none.
        depths: The number of calls around each site.
        loops: The number of the innermost loop around each site, -1 for none.
        loop_ops: (site, op) of each loop.
        children: The sites that the op of a site called: (site, op) -> sites.
        by_place: The number of each place.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self.places: list[Place] = []
        self.calls: list[Call | None] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.loops: list[int] = []
        self.loop_ops: dict[tuple[int, str], int] = {}
        self.children: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.by_place: dict[Place, int] = {}
        self.calls_of_graph: dict[int, list[Call]] = defaultdict(list)
        self._callers: dict[int, list[Call]] = defaultdict(list)
        self._found: dict[tuple[int, str, int], tuple[Call, str] | tuple[()] | None] = {}
        for call in calls:
            self.calls_of_graph[call.graph_id].append(call)
            self._callers[call.callee_graph_id].append(call)

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: Place) -> int:
        """Returns the number of a place, after it added the place and all around it. -1 if there are too many calls."""
        chain: list[tuple[Place, Call | None]] = []
        while place not in self.by_place:
            caller = self._caller(place.graph_id, place.text, place.root, depth=0)
            if caller is None:
                caller = self._caller(place.graph_id, place.text, -1, depth=0)
            chain.append((place, caller[0] if caller else None))
            if not caller:
                break
            place = Place(place.root, caller[0].graph_id, caller[1])
        site = self.by_place.get(place, -1)
        for inner, call in reversed(chain):
            site = self._append(inner, call, site if call is not None else -1)
        return site

    def add_silent(self, *, num_ops: dict[int, int], max_ops: int) -> None:
        """Adds the functions and branches that were called from the sites and left no row anywhere.

        Args:
            num_ops: The number of ops of each graph.
            max_ops: How many ops all sites may have.
        """
        left = max_ops - sum(num_ops.get(place.graph_id, 0) for place in self.places)
        for site, place in enumerate(self.places):  # which grows
            for call in self.calls_of_graph[place.graph_id]:
                text = f"{place.text}/{call.op_name}" if place.text else call.op_name
                inner = Place(place.root, call.callee_graph_id, text + call.suffix)
                is_there = any(self.calls[child] == call for child in self.children.get((site, call.op_name), ()))
                if is_there or call.is_loop or inner in self.by_place or self._is_inside(site, call.callee_graph_id):
                    continue
                left -= num_ops.get(call.callee_graph_id, 0)
                if left < 0 or len(self) >= _MAX_SITES:
                    return
                self._append(inner, call, site)

    def outermost(self, graph_id: int) -> int:
        """Returns the site of a graph that eager code called, -1 if there is none."""
        return self.by_place.get(Place(graph_id, graph_id, ""), -1)

    def _is_inside(self, site: int, graph_id: int) -> bool:
        """Returns whether a site is of a graph, or in a call of it. TensorFlow inlines no function into itself."""
        while site >= 0:
            if self.places[site].graph_id == graph_id:
                return True
            site = self.parents[site]
        return False

    def _append(self, place: Place, call: Call | None, parent: int) -> int:
        site = self.by_place[place] = len(self.places)
        self.places.append(place)
        self.calls.append(call)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        loop = self.loops[parent] if parent >= 0 else -1
        if call is not None:
            self.children[parent, call.op_name].append(site)
            if call.is_loop:
                loop = self.loop_ops.setdefault((parent, call.op_name), len(self.loop_ops))
        self.loops.append(loop)
        return site

    def _caller(self, graph_id: int, text: str, root: int, *, depth: int) -> tuple[Call, str] | tuple[()] | None:
        """Returns the call that leads to a graph, and the call site of the calling op.

        Returns:
            () for an outermost graph; None if no chain of calls fits the text.
        """
        if not text:
            return () if root in (-1, graph_id) else None
        if depth > _MAX_DEPTH or len(text) > _MAX_TEXT:
            return None
        key = graph_id, text, root
        if key not in self._found:
            self._found[key] = self._searched_caller(graph_id, text, root, depth=depth)
        return self._found[key]

    def _searched_caller(self, graph_id: int, text: str, root: int, *, depth: int) -> tuple[Call, str] | None:
        for number in ("", r"_\d+"):  # TensorFlow may have renamed a loop
            for call in self._callers[graph_id]:
                pattern = rf"(?:(.*)/)?{re.escape(call.op_name)}{number}{call.suffix}(?:/_\d+)?"
                matched = re.fullmatch(pattern, text, re.DOTALL)
                outer = "" if matched is None else matched[1] or ""
                if matched is not None and self._caller(call.graph_id, outer, root, depth=depth + 1) is not None:
                    return call, outer
        return None
