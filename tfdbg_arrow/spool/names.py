"""The names that records refer to by number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.batch import Ints


class Strings(Protocol):
    """A source of interned strings."""

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on; id 0 is the empty string."""


class TensorNodes(Protocol):
    """Keys of graph tensors, assigned by the hooks' graph registry; append-only."""

    def nodes(self, start: int) -> Sequence[tuple[int, str, str, int]]:
        """Returns (graph_id, op_name, op_type, output_slot) of the keys from `start` on."""


class CallGraph(Protocol):
    """The known functions, and the graphs that run inline in other graphs."""

    def graph_id_of_function(self, function_name: str) -> int | None:
        """Returns the graph of a runtime function; None for an op and for an unrecorded function."""

    def reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        """Returns whether `inner_graph_id` runs inline in a call of `graph_id`; True if they are equal."""

    def call_site(self, path: str, inner_graph_id: int) -> str:
        """Converts the runtime's path of node names into a call site with the op names of the graphs."""


class Names:
    """The names that records refer to by number, kept in sync with the recorder and the registry."""

    def __init__(self, strings: Strings, *, nodes: TensorNodes, call_graph: CallGraph) -> None:
        self._source, self._nodes, self._call_graph = strings, nodes, call_graph
        self._ids: dict[str, int] = {}
        self.texts: list[str] = []
        """Distinct names; a name id is an index of this list."""
        self._string_ids: list[int] = []
        self._node_rows: list[tuple[int, int, int, int]] = []
        self._function_graphs: dict[int, int] = {}
        self._call_sites: dict[tuple[int, int], int] = {}
        self._executed_nodes: dict[int, tuple[int, int, int, int]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads the added names. Call this after a drain, so that every name in the drained records is known."""
        for text in self._source.strings(len(self._string_ids)):
            self._string_ids.append(self._intern(text))
        for graph_id, op_name, op_type, slot in self._nodes.nodes(len(self._node_rows)):
            self._node_rows.append((graph_id, self._intern(op_name), self._intern(op_type), slot))
        self._strings_array = np.array(self._string_ids, dtype=np.int64)
        self._nodes_array = np.array(self._node_rows, dtype=np.int64).reshape(-1, 4)

    def _intern(self, text: str) -> int:
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return found

    def of_strings(self, ids: npt.NDArray[Any]) -> Ints:
        """Returns the name ids of interned strings, -1 for ids that do not exist."""
        return _lookup(self._strings_array, ids)

    def of_nodes(self, keys: npt.NDArray[Any]) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns graph ids, name ids of op names and op types, and slots; -1 for keys that do not exist.

        A key below -1 stands for a string that describes an executed node: -2 for string 0, -3 for string 1 and so on.
        """
        table = self._nodes_array
        found = tuple(_lookup(table[:, column], keys) for column in range(4))
        executed = np.flatnonzero(keys < -1)
        for key in np.unique(keys[executed]).tolist():
            places = executed[keys[executed] == key]
            for column, value in zip(found, self._executed_node(-2 - key), strict=True):
                column[places] = value
        return found[0], found[1], found[2], found[3]

    def _executed_node(self, string_id: int) -> tuple[int, int, int, int]:
        """Returns the node that a string describes: graph, name ids of op name and op type, and slot.

        All four are -1 if the string does not describe a node. The native core writes the string as four lines: graph
        id, slot, op type and op name.
        """
        known = self._executed_nodes.get(string_id)
        if known is None and string_id < len(self._string_ids):
            fields = self.texts[self._string_ids[string_id]].split("\n")
            if len(fields) == 4 and all(re.fullmatch("[0-9]{1,9}", number) for number in fields[:2]):
                known = (int(fields[0]), self._intern(fields[3]), self._intern(fields[2]), int(fields[1]))
                self._executed_nodes[string_id] = known
        return known or (-1, -1, -1, -1)

    def call_sites(self, string_ids: npt.NDArray[Any], *, graph_ids: Ints) -> Ints:
        """Returns the name ids of call sites for the runtime's paths and the graphs that they lead to."""
        names = self.of_strings(string_ids)
        width = int(graph_ids.max(initial=0)) + 2
        pairs, places = np.unique(names * width + graph_ids + 1, return_inverse=True)
        sites = np.empty(len(pairs), dtype=np.int64)
        for place, pair in enumerate(pairs.tolist()):
            name, graph_id = pair // width, pair % width - 1
            site = self._call_sites.get((name, graph_id))
            if site is None:
                text = self._call_graph.call_site(self.texts[name], graph_id)
                site = self._call_sites[name, graph_id] = self._intern(text)
            sites[place] = site
        return sites[places]

    def function_graphs(self, string_ids: npt.NDArray[Any]) -> Ints:
        """Returns the graph of each called function; -1 for ops and unrecorded functions."""
        names = self.of_strings(string_ids)
        used, places = compact(names, len(self.texts))
        graphs = np.full(len(used) + 1, -1, dtype=np.int64)
        for place, name in enumerate(used):
            graph = self._function_graphs.get(name)
            if graph is None:
                found = self._call_graph.graph_id_of_function(self.texts[name])
                if found is None:  # not cached, because the function may be registered later
                    continue
                graph = self._function_graphs[name] = found
            graphs[place] = graph
        return graphs[places]  # a name of -1 has the position -1, which is the last element


def _lookup(table: Ints, keys: npt.NDArray[Any]) -> Ints:
    """Returns table[keys]; -1 for keys outside the table."""
    padded: Ints = np.append(table, -1)
    found: Ints = padded[np.where((keys >= 0) & (keys < len(table)), keys, len(table))]
    return found


def compact(ids: Ints, length: int) -> tuple[list[int], Ints]:
    """Returns the ids in use, in ascending order, and the position of each element among them (-1 if negative)."""
    seen = np.zeros(length + 1, dtype=np.bool_)
    seen[ids] = True  # -1 marks the last
    seen[length] = False
    used = np.flatnonzero(seen)
    places = np.full(length + 1, -1, dtype=np.int64)
    places[used] = np.arange(len(used))
    return used.tolist(), places[ids]
