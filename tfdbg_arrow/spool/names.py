"""The names that records refer to by number, the keys of graph tensors, and the calls between graphs."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.spool.records import Batch, Ints, Kind

TensorNode = tuple[int, str, str, int]
"""(graph_id, op_name, op_type, output_slot)."""
# The suffixes that TensorFlow's inliner adds to the name of a calling node.
# Source: tensorflow/core/common_runtime/lower_{while,if,case}_op.cc.
_PATH_SUFFIX = {
    "body": "/body",
    "cond": "/cond",
    "then_branch": "/then",
    "else_branch": "/else",
    "branches": "/branch{index}",
}
_NODES_AN_ENTRY = 1_000
"""Maximum number of tensors in an entry of the journal. Each entry needs a system call."""
_MAX_DEPTH = 400
"""Maximum number of slashes in a path that is converted. No TensorFlow program nests calls this deep."""


class Strings(Protocol):
    """A source of interned strings."""

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings with IDs from `start` on. The string with ID 0 is empty."""


class TensorNodes(Protocol):
    """A source of the graph tensors that have keys. GraphLinks assigns the keys, and never removes a key."""

    def nodes(self, start: int) -> Sequence[tuple[int, str, str, int]]:
        """Returns (graph_id, op_name, op_type, output_slot) for each key from `start` on."""


