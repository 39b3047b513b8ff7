"""Imports the four small files of a dump, which describe the program and define the objects that events refer to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from tfdbg_arrow.debugger_v2.import_tables import RowBuffer
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.writer.stacks import FrameOwners

MAX_TIME_S = 2**63 / 1e9 - 1
"""The greatest time whose nanoseconds fit into int64, in seconds, less one second for rounding errors."""
_FRAMEWORK = re.compile(r"[/\\](site|dist)-packages[/\\](tensorflow|keras|tf_keras|tensorflow_core)[/\\]")
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib(64)?[/\\]python\d[\d.]*[/\\]|^<frozen ")
_MAX_STACKS = 200_000
"""Maximum number of stacks that are remembered, which bounds the memory. A forgotten stack gets a new id."""


def wall_time_ns(wall_time_s: float) -> int:
    """Converts a dump's time to nanoseconds, with microsecond precision; returns 0 for an invalid time."""
    return round(wall_time_s * 1e6) * 1000 if -MAX_TIME_S < wall_time_s < MAX_TIME_S else 0


class Definitions:
    """The definitions that the events need from the small files.

    Memory grows with the program (its files, lines, graphs and ops), not with its running time.

    Attributes:
        metadata: The first DebugMetadata; None if there is none.
        graph_ids: Ids of graphs in the run, by their ids in the dump.
        graph_names: Names of graphs, by id.
        device_ids: Ids of devices, by name.
        op_types: Type of each op, by graph id and name.
        wall_time_ns: The earliest time of a record; None if there is none.
    """

    def __init__(self, rows: RowBuffer, problems: Failures) -> None:
        self._rows, self.problems = rows, problems
        self.metadata: Any = None
        self.graph_ids: dict[str, int] = {}
        self.graph_names: dict[int, str] = {}
        self.device_ids: dict[str, int] = {}
        self._used_device_ids: set[int] = set()
        self._last_device_id = 0
        self.op_types: dict[tuple[int, str], str] = {}
        self.wall_time_ns: int | None = None
        self._outer: dict[int, int] = {}
        self._late_graphs: dict[int, tuple[str, int]] = {}
        """Name and time of each graph whose ops appear before the record of the graph."""
        self._num_graph_ops: dict[int, int] = {}
        self._functions: set[str] = set()
        self._file_paths: list[str] = []
        self._file_lines: dict[int, list[str]] = {}
        self._unknown_files: set[int] = set()
        self._frame_ids: dict[str, int] = {}
        self._num_frames = 0
        self._stack_ids: dict[tuple[int, ...], int] = {}
        self._num_stacks = 0
        self._owners = FrameOwners()

    def read(self, file: str, records: Iterable[bytes]) -> None:
        """Imports one of the files.

        Args:
            file: Suffix of the file. Read the files in the order of FILES, because stacks refer to frames and frames
                refer to files.
            records: The records of the file.
        """
        handlers: dict[str, Callable[[Any], None]] = {
            "debug_metadata": self._metadata,
            "source_file": self._source_file,
            "stack_frame_with_id": self._stack_frame,
            "graph_op_creation": self._graph_op,
            "debugged_graph": self._graph,
            "debugged_device": self._device,
        }
        for record in records:
            try:
                event = DebugEvent.FromString(record)
            except DecodeError:
                self.problems.note("dropped", f"{file} record", "is not a DebugEvent")
                continue
            self.note_time(wall_time_ns(event.wall_time))
            handler = handlers.get(event.WhichOneof("what") or "")
            if handler is None:
                self.problems.note("dropped", f"{file} record", "has no known content")
            else:
                handler(event)
        if file == "stack_frames":
            self._file_lines.clear()

    def note_time(self, time_ns: int) -> None:
        """Updates `wall_time_ns` with the time of a record."""
        if time_ns and (self.wall_time_ns is None or time_ns < self.wall_time_ns):
            self.wall_time_ns = time_ns

    def stack_id(self, code_location: Any) -> int | None:
        """Returns the id of the stack of a CodeLocation, without unknown frames; None if the stack has no frames."""
        ids = tuple(self._frame_ids.get(frame_id, -1) for frame_id in code_location.stack_frame_ids)
        if missing := ids.count(-1):
            self.problems.note(
                "failed", "stack frame", "is referred to, but not among the dump's stack_frames", missing
            )
            ids = tuple(frame_id for frame_id in ids if frame_id >= 0)
        if not ids:
            return None
        stack_id = self._stack_ids.get(ids)
        if stack_id is None:
            if len(self._stack_ids) >= _MAX_STACKS:
                self._stack_ids.clear()
            stack_id = self._stack_ids[ids] = self._num_stacks
            self._num_stacks += 1
            for depth, frame_id in enumerate(reversed(ids)):
                row = {"stack_trace_id": stack_id, "depth": depth, "stack_frame_id": frame_id}
                self._rows.add_row("stack_trace", row)
        return stack_id

    def outermost(self, graph_id: int) -> int:
        """Returns the graph of the outermost function that contains a graph.

        A graph without a name does not belong to a function: it is TensorFlow's default graph, which contains all other
        graphs.
        """
        seen = {graph_id}
        while (outer := self._outer.get(graph_id)) is not None and outer not in seen and self.graph_names.get(outer):
            seen.add(outer)
            graph_id = outer
        return graph_id

    def device_id(self, name: str) -> int | None:
        """Returns the id of a device, and adds the device if the dump did not list it; None for an empty name."""
        if not name:
            return None
        device_id = self.device_ids.get(name)
        if device_id is None:
            device_id = self._add_device(name, self._last_device_id + 1)
        return device_id

    def _add_device(self, name: str, device_id: int) -> int:
        self.device_ids[name] = device_id
        self._used_device_ids.add(device_id)
        self._last_device_id = max(self._last_device_id, device_id)
        self._rows.add_row("device", {"device_id": device_id, "device_name": name})
        return device_id

    def add_function(self, function_name: str, graph_id: int) -> None:
        """Adds a function that was made from a graph."""
        if function_name not in self._functions:
            self._functions.add(function_name)
            self._rows.add_row("graph_function", {"function_name": function_name, "graph_id": graph_id})

    def _metadata(self, event: Any) -> None:
        if self.metadata is None:
            self.metadata = type(event.debug_metadata)()
            self.metadata.CopyFrom(event.debug_metadata)

    def _source_file(self, event: Any) -> None:
        source = event.source_file
        file_id = len(self._file_paths)
        self._file_paths.append(source.file_path)
        lines = list(source.lines)
        text = "\n".join(lines) if lines else None
        row = {"source_file_id": file_id, "file_path": source.file_path, "source_text": text}
        self._rows.add_row("source_file", row, num_bytes=len(text or ""))
        self._file_lines[file_id] = lines

    def _stack_frame(self, event: Any) -> None:
        frame = event.stack_frame_with_id
        location = frame.file_line_col
        frame_id = self._num_frames
        self._num_frames += 1
        if frame.id in self._frame_ids:
            self.problems.note("failed", "stack frame", "has the id of another one; stacks refer to the first one")
        self._frame_ids.setdefault(frame.id, frame_id)
        path = self._file_path(location.file_index)
        lines = self._file_lines.get(location.file_index, [])
        code = lines[location.line - 1].strip() if 1 <= location.line <= len(lines) else ""
        row = {
            "stack_frame_id": frame_id,
            "source_file_id": location.file_index,
            "file_path": path,
            "lineno": location.line,
            "func": _text(location.func),
            "code": _text(location.code).strip() or code or None,
            "owner": self._owner(path),
        }
        self._rows.add_row("stack_frame", row)

    def _file_path(self, index: int) -> str:
        if 0 <= index < len(self._file_paths):
            return self._file_paths[index]
        path = f"<source file {index} of the dump>"
        if index not in self._unknown_files:
            self._unknown_files.add(index)
            self.problems.note("failed", "source file", "is referred to, but not among the dump's source_files")
            self._rows.add_row("source_file", {"source_file_id": index, "file_path": path, "source_text": None})
        return path

    def _owner(self, path: str) -> str:
        """Returns the owner of a file's code, even if the file is from a machine with other directories."""
        if _FRAMEWORK.search(path):
            return "framework"
        if _LIBRARY.search(path):
            return "library"
        return self._owners.owner(path)

    def _graph(self, event: Any) -> None:
        graph = event.debugged_graph
        if graph.graph_id in self.graph_ids and self.graph_ids[graph.graph_id] in self.graph_names:
            self.problems.note("failed", "graph", "has the id of another one; the first one is used")
            return
        graph_id = self._graph_number(graph.graph_id)
        self.graph_names[graph_id] = graph.graph_name
        outer = None
        if graph.outer_context_id:
            outer = self._outer[graph_id] = self._graph_number(graph.outer_context_id)
        self._add_graph(graph_id, graph.graph_name, wall_time_ns(event.wall_time), outer=outer)

    def _add_graph(self, graph_id: int, name: str, time_ns: int, *, outer: int | None) -> None:
        row = {"graph_id": graph_id, "graph_name": name, "outer_graph_id": outer, "stack_trace_id": None}
        self._rows.add_row("graph", {**row, "wall_time_ns": time_ns})

    def _graph_number(self, name: str) -> int:
        return self.graph_ids.setdefault(name, len(self.graph_ids))

    def _device(self, event: Any) -> None:
        device = event.debugged_device
        if device.device_name in self.device_ids or device.device_id in self._used_device_ids:
            self.problems.note("failed", "device", "is defined twice; the first definition is used")
        else:
            self._add_device(device.device_name, device.device_id)

    def _graph_op(self, event: Any) -> None:
        op = event.graph_op_creation
        time_ns = wall_time_ns(event.wall_time)
        graph_id = self._graph_number(op.graph_id)
        if graph_id not in self.graph_names:
            # The graph's own record comes later or was lost. The record of another graph may name this graph as its
            # outer graph.
            self._late_graphs.setdefault(graph_id, (op.graph_name, time_ns))
        index = self._num_graph_ops.get(graph_id, 0)
        self._num_graph_ops[graph_id] = index + 1
        if (graph_id, op.op_name) in self.op_types:
            self.problems.note("failed", "graph op", "has the name of another op of its graph; both have rows")
        self.op_types[graph_id, op.op_name] = op.op_type
        num_outputs = max(0, min(op.num_outputs, max(_MAX_UNLISTED_OUTPUTS, len(op.output_tensor_ids))))
        if num_outputs < op.num_outputs:
            self.problems.note("failed", "graph op", "claims more outputs than it lists; the others are left out")
        common = {"graph_id": graph_id, "op_name": op.op_name}
        self._rows.add_row(
            "graph_op",
            {
                **common,
                "op_index": index,
                "op_type": op.op_type,
                "num_outputs": num_outputs,
                "device_name": op.device_name or None,
                "attributes": None,
                "stack_trace_id": self.stack_id(op.code_location),
                "wall_time_ns": time_ns,
            },
        )
        for row in _inputs(op.input_names):
            self._rows.add_row("graph_op_input", {**common, **row})
        for slot in range(num_outputs):
            self._rows.add_row("graph_op_output", {**common, "output_slot": slot})

    def finish(self) -> None:
        """Adds the graphs that ops or inner graphs refer to, but that have no record of their own."""
        lost = {
            number: late_graph for number, late_graph in self._late_graphs.items() if number not in self.graph_names
        }
        for graph_id, (name, time_ns) in lost.items():
            self.graph_names[graph_id] = name
            self.problems.note("failed", "graph", "has no record of its own; only its ops refer to it")
            self._add_graph(graph_id, name, time_ns, outer=None)
        for name, graph_id in self.graph_ids.items():
            if graph_id not in self.graph_names:
                self.graph_names[graph_id] = name
                self.problems.note("failed", "graph", "has no record of its own; only an inner graph refers to it")
                self._add_graph(graph_id, name, self.wall_time_ns or 0, outer=None)


_MAX_UNLISTED_OUTPUTS = 256
"""At most this many unlisted outputs of an op get rows, so that a damaged number does not fill the disk."""


def _text(value: str | bytes) -> str:
    """Returns a string of a proto2 message as text. The message holds bytes if the string is not valid UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def _inputs(names: Sequence[str]) -> list[dict[str, object]]:
    """Returns the rows of graph_op_input for the names of an op's inputs."""
    rows: list[dict[str, object]] = []
    num_control = 0
    for name in names:
        if name.startswith("^"):
            row: dict[str, object] = {"input_index": num_control, "is_control": True, "source_op_name": name[1:]}
            rows.append({**row, "source_output_slot": None})
            num_control += 1
            continue
        source, colon, slot = name.rpartition(":")
        if not colon or not slot.isascii() or not slot.isdigit() or len(slot) > 9:
            source, slot = name, "0"
        index = len(rows) - num_control
        row = {"input_index": index, "is_control": False, "source_op_name": source}
        rows.append({**row, "source_output_slot": int(slot)})
    return rows
