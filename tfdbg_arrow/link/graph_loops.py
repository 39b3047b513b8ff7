"""GraphLoops: the loops and branches of TensorFlow 1, which consist of ops of the graph itself.

Enter ops lead into a loop, and Exit ops lead out of the loop. The ops of a loop run in frames of their own.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tfdbg_arrow.link.arrays import Bools, Ints, ranges
from tfdbg_arrow.link.edges import Column, Way
from tfdbg_arrow.link.ops import Ops
from tfdbg_arrow.link.passes import Passes
from tfdbg_arrow.link.tables import Tables, rows_of
from tfdbg_arrow.schema.op_traits import Trait, types_with

ENTERS, EXITS = types_with(Trait.ENTERS), types_with(Trait.EXITS)
MERGES, NEXT_ITERATIONS = types_with(Trait.MERGES), types_with(Trait.NEXT)
_BORDERS = ENTERS | EXITS
_BORDER_TYPES = f"{tuple(sorted(_BORDERS | MERGES | NEXT_ITERATIONS))}"

_GRAPHS = "graph_id IN (SELECT graph_id FROM graph_op WHERE op_type IN {enters})"
_OPS_OF_LOOPS = "SELECT op, op_name, site, graph_id FROM linked_op WHERE NOT is_made AND " + _GRAPHS
_FRAMES = """
SELECT f.frame, o.op, max(h.iteration) AS last FROM tensor_health AS h
JOIN linked_frame AS f ON f.step_id = h.step_id AND f.frame_id = h.frame_id
JOIN linked_op AS o
ON o.root = f.root AND o.graph_id = h.graph_id AND o.text = h.call_site AND o.op_name = h.op_name
WHERE h.scope = 'graph' AND h.frame_id <> 0 AND NOT o.is_made AND {graphs}
GROUP BY f.frame, o.op"""


class GraphLoops:
    """The TensorFlow 1 loops of a run.

    Args:
        tables: The tables of the run, with the temporary tables of `Passes` and `Ops`.
        ops: The ops.
        passes: The passes.
        outer_pass: The outermost pass of each step.
        loop_of_site: The innermost loop of `CallSites` around each call site, -1 for none.

    Attributes:
        loop: The number of the loop around each op, -1 for none. An Enter is inside its loop, and an Exit is outside.
        entry: The pass in which each frame of these loops was entered, -1 for other frames, or if the pass is unknown.
        is_enter: Whether each op hands a tensor into a loop.
        is_border: Whether each op is at a border of a loop or joins branches.
    """

    def __init__(self, tables: Tables, ops: Ops, passes: Passes, outer_pass: Ints, loop_of_site: Ints) -> None:
        self.loop: Ints = np.full(len(ops), -1)
        self.entry: Ints = np.full(len(passes.start), -1)
        types = tables.columns(f"SELECT op, op_type FROM linked_op WHERE NOT is_made AND op_type IN {_BORDER_TYPES}")
        self.is_enter, self._is_exit, self._is_next, self._is_merge = (
            _flags(types["op"][[op_type in of_kind for op_type in types["op_type"]]], len(ops))
            for of_kind in (ENTERS, EXITS, NEXT_ITERATIONS, MERGES)
        )
        self.is_border: Bools = self.is_enter | self._is_exit | self._is_next | self._is_merge
        self._ops, self._passes, self._loop_of_site = ops, passes, loop_of_site
        self._loop_of_frame: Ints = np.full(len(passes.start), -1)
        self._last: Ints = np.full(len(passes.start), -1)
        """For each frame, the last iteration in which a loop variable has a row. The iteration in which the loop ended
        counts, too."""
        self._is_loop_merge: Bools = np.zeros(len(ops), bool)
        self._parents: list[int] = []
        enters = f"{tuple(sorted(ENTERS))}"
        parts = _read_parts(tables, enters)
        if parts:
            self._number_loops(tables, enters, parts)
            self._enter(tables, enters, outer_pass)
        order = np.nonzero(self.entry >= 0)[0]
        keys = self.entry[order] * self._num_loops + self._loop_of_frame[order]
        by_key = np.argsort(keys, kind="stable")
        self._entered, self._frame = keys[by_key], order[by_key]

    def with_ways(self, columns: list[Column]) -> list[Column]:
        """Returns edges of ops. The edges of loops and branches get their own ways.

        For ops at borders, the edges of optimized graphs are left out: these ops have the edges of the program.
        """
        if not self.is_border.any():
            return columns
        parts = []
        for owner, index, source, way, detail in columns:
            is_at_border = self.is_border[owner]
            plain = ~is_at_border
            parts.append((owner[plain], index[plain], source[plain], way, detail[plain]))
            if way == Way.SAME:
                is_at_border &= detail < 0
            made_by = self._ops.of_tensor[source]
            is_next, is_enter, is_merge = self._is_next[made_by], self.is_enter[made_by], self._is_merge[owner]
            for border_way, is_here in (
                (Way.ENTRY, self.is_enter[owner]),
                (Way.PREVIOUS, self._is_next[owner]),
                (Way.LAST, self._is_exit[owner]),
                (Way.LATER, is_merge & is_next),
                (Way.FIRST, is_merge & is_enter),
                (Way.MERGED, is_merge & ~is_next & ~is_enter),
            ):
                at = np.nonzero(is_at_border & is_here)[0]
                parts.append((owner[at], index[at], source[at], border_way, self.loop[made_by[at]]))
        return parts

    @property
    def _num_loops(self) -> int:
        return max(len(self._parents), 1)

    def has_run(self, passes: Ints, op: Ints) -> Bools:
        """Returns which ops can have run in passes of their graphs. The ops of a loop run only in the loop's frames."""
        frame = self._passes.frame_of(passes)
        is_outside = (self.loop[op] < 0) & (self._loop_of_site[self._ops.site[op]] < 0)
        has_run: Bools = (self.loop[op] == self._loop_of_frame[frame]) & (
            ~is_outside | (self._passes.frame_id[frame] == 0)
        )
        return has_run

    def last_pass(self, passes: Ints, loops: Ints) -> Ints:
        """Returns the last pass of loops that were entered in passes, -1 if the last pass is unknown.

        In the last pass, the condition ended the loop.
        """
        last = np.full(len(passes), -1)
        if len(self._entered):
            keys = passes * self._num_loops + np.maximum(loops, 0)
            first, end = (np.searchsorted(self._entered, keys, side) for side in ("left", "right"))
            is_one = (loops >= 0) & (end - first == 1)
            frame = self._frame[first[is_one]]
            last[is_one] = np.where(self._last[frame] >= 0, self._passes.start[frame] + self._last[frame], -1)
        return last

    def _number_loops(self, tables: Tables, enters: str, parts: dict[int, dict[str, tuple[int, int, bool]]]) -> None:
        """Gives each loop of each call site a number."""
        numbers: dict[tuple[int, int], int] = {}
        outer: dict[int, tuple[int, int]] = {}
        for op, name, site, graph_id in rows_of(tables.columns(_OPS_OF_LOOPS.format(enters=enters) + " ORDER BY op")):
            part, parent, is_merge = parts[graph_id].get(name, (-1, -1, False))
            self._is_loop_merge[op] = is_merge
            if part >= 0:
                number = numbers.setdefault((site, part), len(numbers))
                self.loop[op] = number
                outer[number] = site, parent
        self._parents = [numbers.get(outer[number], -1) for number in range(len(numbers))]

    def _enter(self, tables: Tables, enters: str, outer_pass: Ints) -> None:
        """Finds the loop of each frame, and the pass that entered the frame. Outer loops come first."""
        seen = tables.columns(_FRAMES.format(graphs="o." + _GRAPHS.format(enters=enters)))
        in_loop = self.loop[seen["op"]] >= 0
        self._loop_of_frame[seen["frame"][in_loop]] = self.loop[seen["op"][in_loop]]
        is_merge = in_loop & self._is_loop_merge[seen["op"]]
        np.maximum.at(self._last, seen["frame"][is_merge], seen["last"][is_merge])
        passes = self._passes
        for loop in sorted(range(len(self._parents)), key=self._depth):
            frames = np.nonzero(self._loop_of_frame == loop)[0]
            for step in np.unique(passes.step[frames]).tolist():
                here = frames[passes.step[frames] == step]
                if self._parents[loop] < 0:
                    self.entry[here] = outer_pass[step]
                    continue
                outer = np.nonzero((self._loop_of_frame == self._parents[loop]) & (passes.step == step))[0]
                _, entries = ranges(passes.start[outer], passes.start[outer] + passes.num_passes[outer])
                self.entry[here] = passes.entries_of(here, entries)

    def _depth(self, loop: int) -> int:
        depth = 0
        while self._parents[loop] >= 0 and depth <= len(self._parents):
            loop, depth = self._parents[loop], depth + 1
        return depth


