"""Imports the two large files of a dump, executions and graph traces, in one order.

An execution is written when it has ended. In order of time, the traces of a call therefore come before the call's
execution record and after the previous execution record. This span of time is the execution's *window*. Each trace
falls into the window of one execution, but the last traces may fall into no window. In the merged order, an execution
comes before the traces of its window, and its outputs come after these traces, as in a recorded run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.debugger_v2.definitions import MAX_TIME_S, Definitions
from tfdbg_arrow.debugger_v2.health import Health, Mask, Tensors
from tfdbg_arrow.debugger_v2.import_tables import RowBuffer
from tfdbg_arrow.debugger_v2.interning import EXECUTION, NONE, TRACE, P, T, Templates
from tfdbg_arrow.debugger_v2.scan import UNREADABLE, EventScanner, Ints, Scan
from tfdbg_arrow.spool.failures import Failures


class EventImporter:
    """Converts the events of a dump into rows.

    Attributes:
        num_events: Number of events imported so far.
        last_wall_time_ns: The latest time of an event; None if there is none.
    """

    def __init__(self, definitions: Definitions, *, rows: RowBuffer, problems: Failures) -> None:
        self._definitions, self._rows, self._problems = definitions, rows, problems
        self.templates = Templates(definitions)
        self.num_events = 0
        self.last_wall_time_ns: int | None = None

    def read(self, executions: EventScanner | None, traces: EventScanner | None, *, report: Callable[[], None]) -> None:
        """Imports the records of both files.

        Args:
            executions: Reads the file of executions; None if there is none.
            traces: Reads the file of graph traces; None if there is none.
            report: Called regularly.

        Raises:
            OSError: A file cannot be read, or a part cannot be written.
        """
        for step in in_order(executions, traces, num_outputs=self._num_summaries):
            self._traces(step)
            self._executions(step)
            report()

    def _num_summaries(self, scan: Scan) -> Ints:
        return np.where(self._of(scan.template, T.kind) == EXECUTION, self._of(scan.template, T.num_tensors), 0)

    def _of(self, template: Ints, column: int) -> Ints:
        """Returns a column of the templates of some records; NONE for unreadable records."""
        return np.where(template >= 0, _take(self.templates.templates.array()[:, column], template), NONE)

    def _traces(self, step: Step) -> None:
        if step.traces is None or step.trace_range[0] == step.trace_range[1]:
            return
        scan, records = step.traces.scan, np.arange(*step.trace_range)
        template = scan.template[records]
        kind = self._of(template, T.kind)
        is_trace = kind == TRACE
        self._count("graph_execution_traces", scan, records, is_expected=is_trace)
        rows = records[is_trace]
        template = template[is_trace]
        first_content = (np.cumsum(scan.num_contents) - scan.num_contents)[rows]
        has_content = scan.num_contents[rows] > 0
        tensor = np.where(has_content, self._of(template, T.first_tensor), NONE)
        health = self._health(scan, tensor=tensor, content=np.where(has_content, first_content, NONE))
        time_ns = self._time_ns(scan.wall_time_s[rows])
        execution, inferred = self._calls(step, template, is_trace)
        event_index = step.trace_event[is_trace]
        columns = {
            "event_index": pa.array(event_index),
            "wall_time_ns": pa.array(time_ns),
            "scope": pa.repeat("graph", len(rows)),
            "execution_index": _nullable(execution),
            "is_call_inferred": pa.array(inferred, mask=~inferred),
            "graph_id": _nullable(self._of(template, T.graph)),
            "op_name": self._texts(self._of(template, T.op_name)),
            "op_type": self._texts(self._of(template, T.op_type)),
            "output_slot": _nullable(self._of(template, T.num_outputs)),
            "device_id": _nullable(self._of(template, T.device)),
            "dtype": self._texts(self._of_tensors(tensor, P.dtype)),
            **health.columns,
        }
        self._rows.add("tensor_health", columns, num_rows=len(rows))
        self._add_values(health, event_index)

    def _calls(self, step: Step, template: Ints, is_trace: Mask) -> tuple[Ints, Mask]:
        """Returns the call of each trace (NONE if unknown), and whether it was inferred.

        The call is the execution of the trace's window, if that execution calls the graph of the trace. Calls before
        the first execution are unknown, because a circular buffer may have dropped them.
        """
        none = np.full(len(template), NONE, dtype=np.int64)
        block = step.window_block
        if block is None:
            return none, np.zeros(len(template), dtype=np.bool_)
        window = step.trace_window[is_trace]
        is_within = window < len(block.scan)
        window = np.where(is_within, window, 0)
        called = block.scan.template[window]
        root, called_root = self._of(template, T.root), self._of(called, T.root)
        name, called_name = self._of(template, T.name), self._of(called, T.name)
        by_graph = (root >= 0) & (root == called_root)
        by_name = (called_root < 0) & (called_name >= 0) & (called_name == name)
        index = block.first + window
        joined = is_within & (self._of(called, T.kind) == EXECUTION) & (by_graph | by_name) & (index > 0)
        return np.where(joined, index, NONE), joined

    def _executions(self, step: Step) -> None:
        block = step.executions
        if block is None or step.execution_range[0] == step.execution_range[1]:
            return
        scan, records = block.scan, np.arange(*step.execution_range)
        template = scan.template[records]
        is_execution = self._of(template, T.kind) == EXECUTION
        self._count("execution", scan, records, is_expected=is_execution)
        rows, template = records[is_execution], template[is_execution]
        index = block.first + rows
        time_ns = self._time_ns(scan.wall_time_s[rows])
        columns = {
            "execution_index": pa.array(index),
            "event_index": pa.array(step.execution_start[is_execution]),
            "wall_time_ns": pa.array(time_ns),
            "op_type": self._texts(self._of(template, T.op_type)),
            "graph_id": _nullable(self._of(template, T.graph)),
            "num_inputs": pa.array(scan.num_inputs[rows]),
            "num_outputs": pa.array(self._of(template, T.num_outputs)),
            "stack_trace_id": _nullable(self._of(template, T.stack)),
        }
        self._rows.add("execution", columns, num_rows=len(rows))
        self._inputs(scan, rows, index)
        self._outputs(scan, rows, template, index=index, time_ns=time_ns, start=step.output_start[is_execution])

    def _inputs(self, scan: Scan, rows: Ints, index: Ints) -> None:
        counts = scan.num_inputs[rows]
        owner, position = _flatten(counts)
        first = (np.cumsum(scan.num_inputs) - scan.num_inputs)[rows]
        columns = {
            "execution_index": pa.array(index[owner]),
            "input_index": pa.array(position),
            "tensor_id": pa.array(scan.inputs[first[owner] + position]),
        }
        self._rows.add("execution_input", columns, num_rows=len(owner))

    def _outputs(self, scan: Scan, rows: Ints, template: Ints, *, index: Ints, time_ns: Ints, start: Ints) -> None:
        first_output = (np.cumsum(scan.num_outputs) - scan.num_outputs)[rows]
        num_ids = scan.num_outputs[rows]
        # First all TensorProtos, then only the TensorProtos with measurements.
        owner, position = _flatten(self._of(template, T.num_tensors))
        first_content = (np.cumsum(scan.num_contents) - scan.num_contents)[rows]
        tensor = self._of(template, T.first_tensor)[owner] + position
        content = first_content[owner] + position
        mode = self._of_tensors(tensor, P.mode)
        is_measured = mode >= 0
        owner, position, tensor, content = (column[is_measured] for column in (owner, position, tensor, content))
        health = self._health(scan, tensor=tensor, content=content)
        slot = self._of_tensors(tensor, P.slot)
        slot = np.where(num_ids[owner] == self._of(template, T.num_outputs)[owner], slot, NONE)
        event_index = start[owner] + position  # an export needs the order of summaries whose slot is unknown
        dtype = self._of_tensors(tensor, P.dtype)
        tensor_id = np.where(slot >= 0, _take(scan.outputs, first_output[owner] + slot), NONE)
        columns = {
            "event_index": pa.array(event_index),
            "wall_time_ns": pa.array(time_ns[owner]),
            "scope": pa.repeat("execution", len(owner)),
            "execution_index": pa.array(index[owner]),
            "op_type": self._texts(self._of(template, T.op_type)[owner]),
            "output_slot": _nullable(slot),
            "tensor_id": pa.array(tensor_id, mask=slot < 0),
            "device_id": self._devices(template[owner], slot),
            "dtype": self._texts(dtype),
            **health.columns,
        }
        self._rows.add("tensor_health", columns, num_rows=len(owner))
        self._add_values(health, event_index)
        self._execution_outputs(scan, rows, index, first_output=first_output, measured=(owner, slot, dtype))

    def _execution_outputs(
        self, scan: Scan, rows: Ints, index: Ints, *, first_output: Ints, measured: tuple[Ints, Ints, Ints]
    ) -> None:
        owner, slot = _flatten(scan.num_outputs[rows])
        dtype = np.full(len(owner), NONE, dtype=np.int64)
        known_owner, known_slot, known_dtype = (column[measured[1] >= 0] for column in measured)
        first = np.cumsum(scan.num_outputs[rows]) - scan.num_outputs[rows]
        dtype[first[known_owner] + known_slot] = known_dtype
        columns = {
            "execution_index": pa.array(index[owner]),
            "output_slot": pa.array(slot),
            "tensor_id": pa.array(scan.outputs[first_output[owner] + slot]),
            "dtype": self._texts(dtype),
        }
        self._rows.add("execution_output", columns, num_rows=len(owner))

    def _devices(self, template: Ints, slot: Ints) -> pa.Array:
        devices = self.templates.output_devices.array()[:, 0]
        is_listed = (slot >= 0) & (slot < self._of(template, T.num_devices))
        listed = _take(devices, self._of(template, T.first_device) + slot)
        return _nullable(np.where(is_listed, listed, self._of(template, T.device)))

    def _health(self, scan: Scan, *, tensor: Ints, content: Ints) -> Health:
        has_content = (content >= 0) & (content < len(scan.content_start))
        content_index = np.where(has_content, content, 0)
        tensors = Tensors(
            mode=self._of_tensors(tensor, P.mode),
            facts=self._of_tensors(tensor, P.facts),
            start=np.where(has_content, _take(scan.content_start, content_index), 0),
            length=np.where(has_content, _take(scan.content_length, content_index), 0),
            buffer=scan.buffer,
        )
        return Health(tensors, self.templates.facts)

    def _of_tensors(self, tensor: Ints, column: int) -> Ints:
        return np.where(tensor >= 0, _take(self.templates.tensors.array()[:, column], tensor), NONE)

    def _add_values(self, health: Health, event_index: Ints) -> None:
        for row_index, (value, facts) in health.values.items():
            row = {
                "event_index": int(event_index[row_index]),
                "dtype": facts.dtype,
                "shape": facts.shape,
                "value": value,
            }
            self._rows.add_row("tensor_value", row, num_bytes=len(value))

    def _count(self, file: str, scan: Scan, records: Ints, *, is_expected: Mask) -> None:
        """Counts records, including records that get no rows, and notes their times."""
        self.num_events += len(records)
        unreadable = int(np.count_nonzero(scan.template[records] == UNREADABLE))
        if unreadable:
            self._problems.note("dropped", f"{file} record", "is not a DebugEvent", unreadable)
        others = int(np.count_nonzero(~is_expected)) - unreadable
        if others:
            self._problems.note("dropped", f"{file} record", "does not belong in this file", others)
        times = self._time_ns(scan.wall_time_s[records])
        latest = int(times.max(initial=0))
        if latest:
            self._definitions.note_time(int(times[times > 0].min()))
            self.last_wall_time_ns = max(self.last_wall_time_ns or 0, latest)

    def _time_ns(self, wall_time_s: npt.NDArray[np.float64]) -> Ints:
        with np.errstate(invalid="ignore", over="ignore"):
            micros = np.rint(wall_time_s * 1e6)
            is_time = np.abs(wall_time_s) < MAX_TIME_S
        return np.where(is_time, micros, 0).astype(np.int64) * 1000

    def _texts(self, numbers: Ints) -> pa.Array:
        return pa.array(list(self.templates.texts), pa.string()).take(_nullable(numbers))


class Block:
    """A Scan with its position in the file.

    Attributes:
        scan: The records.
        first: The index of the first record in the file.
        time_s: For each record, the latest time up to and including this record, because threads write slightly out of
            order.
    """

    def __init__(self, scan: Scan, *, first: int, floor_s: float) -> None:
        self.scan, self.first = scan, first
        times = np.where(np.isfinite(scan.wall_time_s), scan.wall_time_s, floor_s)
        self.time_s: npt.NDArray[np.float64] = np.maximum.accumulate(np.concatenate([[floor_s], times]))[1:]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A section of the merged order, with consecutive ended executions and consecutive traces.

    Attributes:
        executions: The block of the executions; None if there are none.
        execution_range: The range of records in that block.
        execution_start: The event_index of each execution.
        output_start: The event_index of each execution's first output.
        traces: The block of the traces; None if there are none.
        trace_range: The range of records in that block.
        trace_event: The event_index of each trace.
        window_block: The block of the executions whose windows contain the traces; None if there are no such
            executions.
        trace_window: For each trace, the index of its execution's record in that block.
    """

    executions: Block | None
    execution_range: tuple[int, int]
    execution_start: Ints
    output_start: Ints
    traces: Block | None
    trace_range: tuple[int, int]
    trace_event: Ints
    window_block: Block | None
    trace_window: Ints


