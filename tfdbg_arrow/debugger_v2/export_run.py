"""Writes a run as the records of a Debugger V2 dump.

The dump has an execution for each row of `execution`, and a trace for each row of `tensor_health` with the scope
`graph`. The dump includes tensors that Debugger V2 itself does not record. The ids in the dump are the ids in our
tables, in decimal. The traces are in the order of `event_index`. The traces arrived in this order, as in a dump that
Debugger V2 writes.

Source: tensorflow/python/debug/lib/dumping_callback.py, debug_events_reader.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfdbg_arrow.debugger_v2.export_graphs import Graphs, Stacks
from tfdbg_arrow.debugger_v2.export_rows import Groups, Row, RunRows
from tfdbg_arrow.debugger_v2.file_sets import DumpFiles
from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import DebugEvent, TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import TensorProto
from tfdbg_arrow.debugger_v2.summaries import NO_TENSOR_ID, NUM_SUMMARY, Summaries, whole_tensor
from tfdbg_arrow.query.info import Run

FILE_VERSION = "debug.Event:1"
PROGRESS_TABLES = ("graph_op", "execution", "tensor_health")
"""The tables whose rows count for the progress."""
TABLES = (
    *("run", "device", "source_file", "stack_frame", "stack_trace", "graph", "graph_op_input", "graph_op_output"),
    *("executed_op", "executed_op_input", "execution_input", "execution_output", "tensor_value"),
    *("mark", "capture_stat", *PROGRESS_TABLES),
)
"""The tables that a RunWriter reads."""
_UNKNOWN_DEVICE_ID = 0
"""Id of an unrecorded device; recorded devices are numbered from 1, as in Debugger V2."""
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

    device_id: int | None
    values: Row
    """The values of Summaries.columns; in FULL_TENSOR, the dtype, shape and elements."""


class RunWriter:
    """Writes one run into the files of a dump.

    Args:
        rows: The run's rows.
        run: The run.
        mode: The mode to write; EXPORTABLE must list it for the run's own mode.
        files: The dump.
        advance: Called with the number of rows of PROGRESS_TABLES that were written.
    """

    def __init__(self, rows: RunRows, run: Run, *, mode: str, files: DumpFiles, advance: Callable[[int], None]) -> None:
        self._rows, self._run, self._files, self._advance = rows, run, files, advance
        self._mode = TensorDebugMode.Value(mode)
        devices = rows.rows("SELECT device_id, device_name FROM device ORDER BY ALL")
        self._device_names: dict[int | None, str] = dict(devices)
        self._device_ids: dict[int | None, int] = {}
        self._has_values = mode == "FULL_TENSOR"
        self._summaries = Summaries(self._mode)
        self._left_out: dict[tuple[str, str], int] = defaultdict(int)

    def write(self) -> tuple[LeftOut, ...]:
        """Writes all records; returns the rows that the dump cannot hold.

        Raises:
            OSError: The dump cannot be written.
        """
        self._write_metadata()
        stacks = Stacks(
            self._rows, self._files, host_name=self._run.host_name or "", wall_time_ns=self._run.wall_time_ns
        )
        for device_id in self._device_names:
            self._write_device(device_id)
        graphs = Graphs(self._rows, self._files, stacks=stacks, leave_out=self._leave_out, advance=self._advance)
        self._write_executions(graphs, stacks)
        self._write_traces(graphs)
        for table, reason in _NO_PLACE.items():
            self._leave_out(table, reason, self._rows.count(table))
        num_external = self._rows.count("tensor_health WHERE scope = 'external'")
        self._leave_out("tensor_health", _EXTERNAL, num_external)
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
        inputs = Groups(
            self._rows.rows("SELECT execution_index, input_index, tensor_id FROM execution_input ORDER BY ALL")
        )
        outputs = Groups(
            self._rows.rows("SELECT execution_index, output_slot, tensor_id FROM execution_output ORDER BY ALL")
        )
        health = Groups(self._health("execution", "execution_index, output_slot, event_index"))
        executions = self._rows.rows(
            "SELECT execution_index, wall_time_ns, op_type, graph_id, stack_trace_id FROM execution "
            "ORDER BY execution_index",
            advance=self._advance,
        )
        for index, wall_time_ns, op_type, graph_id, stack_trace_id in executions:
            event = DebugEvent()
            execution = event.execution
            execution.op_type = op_type
            if graphs.has(graph_id):
                execution.graph_id = str(graph_id)
            execution.tensor_debug_mode = self._mode
            execution.code_location.CopyFrom(stacks.location(stack_trace_id, needs_frame=True))
            execution.input_tensor_ids.extend(tensor_id for _, tensor_id in inputs.of(index))
            slots = outputs.of(index)
            measured_of_slot = _by_slot(health.of(index))
            measured = [measured_of_slot.get(slot) for slot, _ in slots]
            execution.num_outputs = len(slots)
            execution.output_tensor_ids.extend(tensor_id for _, tensor_id in slots)
            execution.output_tensor_device_ids.extend(self._device_ids_of(measured))
            execution.tensor_protos.extend(self._execution_protos(measured))
            self._files.write("execution", event, wall_time_ns)

    def _health(
        self, scope: str, columns: str, *, advance: Callable[[int], None] = lambda num_rows: None
    ) -> Iterator[Row]:
        """Yields the tensors of a scope: the given columns, the device, and the values of a _Measured.

        Args:
            scope: The scope. The tensors of executions are sorted by execution.
            columns: The columns.
            advance: Called regularly with the number of rows that were yielded since the last call.
        """
        if self._has_values:
            values = "v.dtype, v.shape, v.value"
            source = "tensor_health AS h LEFT JOIN tensor_value AS v ON v.event_index = h.event_index"
        else:
            values, source = ", ".join(f"h.{name}" for name in self._summaries.columns), "tensor_health AS h"
        named = ", ".join(f"h.{name}" for name in columns.split(", "))
        order = "h.execution_index, h.event_index" if scope == "execution" else "h.event_index"
        return self._rows.rows(
            f"SELECT {named}, h.device_id, {values} FROM {source} WHERE h.scope = '{scope}' ORDER BY {order}",
            advance=advance,
        )

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
        traces = self._health("graph", "graph_id, op_name, output_slot, wall_time_ns", advance=self._advance)
        for graph_id, op_name, slot, wall_time_ns, device_id, *values in traces:
            tensor_id = graphs.tensor_id(graph_id, op_name, slot)
            if tensor_id is None:
                self._leave_out("tensor_health", _NO_OP)
                continue
            proto = self._proto(_Measured(device_id, tuple(values)), tensor_id=tensor_id)
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
        self._advance(self._rows.count("tensor_health WHERE scope <> 'graph'"))

    def _proto(self, measured: _Measured, *, tensor_id: int) -> TensorProto:
        if not self._has_values:
            return self._summaries.summary(measured.values, tensor_id=tensor_id)
        dtype, shape, value = measured.values
        return TensorProto() if value is None else whole_tensor(dtype, shape, value)


def _by_slot(health: Sequence[Row]) -> dict[int, _Measured]:
    """Returns the measured outputs of an execution by slot, given (slot, event_index, device, *values) of each."""
    measured: dict[int, _Measured] = {}
    for slot, event_index, device_id, *values in health:
        # If a dump summarises only some outputs, it does not say which. Its readers use the position as the slot.
        output_slot = event_index - health[0][1] if slot is None else slot
        measured[output_slot] = _Measured(device_id, tuple(values))
    return measured
