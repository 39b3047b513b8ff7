"""CallSites: the tree of calls through which graphs ran, read from the texts in `tensor_health.call_site`.

A call site is a graph at one place of an outermost graph. A function that is called twice has two call sites. See
"Callers" in the specification.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tfdbg_arrow.link.call_chains import LOOP, CallChains, call_suffix, join_site
from tfdbg_arrow.link.sessions import Sessions

_MAX_SITES = 200_000
"""Maximum number of call sites. Beyond this number, call sites without rows are left out. Only a hostile logdir has
more call sites."""


class Call(NamedTuple):
    """A row of `graph_call`: the op that calls, and the graph that it calls."""

    graph_id: int
    op_name: str
    attribute: str
    branch_index: int
    function_name: str
    callee_graph_id: int

    @property
    def is_loop(self) -> bool:
        """Whether the op calls the condition or the body of a loop."""
        return self.attribute in LOOP


class Place(NamedTuple):
    """A graph at a call site of an outermost graph.

    The root is the outermost graph, the `root` of a session's function, or -1 if no execution is known.
    """

    root: int
    graph_id: int
    text: str


class CallSites:
    """The call sites of a run, numbered from 0.

    Args:
        calls: The calls of the run.
        sessions: The runs of sessions.

    Attributes:
        sessions: The runs of sessions.
        places: The root, the graph and the `call_site` text of each site.
        calls: The call that led to each site; None for an outermost graph, or if the call is unknown.
        parents: The site of the op that called each site, -1 for none.
        depths: The number of calls around each site.
        loops: The number of the innermost loop around each site, -1 for none.
        loop_ops: (site, op) of each loop -> number of the loop.
        children: (site, op) -> sites that the op called.
        by_place: The number of each place.
    """

    def __init__(self, calls: Iterable[Call], sessions: Sessions) -> None:
        self.sessions = sessions
        self.places: list[Place] = []
        self.calls: list[Call | None] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.loops: list[int] = []
        self.loop_ops: dict[tuple[int, str], int] = {}
        self.children: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.by_place: dict[Place, int] = {}
        self.calls_of_graph: dict[int, list[Call]] = defaultdict(list)
        callers: dict[int, list[Call]] = defaultdict(list)
        for call in calls:
            self.calls_of_graph[call.graph_id].append(call)
            callers[call.callee_graph_id].append(call)
        self._chains = CallChains(callers.__getitem__)

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: Place) -> int:
        """Adds a place and the places of all calls around it, and returns the number of the place."""
        if place in self.by_place:
            return self.by_place[place]
        levels = self._chains.levels(place.graph_id, place.text, root=self.sessions.graph_of(place.root))
        if levels is None:
            levels = self._chains.levels(place.graph_id, place.text, root=None) or ()
        places = [Place(place.root, level.call.graph_id, level.site) for level in levels] + [place]
        site = -1
        for inner, call in zip(places, [None, *(level.call for level in levels)], strict=True):
            site = self.by_place[inner] if inner in self.by_place else self._append(inner, call, site)
        return site

    def add_silent(self, *, num_ops: dict[int, int], max_ops: int) -> None:
        """Adds the functions and branches that were called from the sites and left no row anywhere.

        Args:
            num_ops: The number of ops of each graph.
            max_ops: Maximum number of ops at all sites together.
        """
        ops_left = max_ops - sum(num_ops.get(place.graph_id, 0) for place in self.places)
        for site, place in enumerate(self.places):  # the loop appends to this list
            for call in self.calls_of_graph[place.graph_id]:
                text = join_site(place.text, call.op_name) + call_suffix(call)
                inner = Place(place.root, call.callee_graph_id, text)
                is_there = any(self.calls[child] == call for child in self.children.get((site, call.op_name), ()))
                if is_there or call.is_loop or inner in self.by_place or self._is_inside(site, call.callee_graph_id):
                    continue
                if not self.sessions.has_run(*place, call.op_name):
                    continue
                ops_left -= num_ops.get(call.callee_graph_id, 0)
                if ops_left < 0 or len(self) >= _MAX_SITES:
                    return
                self._append(inner, call, site)

    def outermost(self, root: int) -> int:
        """Returns the site of a graph that eager code called or a session ran, -1 if there is none."""
        graph_id = self.sessions.graph_of(root)
        return -1 if graph_id is None else self.by_place.get(Place(root, graph_id, ""), -1)

    def _is_inside(self, site: int, graph_id: int) -> bool:
        """Returns whether a site belongs to a graph or is inside a call of the graph.

        TensorFlow inlines no function into itself.
        """
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
