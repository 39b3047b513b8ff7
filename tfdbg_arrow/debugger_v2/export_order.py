"""Orders the graph tensors of each call by data flow, because readers of a dump go by the order in its file.

Tensors are recorded in the order of their arrival, in which an op can come before one of its inputs, or before an op
that was created earlier and does not depend on it. The order here is one in which TensorFlow could have run the nodes
of the graph one at a time: a node comes after its inputs, an iteration of a loop after the one before it, and otherwise
ops are in the order of their creation.

Source: spec/README.md, "Order" and "Data flow".
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.debugger_v2.export_tables import KeyedRows, RunTables, to_rows
from tfdbg_arrow.link.call_chains import CallChains
from tfdbg_arrow.query.flow.callsites import find_entries
from tfdbg_arrow.query.flow.executed_graphs import ENTERS, EXITS, NEXT_ITERATIONS

_WINDOW = 65536
_MAX_GRAPHS = 256
"""Maximum number of graphs and of optimized graphs that stay in memory."""
_LOOP = -1
"""Stands in a path for the iteration of a loop."""
_OWN = 2**62
"""Ends the path of an op, after the paths of the ops that run inside it."""
_MAX_KNOWN = 64
"""Maximum number of calls whose order stays in memory, because later calls often have the same rows."""
_MAX_KNOWN_ROWS = 4096
"""Maximum number of rows of such a call."""

_Path = tuple[int, ...]
"""Where an op comes in its call: its rank, or the rank of the loop or call around it and its path inside."""
_Site = tuple[int, str, str]
"""A graph, its call site, and an op or node in it."""
_Ids = npt.NDArray[np.int64]
_Part = tuple[pa.Table, _Ids]
"""Rows, and for each the event_index of the last row of its call, which no other call has."""


class CallRow(NamedTuple):
    """The columns of tensor_health that determine the place of a row in its step."""

    graph_id: int
    call_site: str | None
    op_name: str
    output_slot: int | None
    frame_id: int | None
    iteration: int | None
    executed_graph_id: int | None


CALL_COLUMNS = ("execution_index", "step_id", "event_index", "wall_time_ns", *CallRow._fields)
"""The columns of tensor_health that determine the order, and that rows to be ordered must have."""


def ordered_calls(rows: KeyedRows, order: CallOrder) -> Iterator[pa.Table]:
    """Yields graph tensors in the order in which they are to be written: by the end of their calls, then by data flow.

    The rows of the calls that are running at the same time stay in memory, and 16 bytes for each call of the run.

    Args:
        rows: The rows of tensor_health of scope `graph`, by event_index, with CALL_COLUMNS.
        order: The order within a call.

    Yields:
        The rows of some calls. Their `wall_time_ns` are those of their call in ascending order.
    """
    lasts = _Lasts(rows)
    not_ended: list[_Part] = []
    for _, end, window in rows.windows(_WINDOW):
        parts = [*not_ended, (window, lasts.of(window))]
        ended = list(_of_calls(parts, end, have_ended=True))
        not_ended = list(_of_calls(parts, end, have_ended=False))
        if ended:
            tables, ends = zip(*ended, strict=True)
            yield _in_order(pa.concat_tables(tables), np.concatenate(ends), order)


def _of_calls(parts: Iterable[_Part], end: int, *, have_ended: bool) -> Iterator[_Part]:
    """Yields the rows of calls that have, or have not, ended before an event."""
    for table, lasts in parts:
        is_chosen = (lasts < end) == have_ended
        if is_chosen.all():  # often, because a long call fills whole tables
            yield table, lasts
        elif is_chosen.any():
            yield table.filter(pa.array(is_chosen)), lasts[is_chosen]


def _in_order(calls: pa.Table, lasts: _Ids, order: CallOrder) -> pa.Table:
    """Returns the rows of some calls in order.

    Args:
        calls: The rows, by event_index.
        lasts: The event_index of the last row of each row's call.
        order: The order within a call.
    """
    by_call = np.argsort(lasts, kind="stable")
    lasts = lasts[by_call]
    starts = [0, *(np.flatnonzero(lasts[1:] != lasts[:-1]) + 1).tolist(), len(lasts)]
    steps = calls["step_id"].take(pa.array(by_call)).to_pylist()
    rows = [CallRow(*row) for row in to_rows(calls.select(CallRow._fields).take(pa.array(by_call)))]
    within = np.concatenate(
        [np.add(order.permutation(steps[start:stop], rows[start:stop]), start) for start, stop in pairwise(starts)]
    )
    times = calls["wall_time_ns"].to_numpy()[by_call]
    times = times[np.lexsort((times, lasts))]
    ordered = calls.take(pa.array(by_call[within]))
    return ordered.set_column(ordered.column_names.index("wall_time_ns"), "wall_time_ns", pa.array(times, pa.int64()))


def _call_ids(rows: pa.Table) -> tuple[npt.NDArray[np.bool_], _Ids, npt.NDArray[np.bool_]]:
    """Returns for each row whether its call is given by an execution, the execution or step, and whether it is known.

    The functions that TensorFlow did not inline have steps of their own in the same execution.
    """
    is_execution = rows["execution_index"].is_valid().to_numpy()
    has_step = rows["step_id"].is_valid().to_numpy()
    executions = rows["execution_index"].fill_null(0).to_numpy()
    steps = rows["step_id"].fill_null(0).to_numpy()
    return is_execution, np.where(is_execution, executions, steps), is_execution | has_step


class _Lasts:
    """The event_index of the last row of each call."""

    def __init__(self, rows: KeyedRows) -> None:
        parts: dict[bool, list[tuple[_Ids, _Ids]]] = {True: [], False: []}
        for _, _, window in rows.windows(_WINDOW):
            is_execution, ids, is_known = _call_ids(window)
            events = window["event_index"].to_numpy()
            for kind, kind_parts in parts.items():
                chosen = is_known & (is_execution == kind)
                kind_parts.append(_last_of_each(ids[chosen], events[chosen]))
        self._lasts = {
            kind: _last_of_each(*(np.concatenate(arrays) for arrays in zip(*kind_parts, strict=True)))
            for kind, kind_parts in parts.items()
            if kind_parts
        }

    def of(self, rows: pa.Table) -> _Ids:
        """Returns the event_index of the last row of each row's call; its own if the call is unknown."""
        is_execution, ids, is_known = _call_ids(rows)
        lasts: _Ids = rows["event_index"].to_numpy().copy()
        for kind, (call_ids, events) in self._lasts.items():
            chosen = is_known & (is_execution == kind)
            lasts[chosen] = events[np.searchsorted(call_ids, ids[chosen])]
        return lasts


