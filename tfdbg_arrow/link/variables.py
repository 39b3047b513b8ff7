"""Variables: the writes to each resource in program order, and the content of a resource at a point of the program.

See "Resources" and "Order of writes" in the specification. The content after a write has a key of its own. So a chain
of writes needs only one key for each write, even if each write depends on the previous content.
"""

from __future__ import annotations

import numpy as np

from tfdbg_arrow.link.arrays import Bools, Ints, distinct, grouped, has, ints, ranges
from tfdbg_arrow.link.border_edges import BorderEdges
from tfdbg_arrow.link.call_sites import CallSites
from tfdbg_arrow.link.graph_sources import NOT_RECORDED, VARIABLE, GraphSources, Sources
from tfdbg_arrow.link.keys import CONTENT, EAGER, is_eager
from tfdbg_arrow.link.ops import Ops
from tfdbg_arrow.link.tables import Tables

_MAX_PATH = 10_000
"""A handle is followed over at most this many borders."""
_UNKNOWN = -1
"""Stands for an unknown resource. A known resource is at least 0, or at most -2."""
_OF_SESSIONS = """
SELECT o.base, min(o.base) OVER (PARTITION BY s.session_index, o.graph_id, o.op_name) AS first
FROM linked_op AS o JOIN linked_session AS s ON s.root = o.root AND o.text = ''
WHERE NOT o.is_made"""


