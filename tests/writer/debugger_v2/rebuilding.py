"""Rebuilds the records of an imported run, as the comment in `records.py` describes, and reads those of a dump."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdbg_arrow.debugger_v2.file_sets import FILES, RecordReader
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.records import TAIL_COLUMNS, is_measured, summary_tail, tensor_content
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.logdir import Logdir

Records = dict[str, list[Any]]
"""The records by suffix of the file, in order: DebugEvents, or bytes if a record is not a DebugEvent."""


def dump_records(dump: Path, *, prefix: str | None = None) -> Records:
    found: Records = {}
    for file in FILES:
        for path in dump.glob(f"{prefix or '*'}.{file}"):
            with open(path, "rb") as opened:
                found[file] = [parsed(record) for record in RecordReader(opened)]
    return found


def parsed(record: bytes) -> Any:
    try:
        return DebugEvent.FromString(record)
    except Exception:
        return record


def rebuilt_records(logdir: Path, run_id: str) -> Records:
    with open_logdir(logdir) as opened:
        return _Rebuilder(opened, run_id).records()


class _Rebuilder:
    def __init__(self, logdir: Logdir, run_id: str) -> None:
        self._logdir, self._run_id = logdir, run_id
        self._messages = {
            row[0]: row[1:] for row in self._rows("message_id, is_whole, stack_trace_id, message", "dump_message")
        }
        self._sources = dict(self._rows("source_file_id, source_text", "source_file"))
        frame_records = [
            row for row in self._rows("file, row_id, message_id", "dump_record") if row[0] == "stack_frames"
        ]
        self._frame_texts = {
            row_id: DebugEvent.FromString(self._messages[message_id][2]).stack_frame_with_id.id
            for _, row_id, message_id in frame_records
            if row_id is not None
        }
        self._stacks: dict[int, list[int]] = {}
        for stack, _, frame in sorted(self._rows("stack_trace_id, depth, stack_frame_id", "stack_trace"), reverse=True):
            self._stacks.setdefault(stack, []).append(frame)
        self._inputs = self._lists("execution_index, input_index, tensor_id", "execution_input")
        self._outputs = self._lists("execution_index, output_slot, tensor_id", "execution_output")
        self._values = dict(self._rows("event_index, value", "tensor_value"))
        self._health: dict[int, Mapping[str, Any]] = {}
        self._of_execution: dict[int, list[int]] = {}
        columns, rows = logdir.table("SELECT * FROM tensor_health WHERE run_id = ? ORDER BY event_index", [run_id])
        for row in rows:
            health = dict(zip(columns, row, strict=True))
            self._health[health["event_index"]] = health
            if health["scope"] == "execution":
                self._of_execution.setdefault(health["execution_index"], []).append(health["event_index"])

    def _rows(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        return self._logdir.rows(f"SELECT {columns} FROM {table} WHERE run_id = ?", [self._run_id])

    def _lists(self, columns: str, table: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for owner, _, value in sorted(self._rows(columns, table)):
            found.setdefault(owner, []).append(value)
        return found

    def records(self) -> Records:
        found: Records = {}
        for file, _, message_id, wall_time_s, row_id in sorted(
            self._rows("file, record_index, message_id, wall_time_s, row_id", "dump_record")
        ):
            found.setdefault(file, []).append(self._record(message_id, wall_time_s, row_id))
        return found

    def _record(self, message_id: int, wall_time_s: float, row_id: int | None) -> Any:
        is_whole, stack, message = self._messages[message_id]
        if is_whole:
            return parsed(message)
        event = DebugEvent.FromString(message)
        event.wall_time = wall_time_s
        for name in ("graph_op_creation", "execution"):
            if stack is not None and event.HasField(name):
                ids = getattr(event, name).code_location.stack_frame_ids
                ids.extend(self._frame_texts[frame] for frame in self._stacks[stack])
        if event.HasField("source_file") and self._sources[row_id] is not None:
            event.source_file.lines.extend(self._sources[row_id].split("\n"))
        if event.HasField("execution"):
            execution = event.execution
            execution.input_tensor_ids.extend(self._inputs.get(row_id, []))
            execution.output_tensor_ids.extend(self._outputs.get(row_id, []))
            events = iter(self._of_execution.get(row_id, []))
            for tensor in execution.tensor_protos:
                if is_measured(tensor, execution.tensor_debug_mode):
                    self._fill(tensor, execution.tensor_debug_mode, next(events))
        if event.HasField("graph_execution_trace"):
            trace = event.graph_execution_trace
            if is_measured(trace.tensor_proto, trace.tensor_debug_mode):
                self._fill(trace.tensor_proto, trace.tensor_debug_mode, row_id)
        return event

    def _fill(self, tensor: Any, mode: int, event_index: int) -> None:
        health = self._health[event_index]
        if mode in TAIL_COLUMNS:
            tensor.tensor_content += summary_tail(mode, [health[name] for name in TAIL_COLUMNS[mode]], health["shape"])
        elif mode == TensorDebugMode.FULL_TENSOR:
            held = {field.name for field, _ in tensor.ListFields()} - {"dtype", "tensor_shape", "version_number"}
            if not held and event_index in self._values:
                tensor.tensor_content = tensor_content(tensor, self._values[event_index])
