"""Writes the graphs and ops of a recorded run into a Debugger V2 dump, in the order of their creation.

The dump's reader accepts a graph only after it has read the outer graph, in which the graph was traced. The reader
accepts an op only once, and only after its graph. A node that TensorFlow's optimizer made becomes an additional op of
its graph if a tensor of the node was recorded. This op follows the op that the node was made for.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from tfdbg_arrow.debugger_v2.export_rows import Groups, RunRows
from tfdbg_arrow.debugger_v2.file_sets import DumpFiles
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import CodeLocation, DebugEvent
from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.schema.op_traits import Trait, types_with

LeaveOut = Callable[[str, str], None]
"""A callback for a row that was left out; it receives the table and the reason."""
UNKNOWN = "<unknown>"
"""File path, function and id of the frame that replaces an unrecorded stack."""
_HANDING_ON = types_with(Trait.STANDS_FOR_CALL | Trait.ENTERS | Trait.EXITS | Trait.NEXT | Trait.SWITCHES)
"""Types of nodes that only forward a tensor, and that TensorFlow adds at the borders of calls, branches and loops."""
_Tensor = tuple[str, int]
"""The name of a node and the index of its output."""
_OPS = """
SELECT o.graph_id, o.op_index, o.op_name, o.op_type, greatest(o.num_outputs, coalesce(s.num_outputs, 0)), o.device_name,
    o.stack_trace_id, o.wall_time_ns, i.input_names
