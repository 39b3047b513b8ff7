"""Runs of sessions: the feeds of a run in TensorFlow's graph mode, and which ops it ran in which order.

A run computes the part of its graph that its fetches and targets need, up to its feeds. Only the edges of the graph,
including control edges, order the ops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import GraphReader, Op
from tfdbg_arrow.query.recorded import Context, Execution
from tfdbg_arrow.query.untrusted_json import parse_json

REFERENCE_VARIABLES = frozenset({"Variable", "VariableV2"})
"""Op types that return a reference to a variable's memory."""
REFERENCE_WRITER = re.compile(
    r"Assign(Add|Sub)?|(Sparse)?Apply\w+|Scatter(Update|Add|Sub|Mul|Div|Min|Max|Nd(Update|Add|Sub))"
)
"""Types of ops that write to a reference variable."""
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2"})


class Sessions:
    """Reads the runs of sessions within one run of a program.

    Args:
        graphs: The graphs.
        events: The recorded tensors.
    """

    def __init__(self, graphs: GraphReader, events: EventReader) -> None:
        self._graphs = graphs
        self._events = events
        self._ops_of = lru_cache(maxsize=256)(self._find_ops)
        self._executions_of = lru_cache(maxsize=64)(self._read_executions)

    def is_session_graph(self, graph_id: int) -> bool:
        """Returns whether a graph is run by sessions."""
        return graph_id in self._graphs.session_graphs

    def is_run(self, context: Context, graph_id: int, op_name: str) -> bool:
        """Returns whether an op ran in a context in which other ops of its graph ran.

        A function runs all of its ops. A run of a session only runs those that its fetches and targets need.
        """
        execution = self._execution(context) if self.is_session_graph(graph_id) else None
        return execution is None or op_name in self._ops_of(execution.op_type, None)

    def feed_index(self, context: Context, op_name: str, output_slot: int) -> int | None:
        """Returns the input of the execution through which a tensor was fed in a run, or None if it was not fed."""
        execution = self._execution(context)
        if execution is None:
            return None
        return self._graphs.feeds.get(execution.op_type, {}).get((op_name, output_slot))

    def last_writer(
        self, graph_id: int, writers: Iterable[Op], context: Context, *, reader: str
    ) -> tuple[Op, Context] | None:
        """Returns the last op that wrote to a variable before it was read, and where it ran.

        Within the run of the read, this is a write that the reader depends on. A write that the reader does not depend
        on, such as that of an optimizer, comes after the read. If there is no such write, it is the last write of the
        last earlier run of the session that wrote to the variable.

        Args:
            graph_id: The graph of the variable.
            writers: The ops of the graph that write to it.
            context: Where the variable is read.
            reader: The reading op of that graph.
        """
        execution = self._execution(context)
        if execution is None:
            return None
        by_name = {op.op_name: op for op in writers}
        before = self._ops_of(execution.op_type, reader) - {reader}
        found = _last([by_name[name] for name in before & by_name.keys()])
        if found is not None:
            return found, context
        session = self._graphs.sessions.get(execution.op_type)
        for earlier in reversed(self._executions_of(graph_id)):
            if earlier.event_index >= execution.event_index or self._graphs.sessions[earlier.op_type] != session:
                continue
            found = _last([by_name[name] for name in self._ops_of(earlier.op_type, None) & by_name.keys()])
            if found is not None:
                return found, self._events.root_context(earlier.execution_index, graph_id)
        return None

    def last_reference_writer(self, graph_id: int, variable: str, context: Context) -> tuple[Op, Context] | None:
        """Returns the last op that wrote to a reference variable before a run, and where it ran."""
        graph = self._graphs.graph(graph_id)
        found: dict[str, Op] = {}
        waiting = [variable]
        while waiting:  # a writer passes the reference on
            for name in graph.users.get(waiting.pop(), ()):
                op = graph.ops[name]
                if name not in found and REFERENCE_WRITER.fullmatch(op.op_type) and op.inputs:
                    found[name] = op
                    waiting.append(name)
        return self.last_writer(graph_id, found.values(), context, reader=variable)

    def _execution(self, context: Context) -> Execution | None:
        if context.execution_index is None:
            return None
        execution = self._events.execution(context.execution_index)
        return execution if execution is not None and execution.op_type in self._graphs.sessions else None

    def _read_executions(self, graph_id: int) -> list[Execution]:
        names = [name for name in self._graphs.sessions if self._graphs.function_graphs.get(name) == graph_id]
        return self._events.executions_of(names)

    def _find_ops(self, function_name: str, start: str | None) -> frozenset[str]:
        """Returns the ops that a session's run executes to compute `start`, including it; None means all its ops."""
        graph_id = self._graphs.function_graphs[function_name]
        graph = self._graphs.graph(graph_id)
        control = self._graphs.control_sources(graph_id)
        feeds = self._graphs.feeds.get(function_name, {})
        fed_ops = {name for name, _ in feeds}
        waiting = [start] if start is not None else self._asked_for(function_name)
        seen: set[str] = set()
        while waiting:
            op = graph.ops.get(waiting.pop())
            if op is None or op.op_name in seen:
                continue
            seen.add(op.op_name)
            waiting += [source for source, slot in op.inputs if (source, slot) not in feeds]
            for source in control.get(op.op_name, ()):
                if not (source in fed_ops and source in graph.ops and graph.ops[source].op_type in _PLACEHOLDERS):
                    waiting.append(source)
        return frozenset(seen)

    def _asked_for(self, function_name: str) -> list[str]:
        try:
            targets = parse_json(self._graphs.session_targets[function_name])
        except ValueError:
            targets = []
        names = [each for each in targets if isinstance(each, str)] if isinstance(targets, list) else []
        return names + [op_name for op_name, _ in self._graphs.results_of(function_name)]


def _last(ops: list[Op]) -> Op | None:
    return max(ops, key=lambda op: op.op_index, default=None)
