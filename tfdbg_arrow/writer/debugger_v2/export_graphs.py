"""Writes the graphs and ops of a recorded run into a Debugger V2 dump.

The dump's reader accepts a graph only after the graph in which it was traced. It accepts an op only after its graph,
and only once. Nodes that TensorFlow's optimizer made and that have tensors follow as additional ops of their graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tfdbg_arrow.writer.debugger_v2.export_files import DumpFiles
from tfdbg_arrow.writer.debugger_v2.export_made_nodes import MadeNode, Source, read_made_nodes
from tfdbg_arrow.writer.debugger_v2.export_stacks import UNKNOWN, Stacks
from tfdbg_arrow.writer.debugger_v2.export_tables import RunTables, to_rows
from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import DebugEvent

LeaveOut = Callable[[str, str], None]
"""A callback that receives the table and the reason for a row that was left out."""

_GRAPH_WINDOW = 16


class Graphs:
    """Writes the graphs and their ops, and then returns the ids of their tensors.

    The ids stay in memory, which grows with the program and not with its running time.

    Args:
        tables: The run's tables.
        files: The dump.
        stacks: The run's stacks.
        leave_out: Called for each row that the reader could not accept.
        advance: Called with the number of rows of graph_op that were written.
    """

    def __init__(
        self,
        tables: RunTables,
        files: DumpFiles,
        *,
        stacks: Stacks,
        leave_out: LeaveOut,
        advance: Callable[[int], None],
    ) -> None:
        self._tables, self._files, self._stacks = tables, files, stacks
        self._leave_out, self._advance = leave_out, advance
        self._names: dict[int, str] = {}
        self._times: dict[int, int] = {}
        self._tensor_ids: dict[tuple[int, str], tuple[int, int]] = {}
        """For each graph and op, the id of its first output and the number of outputs."""
        self._num_tensors = 0
        made_nodes = read_made_nodes(tables)
        self._made_for = {(node.graph_id, node.made_for) for node in made_nodes}
        self._origins: dict[tuple[int, str | None], tuple[int | None, int]] = {}
        """For each graph and op, the stacks and times of the ops that nodes were made for."""
        self._write_graphs()
        self._write_ops()
        self._write_made_nodes(made_nodes)

    def has(self, graph_id: int) -> bool:
        """Returns whether the dump contains a graph."""
        return graph_id in self._names

    def tensor_id(self, graph_id: int | None, op_name: str | None, output_slot: int | None) -> int | None:
        """Returns the id of an op's output in the dump; None if the dump has no such output."""
        if graph_id is None or op_name is None or output_slot is None:
            return None
        first, count = self._tensor_ids.get((graph_id, op_name), (0, 0))
        return first + output_slot if output_slot < count else None

    def _write_graphs(self) -> None:
        columns = ("graph_id", "graph_name", "outer_graph_id", "wall_time_ns")
        rows = {row[0]: row for row in self._tables.rows("graph", columns)}
        for graph_id in sorted(rows):
            chain = [graph_id]
            while True:
                outer = rows[chain[-1]][2]
                if outer is None or outer in self._names or outer not in rows or outer in chain:
                    break
                chain.append(outer)
            for inner in reversed(chain):
                if inner not in self._names:
                    self._write_graph(*rows[inner])

    def _write_graph(self, graph_id: int, name: str, outer_graph_id: int | None, wall_time_ns: int) -> None:
        event = DebugEvent(wall_time=wall_time_ns / 1_000_000_000)
        event.debugged_graph.graph_id = str(graph_id)
        event.debugged_graph.graph_name = name
        if outer_graph_id is not None and outer_graph_id in self._names:
            event.debugged_graph.outer_context_id = str(outer_graph_id)
        self._files.write("graphs", event.SerializeToString())
        self._names[graph_id], self._times[graph_id] = name, wall_time_ns

    def _write_ops(self) -> None:
        ops = self._tables.keyed(
            "graph_op",
            "graph_id",
            (
                "graph_id", "op_index", "op_name", "op_type", "num_outputs", "device_name", "stack_trace_id",
                "wall_time_ns",
            ),
        )  # fmt: skip
        inputs = self._tables.keyed(
            "graph_op_input",
            "graph_id",
            ("graph_id", "op_name", "input_index", "is_control", "source_op_name", "source_output_slot"),
        )
        outputs = self._tables.keyed("graph_op_output", "graph_id", ("graph_id", "op_name", "output_slot"))
        for first, end, window in ops.windows(_GRAPH_WINDOW):
            # TensorFlow may add outputs to a call after its creation, when the gradient is made.
            slots: dict[tuple[int, str], int] = defaultdict(int)
            for graph_id, op_name, slot in to_rows(outputs.between(first, end)):
                slots[graph_id, op_name] = max(slots[graph_id, op_name], slot + 1)
            sources: dict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
            for graph_id, op_name, index, is_control, source, slot in to_rows(inputs.between(first, end)):
                if not is_control and slot is not None:
                    sources[graph_id, op_name].append((index, f"{source}:{slot}"))
            for graph_id, _, op_name, op_type, num_outputs, *rest in sorted(to_rows(window), key=lambda row: row[:3]):
                if self._can_write(graph_id, op_name):
                    names = [name for _, name in sorted(sources[graph_id, op_name])]
                    num_outputs = max(num_outputs, slots[graph_id, op_name])
                    self._write_op(graph_id, op_name, op_type, names, num_outputs, *rest)
            self._advance(window.num_rows)

    def _can_write(self, graph_id: int, op_name: str) -> bool:
        """Returns whether the reader can accept an op; reports the op as left out if not."""
        if graph_id not in self._names:
            self._leave_out("graph_op", "The run has no row of the op's graph, without which no op can be read.")
            return False
        if (graph_id, op_name) in self._tensor_ids:
            self._leave_out("graph_op", "The graph already has an op of that name, and cannot be read with two.")
            return False
        return True

    def _write_made_nodes(self, nodes: list[MadeNode]) -> None:
        """Writes made nodes as ops, with the stacks and times of the ops that they were made for."""
        for node in nodes:
            graph_id = node.graph_id
            if graph_id not in self._names or (graph_id, node.node_name) in self._tensor_ids:
                continue
            names = [self._input_name(graph_id, source) for source in node.sources]
            origin = self._origins.get((graph_id, node.made_for), (None, self._times[graph_id]))
            self._write_op(graph_id, node.node_name, node.op_type, names, node.num_outputs, node.device_name, *origin)

    def _input_name(self, graph_id: int, source: Source) -> str:
        """Returns the name of a tensor.

        The name of a tensor of another graph begins with the name of that graph, to distinguish it from this graph's.
        """
        _, num_outputs = self._tensor_ids.get((graph_id, source.op_name), (0, source.output_slot + 1))
        if source.is_near and source.output_slot < num_outputs:
            return f"{source.op_name}:{source.output_slot}"
        graph_name = UNKNOWN if source.graph_id is None else self._names.get(source.graph_id, UNKNOWN)
        return f"{graph_name}/{source.op_name}:{source.output_slot}"

    def _write_op(
        self,
        graph_id: int,
        op_name: str,
        op_type: str,
        input_names: list[str],
        num_outputs: int,
        device_name: str | None,
        stack_trace_id: int | None,
        wall_time_ns: int,
    ) -> None:
        event = DebugEvent(wall_time=wall_time_ns / 1_000_000_000)
        op = event.graph_op_creation
        op.op_type, op.op_name = op_type, op_name
        op.graph_name, op.graph_id = self._names[graph_id], str(graph_id)
        op.device_name = device_name or ""
        op.input_names.extend(input_names)
        op.num_outputs = num_outputs
        op.output_tensor_ids.extend(range(self._num_tensors + 1, self._num_tensors + num_outputs + 1))
        op.code_location.CopyFrom(self._stacks.location(stack_trace_id, needs_frame=False))
        self._files.write("graphs", event.SerializeToString())
        if (graph_id, op_name) in self._made_for:
            self._origins[graph_id, op_name] = stack_trace_id, wall_time_ns
        self._tensor_ids[graph_id, op_name] = self._num_tensors + 1, num_outputs
        self._num_tensors += num_outputs
