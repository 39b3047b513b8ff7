"""Visits: the passes in which each call site ran, and the pass in which each frame of a loop was entered."""

from __future__ import annotations

import numpy as np

from tfdbg_arrow.link.arrays import Bools, Ints, distinct, grouped, has, ints, joined, place_of, ranges
from tfdbg_arrow.link.call_chains import BRANCHES
from tfdbg_arrow.link.call_sites import Call, CallSites, Place
from tfdbg_arrow.link.frame_entries import find_iterations
from tfdbg_arrow.link.passes import Passes
from tfdbg_arrow.link.sessions import Sessions
from tfdbg_arrow.link.tables import Tables, rows_of

_PLACES = """
SELECT p.root, s.graph_id, s.call_site FROM linked_seen AS s
JOIN linked_step AS p ON p.step_id = s.step_id
UNION
SELECT root, root, '' FROM linked_step WHERE root >= 0
UNION
SELECT root, graph_id, '' FROM linked_session WHERE root IN (SELECT root FROM linked_step)
ORDER BY ALL"""
_CALLS = """
SELECT graph_id, op_name, attribute, branch_index, function_name, callee_graph_id FROM graph_call
WHERE is_inline AND callee_graph_id IS NOT NULL
ORDER BY ALL"""
_VISITS = """
SELECT DISTINCT f.start + s.iteration AS pass, t.site FROM linked_seen AS s
JOIN linked_frame AS f ON f.step_id = s.step_id AND f.frame_id = s.frame_id
JOIN linked_site AS t ON t.root = f.root AND t.graph_id = s.graph_id AND t.text = s.call_site"""


def read_call_sites(tables: Tables, sessions: Sessions, *, max_ops: int) -> CallSites:
    """Returns the call sites of a run. Needs the temporary tables of `Passes`.

    Args:
        tables: The tables of the run.
        sessions: The runs of sessions.
        max_ops: Maximum number of ops at all sites. Beyond this number, functions and branches without rows are left
            out.
    """
    sites = CallSites((Call(*row) for row in rows_of(tables.columns(_CALLS))), sessions)
    for row in rows_of(tables.columns(_PLACES)):
        sites.add(Place(*row))
    counted = rows_of(tables.columns("SELECT graph_id, count(*) AS num_ops FROM graph_op GROUP BY graph_id"))
    sites.add_silent(num_ops=dict(counted), max_ops=max_ops)
    return sites


