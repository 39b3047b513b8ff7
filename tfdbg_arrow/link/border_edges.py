"""Edges over borders: they connect the arguments and results of calls, branches and loops with the calling ops.

The specification defines these edges in the tables of "Data flow", and in "Functions of one graph" and "Frames and
iterations".
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import numpy as np

from tfdbg_arrow.link.arrays import Bools
from tfdbg_arrow.link.call_chains import BRANCHES, callee_pattern
from tfdbg_arrow.link.call_sites import Call, CallSites
from tfdbg_arrow.link.edges import Edge, Way
from tfdbg_arrow.link.ops import Ops
from tfdbg_arrow.link.tables import Tables, rows_of

_OPS = """
SELECT site, op_name, op, base FROM linked_op
WHERE NOT is_made AND (
    (graph_id, op_name) IN (SELECT graph_id, op_name FROM graph_call WHERE is_inline)
    OR (graph_id, op_name) IN (SELECT graph_id, op_name FROM graph_function_input)
    OR (graph_id, op_name) IN (SELECT graph_id, op_name FROM graph_function_output)
)"""
_IDENTITIES = """
SELECT g.graph_id, g.op_name, i.source_op_name FROM graph_op AS g
JOIN graph_op_input AS i ON i.graph_id = g.graph_id AND i.op_name = g.op_name
WHERE g.op_type = 'Identity' AND NOT i.is_control"""
_NODES_WITH_ROWS = """
SELECT n.graph_id, n.call_site, bool_or(coalesce(g.is_recorded, false) AND NOT n.is_made) AS is_recorded
FROM linked_node AS n
LEFT JOIN graph_op_output AS g ON g.graph_id = n.graph_id AND g.op_name = n.op_name
GROUP BY n.graph_id, n.call_site"""
_MAX_IDENTITIES = 10_000
"""Maximum length of a chain of Identity ops. It ends the search if a damaged table contains a cycle."""

Result = tuple[str, int]
"""An op and its output."""


class Interfaces:
    """The arguments and results of the functions of each graph.

    Attributes:
        graph_of: The graph of each function.
    """

    def __init__(self, tables: Tables) -> None:
        self.graph_of: dict[str, int] = {}
        self._functions: dict[int, list[str]] = defaultdict(list)
        self._arguments: dict[str, dict[str, int]] = defaultdict(dict)
        self._results: dict[str, dict[int, Result]] = defaultdict(dict)
        for name, graph_id in rows_of(
            tables.columns("SELECT function_name, graph_id FROM graph_function ORDER BY function_name")
        ):
            self.graph_of[name] = graph_id
            self._functions[graph_id].append(name)
        for name, index, op_name in rows_of(
            tables.columns("SELECT function_name, input_index, op_name FROM graph_function_input ORDER BY input_index")
        ):
            self._arguments[name].setdefault(op_name, index)
        for name, index, op_name, slot in rows_of(
            tables.columns("SELECT function_name, output_index, op_name, output_slot FROM graph_function_output")
        ):
            self._results[name][index] = op_name, slot
        self.arguments = cache(self._merged_arguments)
        self.results = cache(self._merged_results)

    def _merged_arguments(self, graph_id: int, function_name: str) -> dict[str, int]:
        """Returns the index of each argument, from the function or from another function of the graph."""
        merged: dict[str, int] = {}
        for name in self._variants(graph_id, function_name):
            merged = self._arguments.get(name, {}) | merged
        return merged

    def _merged_results(self, graph_id: int, function_name: str, *, is_alone: bool = False) -> dict[int, Result]:
        """Returns the results by index, like `arguments`. With `is_alone`, leaves out other functions of the graph."""
        merged: dict[int, Result] = {}
        for name in [function_name] if is_alone else self._variants(graph_id, function_name):
            merged = self._results.get(name, {}) | merged
        return merged

    def _variants(self, graph_id: int, function_name: str) -> list[str]:
        return sorted(self._functions[graph_id], key=lambda name: name != function_name)


class BorderEdges:
    """The edges over borders.

    Args:
        tables: The tables of the run.
        sites: The call sites.
        ops: The ops.
        call_inputs: (calling op, input index) -> tensor.
        has_inputs: The ops that have an input in the program.

    Attributes:
        of_ops, of_tensors: The edges, as in `ProgramEdges`.
        is_argument: For each op, whether the op holds an argument of its graph.
        is_fed: For each tensor, whether the tensor was fed to runs of a session.
        is_border: For each op, whether the op hands on the tensor of another op instead of computing a tensor.
        results: (function, output index) -> tensor at the site of the outermost graph.
        calling_ops: (site, op name) -> (number of the op, first tensor of the op). The ops of arguments and results are
            included.
        silent_sites: Sites of branches that may have run without a row.
    """

    def __init__(
        self,
        tables: Tables,
        sites: CallSites,
        ops: Ops,
        *,
        call_inputs: dict[tuple[int, int], int],
        has_inputs: set[int],
    ) -> None:
        self._sites, self._ops, self._call_inputs = sites, ops, call_inputs
        self._interfaces = Interfaces(tables)
        self.calling_ops = {(site, name): (op, base) for site, name, op, base in rows_of(tables.columns(_OPS))}
        self._identities = {(graph_id, name): source for graph_id, name, source in rows_of(tables.columns(_IDENTITIES))}
        self._leaves_rows = _RecordedBranches(tables)
        self.of_ops: list[Edge] = []
        self.of_tensors: list[Edge] = []
        self.is_argument: Bools = np.zeros(len(ops), bool)
        self.is_fed: Bools = np.zeros(ops.num_tensors, bool)
        self.silent_sites: set[int] = set()
        for site in range(len(sites)):
            if sites.calls[site] is None and sites.places[site].root in sites.sessions.functions:
                self._add_feeds(site)
            else:
                self._add_arguments(site, has_inputs)
        for (parent, name), children in sites.children.items():
            if (parent, name) in self.calling_ops:
                self._add_results(parent, *self.calling_ops[parent, name], children)
        self._add_skipped_loops()
        self.is_border = self.is_argument.copy()
        for site, place in enumerate(sites.places):
            for call in sites.calls_of_graph[place.graph_id]:
                if (site, call.op_name) in self.calling_ops:
                    self.is_border[self.calling_ops[site, call.op_name][0]] = True
        for op, _ in call_inputs:  # also calls of functions that were not recorded
            self.is_border[op] = True
        self.results = self._outermost_results()

    def _add_feeds(self, site: int) -> None:
        for (name, slot), index in self._sites.sessions.functions[self._sites.places[site].root].feeds.items():
            tensor = self._tensor(site, name, slot)
            if tensor is not None:
                self.is_fed[tensor] = True
                self.of_tensors.append(Edge(tensor, index, 0, Way.EAGER, index))

    def _add_arguments(self, site: int, has_inputs: set[int]) -> None:
        call, parent = self._sites.calls[site], self._sites.parents[site]
        graph_id = self._sites.places[site].graph_id
        caller = None if call is None else self.calling_ops.get((parent, call.op_name))
        arguments = self._interfaces.arguments(graph_id, "" if call is None else call.function_name)
        for name, index in arguments.items():
            op, _ = self.calling_ops.get((site, name), (-1, -1))
            if op < 0 or op in has_inputs:
                continue
            self.is_argument[op] = True
            if call is None:
                self.of_ops.append(Edge(op, index, 0, Way.EAGER, index))
                continue
            source = None
            if caller is not None:
                source = self._call_inputs.get((caller[0], index + (call.attribute in BRANCHES)))
            if call.is_loop:
                self._add_loop_argument(op, index, source, (parent, call.op_name))
            elif source is not None:
                self.of_ops.append(Edge(op, index, source, Way.ARGUMENT, -1))

    def _add_loop_argument(self, op: int, index: int, source: int | None, loop: tuple[int, str]) -> None:
        if source is not None:
            self.of_ops.append(Edge(op, index, source, Way.ENTER, -1))
        for body in self._sites.children[loop]:
            call = self._sites.calls[body]
            if call is None or call.attribute != "body":
                continue
            result = self._interfaces.results(call.callee_graph_id, call.function_name).get(index)
            tensor = None if result is None else self._tensor(body, *result)
            if tensor is not None:
                self.of_ops.append(Edge(op, index, tensor, Way.NEXT, body))

    def _add_results(self, parent: int, op: int, base: int, children: list[int]) -> None:
        callees = [(child, call) for child in children if (call := self._sites.calls[child]) is not None]
        is_loop = any(call.is_loop for _, call in callees)
        callees = [pair for pair in callees if pair[1].attribute == "body" or not is_loop]
        for number, (child, call) in enumerate(callees):
            results = self._interfaces.results(call.callee_graph_id, call.function_name)
            for index, (name, slot) in results.items():
                tensor = self._tensor(child, name, slot)
                if tensor is None or not 0 <= index < self._ops.num_outputs[op]:
                    continue
                way, detail = (Way.EXIT, self._sites.loops[child]) if is_loop else (Way.RESULT, child)
                self.of_tensors.append(Edge(base + index, index, tensor, way, detail))
                if number == 0 and not is_loop and call.attribute not in BRANCHES:  # the callee ran without rows
                    self.of_tensors.append(Edge(base + index, index, tensor, Way.SILENT, -1))
        if callees and callees[0][1].attribute in BRANCHES:
            self._add_silent_branches(parent, op, base, callees)

    def _add_silent_branches(self, parent: int, op: int, base: int, callees: list[tuple[int, Call]]) -> None:
        """Adds the results of a conditional without rows, if all branches that can have run return the same tensor."""
        text = self._sites.places[parent].text
        by_branch = {(call.attribute, call.branch_index): (child, call) for child, call in callees}
        silent = [pair for pair in by_branch.values() if not self._leaves_rows(text, pair[1])]
        self.silent_sites.update(child for child, _ in silent)
        for index in range(self._ops.num_outputs[op]) if silent else ():
            sources = {self._result_of_branch(op, child, call, index) for child, call in silent}
            if len(sources) == 1 and None not in sources:
                self.of_tensors.append(Edge(base + index, index, sources.pop() or 0, Way.SILENT, -1))

    def _result_of_branch(self, op: int, child: int, call: Call, index: int) -> int | None:
        result = self._interfaces.results(call.callee_graph_id, call.function_name).get(index)
        if result is None:
            return None
        argument = self._argument_behind(call, result[0])
        outer = None if argument is None else self._call_inputs.get((op, argument + 1))
        return self._tensor(child, *result) if outer is None else outer

    def _add_skipped_loops(self) -> None:
        loops = dict(self._sites.loop_ops)
        for site, place in enumerate(self._sites.places):
            for call in self._sites.calls_of_graph[place.graph_id]:
                if call.attribute == "body":
                    loops.setdefault((site, call.op_name), -1)
        for key, loop in loops.items():
            op, base = self.calling_ops.get(key, (-1, -1))
            for slot in range(self._ops.num_outputs[op]) if op >= 0 else ():
                if (op, slot) in self._call_inputs:
                    source = self._call_inputs[op, slot]
                    self.of_tensors.append(Edge(base + slot, slot, source, Way.SKIP, loop))

    def _outermost_results(self) -> dict[tuple[str, int], int]:
        tensor_of_result = {}
        sessions = self._sites.sessions
        for function_name, graph_id in self._interfaces.graph_of.items():
            root = sessions.root_of(function_name, graph_id)
            site = self._sites.outermost(root)
            is_session = root in sessions.functions
            results = self._interfaces.results(graph_id, function_name, is_alone=is_session) if site >= 0 else {}
            for index, (name, slot) in results.items():
                tensor = self._tensor(site, name, slot)
                if tensor is not None:
                    tensor_of_result[function_name, index] = tensor
        return tensor_of_result

    def _tensor(self, site: int, op_name: str, slot: int) -> int | None:
        op, base = self.calling_ops.get((site, op_name), (-1, -1))
        return base + slot if op >= 0 and 0 <= slot < self._ops.num_outputs[op] else None

    def _argument_behind(self, call: Call, op_name: str) -> int | None:
        """Returns the index of the argument that an op of a callee hands on, perhaps through Identity, or None."""
        for _ in range(_MAX_IDENTITIES):
            source = self._identities.get((call.callee_graph_id, op_name))
            if source is None:
                break
            op_name = source
        return self._interfaces.arguments(call.callee_graph_id, call.function_name).get(op_name)


class _RecordedBranches:
    """Says whether a branch leaves a row of its own whenever it runs."""

    def __init__(self, tables: Tables) -> None:
        self._recorded = set(
            tables.columns("SELECT DISTINCT graph_id FROM graph_op_output WHERE is_recorded")["graph_id"].tolist()
        )
        self._optimized: dict[int, list[str]] = {}
        for graph_id, text, is_recorded in rows_of(tables.columns(_NODES_WITH_ROWS)):
            self._optimized.setdefault(graph_id, []).extend([text] if is_recorded else [])

    def __call__(self, text: str, call: Call) -> bool:
        if call.callee_graph_id not in self._optimized:
            return call.callee_graph_id in self._recorded
        patterns = [callee_pattern(text, call), callee_pattern(text, call, is_renamed=True)]
        sites = self._optimized[call.callee_graph_id]
        return any(pattern.fullmatch(site) for pattern in patterns for site in sites)
