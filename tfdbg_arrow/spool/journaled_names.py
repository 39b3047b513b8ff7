"""Resolves the numbers in records with the help of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdbg_arrow.spool.graph_links import GraphLinks, TensorNode
from tfdbg_arrow.spool.journal import JournalReader

_MAX_GRAPH_ID = 2**31 - 1
_MAX_LOOKS = 5_000_000
_UNKNOWN_NODE: TensorNode = (-1, "", "", -1)


class JournaledNames:
    """The strings, nodes and graphs of a recording, read from its journal.

    Missing and impossible entries are left out; records that refer to them get no name.

    Args:
        journal: The journal of names.

    Attributes:
        graphs: The calls between graphs.
        num_torn: How often bytes of the journal were not a complete entry.

    Raises:
        OSError: The journal cannot be read.
    """

    def __init__(self, journal: Path) -> None:
        self.graphs = GraphLinks(max_looks=_MAX_LOOKS)
        strings: dict[int, str] = {}
        nodes: dict[int, TensorNode] = {}
        num_entries = 0
        reader = JournalReader(journal)
        for entry in reader.entries():
            num_entries += 1
            if entry.string is not None:
                strings[entry.string[0]] = entry.string[1]
            else:
                self._take(entry.data, nodes)
        self.num_torn = reader.num_torn
        # No recording assigns a number far above the number of entries.
        self._strings = _as_list(strings, "", max_length=2 * num_entries)
        self._nodes = _as_list(nodes, _UNKNOWN_NODE, max_length=2 * max(num_entries, len(nodes)))

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on."""
        return self._strings[start:]

    def nodes(self, start: int) -> Sequence[TensorNode]:
        """Returns the tensors with keys from `start` on."""
        return self._nodes[start:]

    @property
    def num_strings(self) -> int:
        """Number of strings."""
        return len(self._strings)

    def _take(self, data: Sequence[Any], nodes: dict[int, TensorNode]) -> None:
        match data:
            case ["node", int(first), *entry] if first >= 0:  # one entry per node, as version 0.1.0 wrote them
                self._take(["nodes", first, [entry]], nodes)
            case ["nodes", int(first), list(found)] if first >= 0:
                nodes.update((key, node) for key, entry in enumerate(found, start=first) if (node := _as_node(entry)))
            case ["function", str(name), int(graph_id)] if _is_graph(graph_id):
                self.graphs.add_function(name, graph_id)
            case ["callee", int(graph_id), str(op_name), str(attribute), int(index), int(callee)] if (
                op_name and _is_graph(graph_id) and _is_graph(callee)
            ):
                self.graphs.add_callee(graph_id, (op_name, attribute, index), callee)
            case ["rename", int(graph_id), str(op_name), str(node_name)] if node_name and _is_graph(graph_id):
                self.graphs.add_rename(graph_id, op_name, node_name)


def _as_node(entry: object) -> TensorNode | None:
    match entry:
        case [int(graph_id), str(op_name), str(op_type), int(slot)] if _is_graph(graph_id) and -1 <= slot < 2**31:
            return graph_id, op_name, op_type, slot
    return None


def _is_graph(graph_id: int) -> bool:
    return 0 <= graph_id <= _MAX_GRAPH_ID


def _as_list(found: dict[int, Any], missing: Any, *, max_length: int) -> list[Any]:
    length = min(max(found, default=-1) + 1, max_length)
    return [found.get(number, missing) for number in range(length)]