def _flags(places: Ints, size: int) -> Bools:
    flags = np.zeros(size, bool)
    flags[places] = True
    return flags


def _read_parts(tables: Tables, enters: str) -> dict[int, dict[str, tuple[int, int, bool]]]:
    """Returns (part, outer part or -1, whether the op merges a loop variable) of each op in a loop, by graph and name.

    Ops that are connected without passing an Enter or an Exit run in the same frames. Together, such ops are a part of
    the graph.
    """
    where = _GRAPHS.format(enters=enters)
    types: dict[int, dict[str, str]] = defaultdict(dict)
    for graph_id, name, op_type in rows_of(
        tables.columns(f"SELECT graph_id, op_name, op_type FROM graph_op WHERE {where}")
    ):
        types[graph_id][name] = op_type
    edges: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for graph_id, source, name in rows_of(
        tables.columns(f"SELECT graph_id, source_op_name, op_name FROM graph_op_input WHERE {where}")
    ):
        edges[graph_id].append((source, name))
    return {graph_id: _parts(types[graph_id], edges[graph_id]) for graph_id in types}


def _parts(types: dict[str, str], edges: list[tuple[str, str]]) -> dict[str, tuple[int, int, bool]]:
    number = {name: place for place, name in enumerate(types)}
    leader = list(range(len(number)))

    def lead(place: int) -> int:
        while leader[place] != place:
            leader[place] = leader[leader[place]]
            place = leader[place]
        return place

    for source, name in edges:
        if source in number and name in number and types[name] not in _BORDERS:
            leader[lead(number[source])] = lead(number[name])
    loops = {lead(number[name]) for name, op_type in types.items() if op_type in ENTERS}
    around: dict[int, int] = {}
    for source, name in edges:
        if source in number and name in number and types[name] in ENTERS and (part := lead(number[source])) in loops:
            around[lead(number[name])] = part
    merged = {name for source, name in edges if types.get(source) in NEXT_ITERATIONS and types.get(name) in MERGES}
    return {
        name: (part, around.get(part, -1), name in merged)
        for name, place in number.items()
        if (part := lead(place)) in loops
    }
