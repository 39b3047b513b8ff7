"""ResourceOps: the ops of a graph that read a resource, write to it, or hand it on, according to the graphs alone."""

from __future__ import annotations

import re

from tfdbg_arrow.query.flow.borders import PASSING_OPS
from tfdbg_arrow.query.flow.graphs import Call, GraphReader, Op

WRITER = re.compile(
    r"Assign(Add|Sub)?VariableOp|Resource(Sparse)?Apply\w+|ResourceScatter\w+|ResourceStridedSliceAssign|MakeIterator"
)
"""Types of ops that write to a resource."""
READER = "ReadVariableOp"
"""Type of the op whose output is the content of a resource."""
BRANCHES = frozenset({"then_branch", "else_branch", "branches"})
"""Attributes of a calling op that contain a branch."""


class ResourceOps:
    """Finds the ops of a run's graphs that read or write resources.

    Args:
        graphs: The run's graphs.
    """

    def __init__(self, graphs: GraphReader) -> None:
        self._graphs = graphs
        self._writers: dict[tuple[int, str], tuple[Op, ...]] = {}
        self._writers_of: dict[int, list[Op]] = {}

    def writers_in(self, graph_id: int) -> list[Op]:
        """Returns the ops in a graph, without the functions that it calls, that write to resources."""
        if graph_id not in self._writers_of:
            ops = self._graphs.graph(graph_id).ops.values()
            self._writers_of[graph_id] = [op for op in ops if WRITER.fullmatch(op.op_type) is not None]
        return self._writers_of[graph_id]

    def reading_ops(self, graph_id: int, handle_name: str) -> list[Op]:
        """Returns the ops of a graph that read a resource, in order, without those in functions that it calls."""
        graph = self._graphs.graph(graph_id)
        names = {name for alias in self.aliases(graph_id, handle_name) for name in graph.users.get(alias, ())}
        ops = (graph.ops[name] for name in names if name in graph.ops)
        return sorted((op for op in ops if op.op_type == READER), key=lambda op: op.op_index)

    def writing_ops(self, graph_id: int, handle_name: str) -> tuple[Op, ...]:
        """Returns the ops of a graph that write to a resource, in order, including callers of writing functions."""
        key = (graph_id, handle_name)
        if key not in self._writers:
            self._writers[key] = ()  # a function that calls itself ends here
            self._writers[key] = self._find_writing_ops(graph_id, handle_name)
        return self._writers[key]

    def _find_writing_ops(self, graph_id: int, handle_name: str) -> tuple[Op, ...]:
        graph = self._graphs.graph(graph_id)
        found: dict[str, Op] = {}
        for alias in self.aliases(graph_id, handle_name):
            for name in graph.users.get(alias, ()):
                op = graph.ops.get(name)
                if op is not None and (WRITER.fullmatch(op.op_type) or self._calls_writer(op, graph_id, handle_name)):
                    found[name] = op
        return tuple(sorted(found.values(), key=lambda op: op.op_index))

    def _calls_writer(self, op: Op, graph_id: int, handle_name: str) -> bool:
        return any(
            call.callee_graph_id is not None and self.writing_ops(call.callee_graph_id, name)
            for call in self._graphs.calls(graph_id, op.op_name)
            for name in self.callee_handles(op, call, handle_name)
        )

    def callee_handles(self, op: Op, call: Call, handle_name: str) -> list[str]:
        """Returns the Placeholders of a callee that receive the resource."""
        aliases = self.aliases(call.graph_id, handle_name)
        shift = 1 if call.attribute in BRANCHES else 0
        names = (
            self._graphs.placeholder(call.function_name, index - shift)
            for index, (source, _) in enumerate(op.inputs)
            if source in aliases
        )
        return [name for name in names if name is not None]

    def aliases(self, graph_id: int, handle_name: str) -> set[str]:
        """Returns the ops that hand on a resource within a graph, including its own op."""
        graph = self._graphs.graph(graph_id)
        found, waiting = {handle_name}, [handle_name]
        while waiting:
            for name in graph.users.get(waiting.pop(), ()):
                if name not in found and name in graph.ops and graph.ops[name].op_type in PASSING_OPS:
                    found.add(name)
                    waiting.append(name)
        return found
