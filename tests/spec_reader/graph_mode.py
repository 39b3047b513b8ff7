"""The rules of the specification about TensorFlow 1: runs of sessions, and loops and branches that consist of ops."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

_ENTERS, _EXITS = frozenset({"Enter", "RefEnter"}), frozenset({"Exit", "RefExit"})
_MERGES, _NEXTS = frozenset({"Merge", "RefMerge"}), frozenset({"NextIteration", "RefNextIteration"})
_SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
BORDERS = _ENTERS | _EXITS | _MERGES | _NEXTS
HANDS_ON_HANDLES = _ENTERS | _SWITCHES
REFERENCES = frozenset({"Variable", "VariableV2"})
REFERENCE_WRITER = re.compile(
    r"Assign(Add|Sub)?|(Sparse)?Apply\w+|Scatter(Nd)?(Update|Add|Sub|Mul|Div|Min|Max)|StridedSliceAssign"
)

Row = dict[str, Any]


class GraphMode:
    """Finds the ops that an op of a session's graph needs, and the loop that contains an op.

    Args:
        functions, arguments, results: The rows of `graph_function`, and of the tables of arguments and results. ops,
        edges: The rows of `graph_op` and of `graph_op_input`.
    """

    def __init__(
        self,
        functions: Iterable[Row],
        arguments: Iterable[Row],
        results: Iterable[Row],
        ops: Iterable[Row],
        edges: Iterable[Row],
    ) -> None:
        self.sessions = {row["function_name"]: row for row in functions if row["session_index"] is not None}
        self.feeds: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        for row in arguments:
            if row["function_name"] in self.sessions:
                self.feeds[row["function_name"]][row["op_name"], row["output_slot"] or 0] = row["input_index"]
        self._asked: dict[str, list[str]] = {
            name: list(json.loads(row["session_targets"] or "[]")) for name, row in self.sessions.items()
        }
        for row in results:
            if row["function_name"] in self.sessions:
                self._asked[row["function_name"]].append(row["op_name"])
        self._types: dict[int, dict[str, str]] = defaultdict(dict)
        for row in ops:
            self._types[row["graph_id"]][row["op_name"]] = row["op_type"]
        self._edges: dict[int, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in edges:
            self._edges[row["graph_id"]][row["op_name"]].append(row)

    def type_of(self, graph_id: int, op: str) -> str | None:
        """Returns the type of an op of the program."""
        return self._types[graph_id].get(op)

    # Runs of sessions

    def needs(self, function: str, op: str) -> Iterator[str]:
        """Yields the ops on which an op depends directly in the runs of a function."""
        graph_id, feeds = self.sessions[function]["graph_id"], self.feeds[function]
        for edge in self._edges[graph_id][op]:
            source = edge["source_op_name"]
            if edge["is_control"]:
                is_fed = any(name == source for name, _ in feeds)
                if not (is_fed and (self.type_of(graph_id, source) or "").startswith("Placeholder")):
                    yield source
            elif (source, edge["source_output_slot"]) not in feeds:
                yield source

    @functools.cache  # noqa: B019
    def before(self, function: str, op: str | None) -> dict[str, int]:
        """Returns the ops that an op depends on, or all ops that ran if `op` is None, with their positions in order."""
        start = self._asked[function] if op is None else list(self.needs(function, op))
        places: dict[str, int] = {}
        seen: set[str] = set()
        waiting = [(name, False) for name in reversed(start)]
        while waiting:
            name, is_done = waiting.pop()
            if is_done:
                places[name] = len(places)
            elif name not in seen:
                seen.add(name)
                waiting.append((name, True))
                graph_id = self.sessions[function]["graph_id"]
                is_back = self.type_of(graph_id, name) in _NEXTS and not is_done
                waiting += [(each, False) for each in self.needs(function, name) if each not in seen or not is_back]
        return places

    # Loops

    def parts(self, graph_id: int) -> dict[str, str]:
        """Returns, for each op in a loop, the name of an op that stands for the loop."""
        return self._loops(graph_id)[0]

    def outer(self, graph_id: int, part: str) -> str | None:
        """Returns the loop around a loop."""
        parts, entered_from = self._loops(graph_id)
        return parts.get(entered_from.get(part, ""))

    @functools.cache  # noqa: B019
    def _loops(self, graph_id: int) -> tuple[dict[str, str], dict[str, str]]:
        types, neighbours = self._types[graph_id], defaultdict(set)
        for op, edges in self._edges[graph_id].items():
            for edge in edges:
                if types.get(op) not in _ENTERS | _EXITS:
                    neighbours[op].add(edge["source_op_name"])
                    neighbours[edge["source_op_name"]].add(op)
        parts: dict[str, str] = {}
        for enter in (op for op, op_type in types.items() if op_type in _ENTERS):
            waiting = [] if enter in parts else [enter]
            while waiting:
                op = waiting.pop()
                if op not in parts:
                    parts[op] = enter
                    waiting += neighbours[op]
        entered_from = {
            parts[op]: edge["source_op_name"]
            for op, op_type in types.items()
            if op_type in _ENTERS
            for edge in self._edges[graph_id][op]
            if edge["source_op_name"] in parts
        }
        return parts, entered_from

    def merges_loop(self, graph_id: int, op: str) -> bool:
        """Returns whether an op is the Merge of a loop variable."""
        sources = (edge["source_op_name"] for edge in self._edges[graph_id][op] if not edge["is_control"])
        return self.type_of(graph_id, op) in _MERGES and any(self.type_of(graph_id, s) in _NEXTS for s in sources)

    def is_enter(self, graph_id: int, op: str) -> bool:
        """Returns whether an op passes a tensor into a loop."""
        return self.type_of(graph_id, op) in _ENTERS

    def is_exit(self, graph_id: int, op: str) -> bool:
        """Returns whether an op passes a tensor out of a loop."""
        return self.type_of(graph_id, op) in _EXITS

    def is_next(self, graph_id: int, op: str) -> bool:
        """Returns whether an op passes a tensor to the next iteration."""
        return self.type_of(graph_id, op) in _NEXTS