class Variables:
    """The writes to resources.

    A resource is identified by the `tensor_id` of its handle. If a graph made the handle, the resource is identified by
    -2 minus the tensor of the handle. All runs of a session have the same resources.
    """

    def __init__(self, tables: Tables, graph: GraphSources, *, sites: CallSites, borders: BorderEdges) -> None:
        self._graph, self._passes, self._visits = graph, graph.passes, graph.visits
        self._ops = ops = graph.ops
        self._eager = graph.eager
        of_sessions = tables.columns(_OF_SESSIONS)
        self._resource_of: Ints = np.arange(ops.num_tensors)
        self._resource_of[of_sessions["base"]] = of_sessions["first"]
        self._is_passing = borders.is_border | ops.is_passing
        self._parent, self._depth = ints(sites.parents), ints(sites.depths)
        self._is_loop = np.array([call is not None and call.is_loop for call in sites.calls], bool)
        self._call_position = ints(
            [
                0
                if call is None
                else _position(ops, borders.calling_ops.get((sites.parents[site], call.op_name), (-1, -1))[0])
                for site, call in enumerate(sites.calls)
            ]
        )
        self._width = 2 * int(self._depth.max(initial=0)) + 2
        self._read_writes(borders.silent_sites)

    def content(self, handles: Ints, order: Ints) -> Ints:
        """Returns the key of the content of each resource at a point of the program, -1 if it is unknown.

        Args:
            handles: The resources, -1 for an unknown resource.
            order: The points, as `order_of_graph` and `order_of_eager` return them.
        """
        at = np.searchsorted(self._sorted, _sortable(handles, order)) - 1
        is_written = (at >= 0) & (handles != _UNKNOWN)
        if len(self._handle):
            is_written &= self._handle[np.maximum(at, 0)] == handles
        content = np.where(is_written, CONTENT + at, np.where(handles >= 0, EAGER + handles, -1))
        if self._writes_by_reference.any():  # an op that writes by reference also returns the new value
            by_reference = is_written & self._writes_by_reference[np.maximum(at, 0)]
            content = np.where(by_reference, self._writer[np.maximum(at, 0)], content)
        return content

    def is_written(self, tensor_ids: Ints) -> Bools:
        """Returns which eager tensors are handles of resources to which an op wrote."""
        return has(tensor_ids, self._handles)

    def sources(self, keys: Ints) -> Sources:
        """Returns the sources of the contents of variables: the values of the write, and the previous content."""
        write = keys - CONTENT
        parts = [self._values(write)]
        before = write - 1
        is_added = np.nonzero(~self._replaces[write])[0]
        is_same = (before >= 0) & (self._handle[np.maximum(before, 0)] == self._handle[write])
        at = is_added[is_same[is_added]]
        parts.append(_contents(at, CONTENT + before[at]))
        at = is_added[~is_same[is_added] & (self._handle[write[is_added]] >= 0)]
        parts.append(_contents(at, EAGER + self._handle[write[at]]))
        at = np.nonzero(self._is_unknown[write])[0]
        parts.append(Sources(at, np.full(len(at), -1), np.full(len(at), -1), np.full(len(at), NOT_RECORDED)))
        return Sources(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def with_earlier(self, keys: Ints) -> Ints:
        """Returns contents, and the earlier contents on which they depend because a write added to the old content."""
        write = distinct(keys - CONTENT)
        first = self._chain_start[write]
        is_last = np.ones(len(write), bool)
        is_last[:-1] = first[1:] != first[:-1]
        return CONTENT + ranges(first[is_last], write[is_last] + 1)[1]

    def _values(self, write: Ints) -> Sources:
        """Returns the values that writes took: all inputs that are not resources."""
        key = self._writer[write]
        at = np.nonzero(~is_eager(key) & ~self._is_unknown[write])[0]
        sources = self._graph.of(key[at], of_op_only=True)
        sources = sources.where(~self._is_handle(sources, key[at]))
        of_graph = sources._replace(item=at[sources.item], kind=np.full(len(sources.item), VARIABLE))
        at = np.nonzero(is_eager(key))[0]
        item, tensor_id, index = self._eager.inputs(key[at] - EAGER)
        is_value = tensor_id != self._handle[write[at[item]]]
        item, tensor_id, index = at[item[is_value]], tensor_id[is_value], index[is_value]
        of_eager = Sources(item, index, EAGER + tensor_id, np.full(len(item), VARIABLE))
        return Sources(*(np.concatenate(pair) for pair in zip(of_graph, of_eager, strict=True)))

    def handles(self, keys: Ints) -> Ints:
        """Returns the resource that each tensor of dtype resource stands for, -1 if it is unknown.

        The search follows the tensor back over borders and Identity.
        """
        resources = np.full(len(keys), _UNKNOWN)
        at, keys = np.arange(len(keys)), keys.copy()
        for _ in range(_MAX_PATH):
            from_outside = is_eager(keys)
            resources[at[from_outside]] = keys[from_outside] - EAGER
            at, keys = at[~from_outside], keys[~from_outside]
            tensor = keys % self._ops.num_tensors
            op = self._ops.of_tensor[tensor]
            is_made = self._ops.is_handle[op]
            resources[at[is_made]] = -2 - self._resource_of[tensor[is_made]]
            at, keys = at[self._is_passing[op]], keys[self._is_passing[op]]
            if not len(at):
                break
            sources = self._graph.of(keys)
            item = distinct(sources.item)
            by_item = np.argsort(sources.item, kind="stable")
            first = by_item[np.searchsorted(sources.item[by_item], item)]
            at, keys = at[item], sources.key[first]
        return resources

    def order_of_eager(self, events: Ints) -> Ints:
        """Given the `event_index` of executions, returns rows of numbers that order the executions among all ops."""
        columns = np.zeros((len(events), self._width), np.int64)
        columns[:, 0] = events + 1
        return columns

    def order_of_graph(self, keys: Ints) -> tuple[Ints, Bools]:
        """Returns rows of numbers that order ops of graphs: (op_index, iteration) from the outermost graph on.

        The second array tells which rows are known. A row is known if the entry of each loop around the op is known.
        """
        passes, tensor = np.divmod(keys, self._ops.num_tensors)
        op = self._ops.of_tensor[tensor]
        frame = self._passes.frame_of(passes)
        columns = self.order_of_eager(self._passes.started[frame])
        site, position = self._ops.site[op], self._ops.position[op]
        row, is_placed = np.arange(len(keys)), np.ones(len(keys), bool)
        while len(row):
            depth = self._depth[site]
            columns[row, 2 * depth + 1] = position + 1
            is_inner = self._parent[site] >= 0
            row, site, passes, frame = row[is_inner], site[is_inner], passes[is_inner], frame[is_inner]
            columns[row, 2 * self._depth[site]] = passes - self._passes.start[frame] + 1
            position = self._call_position[site]
            passes = np.where(self._is_loop[site], self._visits.entry[frame], passes)
            is_placed[row[passes < 0]] = False
            passes = np.maximum(passes, 0)
            frame = self._passes.frame_of(passes)
            site = self._parent[site]
        return columns, is_placed

    def _read_writes(self, silent_sites: set[int]) -> None:
        writers = np.nonzero(self._ops.is_writer & ~self._ops.is_made)[0]
        ran = self._graph_writes(writers, *self._visits.of_sites(distinct(self._ops.site[writers])))
        maybe = self._graph_writes(writers, *self._visits.silent_branches(silent_sites))
        key, handle = np.concatenate([ran, maybe], axis=1)
        op = self._ops.of_tensor[key % self._ops.num_tensors]
        order, is_placed = self.order_of_graph(key)
        is_unknown = (np.arange(len(key)) >= ran.shape[1]) | ~is_placed
        is_unknown |= self._graph.loops.loop[op] >= 0  # the order of the iterations of these loops is not known here
        execution = np.nonzero(self._eager.is_writer)[0]
        written = self._eager.argument(execution, self._eager.is_iterator[execution].astype(np.int64))
        order = np.concatenate([order, self.order_of_eager(self._eager.event[execution])])
        handle = np.concatenate([handle, written])
        sortable = _sortable(handle, order)
        by_order = np.argsort(sortable, kind="stable")
        self._sorted, self._handle = sortable[by_order], handle[by_order]
        self._writer = np.concatenate([key, EAGER + execution])[by_order]
        self._is_unknown = np.concatenate([is_unknown, np.zeros(len(execution), bool)])[by_order]
        by_reference = np.concatenate([self._ops.is_reference_writer[op], np.zeros(len(execution), bool)])
        self._writes_by_reference = by_reference[by_order]
        replaces = np.concatenate([self._ops.is_replacing[op] & ~is_unknown, self._eager.is_replacing[execution]])
        self._replaces = replaces[by_order]
        begins = self._replaces.copy()
        begins[:1] = True
        begins[1:] |= self._handle[1:] != self._handle[:-1]
        self._chain_start = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
        self._handles = distinct(self._handle[self._handle >= 0])

    def _graph_writes(self, writers: Ints, passes: Ints, sites: Ints) -> Ints:
        """Returns (key of the writing op, resource) of the writes of ops in visits, each pair once."""
        order, starts = grouped(self._ops.site[writers], int(max(len(self._parent), 1)))
        item, at = ranges(starts[sites], starts[sites + 1])
        has_run = self._graph.loops.has_run(passes[item], writers[order[at]])
        item, at = item[has_run], at[has_run]
        key = passes[item] * self._ops.num_tensors + self._ops.base[writers[order[at]]]
        sources = self._graph.of(key, of_op_only=True)
        sources = sources.where(self._is_handle(sources, key))
        writes = np.stack([key[sources.item], self.handles(sources.key)])
        writes = writes[:, np.lexsort(writes)]
        is_new = np.ones(writes.shape[1], bool)
        is_new[1:] = np.any(writes[:, 1:] != writes[:, :-1], axis=0)
        distinct_writes: Ints = writes[:, is_new]
        return distinct_writes

    def _is_handle(self, sources: Sources, keys: Ints) -> Bools:
        """Returns which inputs of writing ops are the resource or the reference to write to."""
        is_of_graph = ~is_eager(sources.key)
        is_handle = is_of_graph & self._ops.is_resource[np.where(is_of_graph, sources.key % self._ops.num_tensors, 0)]
        op = self._ops.of_tensor[keys[sources.item] % self._ops.num_tensors]
        return np.where(self._ops.is_reference_writer[op], sources.input_index == 0, is_handle)


def _position(ops: Ops, op: int) -> int:
    return int(ops.position[op]) if op >= 0 else 0


def _contents(item: Ints, key: Ints) -> Sources:
    return Sources(item, np.full(len(item), -1), key, np.full(len(item), VARIABLE))


def _sortable(handles: Ints, order: Ints) -> np.ndarray[tuple[int], np.dtype[np.bytes_]]:
    """Returns byte strings that sort like (handle, order)."""
    rows = np.concatenate([(handles + CONTENT)[:, None], order], axis=1).astype(">i8")
    if not len(rows):
        return np.empty(0, f"S{8 * rows.shape[1]}")
    return np.ascontiguousarray(rows).view(f"S{8 * rows.shape[1]}")[:, 0]
