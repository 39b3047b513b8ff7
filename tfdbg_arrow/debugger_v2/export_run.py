"""Writes a run as the records of a Debugger V2 dump.

The dump has an execution for each row of `execution`, and a trace for each row of `tensor_health` with the scope
`graph`. The dump includes tensors that Debugger V2 itself does not record. The ids in the dump are the ids in our
tables, in decimal. The traces are in the order of `event_index`. The traces arrived in this order, as in a dump that
Debugger V2 writes.

Source: tensorflow/python/debug/lib/dumping_callback.py, debug_events_reader.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfdbg_arrow.debugger_v2.export_graphs import Graphs, Stacks
from tfdbg_arrow.debugger_v2.export_tables import RunRow, RunTables, listed, to_rows
from tfdbg_arrow.debugger_v2.file_sets import DumpFiles
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import TensorProto
from tfdbg_arrow.debugger_v2.summaries import NO_TENSOR_ID, NUM_SUMMARY, Summaries, whole_tensor

FILE_VERSION = "debug.Event:1"
PROGRESS_TABLES = ("graph_op", "execution", "tensor_health")
"""The tables whose rows count for the progress."""
_UNKNOWN_DEVICE_ID = 0
"""Id of an unrecorded device; recorded devices are numbered from 1, as in Debugger V2."""
_WINDOW = 4096
"""Number of executions or events whose rows are in memory at a time."""
_NO_SUMMARY = "The mode's summary needs values that were not measured, for example of strings, which have no health."
_NO_OP = "The run has no row of the op that made the tensor, which Debugger V2's reader needs for a trace."
_EXTERNAL = "Debugger V2 does not support tensors that come from outside all recorded ops."
_NO_PLACE = {
    "mark": "Debugger V2 has no labels.",
    "capture_stat": "Debugger V2 has no place for what was not recorded.",
}
MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE", "FULL_TENSOR")
"""The modes that Debugger V2 supports."""
_FROM_FULL_HEALTH = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE")
EXPORTABLE: dict[str, tuple[str, ...]] = {
    "NO_TENSOR": ("NO_TENSOR",),
    "CURT_HEALTH": ("NO_TENSOR", "CURT_HEALTH", "SHAPE"),
    "CONCISE_HEALTH": ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "SHAPE"),
    "FULL_HEALTH": _FROM_FULL_HEALTH,
    "FULL_NUMERICS": _FROM_FULL_HEALTH,
    "SHAPE": ("NO_TENSOR", "SHAPE"),
    "FULL_TENSOR": (*_FROM_FULL_HEALTH, "FULL_TENSOR"),
}
"""For each mode of a recording, the modes that an export can have."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Rows of a run that the dump does not hold.

    Attributes:
        table: Name of the table.
        reason: The reason, as a sentence.
        num_rows: Number of rows.
    """

    table: str
    reason: str
    num_rows: int


class _Measured(NamedTuple):
    """One row of tensor_health."""

    event_index: int
    device_id: int | None
    health: Sequence[Any]
    """The values of Summaries.columns."""


class RunWriter:
    """Writes one run into the files of a dump.

    Args:
        tables: The run's tables.
        run: The run's row.
        mode: The mode to write; EXPORTABLE must list it for the run's own mode.
        files: The dump.
        advance: Called with the number of rows of PROGRESS_TABLES that were written.
    """

    def __init__(
        self, tables: RunTables, run: RunRow, *, mode: str, files: DumpFiles, advance: Callable[[int], None]
    ) -> None:
        self._tables, self._run, self._files, self._advance = tables, run, files, advance
        self._mode = TensorDebugMode.Value(mode)
        self._device_names: dict[int | None, str] = dict(sorted(tables.rows("device", ("device_id", "device_name"))))
        self._device_ids: dict[int | None, int] = {}
        self._has_values = mode == "FULL_TENSOR"
        self._summaries = Summaries(self._mode)
        self._values = tables.keyed("tensor_value", "event_index", ("dtype", "shape", "value"))
        self._left_out: dict[tuple[str, str], int] = defaultdict(int)

    def write(self) -> tuple[LeftOut, ...]:
        """Writes all records; returns the rows that the dump cannot hold.

        Raises:
            BrokenPartError: A part cannot be read.
            PartGoneError: A part was replaced in the meantime.
            OSError: The dump cannot be written.
        """
        self._write_metadata()
        stacks = Stacks(
            self._tables, self._files, host_name=self._run.host_name or "", wall_time_ns=self._run.wall_time_ns
        )
        for device_id in self._device_names:
            self._write_device(device_id)
        graphs = Graphs(self._tables, self._files, stacks=stacks, leave_out=self._leave_out, advance=self._advance)
        self._write_executions(graphs, stacks)
        self._write_traces(graphs)
        for table, reason in _NO_PLACE.items():
            self._leave_out(table, reason, self._tables.num_rows(table))
        self._leave_out("tensor_health", _EXTERNAL, self._tables.count("tensor_health", "scope", "external"))
        return tuple(
            LeftOut(table=table, reason=reason, num_rows=count)
            for (table, reason), count in sorted(self._left_out.items())
            if count
        )

    def _leave_out(self, table: str, reason: str, num_rows: int = 1) -> None:
        self._left_out[table, reason] += num_rows

    def _write_metadata(self) -> None:
        event = DebugEvent()
        event.debug_metadata.tensorflow_version = self._run.tensorflow_version or ""
        event.debug_metadata.file_version = FILE_VERSION
        event.debug_metadata.tfdbg_run_id = self._run.run_id
        self._files.write("metadata", event, self._run.wall_time_ns)

    def _write_device(self, device_id: int | None) -> int:
        """Writes a device (None for an unknown one) and returns its id in the dump."""
        name = self._device_names.get(device_id)
        number = self._device_ids[device_id] = _UNKNOWN_DEVICE_ID if name is None else len(self._device_ids) + 1
        event = DebugEvent()
        event.debugged_device.device_id = number
        event.debugged_device.device_name = "unknown" if name is None else name
        self._files.write("graphs", event, self._run.wall_time_ns)
        return number

    def _write_executions(self, graphs: Graphs, stacks: Stacks) -> None:
        columns = ("execution_index", "wall_time_ns", "op_type", "graph_id", "stack_trace_id")
        executions = self._tables.keyed("execution", "execution_index", columns)
        tensors = _ExecutionTensors(self._tables, self._summaries.columns)
        for first, end, window in executions.windows(_WINDOW):
            tensors.load(first, end)
            for index, wall_time_ns, op_type, graph_id, stack_trace_id in to_rows(window):
                event = DebugEvent()
                execution = event.execution
                execution.op_type = op_type
                if graphs.has(graph_id):
                    execution.graph_id = str(graph_id)
                execution.tensor_debug_mode = self._mode
                execution.code_location.CopyFrom(stacks.location(stack_trace_id, needs_frame=True))
                execution.input_tensor_ids.extend(tensor_id for _, tensor_id in tensors.inputs[index])
                outputs = [
                    (tensor_id, tensors.measured.get((index, slot))) for slot, tensor_id in tensors.outputs[index]
                ]
                execution.num_outputs = len(outputs)
                execution.output_tensor_ids.extend(tensor_id for tensor_id, _ in outputs)
                execution.output_tensor_device_ids.extend(self._device_ids_of([measured for _, measured in outputs]))
                execution.tensor_protos.extend(self._execution_protos([measured for _, measured in outputs]))
                self._files.write("execution", event, wall_time_ns)
            self._advance(window.num_rows)

    def _device_ids_of(self, outputs: list[_Measured | None]) -> list[int]:
        """Returns the id of each output's device in the dump.

        If all measured outputs are on the same device, the outputs that were not measured are on this device too.
        """
        device_ids = [None if measured is None else measured.device_id for measured in outputs]
        distinct_ids = {device_id for device_id in device_ids if device_id is not None}
        common = distinct_ids.pop() if len(distinct_ids) == 1 else None
        return [self._device_id(common if device_id is None else device_id) for device_id in device_ids]

    def _device_id(self, device_id: int | None) -> int:
        if device_id not in self._device_ids:
            return self._write_device(None if device_id not in self._device_names else device_id)
        return self._device_ids[device_id]

    def _execution_protos(self, outputs: list[_Measured | None]) -> list[TensorProto]:
        """Returns one TensorProto for each output, because readers use the position as the slot.

        The TensorProto of an output that was not measured is empty.
        """
        if self._mode == TensorDebugMode.NO_TENSOR:
            return []
        protos = [
            TensorProto() if measured is None else self._proto(measured, tensor_id=NO_TENSOR_ID) for measured in outputs
        ]
        while self._has_values and protos and not protos[-1].dtype:
            protos.pop()  # as in Debugger V2, outputs at the end have no proto if they have no value, such as resources
        return protos

    def _write_traces(self, graphs: Graphs) -> None:
        columns = (
            "graph_id", "op_name", "output_slot", "wall_time_ns", "event_index", "device_id", *self._summaries.columns,
        )  # fmt: skip
        traces = self._tables.keyed("tensor_health", "event_index", columns, where=("scope", "graph"))
        num_other = self._tables.num_rows("tensor_health")
        for _, _, window in traces.windows(_WINDOW):
            for graph_id, op_name, slot, wall_time_ns, event_index, device_id, *health in to_rows(window):
                tensor_id = graphs.tensor_id(graph_id, op_name, slot)
                if tensor_id is None:
                    self._leave_out("tensor_health", _NO_OP)
                    continue
                proto = self._proto(_Measured(event_index, device_id, health), tensor_id=tensor_id)
                if not proto.dtype and self._mode in NUM_SUMMARY:
                    self._leave_out("tensor_health", _NO_SUMMARY)
                    continue
                event = DebugEvent()
                trace = event.graph_execution_trace
                trace.tfdbg_context_id = str(graph_id)
                trace.op_name = op_name
                trace.output_slot = slot
                trace.tensor_debug_mode = self._mode
                trace.tensor_proto.CopyFrom(proto)
                trace.device_name = self._device_names.get(device_id, "")
                self._files.write("graph_execution_traces", event, wall_time_ns)
            num_other -= window.num_rows
            self._advance(window.num_rows)
        self._advance(num_other)

    def _proto(self, measured: _Measured, *, tensor_id: int) -> TensorProto:
        if not self._has_values:
            return self._summaries.summary(measured.health, tensor_id=tensor_id)
        value = self._values.get(measured.event_index)
        return TensorProto() if value is None else whole_tensor(*value)


class _ExecutionTensors:
    """The tensors of a window of executions.

    Args:
        tables: The run's tables.
        health_columns: The columns of tensor_health to read.
    """

    def __init__(self, tables: RunTables, health_columns: Sequence[str]) -> None:
        key = "execution_index"
        self._inputs = tables.keyed("execution_input", key, (key, "input_index", "tensor_id"))
        self._outputs = tables.keyed("execution_output", key, (key, "output_slot", "tensor_id"))
        columns = (key, "output_slot", "event_index", "device_id", *health_columns)
        self._health = tables.keyed("tensor_health", key, columns, where=("scope", "execution"))

    def load(self, first: int, end: int) -> None:
        """Reads the tensors of the executions with first <= execution_index < end."""
        self.inputs, self.outputs = listed(self._inputs, first, end), listed(self._outputs, first, end)
        self.measured: dict[tuple[int, int], _Measured] = {}
        firsts: dict[int, int] = {}
        health = sorted(to_rows(self._health.between(first, end)), key=lambda row: row[2])
        for index, slot, event_index, device_id, *values in health:
            # If a dump summarises only some outputs, it does not say which outputs. The readers of a dump use the
            # position as the slot.
            output_slot = event_index - firsts.setdefault(index, event_index) if slot is None else slot
            self.measured[index, output_slot] = _Measured(event_index, device_id, values)
