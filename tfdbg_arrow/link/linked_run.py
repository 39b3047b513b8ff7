"""LinkedRun: the data flow of one run, from which the inputs of any set of tensors can be read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfdbg_arrow.link.arrays import Ints, KeySet, distinct, has, ints, joined, place_of
from tfdbg_arrow.link.border_edges import BorderEdges
from tfdbg_arrow.link.eager import Eager
from tfdbg_arrow.link.graph_loops import GraphLoops
from tfdbg_arrow.link.graph_sources import NOT_RECORDED, TENSOR, VARIABLE, GraphSources, Sources
from tfdbg_arrow.link.keys import CONTENT, EAGER, is_eager, is_graph
from tfdbg_arrow.link.ops import MAX_TENSORS, Ops
from tfdbg_arrow.link.passes import Passes
from tfdbg_arrow.link.program_edges import read_program_edges
from tfdbg_arrow.link.sessions import Sessions
from tfdbg_arrow.link.tables import Columns, Tables
from tfdbg_arrow.link.variables import Variables
from tfdbg_arrow.link.visits import Visits, read_call_sites

WINDOW_ROWS = 200_000
"""Number of rows that are followed at a time. These rows, and the tensors between them that have no row, take about 200
MB."""
_MAX_BETWEEN = 4_000_000
"""In a window, at most this many tensors without a row are followed. Further inputs count as not recorded."""

_GRAPH_ROWS = """
SELECT h.event_index, f.start + h.iteration AS pass, o.base + h.output_slot AS tensor
FROM tensor_health AS h
JOIN linked_frame AS f ON f.step_id = h.step_id AND f.frame_id = h.frame_id AND h.iteration < f.num_passes
JOIN linked_op AS o
ON o.root = f.root AND o.graph_id = h.graph_id AND o.text = h.call_site AND o.op_name = h.op_name
WHERE h.scope = 'graph' AND h.event_index >= 0 AND h.iteration >= 0
AND h.output_slot BETWEEN 0 AND o.num_outputs - 1 AND {condition}"""
_EAGER_ROWS = f"""
SELECT h.event_index, coalesce(h.tensor_id, o.tensor_id) AS tensor_id
FROM tensor_health AS h
LEFT JOIN execution_output AS o
ON h.scope = 'execution' AND h.tensor_id IS NULL AND o.execution_index = h.execution_index
AND o.output_slot = h.output_slot
WHERE h.scope <> 'graph' AND h.event_index >= 0
AND coalesce(h.tensor_id, o.tensor_id) BETWEEN 0 AND {EAGER - 1} AND {{condition}}"""


class LinkedRun:
    """The data flow of one run.

    Args:
        tables: The tables of the run.

    Raises:
        MemoryLimitError: The graphs have too many ops.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        sessions = Sessions(tables)
        passes = Passes(tables)
        sites = read_call_sites(tables, sessions, max_ops=MAX_TENSORS // 4)
        self._ops = ops = Ops(tables, sites)
        settings = tables.columns('SELECT count(*) AS num FROM run WHERE settings LIKE \'%"xla": "inside"%\'')
        visits = Visits(tables, sites, passes, skips_iterations=bool(settings["num"][0]))
        self._eager = eager = Eager(tables)
        program = read_program_edges(tables, ops)
        self._borders = borders = BorderEdges(
            tables, sites, ops, call_inputs=program.call_inputs, has_inputs=program.has_inputs
        )
        self._loops = loops = GraphLoops(tables, ops, passes, visits.outer_pass, ints(sites.loops))
        self._keys, self._events = self._read_rows("true")
        self._graph = GraphSources(
            passes=passes,
            visits=visits,
            ops=ops,
            eager=eager,
            loops=loops,
            program=program,
            borders=borders,
            row_keys=self._keys,
        )
        self._variables = Variables(tables, self._graph, sites=sites, borders=borders)
        self._outer_pass = np.full(len(eager.index), -1)
        at = np.nonzero(passes.frame_id == 0)[0][::-1]
        execution = eager.place_of(passes.execution[at])
        self._outer_pass[execution[execution >= 0]] = passes.start[at[execution >= 0]]
        self._results = [
            {slot: tensor for (name, slot), tensor in borders.results.items() if name == function}
            for function in eager.types
        ]

    def tensor_inputs(self, condition: str = "true") -> Iterator[Columns]:
        """Yields the inputs of tensors, and the inputs of the tensors without a row between these tensors.

        Args:
            condition: An SQL condition on the rows `h` of tensor_health.

        Yields:
            Columns of the same length:

            - `node_id`: The row's `event_index`, or a negative number for a tensor without a row.
            - `input_index`: The index of the input, -1 if it is unknown.
            - `source_node_id`: The `node_id` of the source, -1 if the input is not recorded. No node has the ID -1.
            - `kind`: The index in KINDS.
            - `op`, `type`, `slot`: The columns of the source in `linked_op` and `linked_type`, and its output slot. A
              column is -1 if the source has no such value.
        """
        keys, events = (self._keys, self._events) if condition == "true" else self._read_rows(condition)
        by_event = np.argsort(events, kind="stable")
        followed = KeySet()
        for start in range(0, len(keys), WINDOW_ROWS):
            window = by_event[start : start + WINDOW_ROWS]
            frontier, owners = keys[window], events[window]
            num_between = 0
            while len(frontier):
                sources = self.sources(frontier)
                yield self._columns(owners, sources)
                between = self._between(sources.key)
                frontier = followed.add(between[: max(_MAX_BETWEEN - num_between, 0)])
                num_between += len(frontier)
                owners = self._node_ids(frontier)
        yield self._columns(*self._unlinked(condition, events))

    def sources(self, keys: Ints) -> Sources:
        """Returns the inputs of tensors. The input of an op that takes a resource is the content of the resource."""
        parts = []
        for is_part, follow in (
            (is_graph(keys), self._of_graph),
            (is_eager(keys), self._of_eager),
            (keys >= CONTENT, self._variables.sources),
        ):
            at = np.nonzero(is_part)[0]
            if len(at):
                followed = follow(keys[at])
                parts.append(followed._replace(item=at[followed.item]))
        return _distinct(Sources(*(joined(list(column)) for column in zip(*parts, strict=True)))) if parts else _none()

    def _of_graph(self, keys: Ints) -> Sources:
        op = self._ops.of_tensor[keys % self._ops.num_tensors]
        sources = self._graph.of(keys)
        graph = np.nonzero(is_graph(sources.key) & ~self._borders.is_argument[op[sources.item]])[0]
        at = graph[self._ops.is_resource[sources.key[graph] % self._ops.num_tensors]]
        order, is_placed = self._variables.order_of_graph(keys[sources.item[at]])
        handles = np.where(is_placed, self._variables.handles(sources.key[at]), -1)
        sources = _with_contents(sources, at, self._variables.content(handles, order))
        is_found = np.zeros(len(keys), bool)
        is_found[sources.item] = True
        is_border = self._borders.is_border[op] | self._loops.is_border[op]
        return _with_unknown(sources, (is_border & ~is_found) | self._ops.is_unlinked[op])

    def _of_eager(self, keys: Ints) -> Sources:
        execution, slot = self._eager.maker(keys - EAGER)
        is_made = execution >= 0
        is_call = np.zeros(len(keys), bool)
        is_call[is_made] = self._eager.graph[execution[is_made]] >= 0
        at = np.nonzero(is_made & ~is_call)[0]
        item, tensor_id, index = self._eager.inputs(execution[at])
        sources = Sources(at[item], index, EAGER + tensor_id, np.full(len(item), TENSOR))
        is_resource = self._eager.is_resource(tensor_id) | self._variables.is_written(tensor_id)
        resource = np.nonzero(is_resource)[0]
        order = self._variables.order_of_eager(self._eager.event[execution[sources.item[resource]]])
        sources = _with_contents(sources, resource, self._variables.content(tensor_id[resource], order))
        at = np.nonzero(is_call)[0]
        result = self._result_of_call(execution[at], slot[at])
        is_known = result >= 0
        results = Sources(at[is_known], slot[at][is_known], result[is_known], np.full(int(is_known.sum()), 2))
        sources = Sources(*(np.concatenate(pair) for pair in zip(sources, results, strict=True)))
        is_lost = np.zeros(len(keys), bool)
        is_lost[at[~is_known]] = True
        is_lost[is_made] |= self._eager.is_unlinked[execution[is_made]]
        return _with_unknown(sources, is_lost)

    def _result_of_call(self, call: Ints, slot: Ints) -> Ints:
        """Returns the key of the result of each call, -1 if it is unknown."""
        types = zip(self._eager.type[call].tolist(), slot.tolist(), strict=True)
        tensor = ints([self._results[type_].get(slot_, -1) for type_, slot_ in types])
        outer = self._outer_pass[call]
        return np.where((tensor >= 0) & (outer >= 0), outer * self._ops.num_tensors + tensor, -1)

    def _unlinked(self, condition: str, events: Ints) -> tuple[Ints, Sources]:
        """Returns the events of rows whose place in the program is unknown, and one unrecorded input for each event."""
        rows = self._tables.columns(
            f"SELECT event_index FROM tensor_health AS h WHERE event_index >= 0 AND {condition}"
        )
        lost = rows["event_index"][~has(rows["event_index"], np.sort(events))]
        return lost, _with_unknown(_none(), np.ones(len(lost), bool))

    def _between(self, keys: Ints) -> Ints:
        """Returns the tensors without a row that must be followed, because they can hold a bad value."""
        keys = distinct(keys[keys >= 0])
        keys = np.concatenate([keys[keys < CONTENT], self._variables.with_earlier(keys[keys >= CONTENT])])
        keys = keys[place_of(keys, self._keys) < 0]
        graph = is_graph(keys)
        is_never_bad = np.zeros(len(keys), bool)
        is_never_bad[graph] = self._ops.is_never_bad[keys[graph] % self._ops.num_tensors]
        eager = is_eager(keys)
        is_never_bad[eager] = self._eager.is_never_bad(keys[eager] - EAGER)
        return keys[~is_never_bad]

    def _columns(self, owners: Ints, sources: Sources) -> Columns:
        key = sources.key
        graph = np.nonzero(is_graph(key))[0]
        tensor = key[graph] % self._ops.num_tensors
        op, type_, slot = np.full((3, len(key)), -1)
        op[graph] = self._ops.of_tensor[tensor]
        slot[graph] = tensor - self._ops.base[op[graph]]
        eager = np.nonzero(is_eager(key))[0]
        execution, made_slot = self._eager.maker(key[eager] - EAGER)
        slot[eager] = np.where(execution >= 0, made_slot, -1)
        type_[eager] = np.where(
            execution >= 0, self._eager.type[np.maximum(execution, 0)] if len(execution) else -1, -1
        )
        return {
            "node_id": owners[sources.item],
            "input_index": sources.input_index,
            "source_node_id": np.where(key >= 0, self._node_ids(key), -1),
            "kind": sources.kind,
            "op": op,
            "type": type_,
            "slot": slot,
        }

    def _node_ids(self, keys: Ints) -> Ints:
        """Returns the `event_index` of tensors; for tensors without a row, a number below -1."""
        at = place_of(keys, self._keys)
        return np.where(at >= 0, self._events[np.maximum(at, 0)] if len(self._events) else -1, -2 - keys)

    def _read_rows(self, condition: str) -> tuple[Ints, Ints]:
        """Returns (key, event_index) of the rows that a condition selects, sorted by key."""
        graph = self._tables.columns(_GRAPH_ROWS.format(condition=condition))
        eager = self._tables.columns(_EAGER_ROWS.format(condition=condition))
        keys = np.concatenate([graph["pass"] * self._ops.num_tensors + graph["tensor"], EAGER + eager["tensor_id"]])
        events = np.concatenate([graph["event_index"], eager["event_index"]])
        order = np.lexsort((events, keys))
        return keys[order], events[order]


def _none() -> Sources:
    return Sources(*np.empty((4, 0), np.int64))


def _distinct(sources: Sources) -> Sources:
    """Returns each input once: an edge of the program may also be an edge of an optimized graph."""
    order = np.lexsort((sources.kind, sources.key, sources.input_index, sources.item))
    sources = Sources(*(column[order] for column in sources))
    is_new = np.ones(len(sources.item), bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in sources[:3]], axis=0)
    return sources.where(is_new)


def _with_contents(sources: Sources, at: Ints, content: Ints) -> Sources:
    """Replaces the keys of resources with the keys of their contents."""
    key, kind = sources.key.copy(), sources.kind.copy()
    key[at], kind[at] = content, np.where(content >= 0, VARIABLE, NOT_RECORDED)
    return sources._replace(key=key, kind=kind)


def _with_unknown(sources: Sources, is_unknown: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Sources:
    """Adds an unrecorded input to some tensors."""
    at = np.nonzero(is_unknown)[0]
    added = Sources(at, np.full(len(at), -1), np.full(len(at), -1), np.full(len(at), NOT_RECORDED))
    return Sources(*(np.concatenate(pair) for pair in zip(sources, added, strict=True)))