class _Stream:
    """The blocks of a file, one at a time."""

    def __init__(self, scanner: EventScanner | None) -> None:
        self._scans: Iterator[Scan] = iter(()) if scanner is None else iter(scanner)
        self.block: Block | None = None
        self.place = 0
        self._next = 0
        self._floor_s = -np.inf

    def fill(self) -> Block | None:
        """Returns the block with the next record; None at the end of the file."""
        while self.block is None or self.place >= len(self.block.scan):
            scan = next(self._scans, None)
            if scan is None:
                self.block = None
                return None
            if len(scan):
                self.block = Block(scan, first=self._next, floor_s=self._floor_s)
                self._floor_s = float(self.block.time_s[-1])
                self._next += len(scan)
                self.place = 0
        return self.block


def in_order(
    executions: EventScanner | None, traces: EventScanner | None, *, num_outputs: Callable[[Scan], Ints]
) -> Iterator[Step]:
    """Yields the events of a dump in order, with their event indexes.

    Args:
        executions: Reads the file of executions.
        traces: Reads the file of graph traces.
        num_outputs: A function that returns the number of event indexes that the outputs of each execution take.

    Raises:
        OSError: A file cannot be read.
    """
    calls, tensors = _Stream(executions), _Stream(traces)
    next_event = 0
    opened: int | None = None
    """event_index of the next execution, if traces in its window were already yielded."""
    while True:
        block, trace_block = calls.fill(), tensors.fill()
        if block is None and trace_block is None:
            return
        begin, trace_begin = calls.place, tensors.place
        times = np.empty(0) if block is None else block.time_s[begin:]
        trace_times = np.empty(0) if trace_block is None else trace_block.time_s[trace_begin:]
        num_closed, num_traces = len(times), len(trace_times)
        if block is not None and trace_block is not None:
            num_traces = int(np.searchsorted(trace_times, times[-1], side="right"))
            if num_traces == len(trace_times):  # later traces may fall into windows that are open
                num_closed = int(np.searchsorted(times, trace_times[-1], side="left"))
        window = np.searchsorted(times, trace_times[:num_traces], side="left")
        # The position after the closed executions stands for the window that remains open, or for the end of the file.
        per_window = np.bincount(window, minlength=num_closed + 1)
        outputs = np.zeros(len(per_window), dtype=np.int64)
        if block is not None:
            outputs[:num_closed] = num_outputs(block.scan)[begin : begin + num_closed]
        starts = np.zeros(len(per_window), dtype=np.int64)
        starts[:num_closed] = 1
        is_open = block is not None and num_closed < len(times) and per_window[num_closed] > 0
        if is_open:
            starts[num_closed] = 1
        if opened is not None:
            starts[0] = 0
        sizes = starts + per_window + outputs
        before = next_event + np.cumsum(sizes) - sizes
        execution_start = before.copy()
        if opened is not None:
            execution_start[0] = opened
        first_of_window = np.cumsum(per_window) - per_window
        rank = np.arange(num_traces) - first_of_window[window]
        yield Step(
            executions=block,
            execution_range=(begin, begin + num_closed),
            execution_start=execution_start[:num_closed],
            output_start=(before + starts + per_window)[:num_closed],
            traces=trace_block,
            trace_range=(trace_begin, trace_begin + num_traces),
            trace_event=before[window] + starts[window] + rank,
            window_block=block,
            trace_window=begin + window,
        )
        if is_open:
            opened = int(execution_start[num_closed])
        elif num_closed:
            opened = None
        next_event += int(sizes.sum())
        calls.place += num_closed
        tensors.place += num_traces


def _nullable(values: Ints) -> pa.Array:
    return pa.array(values, mask=values < 0)


def _take(values: npt.NDArray[Any], indexes: Ints) -> npt.NDArray[Any]:
    """Returns values[indexes], with arbitrary values for indexes out of range."""
    if not len(values):
        return np.full(len(indexes), NONE, dtype=np.int64)
    return values[np.clip(indexes, 0, len(values) - 1)]


def _flatten(counts: Ints) -> tuple[Ints, Ints]:
    """For each item, returns its group and its position in that group, given the sizes of the groups."""
    counts = np.maximum(counts, 0)
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
