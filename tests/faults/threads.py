"""Processes that record into one logdir without TensorFlow, each from many threads and as fast as possible.

Run as `python -m tests.faults.threads LOGDIR COUNTER NUM_PROCESSES NUM_THREADS SECONDS`. The first process forks the
other processes. Each thread counts its recorded rows in its own row of an array in a file. Each process prints a line
of JSON with its run, its memory early and late in the recording, and its peak memory. The peak includes the final merge
of all parts.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import threading
import time
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.recovery.driver import RUN_ROW, Recorder
from tfdbg_arrow.spool.records import NO_STEP, NO_VALUE, RECORD_DTYPE, Flag, Kind
from tfdbg_arrow.writer.recover import remove_spool_files

COUNTS = ("execution", "tensor_health", "tensor_value", "mark", "dropped")
"""The counts of a thread: the rows of each table, and the records for which the spool had no room."""
CAPACITY = 65_536


class Worker(threading.Thread):
    """Records calls until a time limit."""

    def __init__(self, recorder: Recorder, counts: npt.NDArray[np.int64], *, end_s: float) -> None:
        super().__init__()
        self._recorder, self._counts, self._end_s = recorder, counts, end_s

    def run(self) -> None:
        spool, counts = self._recorder.spool, self._counts
        name, nodes = self._recorder.functions[0]
        begin, tensor, end = (np.zeros(1, RECORD_DTYPE) for _ in range(3))
        begin["kind"], begin["node"], begin["step"], begin["tensor_id"] = Kind.EXECUTION, name, NO_STEP, NO_VALUE
        tensor["kind"], tensor["step"], tensor["dtype"] = Kind.GRAPH_TENSOR, NO_STEP, 1
        tensor["execution_index"] = tensor["tensor_id"] = NO_VALUE
        tensor["device"] = spool.intern_string("/device:CPU:0")
        tensor["rank"], tensor["size"], tensor["dims"][0, 0] = 1, 2, 2
        flags = Flag.COVERED | Flag.SHAPE | Flag.CHECKED | Flag.COUNTS | Flag.CONTEXT
        end["kind"] = Kind.EXECUTION_END
        while time.monotonic() < self._end_s:
            execution = spool.next_execution_index()
            begin["execution_index"] = end["execution_index"] = tensor["step_id"] = execution
            self._append(begin, 0)
            for node in nodes:
                tensor["node"], tensor["flags"], tensor["value_offset"] = node, flags, NO_VALUE
                is_kept = execution % 16 == 0 and node == nodes[0]
                if is_kept:
                    tensor["value_offset"], tensor["value_bytes"] = spool.append_value(bytes(8)), 8
                    tensor["flags"] |= Flag.VALUE
                if self._append(tensor, 1) and is_kept:
                    counts[2] += 1
            self._append(end, None)
            if execution % 64 == 0:
                row = {"event_index": spool.num_events(), "wall_time_ns": 1, "label": "step", "value": str(execution)}
                self._recorder.sink.append("mark", [row])
                counts[3] += 1

    def _append(self, record: npt.NDArray[Any], column: int | None) -> bool:
        is_taken = bool(self._recorder.spool.append(record))
        if not is_taken:
            self._counts[4] += 1
        elif column is not None:
            self._counts[column] += 1
        return is_taken


def resident_bytes() -> int:
    """Returns the current resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def record(logdir: Path, counts: npt.NDArray[np.int64], *, number: int, seconds: float) -> None:
    """Records in one process and prints the memory that it took."""
    run_id = f"20261120T163000.{number:06d}-myhost-{number}"
    recorder = Recorder(logdir, np.zeros(5, np.int64), seed=number, run_id=run_id, capacity=CAPACITY)
    recorder.trace()
    begin_s = time.monotonic()
    workers = [Worker(recorder, row, end_s=begin_s + seconds) for row in counts]
    for worker in workers:
        worker.start()
    samples: list[int] = []
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.1)
        samples.append(resident_bytes())
    third = len(samples) // 3
    recorder.sink.close(run_row={**RUN_ROW, "is_clean_end": True})
    remove_spool_files(recorder.spool, recorder.files, is_all_written=recorder.sink.is_all_written)
    early, late = median_low(samples[third : 2 * third]), median_low(samples[2 * third :])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    line = {"run_id": run_id, "early_bytes": early, "late_bytes": late, "most_bytes": most}
    os.write(1, (json.dumps(line) + "\n").encode())


def main() -> None:
    logdir, counter, num_processes, num_threads, seconds = sys.argv[1:]
    shape = (int(num_processes), int(num_threads), len(COUNTS))
    with open(counter, "r+b") as file:
        counts = np.frombuffer(mmap.mmap(file.fileno(), 8 * int(np.prod(shape))), np.int64).reshape(shape)
    children = []
    for number in range(shape[0]):
        child = os.fork()
        if child == 0:
            record(Path(logdir), counts[number], number=number, seconds=float(seconds))
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