FROM graph_op AS o
LEFT JOIN (
    SELECT graph_id, op_name, max(output_slot) + 1 AS num_outputs FROM graph_op_output GROUP BY ALL
) AS s ON s.graph_id = o.graph_id AND s.op_name = o.op_name
LEFT JOIN (
    SELECT graph_id, op_name, list(source_op_name || ':' || source_output_slot ORDER BY input_index) AS input_names
    FROM graph_op_input WHERE NOT is_control AND source_output_slot IS NOT NULL GROUP BY ALL
) AS i ON i.graph_id = o.graph_id AND i.op_name = o.op_name
ORDER BY o.graph_id, o.op_index"""
"""The columns of an _OpRow. TensorFlow may add outputs to a call after its creation, when it makes the gradient."""


@dataclass(frozen=True, slots=True)
class _GraphRow:
    """One row of graph."""

    graph_id: int
    name: str
    outer_graph_id: int | None
    wall_time_ns: int


@dataclass(frozen=True, slots=True)
class _OpRow:
    """One row of graph_op, or the same facts about a made node.

    An op has the names of its input tensors. A made node has sources, its input tensors, instead.
    """

    graph_id: int
    op_index: int
    op_name: str
    op_type: str
    num_outputs: int
    device_name: str | None
    stack_trace_id: int | None
    wall_time_ns: int
    input_names: Sequence[str] | None = None
    sources: tuple[_Source, ...] | None = None


class Graphs:
    """Writes the graphs and their ops, and then returns the ids of their tensors.

    The ops and the ids stay in memory; the memory grows with the program and not with its running time.

    Args:
        rows: The run's rows.
        files: The dump.
        stacks: The run's stacks.
        leave_out: Called for each row that the reader could not accept.
        advance: Called with the number of rows of graph_op that were written.
    """

    def __init__(
        self,
        rows: RunRows,
        files: DumpFiles,
        *,
        stacks: Stacks,
        leave_out: LeaveOut,
        advance: Callable[[int], None],
    ) -> None:
        self._files, self._stacks, self._leave_out = files, stacks, leave_out
        self._graphs = {
            row.graph_id: row
            for row in itertools.starmap(
                _GraphRow, rows.rows("SELECT graph_id, graph_name, outer_graph_id, wall_time_ns FROM graph")
            )
        }
        self._written: set[int] = set()
        self._tensor_ids: dict[tuple[int, str], tuple[int, int]] = {}
        """For each graph and op, the id of its first output and the number of outputs."""
        self._num_tensors = 0
        ops = self._read_ops(rows, advance)
        self._num_outputs = {(op.graph_id, op.op_name): op.num_outputs for op in ops}
        self._write_all(ops)

    def has(self, graph_id: int) -> bool:
        """Returns whether the dump contains a graph."""
        return graph_id in self._written

    def tensor_id(self, graph_id: int | None, op_name: str | None, output_slot: int | None) -> int | None:
        """Returns the id of an op's output in the dump; None if the dump has no such output."""
        if graph_id is None or op_name is None or output_slot is None:
            return None
        first, count = self._tensor_ids.get((graph_id, op_name), (0, 0))
        return first + output_slot if output_slot < count else None

    def _read_ops(self, rows: RunRows, advance: Callable[[int], None]) -> list[_OpRow]:
        """Returns the ops that the reader accepts, and the made nodes, in the order of their creation."""
        row_of_op: dict[tuple[int, str], _OpRow] = {}
        # An op never gets an earlier time than the ops before it in its graph, even if the clock jumped.
        lasts: dict[int, int] = {}
        for row in itertools.starmap(_OpRow, rows.rows(_OPS, advance=advance)):
            if self._can_write(row, row_of_op):
                lasts[row.graph_id] = max(lasts.get(row.graph_id, row.wall_time_ns), row.wall_time_ns)
                row_of_op[row.graph_id, row.op_name] = replace(row, wall_time_ns=lasts[row.graph_id])
        made_nodes = _read_made_nodes(rows, row_of_op, self._graphs)
        return sorted(
            (*row_of_op.values(), *made_nodes),
            key=lambda op: (op.wall_time_ns, op.graph_id, op.op_index, op.sources is not None, op.op_name),
        )

    def _can_write(self, op: _OpRow, others: Mapping[tuple[int, str], _OpRow]) -> bool:
        """Returns whether the reader can accept an op; reports the op as left out if not."""
        if op.graph_id not in self._graphs:
            self._leave_out("graph_op", "The run has no row of the op's graph, without which no op can be read.")
            return False
        if (op.graph_id, op.op_name) in others:
            self._leave_out("graph_op", "The graph already has an op of that name, and cannot be read with two.")
            return False
        return True

    def _write_all(self, ops: list[_OpRow]) -> None:
        """Writes each graph before its first op. Writes the graphs without ops in the order of their own times."""
        with_ops = {op.graph_id for op in ops}
        empty = [graph for graph_id, graph in self._graphs.items() if graph_id not in with_ops]
        by_time = sorted(empty, key=lambda graph: (graph.wall_time_ns, graph.graph_id), reverse=True)
        for op in ops:
            while by_time and by_time[-1].wall_time_ns < op.wall_time_ns:
                graph = by_time.pop()
                self._write_graph(graph, graph.wall_time_ns)
            self._write_graph(self._graphs[op.graph_id], op.wall_time_ns)
            self._write_op(op)
        for graph in reversed(by_time):
            self._write_graph(graph, graph.wall_time_ns)

    def _write_graph(self, graph: _GraphRow, wall_time_ns: int) -> None:
        """Writes the graphs in which a graph was traced, and then the graph.

        Does nothing if the graph is already written.
        """
        chain: list[_GraphRow] = []
        current: _GraphRow | None = graph
        while current is not None and current.graph_id not in self._written and current not in chain:
            chain.append(current)
            current = None if current.outer_graph_id is None else self._graphs.get(current.outer_graph_id)
        for row in reversed(chain):
            event = DebugEvent()
            event.debugged_graph.graph_id = str(row.graph_id)
            event.debugged_graph.graph_name = row.name
            if row.outer_graph_id in self._written:
                event.debugged_graph.outer_context_id = str(row.outer_graph_id)
            self._files.write("graphs", event, wall_time_ns)
            self._written.add(row.graph_id)

    def _input_name(self, graph_id: int, source: _Source) -> str:
        """Returns the name of a tensor.

        If the tensor is from another graph, its name begins with the name of that graph. The prefix distinguishes the
        tensor from tensors of this graph.
        """
        num_outputs = self._num_outputs.get((graph_id, source.op_name), source.output_slot + 1)
        if source.is_near and source.output_slot < num_outputs:
            return f"{source.op_name}:{source.output_slot}"
        graph = None if source.graph_id is None else self._graphs.get(source.graph_id)
        return f"{UNKNOWN if graph is None else graph.name}/{source.op_name}:{source.output_slot}"

    def _write_op(self, row: _OpRow) -> None:
        event = DebugEvent()
        op = event.graph_op_creation
        op.op_type, op.op_name = row.op_type, row.op_name
        op.graph_name, op.graph_id = self._graphs[row.graph_id].name, str(row.graph_id)
        op.device_name = row.device_name or ""
        if row.sources is None:
            op.input_names.extend(row.input_names or ())
        else:
            op.input_names.extend(self._input_name(row.graph_id, source) for source in row.sources)
        op.num_outputs = row.num_outputs
        op.output_tensor_ids.extend(range(self._num_tensors + 1, self._num_tensors + row.num_outputs + 1))
        op.code_location.CopyFrom(self._stacks.location(row.stack_trace_id, needs_frame=False))
        self._files.write("graphs", event, row.wall_time_ns)
        self._tensor_ids[row.graph_id, row.op_name] = self._num_tensors + 1, row.num_outputs
        self._num_tensors += row.num_outputs