def _last_of_each(ids: _Ids, events: _Ids) -> tuple[_Ids, _Ids]:
    """Returns the distinct ids in ascending order, and the last event of each; events must be in ascending order."""
    distinct, last_indexes = np.unique(ids[::-1], return_index=True)
    return distinct, events[::-1][last_indexes]


@dataclass(frozen=True)
class _Caller:
    """An op that calls a graph."""

    graph_id: int
    op_name: str
    attribute: str
    branch_index: int


class CallOrder:
    """The order of data flow within calls.

    Args:
        tables: The run's tables.
    """

    def __init__(self, tables: RunTables) -> None:
        self._ops = tables.keyed("graph_op", "graph_id", ("op_name", "op_index"))
        self._nodes = tables.keyed(
            "executed_op",
            "executed_graph_id",
            ("node_name", "op_type", "graph_id", "op_name", "made_for", "call_site"),
        )
        self._edges = tables.keyed("executed_op_input", "executed_graph_id", ("node_name", "source_node_name"))
        self._callers: dict[int, list[_Caller]] = defaultdict(list)
        columns = ("callee_graph_id", "graph_id", "op_name", "attribute", "branch_index")
        for callee, *caller in tables.rows("graph_call", columns):
            if callee is not None:
                self._callers[callee].append(_Caller(*caller))
        self._op_indexes = lru_cache(maxsize=_MAX_GRAPHS)(self._read_op_indexes)
        self._paths_in = lru_cache(maxsize=_MAX_GRAPHS)(self._find_paths)
        self._chains = CallChains(lambda graph_id: self._callers.get(graph_id, ()))
        self._cached_permutation = lru_cache(maxsize=_MAX_KNOWN)(self._find_permutation)

    def permutation(self, steps: Sequence[int | None], rows: Sequence[CallRow]) -> list[int]:
        """Returns the places of the rows of one call in the order of data flow.

        Args:
            steps: The step_id of each row.
            rows: The rows, in the order of their arrival.
        """
        numbers: dict[int | None, int] = {}
        numbered = tuple(numbers.setdefault(step, len(numbers)) for step in steps)
        find = self._cached_permutation if len(rows) <= _MAX_KNOWN_ROWS else self._find_permutation
        return find(numbered, tuple(rows))

    def _find_permutation(self, numbers: tuple[int, ...], rows: tuple[CallRow, ...]) -> list[int]:
        """Returns the same for steps that are numbered from 0."""
        indexes_of_step: dict[int, list[int]] = defaultdict(list)
        for index, number in enumerate(numbers):
            indexes_of_step[number].append(index)
        steps = [_Step([rows[index] for index in indexes], indexes) for indexes in indexes_of_step.values()]
        for step in steps:
            step.set_keys(self._paths_of(step))
        for step, key in self._nested(steps):
            step.move_under(key)
        keyed = [pair for step in steps for pair in zip(step.keys, step.places, strict=True)]
        return [index for _, index in sorted(keyed)]

    def _nested(self, steps: list[_Step]) -> Iterator[tuple[_Step, _Path]]:
        """Yields the steps of functions that TensorFlow did not inline, and the keys of the ops that called them.

        Outer steps come first. The n-th call of an op that ended is that of the n-th step that ended.
        """
        by_end = sorted(steps, key=lambda step: step.places[-1])
        taken: set[tuple[int, int]] = set()
        nested: list[tuple[_Step, _Step, int]] = []
        for step in by_end if len(steps) > 1 else ():
            callers = {
                (caller.graph_id, caller.op_name) for root in step.roots for caller in self._callers.get(root, ())
            }
            candidates = [
                (other.places[row], number, row)
                for number, other in enumerate(steps)
                if other is not step
                for row, (graph_id, _, op_name) in enumerate(other.sites)
                if (graph_id, op_name) in callers and other.places[row] > step.places[-1]
                and (number, row) not in taken
            ]  # fmt: skip
            if candidates:
                _, number, row = min(candidates)
                taken.add((number, row))
                nested.append((step, steps[number], row))
        # A step ends before the step that called it, so that the reverse order has outer steps first.
        for step, outer, row in reversed(nested):
            yield step, outer.keys[row][: outer.keys[row].index(_OWN)]

    def _paths_of(self, step: _Step) -> dict[_Site, _Path]:
        """Returns the path of each op that has rows in a step."""
        ran = {row.executed_graph_id for row in step.rows if row.executed_graph_id is not None}
        paths: dict[_Site, _Path] = {}
        for executed_graph_id in sorted(ran):
            paths |= self._paths_in(executed_graph_id)
        return {site: paths.get(site) or self._path_by_calls(site, paths) for site in set(step.sites)}

    def _path_by_calls(self, site: _Site, paths: Mapping[_Site, _Path]) -> _Path:
        """Returns the path of an op that has no node in the optimized graph, in the order of creation."""
        graph_id, call_site, op_name = site
        path: _Path = (self._op_indexes(graph_id).get(op_name, 0),)
        for level in reversed(self._chains.levels(graph_id, call_site, root=None) or ()):
            caller = level.call
            path = (_LOOP, int(caller.attribute == "body"), *path) if level.is_loop else path
            outer = paths.get((caller.graph_id, level.site, caller.op_name))
            if outer is not None:
                return (*outer, *path)
            path = (self._op_indexes(caller.graph_id).get(caller.op_name, 0), *path)
        return path

    def _creation(self, graph_id: int | None, call_site: str | None, op_name: str | None) -> _Path:
        """Returns the indexes of the calls around an op and of the op, in the order of creation."""
        if graph_id is None or op_name is None:
            return (_OWN,)
        levels = self._chains.levels(graph_id, call_site or "", root=None) or ()
        outer = [self._op_indexes(level.call.graph_id).get(level.call.op_name, 0) for level in levels]
        return (*outer, self._op_indexes(graph_id).get(op_name, _OWN))

    def _read_op_indexes(self, graph_id: int) -> dict[str, int]:
        return dict(to_rows(self._ops.between(graph_id, graph_id + 1)))

    def _find_paths(self, executed_graph_id: int) -> dict[_Site, _Path]:
        """Returns the path of each node of an optimized graph, by the names that its rows have in tensor_health."""
        rows = list(to_rows(self._nodes.between(executed_graph_id, executed_graph_id + 1)))
        numbers = {name: number for number, (name, *_) in enumerate(rows)}
        edges = [
            (numbers[source], numbers[name])
            for name, source in to_rows(self._edges.between(executed_graph_id, executed_graph_id + 1))
            if source in numbers and name in numbers
        ]
        created = [self._creation(graph, site, op or made_for) for _, _, graph, op, made_for, site in rows]
        paths = node_paths([op_type for _, op_type, *_ in rows], edges, created)
        return {
            (graph_id, call_site, op_name or name): path
            for (name, _, graph_id, op_name, _, call_site), path in zip(rows, paths, strict=True)
            if graph_id is not None and call_site is not None
        }