class Names:
    """The names that records refer to by number. `refresh` reads new names from their sources."""

    def __init__(self, strings: Strings, *, nodes: TensorNodes, call_graph: GraphLinks) -> None:
        self._source, self._nodes, self._call_graph = strings, nodes, call_graph
        self._ids: dict[str, int] = {}
        self.texts: list[str] = []
        """The distinct names. A name ID is an index of this list."""
        self._string_ids: list[int] = []
        self._node_rows: list[tuple[int, int, int, int]] = []
        self._function_graphs: dict[int, int] = {}
        self._call_sites: dict[tuple[int, int], int] = {}
        self._executed_nodes: dict[int, tuple[int, int, int, int]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads the new names. Call this method after records are drained, so that all names in them are known."""
        for text in self._source.strings(len(self._string_ids)):
            self._string_ids.append(self._intern(text))
        for graph_id, op_name, op_type, slot in self._nodes.nodes(len(self._node_rows)):
            self._node_rows.append((graph_id, self._intern(op_name), self._intern(op_type), slot))
        self._strings_array = np.array(self._string_ids, dtype=np.int64)
        self._nodes_array = np.array(self._node_rows, dtype=np.int64).reshape(-1, 4)

    def _intern(self, text: str) -> int:
        number = self._ids.get(text)
        if number is None:
            number = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return number

    def of_strings(self, ids: npt.NDArray[Any]) -> Ints:
        """Returns the name IDs of interned strings; -1 for strings that do not exist."""
        return _lookup(self._strings_array, ids)

    def of_nodes(self, keys: npt.NDArray[Any]) -> tuple[Ints, Ints, Ints, Ints]:
        """Returns (graph IDs, name IDs of op names, name IDs of op types, output slots). All are -1 for unknown keys.

        A key below -1 stands for a string that describes an executed node: -2 for string 0, -3 for string 1 and so on.
        """
        table = self._nodes_array
        columns = tuple(_lookup(table[:, column], keys) for column in range(4))
        executed = np.flatnonzero(keys < -1)
        for key in np.unique(keys[executed]).tolist():
            places = executed[keys[executed] == key]
            for column, value in zip(columns, self._executed_node(-2 - key), strict=True):
                column[places] = value
        return columns[0], columns[1], columns[2], columns[3]

    def _executed_node(self, string_id: int) -> tuple[int, int, int, int]:
        """Returns the node that a string describes: (graph ID, name ID of op name, name ID of op type, output slot).

        All four are -1 if the string does not describe a node. The native core writes the string as four lines: graph
        ID, slot, op type and op name.
        """
        node = self._executed_nodes.get(string_id)
        if node is None and string_id < len(self._string_ids):
            fields = self.texts[self._string_ids[string_id]].split("\n")
            if len(fields) == 4 and all(re.fullmatch("[0-9]{1,9}", number) for number in fields[:2]):
                node = (int(fields[0]), self._intern(fields[3]), self._intern(fields[2]), int(fields[1]))
                self._executed_nodes[string_id] = node
        return node or (-1, -1, -1, -1)

    def graph_ids(self, batch: Batch) -> Ints:
        """Returns the graph of each record, in the form that CallJoin.join() takes."""
        graph_ids = np.full(len(batch), -1, dtype=np.int64)
        tensors = np.flatnonzero(batch.kind == Kind.GRAPH_TENSOR)
        executions = np.flatnonzero(batch.kind == Kind.EXECUTION)
        graph_ids[tensors] = self.of_nodes(batch.field("node", tensors))[0]
        graph_ids[executions] = self.function_graphs(batch.field("node", executions))
        return graph_ids

    def call_sites(self, string_ids: npt.NDArray[Any], *, graph_ids: Ints) -> Ints:
        """Returns the name IDs of call sites.

        Args:
            string_ids: The interned strings of the runtime's paths.
            graph_ids: The graph that each path leads to.
        """
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
                graph_id = self._call_graph.graph_id_of_function(self.texts[name])
                if graph_id is None:  # do not cache this, because the function may be added later
                    continue
                graph = self._function_graphs[name] = graph_id
            graphs[place] = graph
        return graphs[places]  # position -1 stands for no name, and selects the last element, which is -1


def _lookup(table: Ints, keys: npt.NDArray[Any]) -> Ints:
    """Returns table[keys]; -1 for keys outside the table."""
    padded: Ints = np.append(table, -1)
    values: Ints = padded[np.where((keys >= 0) & (keys < len(table)), keys, len(table))]
    return values


def compact(ids: Ints, length: int) -> tuple[list[int], Ints]:
    """Returns the distinct IDs in ascending order, and the position of each element's ID among them.

    The position of an ID of -1 is -1.
    """
    seen = np.zeros(length + 1, dtype=np.bool_)
    seen[ids] = True  # an ID of -1 marks the last element
    seen[length] = False
    used = np.flatnonzero(seen)
    places = np.full(length + 1, -1, dtype=np.int64)
    places[used] = np.arange(len(used))
    return used.tolist(), places[ids]


def inlined_suffix(attribute: str, branch_index: int) -> str:
    """Returns a regular expression for the suffix that TensorFlow's inliner adds to the name of a calling node.

    Args:
        attribute: The attribute that names the callee.
        branch_index: The index of the callee if the attribute is a list.
    """
    return _PATH_SUFFIX.get(attribute, "").format(index=branch_index)


class GraphLinks:
    """Assigns keys to graph tensors, and stores the calls between graphs.

    Any thread may add entries while it traces a function, and the sink's thread reads them. The lock of the journal
    protects all data.

    Args:
        journal: The journal to which new entries are written. None if the entries were read from a journal.
        max_looks: Limits the work: after this many checks of calls, paths are returned unchanged. None means no limit.
            Data that no recorder wrote can then take forever.
    """

    def __init__(self, journal: Journal | None = None, *, max_looks: int | None = None) -> None:
        self._journal = journal
        self._looks_left = math.inf if max_looks is None else max_looks
        self._lock = threading.RLock() if journal is None else journal.lock
        self._nodes: list[TensorNode] = []
        self._graph_of_function: dict[str, int] = {}
        self._callees: dict[int, set[int]] = {}
        self._reachable: dict[int, frozenset[int]] = {}
        self._calls: dict[int, dict[tuple[str, str, int], int]] = {}
        self._renames: dict[int, dict[str, set[str]]] = {}

    def add_nodes(self, nodes: Sequence[TensorNode]) -> int:
        """Adds tensors of graph ops, and returns the key of the first tensor. The other tensors get the next keys.

        Record ops write these keys.
        """
        with self._lock:
            key = len(self._nodes)
            self._nodes.extend(nodes)
            for start in range(0, len(nodes), _NODES_AN_ENTRY):
                self._note("nodes", key + start, nodes[start : start + _NODES_AN_ENTRY])
            return key

    def nodes(self, start: int) -> Sequence[TensorNode]:
        """Returns the tensors with keys from `start` on."""
        with self._lock:
            return self._nodes[start:]

    def add_function(self, function_name: str, graph_id: int) -> None:
        """Adds a runtime function that was made from a graph."""
        with self._lock:
            self._graph_of_function[function_name] = graph_id
            self._note("function", function_name, graph_id)

    def graph_id_of_function(self, function_name: str) -> int | None:
        """Returns the graph of a runtime function; None for an op or for a function made outside a recording."""
        return self._graph_of_function.get(function_name)

    def add_callee(self, graph_id: int, call: tuple[str, str, int], callee_graph_id: int) -> None:
        """Adds a call: an op of a graph runs another graph within the same step.

        Args:
            graph_id: The calling graph.
            call: The name of the calling op, the attribute that names the callee, and the index in a list of callees.
            callee_graph_id: The called graph.
        """
        with self._lock:
            self._calls.setdefault(graph_id, {})[call] = callee_graph_id
            self._callees.setdefault(graph_id, set()).add(callee_graph_id)
            self._reachable.clear()
            self._note("callee", graph_id, *call, callee_graph_id)

    def add_rename(self, graph_id: int, op_name: str, node_name: str) -> None:
        """Adds another name of a calling op. The op has this name in a runtime function."""
        with self._lock:
            self._renames.setdefault(graph_id, {}).setdefault(op_name, set()).add(node_name)
            self._note("rename", graph_id, op_name, node_name)

    def call_site(self, path: str, inner_graph_id: int) -> str:
        """Converts TensorFlow's path of node names into a call site, which consists of op names.

        A node name differs from the op name if a runtime function renamed a calling op. If a path leads through
        unrecorded calls, it is returned unchanged.
        """
        if not path or not self._renames or path.count("/") > _MAX_DEPTH:
            return path
        with self._lock:
            failed: set[tuple[int, int]] = set()
            for graph_id in self._calls:
                text = self._follow(path, graph_id, inner_graph_id, failed)
                if text is not None:
                    return text
        return path

    def _follow(self, path: str, graph_id: int, inner_graph_id: int, failed: set[tuple[int, int]]) -> str | None:
        """Converts the rest of a path into op names; returns None if the path does not lead to the inner graph.

        Args:
            path: The rest of the path.
            graph_id: The graph that this rest starts from.
            inner_graph_id: The inner graph.
            failed: The pairs (length of the rest, graph) that are known not to lead to the inner graph.
        """
        if not path:
            return "" if graph_id == inner_graph_id else None
        if (len(path), graph_id) in failed:
            return None
        renames = self._renames.get(graph_id, {})
        for (op_name, attribute, index), callee in self._calls.get(graph_id, {}).items():
            self._looks_left -= 1
            if self._looks_left < 0:
                return None
            for node_name in (op_name, *renames.get(op_name, ())):
                if not path.startswith(node_name):
                    continue
                suffix = re.match(inlined_suffix(attribute, index) + r"(/_\d+)?(?=/|$)", path[len(node_name) :])
                if suffix is None:
                    continue
                rest = path[len(node_name) + suffix.end() :]
                inner = self._follow(rest.removeprefix("/"), callee, inner_graph_id, failed)
                if inner is not None:
                    return op_name + suffix[0] + ("/" + inner if inner else "")
        failed.add((len(path), graph_id))
        return None

    def reaches(self, graph_id: int, inner_graph_id: int) -> bool:
        """Returns whether a call of one graph can run ops of another graph in the same step. True for equal graphs."""
        with self._lock:
            reachable = self._reachable.get(graph_id)
            if reachable is None:
                reachable = self._reachable[graph_id] = self._closure(graph_id)
            return inner_graph_id in reachable

    def _note(self, *entry: object) -> None:
        if self._journal is not None:
            self._journal.append(*entry)

    def _closure(self, graph_id: int) -> frozenset[int]:
        seen = {graph_id}
        to_follow = [graph_id]
        while to_follow:
            for callee in self._callees.get(to_follow.pop(), ()):
                if callee not in seen:
                    seen.add(callee)
                    to_follow.append(callee)
        return frozenset(seen)