class Stacks:
    """Writes the source files and frames, and then returns the code locations of stacks.

    The stacks stay in memory; the memory grows with the program and not with its running time.

    Args:
        rows: The run's rows.
        files: The dump.
        host_name: Host name of the run.
        wall_time_ns: The time for the records, in nanoseconds since 1970-01-01T00:00:00Z.
    """

    def __init__(self, rows: RunRows, files: DumpFiles, *, host_name: str, wall_time_ns: int) -> None:
        self._files, self._host_name, self._wall_time_ns = files, host_name, wall_time_ns
        self._paths: set[str] = set()
        self._num_files = 0
        file_indexes: dict[int, int] = {}
        for file_id, path, text in rows.rows(
            "SELECT source_file_id, file_path, source_text FROM source_file ORDER BY ALL"
        ):
            file_indexes[file_id] = self._write_file(path, text)
        written_frames: set[int] = set()
        for frame_id, file_id, path, lineno, func in rows.rows(
            "SELECT stack_frame_id, source_file_id, file_path, lineno, func FROM stack_frame ORDER BY ALL"
        ):
            if file_id not in file_indexes:  # the run was killed between the two rows
                file_indexes[file_id] = self._write_file(path, None)
            self._write_frame(str(frame_id), file_indexes[file_id], lineno, func)
            written_frames.add(frame_id)
        self._locations = {
            stack_id: CodeLocation(
                host_name=host_name, stack_frame_ids=[str(frame_id) for frame_id in stack if frame_id in written_frames]
            )
            for stack_id, stack in rows.rows(
                "SELECT stack_trace_id, list(stack_frame_id ORDER BY depth DESC) FROM stack_trace GROUP BY ALL"
            )
            if not written_frames.isdisjoint(stack)
        }
        self._unknown: CodeLocation | None = None

    def location(self, stack_trace_id: int | None, *, needs_frame: bool) -> CodeLocation:
        """Returns the code location of a stack, the outermost frame first.

        Args:
            stack_trace_id: The stack; None if it was not recorded.
            needs_frame: Whether an unknown stack gets one frame, which says that the stack is unknown; otherwise an
                unknown stack has no frames. Debugger V2's reader needs this frame to return the stack of an execution.
        """
        location = self._locations.get(stack_trace_id) if stack_trace_id is not None else None
        if location is not None:
            return location
        if not needs_frame:
            return CodeLocation(host_name=self._host_name)
        if self._unknown is None:
            self._write_frame(UNKNOWN, self._write_file(UNKNOWN, None), 0, UNKNOWN)
            self._unknown = CodeLocation(host_name=self._host_name, stack_frame_ids=[UNKNOWN])
        return self._unknown

    def _write_file(self, path: str, text: str | None) -> int:
        """Writes a source file and returns its index."""
        # The reader finds a file by its path; a second file with the same path would shift the indexes of later files.
        name, number = path, 1
        while name in self._paths:
            number += 1
            name = f"{path} ({number})"
        self._paths.add(name)
        event = DebugEvent()
        event.source_file.file_path = name
        event.source_file.host_name = self._host_name
        if text is not None:
            event.source_file.lines.extend(text.split("\n"))
        self._files.write("source_files", event, self._wall_time_ns)
        self._num_files += 1
        return self._num_files - 1

    def _write_frame(self, frame_id: str, file_index: int, lineno: int, func: str) -> None:
        event = DebugEvent()
        frame = event.stack_frame_with_id
        frame.id = frame_id
        frame.file_line_col.file_index = file_index
        frame.file_line_col.line = lineno
        frame.file_line_col.func = func
        self._files.write("stack_frames", event, self._wall_time_ns)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """An input tensor of a node.

    Attributes:
        graph_id: The program's graph of the node that produces the tensor; None if unknown.
        op_name: The name of the producing node, as in tensor_health.
        output_slot: Index of the output.
        is_near: Whether the producing node ran in the same call of the same graph as the consuming node.
    """

    graph_id: int | None
    op_name: str
    output_slot: int
    is_near: bool


@dataclass(frozen=True)
class _Node:
    """One row of executed_op."""

    op_type: str
    graph_id: int | None
    op_name: str | None
    made_for: str | None
    call_site: str | None
    device_name: str | None
    output_dtypes: str | None