class _Step:
    """The rows of one step of a call.

    Attributes:
        rows: The rows.
        places: The places of the rows in the call, in ascending order.
        sites: The op of each row.
        roots: The graphs that the step ran as outermost ones.
        keys: The sort key of each row.
    """

    def __init__(self, rows: Sequence[CallRow], places: Sequence[int]) -> None:
        self.rows, self.places = rows, places
        self.sites: list[_Site] = [(row.graph_id, row.call_site or "", row.op_name) for row in rows]
        self.roots = {graph_id for graph_id, call_site, _ in self.sites if call_site == ""}
        self.keys: list[_Path] = []

    def set_keys(self, paths: Mapping[_Site, _Path]) -> None:
        """Makes the keys: the paths of the ops with the iterations of their loops, and the slots."""
        iterations = _Iterations(self, paths)
        self.keys = [
            (*iterations.put(paths[site], row.frame_id or 0, row.iteration or 0), _OWN, row.output_slot or 0, place)
            for site, row, place in zip(self.sites, self.rows, self.places, strict=True)
        ]

    def move_under(self, key: _Path) -> None:
        """Puts all rows before the outputs of the op that called the step."""
        self.keys = [(*key, self.places[-1], *own) for own in self.keys]


class _Iterations:
    """The iterations of the outer loops in which inner loops were entered, in one step."""

    def __init__(self, step: _Step, paths: Mapping[_Site, _Path]) -> None:
        firsts: dict[_Path, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
        """For each loop, frame and iteration, the place of the first row."""
        loops = {site: _innermost_loop(path) for site, path in paths.items()}
        for site, row, place in zip(step.sites, step.rows, step.places, strict=True):
            if loops[site]:
                firsts[loops[site]][row.frame_id or 0].setdefault(row.iteration or 0, place)
        self._entries = {
            loop: _entries_of(frames, firsts.get(_innermost_loop(loop[:-1]), {})) for loop, frames in firsts.items()
        }
        self._put = lru_cache(maxsize=None)(self._find)

    def put(self, path: _Path, frame: int, iteration: int) -> _Path:
        """Returns a path with the iterations of its loops."""
        return self._put(path, frame, iteration)

    def _find(self, path: _Path, frame: int, iteration: int) -> _Path:
        loop = _innermost_loop(path)
        if not loop:
            return path
        inside = path[len(loop) :]
        # An outer loop without rows has no known frame either, and its own place is all that is known of it.
        return (*self._find(loop[:-1], *self._entries.get(loop, {}).get(frame, (0, 0))), iteration, *inside)


def _entries_of(
    frames: Mapping[int, Mapping[int, int]], outer: Mapping[int, Mapping[int, int]]
) -> dict[int, tuple[int, int]]:
    """Returns the frame and iteration of the outer loop in which each frame of an inner loop was entered.

    Args:
        frames: For each frame and iteration of the inner loop, the place of the first row in the call.
        outer: The same for the outer loop.
    """
    first_of = {frame: min(firsts.values()) for frame, firsts in frames.items()}
    in_order = sorted(first_of, key=first_of.__getitem__)
    if not outer:  # it has no rows of its own: each of its iterations entered one frame
        return {frame: (0, number) for number, frame in enumerate(in_order)}
    outer_in_order = sorted(outer, key=lambda frame: min(outer[frame].values()))
    places = [(frame, iteration) for frame in outer_in_order for iteration in range(max(outer[frame]) + 1)]
    entries = find_entries(in_order, places)
    if len(entries) < len(in_order):  # XLA does not number frames as the runtime does: the arrival decides
        begins = sorted(
            (event, frame, iteration) for frame, firsts in outer.items() for iteration, event in firsts.items()
        )
        for frame in in_order:
            before = [(outer_frame, iteration) for event, outer_frame, iteration in begins if event < first_of[frame]]
            entries.setdefault(frame, before[-1] if before else begins[0][1:])
    return entries


def _innermost_loop(path: _Path) -> _Path:
    """Returns the path up to and including the mark of the innermost loop; an empty path outside loops."""
    for index in range(len(path) - 1, -1, -1):
        if path[index] == _LOOP:
            return path[: index + 1]
    return ()


def node_paths(op_types: Sequence[str], edges: Sequence[tuple[int, int]], created: Sequence[_Path]) -> list[_Path]:
    """Returns where each node of an optimized graph comes, so that it follows its inputs.

    A loop takes one place among the nodes around it, and its nodes are ordered inside that place.

    Args:
        op_types: The types of the nodes, which are numbered from 0.
        edges: The source and the consumer of each data or control edge.
        created: For each node, its order of creation, which decides between nodes that do not depend on each other.
    """
    frames = _Frames(op_types, edges)
    chains = [frames.chain(node) for node in range(len(op_types))]
    items: dict[_Path, dict[int, _Path]] = defaultdict(dict)
    """For each chain of loops, the items in the innermost one, and when they were created.

    An item is a node, or a loop, given by -1 - its frame.
    """
    for node, chain in enumerate(chains):
        items[chain][node] = created[node]
        for depth, frame in enumerate(chain):
            earliest = items[chain[:depth]].get(-1 - frame, created[node])
            items[chain[:depth]][-1 - frame] = min(earliest, created[node])
    after: dict[_Path, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for source, node in edges:
        if op_types[source] in NEXT_ITERATIONS:
            continue
        depth = 0
        while depth < min(len(chains[source]), len(chains[node])) and chains[source][depth] == chains[node][depth]:
            depth += 1
        first, second = (
            -1 - chains[endpoint][depth] if len(chains[endpoint]) > depth else endpoint for endpoint in (source, node)
        )
        if first != second:
            after[chains[node][:depth]][first].add(second)
    ranks = {chain: _ranks(chain_items, after[chain]) for chain, chain_items in items.items()}
    return [
        (
            *(
                part
                for depth, frame in enumerate(chain)
                for part in (ranks[chain[:depth]][-1 - frame], _LOOP)
            ),
            ranks[chain][node],
        )
        for node, chain in enumerate(chains)
    ]  # fmt: skip


def _ranks(items: Mapping[int, _Path], after: Mapping[int, set[int]]) -> dict[int, int]:
    """Returns the places of items, each as early as its predecessors and its creation allow."""
    num_before: dict[int, int] = defaultdict(int)
    for successors in after.values():
        for item in successors:
            num_before[item] += 1
    ready = [(created, item) for item, created in items.items() if not num_before[item]]
    heapq.heapify(ready)
    ranks: dict[int, int] = {}
    by_creation = iter(sorted((created, item) for item, created in items.items()))
    while len(ranks) < len(items):
        # A cycle is impossible in a graph that ran. A damaged recording must not stop the export.
        _, item = heapq.heappop(ready) if ready else next(pair for pair in by_creation if pair[1] not in ranks)
        if item in ranks:
            continue
        ranks[item] = len(ranks)
        for successor in after.get(item, ()):
            num_before[successor] -= 1
            if num_before[successor] == 0:
                heapq.heappush(ready, (items[successor], successor))
    return ranks


class _Frames:
    """The loops of an optimized graph: which nodes run in the same frame, and which frame is around which.

    Nodes on both sides of an edge run in the same frame, except that Enter runs inside, and Exit outside of a loop.

    Args:
        op_types: The types of the nodes.
        edges: The source and the consumer of each edge.
    """

    def __init__(self, op_types: Sequence[str], edges: Sequence[tuple[int, int]]) -> None:
        self._of = list(range(len(op_types)))
        self._outer: dict[int, int] = {}
        for source, node in edges:
            if op_types[node] in ENTERS:
                self._put_inside(node, source)
            elif op_types[node] in EXITS:
                self._put_inside(source, node)
            else:
                self._unite(source, node)

    def chain(self, node: int) -> tuple[int, ...]:
        """Returns the loops around a node, the outermost first."""
        loops: list[int] = []
        frame = self._find(node)
        while frame in self._outer and frame not in loops:
            loops.append(frame)
            frame = self._find(self._outer[frame])
        return tuple(reversed(loops))

    def _find(self, node: int) -> int:
        while self._of[node] != node:
            self._of[node] = self._of[self._of[node]]
            node = self._of[node]
        return node

    def _put_inside(self, inner: int, outer: int) -> None:
        frame = self._find(inner)
        if frame in self._outer:
            self._unite(self._outer[frame], outer)
        else:
            self._outer[frame] = outer

    def _unite(self, one: int, other: int) -> None:
        pairs = [(one, other)]
        while pairs:
            first, second = (self._find(frame) for frame in pairs.pop())
            if first != second:
                self._of[second] = first
                outer = self._outer.pop(second, None)
                if outer is not None and first in self._outer:
                    pairs.append((self._outer[first], outer))
                elif outer is not None:
                    self._outer[first] = outer
