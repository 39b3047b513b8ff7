"""Merges a dump's executions and graph traces, which are in two files, into one order.

An execution is written when it has ended. The traces of a call therefore come, by time, before its record and after
the previous record. This span of time is the execution's *window*. Each trace falls into the window of one execution;
the last ones may fall into none. In the merged order, an execution comes before the traces of its window, and its
outputs come after them, as in a recorded run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.writer.debugger_v2.scan import EventScanner, Scan

Ints = npt.NDArray[np.int64]


class Block:
    """A Scan with its position in the file.

    Attributes:
        scan: The records.
        first: Index in the file of the first record.
        time_s: For each record, the latest time so far, because threads write slightly out of order.
    """

    def __init__(self, scan: Scan, *, first: int, floor_s: float) -> None:
        self.scan, self.first = scan, first
        times = np.where(np.isfinite(scan.wall_time_s), scan.wall_time_s, floor_s)
        self.time_s: npt.NDArray[np.float64] = np.maximum.accumulate(np.concatenate([[floor_s], times]))[1:]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A section of the order, with consecutive ended executions and consecutive traces.

    Attributes:
        executions: The block of the executions; None if there are none.
        execution_range: The range of records in that block.
        execution_start: The event_index of each execution.
        output_start: The event_index of each execution's first output.
        traces: The block of the traces; None if there are none.
        trace_range: The range of records in that block.
        trace_event: The event_index of each trace.
        window_block: The block of the executions into whose windows the traces fall; None if there are none.
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
    executions: EventScanner | None, traces: EventScanner | None, *, num_rows: Callable[[Scan], Ints]
) -> Iterator[Step]:
    """Yields the events of a dump in order, with their event indexes.

    Args:
        executions: Reads the file of executions.
        traces: Reads the file of graph traces.
        num_rows: Returns the number of outputs of each execution that get a row in tensor_health.

    Raises:
        OSError: A file cannot be read.
    """
    calls, tensors = _Stream(executions), _Stream(traces)
    next_event = 0
    opened: int | None = None
    """event_index of the next execution, if traces of its window have already been yielded."""
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
            if num_traces == len(trace_times):  # later traces may fall into windows that are still open
                num_closed = int(np.searchsorted(times, trace_times[-1], side="left"))
        window = np.searchsorted(times, trace_times[:num_traces], side="left")
        # The position after the closed executions stands for the window that stays open, or for the end of the file.
        per_window = np.bincount(window, minlength=num_closed + 1)
        outputs = np.zeros(len(per_window), dtype=np.int64)
        if block is not None:
            outputs[:num_closed] = num_rows(block.scan)[begin : begin + num_closed]
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