def _read_made_nodes(
    rows: RunRows, ops: Mapping[tuple[int, str], _OpRow], graphs: Mapping[int, _GraphRow]
) -> Collection[_OpRow]:
    """Returns the nodes made by the optimizer that have rows in tensor_health, one node for each graph and name.

    Args:
        rows: The run's rows.
        ops: The ops of the program, by graph and name. A made node with the name of an op is left out.
        graphs: The graphs by id.
    """
    if not rows.count("executed_op"):
        return ()
    recorded: set[tuple[int, str, str]] = set()
    num_slots: dict[tuple[int, str], int] = defaultdict(int)
    for graph_id, op_name, op_type, num in rows.rows(
        "SELECT graph_id, op_name, op_type, max(output_slot) + 1 FROM tensor_health "
        "WHERE scope = 'graph' AND output_slot IS NOT NULL GROUP BY ALL"
    ):
        recorded.add((graph_id, op_name, op_type))
        num_slots[graph_id, op_name] = max(num_slots[graph_id, op_name], num)
    made_nodes: dict[tuple[int, str], _OpRow] = {}
    for nodes, inputs in _executed_graphs(rows):
        for name, node in sorted(nodes.items()):
            graph = None if node.graph_id is None else graphs.get(node.graph_id)
            if graph is None or node.op_name is not None or (graph.graph_id, name, node.op_type) not in recorded:
                continue
            key = graph.graph_id, name
            if key not in ops and key not in made_nodes:
                made_for = ops.get((graph.graph_id, node.made_for or ""))
                made_nodes[key] = _OpRow(
                    graph_id=graph.graph_id,
                    op_index=MAX_INT64 if made_for is None else made_for.op_index,
                    op_name=name,
                    op_type=node.op_type,
                    num_outputs=max(_num_dtypes(node.output_dtypes), num_slots[key]),
                    device_name=node.device_name,
                    stack_trace_id=None if made_for is None else made_for.stack_trace_id,
                    wall_time_ns=graph.wall_time_ns if made_for is None else made_for.wall_time_ns,
                    sources=tuple(_sources(name, nodes, inputs)),
                )
    return made_nodes.values()


def _executed_graphs(rows: RunRows) -> Iterator[tuple[dict[str, _Node], dict[str, dict[int, _Tensor]]]]:
    """Yields the nodes of each optimized graph by name, and the data inputs of each node by index."""
    edges = Groups(
        rows.rows(
            "SELECT executed_graph_id, node_name, input_index, source_node_name, source_output_slot "
            "FROM executed_op_input WHERE NOT is_control ORDER BY executed_graph_id"
        )
    )
    ops = rows.rows(
        "SELECT executed_graph_id, node_name, op_type, graph_id, op_name, made_for, call_site, device_name, "
        "output_dtypes FROM executed_op ORDER BY executed_graph_id"
    )
    for executed_graph_id, graph_rows in itertools.groupby(ops, key=itemgetter(0)):
        nodes = {name: _Node(*facts) for _, name, *facts in graph_rows}
        inputs: dict[str, dict[int, _Tensor]] = defaultdict(dict)
        for name, index, source, slot in edges.of(executed_graph_id):
            inputs[name][index] = (source, slot or 0)
        yield nodes, inputs


def _num_dtypes(text: str | None) -> int:
    """Returns the number of dtypes in output_dtypes; 0 if they are unknown."""
    try:
        dtypes = json.loads(text) if text is not None else None
    except ValueError:
        return 0
    return len(dtypes) if isinstance(dtypes, list) else 0


def _sources(
    node_name: str, nodes: Mapping[str, _Node], inputs: Mapping[str, Mapping[int, _Tensor]]
) -> Iterator[_Source]:
    """Yields the input tensors of a node, traced back through nodes that only forward them."""
    node = nodes[node_name]
    for _, tensor in sorted(inputs.get(node_name, {}).items()):
        name, slot = _handed_on(tensor, nodes, inputs)
        source = nodes.get(name)
        if source is None:
            yield _Source(graph_id=None, op_name=name, output_slot=slot, is_near=False)
        else:
            yield _Source(
                graph_id=source.graph_id,
                op_name=source.op_name or name,
                output_slot=slot,
                is_near=(source.graph_id, source.call_site) == (node.graph_id, node.call_site),
            )


def _handed_on(tensor: _Tensor, nodes: Mapping[str, _Node], inputs: Mapping[str, Mapping[int, _Tensor]]) -> _Tensor:
    """Returns the tensor that a chain of forwarding nodes received as its input."""
    seen: set[_Tensor] = set()
    while tensor not in seen:
        seen.add(tensor)
        name, slot = tensor
        node = nodes.get(name)
        if node is None or node.op_name is not None or node.op_type not in _HANDING_ON:
            return tensor
        tensor = inputs.get(name, {}).get(slot if node.op_type == "IdentityN" else 0, tensor)
    return tensor
