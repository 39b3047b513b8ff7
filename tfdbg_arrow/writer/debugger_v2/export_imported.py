"""Restores the Debugger V2 dump of an imported run: equal messages in the same files and order.

The module `records` explains how the messages are stored.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from tfdbg_arrow.errors import BrokenPartError, LogdirError
from tfdbg_arrow.writer.debugger_v2.export_files import DumpFiles
from tfdbg_arrow.writer.debugger_v2.export_tables import Row, RunRow, RunTables, to_rows
from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.writer.debugger_v2.records import FILES, TAIL_COLUMNS, is_measured, summary_tail, tensor_content

IMPORTED_BACKEND = "debugger_v2"
"""Value of run.health_backend for an imported run."""
_NO_ELEMENTS = ("dtype", "tensor_shape", "version_number")
"""The fields of a TensorProto that hold no elements. A TensorProto with other fields stayed complete in its message."""
_RECORD_WINDOW = 4096
_HELD_MESSAGE_BYTES = 64 * 2**20
_HEALTH_COLUMNS = tuple(dict.fromkeys(name for names in TAIL_COLUMNS.values() for name in names))


def imported_files(run: RunRow, dump: Path) -> DumpFiles:
    """Returns the files of the imported dump, under their original names, to be written into a directory.

    Raises:
        LogdirError: The run's settings do not list the files, or its import was not finished.
    """
    try:
        made_of = json.loads(run.settings)["debugger_v2"]
        prefix, suffixes = made_of["prefix"], [name for name in FILES if name in made_of["files"]]
        is_finished = bool(made_of["is_finished"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogdirError(
            f"the settings of the imported run {run.run_id} do not say from which files it was made "
            f"({type(error).__name__}: {error}); import the dump again."
        ) from error
    if not is_finished:
        raise LogdirError(
            f"the import of the run {run.run_id} was not finished; run `tfdbg-arrow import` again to finish it."
        )
    if not isinstance(prefix, str) or not prefix or PurePath(prefix).name != prefix:
        raise LogdirError(f"the imported run {run.run_id} has the file prefix {prefix!r}, expected a plain file name.")
    return DumpFiles(dump, prefix, suffixes=suffixes)


class ImportedRunWriter:
    """Writes one imported run into the files of a dump.

    Args:
        tables: The run's tables.
        files: The dump, with the same files as the imported one.
        advance: Called with the number of rows of dump_record that were written.
    """

    def __init__(self, tables: RunTables, *, files: DumpFiles, advance: Callable[[int], None]) -> None:
        self._tables, self._files, self._advance = tables, files, advance
        self._messages = _Messages(tables)
        self._frame_ids: dict[int, str] = {}
        self._sources = tables.keyed("source_file", "source_file_id", ("source_text",))
        self._stacks: dict[int, list[int]] = {}
        self._tensors = _Tensors(tables)

    def write(self) -> None:
        """Writes all records.

        Raises:
            BrokenPartError: A part cannot be read.
            PartGoneError: A part was replaced in the meantime.
            OSError: The dump cannot be written.
        """
        self._stacks = self._read_stacks()
        for file in FILES:  # the ids of frames come before the stacks that refer to them
            columns = ("record_index", "message_id", "wall_time_s", "row_id")
            records = self._tables.keyed("dump_record", "record_index", columns, where=("file", file))
            for _, _, window in records.windows(_RECORD_WINDOW):
                rows = list(to_rows(window))
                if file in ("execution", "graph_execution_traces"):
                    row_ids = [row_id for *_, row_id in rows if row_id is not None]
                    self._tensors.load(row_ids, is_execution=file == "execution")
                for _, message_id, wall_time_s, row_id in rows:
                    self._files.write(file, self._record(file, message_id, wall_time_s, row_id))
                self._advance(len(rows))

    def _read_stacks(self) -> dict[int, list[int]]:
        """Returns the frames of each stack, outermost first."""
        frames: dict[int, list[tuple[int, int]]] = defaultdict(list)
        columns = ("stack_trace_id", "depth", "stack_frame_id")
        for stack_id, depth, frame_id in self._tables.rows("stack_trace", columns):
            frames[stack_id].append((depth, frame_id))
        return {
            stack_id: [frame_id for _, frame_id in sorted(stack, reverse=True)] for stack_id, stack in frames.items()
        }

    def _record(self, file: str, message_id: int, wall_time_s: float, row_id: int | None) -> bytes:
        is_whole, stack_trace_id, message = self._messages.get(message_id)
        if file == "stack_frames" and row_id is not None:
            frame_id = DebugEvent.FromString(message).stack_frame_with_id.id
            self._frame_ids.setdefault(row_id, frame_id)
        if is_whole:
            return bytes(message)
        event = DebugEvent.FromString(message)
        event.wall_time = wall_time_s
        if file == "source_files" and row_id is not None:
            source = self._sources.get(row_id)
            if source is not None and source[0] is not None:
                event.source_file.lines.extend(source[0].split("\n"))
        elif file == "graphs":
            if stack_trace_id is not None:
                self._add_stack(event.graph_op_creation.code_location, stack_trace_id)
        elif file == "execution" and row_id is not None:
            if stack_trace_id is not None:
                self._add_stack(event.execution.code_location, stack_trace_id)
            event.execution.input_tensor_ids.extend(self._tensors.input_ids(row_id))
            event.execution.output_tensor_ids.extend(self._tensors.output_ids(row_id))
            mode = event.execution.tensor_debug_mode
            tensors = [tensor for tensor in event.execution.tensor_protos if is_measured(tensor, mode)]
            rows = self._tensors.of_execution(row_id)
            if len(rows) < len(tensors):
                raise _missing("tensor_health", "execution_index", row_id)
            for tensor, row in zip(tensors, rows, strict=False):
                self._tensors.add_content(tensor, mode, row)
        elif file == "graph_execution_traces" and row_id is not None:
            trace = event.graph_execution_trace
            if is_measured(trace.tensor_proto, trace.tensor_debug_mode):
                row = self._tensors.of_trace(row_id)
                self._tensors.add_content(trace.tensor_proto, trace.tensor_debug_mode, row)
        return bytes(event.SerializeToString())

    def _add_stack(self, location: Any, stack_trace_id: int) -> None:
        location.stack_frame_ids.extend(self._frame_ids[frame_id] for frame_id in self._stacks.get(stack_trace_id, ()))


class _Messages:
    """The rows of dump_message by id; the most recently used ones stay in memory."""

    def __init__(self, tables: RunTables) -> None:
        self._rows = tables.keyed("dump_message", "message_id", ("is_whole", "stack_trace_id", "message"))
        self._held: OrderedDict[int, Row] = OrderedDict()
        self._held_bytes = 0

    def get(self, message_id: int) -> Row:
        """Returns (is_whole, stack_trace_id, message)."""
        row = self._held.get(message_id)
        if row is not None:
            self._held.move_to_end(message_id)
            return row
        row = self._rows.get(message_id)
        if row is None:
            raise _missing("dump_message", "message_id", message_id)
        self._held[message_id] = row
        self._held_bytes += len(row[2])
        while self._held_bytes > _HELD_MESSAGE_BYTES:
            self._held_bytes -= len(self._held.popitem(last=False)[1][2])
        return row


class _Tensors:
    """The data of a window of executions or traces in other tables."""

    def __init__(self, tables: RunTables) -> None:
        key = "execution_index"
        self._all_inputs = tables.keyed("execution_input", key, (key, "input_index", "tensor_id"))
        self._all_outputs = tables.keyed("execution_output", key, (key, "output_slot", "tensor_id"))
        columns = (key, "event_index", "shape", *_HEALTH_COLUMNS)
        self._execution_health = tables.keyed("tensor_health", key, columns, where=("scope", "execution"))
        self._trace_health = tables.keyed("tensor_health", "event_index", columns, where=("scope", "graph"))
        self._values = tables.keyed("tensor_value", "event_index", ("value",))
        self._inputs: dict[int, list[tuple[int, int]]] = {}
        self._outputs: dict[int, list[tuple[int, int]]] = {}
        self._health: dict[int, list[Row]] = {}
        self._traces: dict[int, Row] = {}

    def load(self, row_ids: Sequence[int], *, is_execution: bool) -> None:
        """Reads the data of executions (by execution_index) or traces (by event_index)."""
        first, end = (min(row_ids), max(row_ids) + 1) if row_ids else (0, 0)
        if not is_execution:
            self._traces = {row[1]: row[1:] for row in to_rows(self._trace_health.between(first, end))}
            return
        self._inputs, self._outputs, self._health = defaultdict(list), defaultdict(list), defaultdict(list)
        for index, number, tensor_id in to_rows(self._all_inputs.between(first, end)):
            self._inputs[index].append((number, tensor_id))
        for index, slot, tensor_id in to_rows(self._all_outputs.between(first, end)):
            self._outputs[index].append((slot, tensor_id))
        for row in to_rows(self._execution_health.between(first, end)):
            self._health[row[0]].append(row[1:])

    def input_ids(self, execution_index: int) -> list[int]:
        """Returns the ids of the input tensors of an execution, in order."""
        return [tensor_id for _, tensor_id in sorted(self._inputs[execution_index])]

    def output_ids(self, execution_index: int) -> list[int]:
        """Returns the ids of the output tensors of an execution, in order."""
        return [tensor_id for _, tensor_id in sorted(self._outputs[execution_index])]

    def of_execution(self, execution_index: int) -> list[Row]:
        """Returns the rows of tensor_health of an execution, in the order of its summaries."""
        return sorted(self._health[execution_index], key=lambda row: row[0])

    def of_trace(self, event_index: int) -> Row:
        """Returns the row of tensor_health of a trace."""
        row = self._traces.get(event_index)
        if row is None:
            raise _missing("tensor_health", "event_index", event_index)
        return row

    def add_content(self, tensor: Any, mode: int, row: Row) -> None:
        """Restores the content that was removed from a TensorProto."""
        event_index, shape, *health = row
        if mode == TensorDebugMode.FULL_TENSOR:
            is_listed = any(field.name not in _NO_ELEMENTS for field, _ in tensor.ListFields())
            value = None if is_listed else self._values.get(event_index)
            if value is not None:
                tensor.tensor_content = tensor_content(tensor, value[0])
            return
        values = dict(zip(_HEALTH_COLUMNS, health, strict=True))
        tail = summary_tail(mode, [values[name] for name in TAIL_COLUMNS[mode]], shape)
        tensor.tensor_content += tail


def _missing(table: str, key: str, value: int) -> BrokenPartError:
    return BrokenPartError(
        f"the table {table} has no row with {key} = {value}, which an imported record needs; restore the logdir, or "
        "import the dump again."
    )
