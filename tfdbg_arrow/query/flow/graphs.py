"""The graphs of one run: ops, edges, functions and calls. Graphs are loaded on first use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.executed_graphs import ExecutedGraph, ExecutedNode, read_dtypes, replaced_slot_named_in
from tfdbg_arrow.query.flow.search import breadth_first
from tfdbg_arrow.query.recorded import Op
from tfdbg_arrow.schema.dtypes import DTYPES
from tfdbg_arrow.schema.op_traits import Trait, types_with
from tfdbg_arrow.schema.tables import BAD_CONSTANT

DISCRETE = frozenset(dtype.name for dtype in DTYPES if dtype.kind in ("integer", "bool"))
"""Dtypes of integers and booleans."""
NEVER_BAD = DISCRETE | {"string"}
"""Dtypes whose elements cannot be infinite or NaN."""
NEVER_BAD_IN_SQL = ", ".join(f"'{dtype}'" for dtype in sorted(NEVER_BAD))
CHECKS = types_with(Trait.FINDS_BAD)
"""Types of ops that only test whether a tensor is bad."""
LOOPS = frozenset({"body", "cond"})
"""Attributes of a calling op that hold the graphs of a loop."""
BRANCHES = frozenset({"then_branch", "else_branch", "branches"})
"""Attributes of a calling op that hold a branch."""
_MAX_GRAPHS_AT_ONCE = 256
"""Maximum number of graphs that are read together. Bounds the parameters of a statement and the memory."""
_OPS_AT_ONCE = 2_000
"""Other graphs are read together with the graph that is needed, up to this total number of ops. Most runs have fewer
ops, so that one statement for each table reads all graphs."""


@dataclass(frozen=True)
class Call:
    """One function that an op can call. The attributes are columns of graph_call."""

    graph_id: int
    op_name: str
    attribute: str
    branch_index: int
    function_name: str
    callee_graph_id: int | None
    is_inline: bool


@dataclass(frozen=True)
class Graph:
    """One graph.

    Attributes:
        graph_id: The ID of the graph.
        ops: The ops by name, including the nodes that TensorFlow's optimizer made. The nodes of the optimizer have no
            inputs.
        dtypes: Dtype of each (op name, output slot).
        users: For each op name, the names of the ops that take outputs of this op.
    """

    graph_id: int
    ops: dict[str, Op] = field(repr=False)
    dtypes: dict[tuple[str, int], str] = field(repr=False)
    users: dict[str, tuple[str, ...]] = field(repr=False)

    @cached_property
    def replacements(self) -> dict[tuple[str, int], list[str]]:
        """The nodes that the optimizer made to compute an output of an op, by (op name, output slot)."""
        ops: dict[tuple[str, int], list[str]] = {}
        for op in self.ops.values():
            if op.made_for is not None and op.replaced_slot is not None:
                ops.setdefault((op.made_for, op.replaced_slot), []).append(op.op_name)
        return ops


@dataclass(frozen=True)
class Argument:
    """One argument of a function: its index, its Placeholder, and whether it is a captured tensor."""

    input_index: int
    op_name: str
    is_capture: bool


class GraphReader:
    """Reads the graphs of one run, each graph once."""

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._graphs: dict[int, Graph] = {}
        self._executed: dict[int, ExecutedGraph] = {}
        self._executed_of: dict[int, list[int]] = {}
        for graph_id, executed_graph_id in self._rows(
            "SELECT DISTINCT graph_id, executed_graph_id FROM executed_op WHERE run_id = ? AND graph_id IS NOT NULL "
            "ORDER BY graph_id, executed_graph_id"
        ):
            self._executed_of.setdefault(graph_id, []).append(executed_graph_id)
        self._neighbours: dict[int, set[int]] = {}
        self._callees: dict[int, list[int]] = {}
        self.names: dict[int, str] = dict(self._rows("SELECT graph_id, graph_name FROM graph WHERE run_id = ?"))
        self._num_ops: dict[int, int] = dict(
            self._rows("SELECT graph_id, count(*) FROM graph_op WHERE run_id = ? GROUP BY graph_id ORDER BY graph_id")
        )
        self.control_sources = lru_cache(maxsize=64)(self._read_control_sources)
        self.function_graphs: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        """The session of each function that stands for runs of a session."""
        self.session_targets: dict[str, str] = {}
        """For each function in `sessions`, the targets of the runs as JSON."""
        for function_name, graph_id, session, targets in self._rows(
            "SELECT function_name, graph_id, session_index, session_targets FROM graph_function WHERE run_id = ?"
        ):
            self.function_graphs[function_name] = graph_id
            if session is not None:
                self.sessions[function_name] = session
                self.session_targets[function_name] = targets or "[]"
        self.session_graphs = frozenset(self.function_graphs[name] for name in self.sessions)
        self.feeds: dict[str, dict[tuple[str, int], int]] = {}
        """For each function in `sessions`, the input_index of each fed tensor."""
        self._arguments: dict[str, dict[str, Argument]] = {}
        for function_name, index, op_name, is_capture, slot in self._rows(
            "SELECT function_name, input_index, op_name, is_capture, output_slot FROM graph_function_input "
            "WHERE run_id = ? ORDER BY function_name, input_index"
        ):
            if function_name in self.sessions:
                self.feeds.setdefault(function_name, {})[op_name, slot or 0] = index
                continue
            self._arguments.setdefault(function_name, {})[op_name] = Argument(index, op_name, is_capture)
        self._results: dict[str, dict[int, tuple[str, int]]] = {}
        for function_name, index, op_name, slot in self._rows(
            "SELECT function_name, output_index, op_name, output_slot FROM graph_function_output WHERE run_id = ?"
        ):
            self._results.setdefault(function_name, {})[index] = (op_name, slot)
        self._calls: dict[tuple[int, str], list[Call]] = {}
        self._callers: dict[int, list[Call]] = {}
        for row in self._rows(
            "SELECT graph_id, op_name, attribute, branch_index, function_name, callee_graph_id, is_inline "
            "FROM graph_call WHERE run_id = ? ORDER BY graph_id, op_name, attribute, branch_index"
        ):
            call = Call(*row)
            self._calls.setdefault((call.graph_id, call.op_name), []).append(call)
            if call.callee_graph_id is not None:
                if call.is_inline:
                    self._callees.setdefault(call.graph_id, []).append(call.callee_graph_id)
                self._neighbours.setdefault(call.graph_id, set()).add(call.callee_graph_id)
                self._neighbours.setdefault(call.callee_graph_id, set()).add(call.graph_id)
                self._callers.setdefault(call.callee_graph_id, []).append(call)
        self._functions_of: dict[int, list[str]] = {}
        for function_name, graph_id in self.function_graphs.items():
            self._functions_of.setdefault(graph_id, []).append(function_name)

    @cached_property
    def bad_constants(self) -> frozenset[tuple[int, str]]:
        """The constants of the program that hold an infinity or a NaN: (graph, op name)."""
        rows = self._rows(
            "SELECT graph_id, op_name FROM graph_op WHERE run_id = ? AND op_type = 'Const' "
            f"""AND contains(attributes, '"{BAD_CONSTANT}"')"""
        )
        return frozenset((graph_id, op_name) for graph_id, op_name in rows)

    def op(self, graph_id: int, op_name: str) -> Op | None:
        """Returns an op, or None if it was not recorded."""
        return self.graph(graph_id).ops.get(op_name)

    def argument(self, graph_id: int, op_name: str, *, function_name: str | None) -> Argument | None:
        """Returns the argument that a Placeholder stands for, or None if the Placeholder is no argument.

        Args:
            graph_id: The graph.
            op_name: The Placeholder.
            function_name: The called function; None if it is unknown. If TensorFlow made a new function to take the
                gradient, this can be the original function.
        """
        for name in self._variants(graph_id, function_name):
            if (of_op := self._arguments.get(name, {}).get(op_name)) is not None:
                return of_op
        return None

    def placeholder(self, function_name: str, input_index: int) -> str | None:
        """Returns the Placeholder of a function's argument."""
        arguments = self._arguments.get(function_name, {}).values()
        return next((argument.op_name for argument in arguments if argument.input_index == input_index), None)

    def result(self, function_name: str, output_index: int) -> tuple[str, int] | None:
        """Returns (op name, output slot) of a function's result, or None if it is unknown.

        Args:
            function_name: The called function. If TensorFlow made a new function to take the gradient, this can be the
                original function.
            output_index: The index of the result.
        """
        for name in self._variants(self.function_graphs.get(function_name), function_name):
            if (source := self._results.get(name, {}).get(output_index)) is not None:
                return source
        return None

    def result_indexes(self, function_name: str, op_name: str, output_slot: int) -> list[int]:
        """Returns the result indexes at which a function returns a given tensor of its graph.

        If the results of the function are unknown, the results of another function of the graph are used.
        """
        for name in self._variants(self.function_graphs.get(function_name), function_name):
            results = self._results.get(name)
            if results is not None:
                return [index for index, result in results.items() if result == (op_name, output_slot)]
        return []

    def may_return(self, graph_id: int, op_name: str, output_slot: int) -> bool:
        """Returns whether a function of a graph returns a tensor; True if no function of the graph was recorded."""
        names = self._functions_of.get(graph_id, [])
        return not names or any(
            result == (op_name, output_slot) for name in names for result in self._results.get(name, {}).values()
        )

    def results_of(self, function_name: str) -> list[tuple[str, int]]:
        """Returns (op name, output slot) of all results of a function."""
        return list(self._results.get(function_name, {}).values())

    def results_at(self, graph_id: int, output_index: int) -> frozenset[tuple[str, int]]:
        """Returns (op name, output slot) of one result, for each function of a graph."""
        results = (self._results.get(name, {}).get(output_index) for name in self._functions_of.get(graph_id, ()))
        return frozenset(result for result in results if result is not None)

    def calls(self, graph_id: int, op_name: str) -> list[Call]:
        """Returns the functions that an op calls within the caller's step."""
        return [call for call in self._calls.get((graph_id, op_name), ()) if call.is_inline]

    def callers(self, graph_id: int) -> list[Call]:
        """Returns the calls of a graph by ops that run in the same step as the graph."""
        return [call for call in self._callers.get(graph_id, ()) if call.is_inline]

    def in_all_traces(self, graph_ids: Iterable[int]) -> frozenset[int]:
        """Returns the given graphs, and the graphs that other traces of the callers call at the same places."""
        places = {self._place(call) for graph_id in graph_ids for call in self.callers(graph_id)}
        traced = (
            callee for callee in self._callers if any(self._place(call) in places for call in self.callers(callee))
        )
        return frozenset(graph_ids).union(traced)

    def _place(self, call: Call) -> tuple[str | None, str, str, int]:
        return self.names.get(call.graph_id), call.op_name, call.attribute, call.branch_index

    def parts(self, graph_id: int) -> list[int]:
        """Returns a graph and all graphs that it calls within its step, at any depth."""
        return list(breadth_first([graph_id], lambda caller: self._callees.get(caller, ())))

    def _variants(self, graph_id: int | None, function_name: str | None) -> list[str]:
        """Returns a function, then the other functions of its graph.

        To take a gradient, TensorFlow makes a new function from the same graph, with additional arguments and results
        at the end. The recorded call names the original function.
        """
        others = [] if graph_id is None else self._functions_of.get(graph_id, [])
        first = [] if function_name is None else [function_name]
        return first + [name for name in others if name != function_name]

    def graph(self, graph_id: int) -> Graph:
        """Returns a graph. A graph that was not recorded has no ops."""
        if graph_id not in self._graphs:
            self._read_graphs(self._read_together(graph_id))
        return self._graphs[graph_id]

    def executed(self, graph_id: int) -> list[ExecutedGraph]:
        """Returns the optimized graphs that contain nodes of a graph; empty if the program's graph ran unchanged."""
        executed_graph_ids = self._executed_of.get(graph_id, ())
        self._need_executed(executed_graph_ids)
        return [self._executed[executed_graph_id] for executed_graph_id in executed_graph_ids]

    @cached_property
    def recorded_graphs(self) -> frozenset[int]:
        """The graphs that leave rows when they run."""
        traced = self._rows("SELECT DISTINCT graph_id FROM graph_op_output WHERE run_id = ? AND is_recorded")
        traced_graphs = {graph_id for (graph_id,) in traced if graph_id not in self._executed_of}
        return frozenset(traced_graphs | self.recorded_sites.keys())

    @cached_property
    def recorded_sites(self) -> dict[int, frozenset[str]]:
        """For each optimized graph that leaves rows, the call sites at which it leaves rows."""
        rows = self._rows(
            "SELECT DISTINCT e.graph_id, coalesce(e.call_site, '') FROM executed_op AS e JOIN graph_op_output AS o "
            "ON o.run_id = e.run_id AND o.graph_id = e.graph_id AND o.op_name = e.op_name "
            "WHERE e.run_id = ? AND o.is_recorded"
        )
        by_graph: dict[int, set[str]] = {}
        for graph_id, site in rows:
            by_graph.setdefault(graph_id, set()).add(site)
        return {graph_id: frozenset(sites) for graph_id, sites in by_graph.items()}

    def executed_graph_ids(self) -> frozenset[int]:
        """Returns the graphs for which `executed` returns at least one graph."""
        return frozenset(self._executed_of)

    def executed_graph(self, executed_graph_id: int) -> ExecutedGraph:
        """Returns an optimized graph."""
        self._need_executed([executed_graph_id])
        return self._executed[executed_graph_id]

    def _need_executed(self, executed_graph_ids: Iterable[int]) -> None:
        """Reads those of the given optimized graphs that were not read before."""
        unread = [number for number in executed_graph_ids if number not in self._executed]
        if not unread:
            return
        inputs: dict[tuple[int, str], list[tuple[str, int]]] = {}
        nodes: dict[int, list[ExecutedNode]] = {executed_graph_id: [] for executed_graph_id in unread}
        condition = f"WHERE run_id = ? AND executed_graph_id IN ({', '.join('?' * len(unread))})"
        for executed_graph_id, node_name, source, slot in self._rows(
            "SELECT executed_graph_id, node_name, source_node_name, source_output_slot FROM executed_op_input "
            f"{condition} AND NOT is_control ORDER BY executed_graph_id, node_name, input_index",
            *unread,
        ):
            inputs.setdefault((executed_graph_id, node_name), []).append((source, 0 if slot is None else slot))
        for executed_graph_id, name, op_type, of_graph, op_name, made_for, site, dtypes, index in self._rows(
            "SELECT executed_graph_id, node_name, op_type, graph_id, op_name, made_for, call_site, output_dtypes, "
            f"interface_index FROM executed_op {condition} ORDER BY executed_graph_id, node_name",
            *unread,
        ):
            nodes[executed_graph_id].append(
                ExecutedNode(
                    node_name=name,
                    op_type=op_type,
                    graph_id=of_graph,
                    op_name=op_name,
                    made_for=made_for,
                    call_site=site,
                    dtypes=read_dtypes(dtypes),
                    interface_index=index,
                    inputs=tuple(inputs.get((executed_graph_id, name), ())),
                )
            )
        for executed_graph_id, nodes_of_graph in nodes.items():
            self._executed[executed_graph_id] = ExecutedGraph(nodes_of_graph)

    def _read_together(self, graph_id: int) -> list[int]:
        """Returns a graph, the unread graphs that calls connect to this graph, and other graphs up to a limit."""

        def unread_neighbours(of_graph: int) -> Iterator[int]:
            return (other for other in self._neighbours.get(of_graph, ()) if other not in self._graphs)

        connected = set(breadth_first([graph_id], unread_neighbours, limit=_MAX_GRAPHS_AT_ONCE))
        num_ops = sum(self._num_ops.get(connected_id, 0) for connected_id in connected)
        for other, num_ops_of_other in self._num_ops.items():
            if other not in connected and other not in self._graphs:
                num_ops += num_ops_of_other
                if num_ops > _OPS_AT_ONCE or len(connected) == _MAX_GRAPHS_AT_ONCE:
                    break
                connected.add(other)
        return sorted(connected)

    def _read_graphs(self, graph_ids: list[int]) -> None:
        inputs: dict[int, dict[str, list[tuple[str, int]]]] = {graph_id: {} for graph_id in graph_ids}
        users: dict[int, dict[str, dict[str, None]]] = {graph_id: {} for graph_id in graph_ids}
        ops: dict[int, dict[str, Op]] = {graph_id: {} for graph_id in graph_ids}
        dtypes: dict[int, dict[tuple[str, int], str]] = {graph_id: {} for graph_id in graph_ids}
        condition = f"WHERE run_id = ? AND graph_id IN ({', '.join('?' * len(graph_ids))})"
        for graph_id, op_name, source, slot in self._rows(
            f"SELECT graph_id, op_name, source_op_name, source_output_slot FROM graph_op_input {condition} "
            "AND NOT is_control ORDER BY graph_id, op_name, input_index",
            *graph_ids,
        ):
            inputs[graph_id].setdefault(op_name, []).append((source, 0 if slot is None else slot))
            users[graph_id].setdefault(source, {})[op_name] = None
        for graph_id, op_name, op_type, op_index, stack_trace_id in self._rows(
            f"SELECT graph_id, op_name, op_type, op_index, stack_trace_id FROM graph_op {condition} ORDER BY op_index",
            *graph_ids,
        ):
            sources = tuple(inputs[graph_id].get(op_name, ()))
            ops[graph_id][op_name] = Op(op_name, op_type, op_index, stack_trace_id, sources)
        for graph_id, op_name, slot, dtype in self._rows(
            f"SELECT graph_id, op_name, output_slot, dtype FROM graph_op_output {condition}", *graph_ids
        ):
            dtypes[graph_id][op_name, slot] = dtype
        self._need_executed({number for graph_id in graph_ids for number in self._executed_of.get(graph_id, ())})
        for graph_id in graph_ids:
            self._add_made_nodes(graph_id, ops[graph_id], dtypes[graph_id])
            names = {source: tuple(user_names) for source, user_names in users[graph_id].items()}
            self._graphs[graph_id] = Graph(graph_id, ops[graph_id], dtypes[graph_id], names)

    def _add_made_nodes(self, graph_id: int, ops: dict[str, Op], dtypes: dict[tuple[str, int], str]) -> None:
        program = dict(ops)
        for graph in self.executed(graph_id):
            for made in graph.made_nodes(graph_id):
                if made.node_name in ops:
                    continue
                slot = replaced_slot_named_in(made.node_name)
                replaced = None
                if slot is None or made.made_for not in program or graph.has_op(graph_id, made.made_for):
                    replaced = graph.replaced(made, program)
                op = program.get(replaced[0] if replaced else made.made_for or "")
                ops[made.node_name] = Op(
                    made.node_name,
                    made.op_type,
                    -1 if op is None else op.op_index,
                    None if op is None else op.stack_trace_id,
                    (),
                    made_for=None if op is None else op.op_name,
                    replaced_slot=replaced[1] if replaced else slot,
                )
                for slot, dtype in enumerate(made.dtypes or ()):
                    if dtype is not None:
                        dtypes[made.node_name, slot] = dtype

    def _read_control_sources(self, graph_id: int) -> dict[str, list[str]]:
        by_op: dict[str, list[str]] = {}
        for op_name, source in self._rows(
            "SELECT op_name, source_op_name FROM graph_op_input WHERE run_id = ? AND graph_id = ? AND is_control",
            graph_id,
        ):
            by_op.setdefault(op_name, []).append(source)
        return by_op

    def _rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._logdir.rows(query, [self._run_id, *parameters])