class Visits:
    """The passes in which each site ran.

    Args:
        tables: The tables of the run, with the temporary tables of `Passes` and `Ops`.
        sites: The call sites.
        passes: The passes.
        skips_iterations: Whether loops have rows only for some iterations. If so, it is unknown whether an iteration
            without rows ran.

    Attributes:
        keys: Sorted `pass * number of sites + site`.
        entry: The pass in which each frame was entered, -1 outside loops, or if the pass is unknown.
        outer_pass: The outermost pass of each step.
    """

    def __init__(self, tables: Tables, sites: CallSites, passes: Passes, *, skips_iterations: bool) -> None:
        self._sites, self._passes, self._skips_iterations = sites, passes, skips_iterations
        self._num_sites = max(len(sites), 1)
        self._parent, self._depth, self._loop = ints(sites.parents), ints(sites.depths), ints(sites.loops)
        self._loop_ops = list(sites.loop_ops)
        self._is_loop = np.array([call is not None and call.is_loop for call in sites.calls], bool)
        self._is_body = np.array([call is not None and call.attribute == "body" for call in sites.calls], bool)
        is_outside = passes.frame_id == 0
        self.outer_pass: Ints = np.full(int(passes.step.max(initial=-1)) + 1, -1)
        self.outer_pass[passes.step[is_outside]] = passes.start[is_outside]
        self.entry: Ints = np.full(len(passes.start), -1)
        self._frame_loop: Ints = np.full(len(passes.start), -1)
        self._last_body: Ints = np.full(len(passes.start), -1)
        self.keys = self._first_visits(tables)
        self._enter_loops()
        entered = np.nonzero((self.entry >= 0) & (self._frame_loop >= 0))[0]
        self._num_loops = max(len(sites.loop_ops), 1)
        lost = np.nonzero((self.entry < 0) & (self._frame_loop >= 0))[0]
        self._unknown_entries = distinct(passes.step[lost] * self._num_loops + self._frame_loop[lost])
        keys = self.entry[entered] * self._num_loops + self._frame_loop[entered]
        order = np.argsort(keys, kind="stable")
        self._entered, self._entered_frame = keys[order], entered[order]

    def has(self, passes: Ints, sites: Ints) -> Bools:
        """Returns, for each pair of a pass and a site, whether the site ran in the pass."""
        return has(passes * self._num_sites + sites, self.keys)

    def of_sites(self, sites: Ints) -> tuple[Ints, Ints]:
        """Returns (passes, sites) of all visits of the given sites."""
        passes, site = np.divmod(self.keys, self._num_sites)
        wanted = has(site, sites)
        return passes[wanted], site[wanted]

    def last_pass(self, passes: Ints, loops: Ints) -> Ints:
        """Returns the last pass of the body of the loops that were entered in passes; -1 if the body did not run."""
        entered_index = place_of(passes * self._num_loops + np.maximum(loops, 0), self._entered)
        if not len(self._entered):
            return np.full(len(passes), -1)
        frame = self._entered_frame[np.maximum(entered_index, 0)]
        last = self._last_body[frame]
        return np.where((entered_index >= 0) & (loops >= 0) & (last >= 0), self._passes.start[frame] + last, -1)

    def has_known_entries(self, passes: Ints, loops: Ints) -> Bools:
        """Returns whether the entries of all frames of a loop are known, in the step of a pass."""
        step = self._passes.step[self._passes.frame_of(passes)]
        return ~has(step * self._num_loops + np.maximum(loops, 0), self._unknown_entries) | (loops < 0)

    def silent_branches(self, silent_sites: set[int]) -> tuple[Ints, Ints]:
        """Returns (passes, sites) of the branches that may have run without a row, and of the functions that they call.

        Args:
            silent_sites: The branches that leave no row of their own.
        """
        found_passes, found_sites = [], []
        of_site = _PassesOfSites(self.keys, self._num_sites)
        for (parent, _), children in self._sites.children.items():
            call = self._sites.calls[children[0]]
            maybe = [child for child in children if child in silent_sites]
            if call is None or call.attribute not in BRANCHES or not maybe:
                continue
            callers = of_site.get(parent)
            has_run = joined([of_site.get(child) for child in children])
            silent = callers[~has(callers, distinct(has_run))]
            inside = self._below(maybe) if len(silent) else []
            found_passes.append(np.repeat(silent, len(inside)))
            found_sites.append(np.tile(ints(inside), len(silent)))
        return joined(found_passes), joined(found_sites)

    def _below(self, sites: list[int]) -> list[int]:
        sites_below = list(sites)
        for site in sites_below:  # the loop appends to this list
            for call in self._sites.calls_of_graph[self._sites.places[site].graph_id]:
                children = self._sites.children.get((site, call.op_name), ())
                sites_below += [child for child in children if self._sites.calls[child] == call]
        return sites_below

    def _passes_of(self, site: int) -> Ints:
        passes: Ints = self.keys[self.keys % self._num_sites == site] // self._num_sites
        return passes

    def _first_visits(self, tables: Tables) -> Ints:
        """Returns the visits with rows and the visits of outermost graphs, and notes the loop of each frame."""
        seen = tables.columns(_VISITS)
        roots = ints([self._sites.outermost(root) for root in self._passes.root.tolist()])
        at = np.nonzero((self._passes.frame_id == 0) & (roots >= 0))[0]
        keys = joined(
            [seen["pass"] * self._num_sites + seen["site"], self._passes.start[at] * self._num_sites + roots[at]]
        )
        frame = self._passes.frame_of(keys // self._num_sites)
        in_loop = (self._passes.frame_id[frame] != 0) & (self._loop[keys % self._num_sites] >= 0)
        self._frame_loop[frame[in_loop]] = self._loop[keys[in_loop] % self._num_sites]
        return distinct(keys)

    def _enter_loops(self) -> None:
        """Finds the entries of all frames. Outer loops come first."""
        parents = ints([parent for parent, _ in self._loop_ops])
        outer_loop = self._loop[parents] if len(parents) else parents
        simple = np.nonzero(self._frame_loop >= 0)[0]
        simple = simple[outer_loop[self._frame_loop[simple]] < 0] if len(simple) else simple
        self.entry[simple] = self.outer_pass[self._passes.step[simple]]
        self.keys = self._closed(self.keys)
        inner = [loop for loop in range(len(parents)) if outer_loop[loop] >= 0]
        for loop in sorted(inner, key=lambda inner_loop: int(self._depth[parents[inner_loop]])):
            frames = np.nonzero(self._frame_loop == loop)[0]
            if len(frames):
                self._enter(frames, loop)
                self.keys = self._closed(self.keys)

    def _enter(self, frames: Ints, loop: int) -> None:
        """Finds the passes of the calling graph in which the frames of a nested loop were entered."""
        parent, _ = self._loop_ops[loop]
        callers = [parent]  # the parent, and its callers up to the next loop in case the parent has no rows
        while self._parent[callers[-1]] >= 0 and not self._is_loop[callers[-1]]:
            callers.append(int(self._parent[callers[-1]]))
        ran = [_by_step(self._passes, self._passes_of(site)) for site in callers]
        outer = int(self._loop[parent])
        keys = self.keys[self._loop[self.keys % self._num_sites] == outer]
        with_rows = set(self._passes.step[self._passes.frame_of(keys // self._num_sites)].tolist())
        step_of_frame = self._passes.step[frames]
        order = np.argsort(step_of_frame, kind="stable")
        for here in np.split(frames[order], np.nonzero(np.diff(step_of_frame[order]))[0] + 1):
            step = int(self._passes.step[here[0]])
            entries = next((of_step[step] for of_step in ran if step in of_step), here[:0])
            if len(entries):
                self.entry[here] = self._passes.entries_of(here, entries)
            elif step not in with_rows:
                self.entry[here] = self._add_frame(here, outer, loop)

    def _add_frame(self, inner: Ints, outer: int, loop: int) -> Ints:
        """Adds a frame for a loop without rows.

        Args:
            inner: The frames of the inner loop in one step.
            outer: The loop without rows.
            loop: The inner loop.

        Returns:
            The new pass in which each inner frame was entered, -1 if it is unknown.
        """
        parent, _ = self._loop_ops[outer]
        site, outer_site = (
            self._sites.places[self._sites.children[self._loop_ops[at]][0]].text for at in (loop, outer)
        )
        frame_ids = self._passes.frame_id[inner].tolist()
        iteration_of = find_iterations(frame_ids, site=site, outer_site=outer_site)
        if self._loop[parent] >= 0 or not iteration_of:
            return np.full(len(inner), -1)
        iterations = ints([iteration_of[frame_id] for frame_id in frame_ids])
        frame = self._passes.add_frame(int(inner[0]), int(iterations.max()) + 1)
        self.entry = np.append(self.entry, self.outer_pass[self._passes.step[frame]])
        self._frame_loop = np.append(self._frame_loop, outer)
        self._last_body = np.append(self._last_body, iterations.max())
        return int(self._passes.start[frame]) + iterations

    def _closed(self, keys: Ints) -> Ints:
        """Returns the given visits, and the visits that follow from them.

        The callers, all iterations of a body, and functions without rows must also have been visited.
        """
        keys = self._with_callers(keys)
        passes, site = np.divmod(keys, self._num_sites)
        at = self._is_body[site] if len(site) else np.empty(0, bool)
        frame = self._passes.frame_of(passes[at])
        np.maximum.at(self._last_body, frame, passes[at] - self._passes.start[frame])
        if at.any() and not self._skips_iterations:
            pairs = distinct(frame * self._num_sites + site[at])
            in_frame, body = np.divmod(pairs, self._num_sites)
            first = self._passes.start[in_frame]
            item, body_pass = ranges(first, first + self._last_body[in_frame] + 1)
            keys = distinct(np.concatenate([keys, body_pass * self._num_sites + body[item]]))
        of_site = _PassesOfSites(keys, self._num_sites)
        for (parent, _), children in self._sites.children.items():  # a caller comes before its callees
            call = self._sites.calls[children[0]]
            if call is not None and not call.is_loop and call.attribute not in BRANCHES:
                callers = of_site.get(parent)
                has_run = joined([of_site.get(child) for child in children])
                of_site.add(children[0], callers[~has(callers, distinct(has_run))])
        return of_site.keys()

    def _with_callers(self, keys: Ints) -> Ints:
        for depth in range(int(self._depth[keys % self._num_sites].max(initial=0)) if len(keys) else 0, 0, -1):
            passes, site = np.divmod(keys[self._depth[keys % self._num_sites] == depth], self._num_sites)
            outer = np.where(self._is_loop[site], self.entry[self._passes.frame_of(passes)], passes)
            is_known = (outer >= 0) & (self._parent[site] >= 0)
            keys = np.concatenate([keys, outer[is_known] * self._num_sites + self._parent[site][is_known]])
            keys = distinct(keys)
        return keys


def _by_step(passes: Passes, ran: Ints) -> dict[int, Ints]:
    """Returns the given passes of each step, in their order."""
    step = passes.step[passes.frame_of(ran)]
    order = np.argsort(step, kind="stable")
    parts = np.split(ran[order], np.nonzero(np.diff(step[order]))[0] + 1) if len(ran) else []
    return {int(passes.step[passes.frame_of(part[:1])][0]): part for part in parts}


class _PassesOfSites:
    """The visits by site. More visits can be added."""

    def __init__(self, keys: Ints, num_sites: int) -> None:
        self._num_sites = num_sites
        order, self._starts = grouped(keys % num_sites, num_sites)
        self._passes = keys[order] // num_sites
        self._added: dict[int, Ints] = {}
        self._keys = keys

    def get(self, site: int) -> Ints:
        """Returns the passes in which a site ran."""
        here = self._passes[self._starts[site] : self._starts[site + 1]]
        return np.concatenate([here, self._added[site]]) if site in self._added else here

    def add(self, site: int, passes: Ints) -> None:
        """Adds passes in which a site ran."""
        if len(passes):
            self._added[site] = joined([self._added.get(site, passes[:0]), passes])

    def keys(self) -> Ints:
        """Returns all visits."""
        return distinct(
            joined([self._keys, *(passes * self._num_sites + site for site, passes in self._added.items())])
        )
