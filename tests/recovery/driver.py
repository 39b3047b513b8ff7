"""A program that records as fast as it can, without TensorFlow, until it is killed.

When run as a program, this module reads lines of `LOGDIR COUNTER SEED`. For each line, this process forks a child that
records. This process prints the child's process ID once the child records, and another line once the child is dead.
After each event, the child updates the counts of recorded events in a file that it shares with the killer. The counts
are never higher than the numbers of recorded events, and lack at most one event.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.spool.journal import Journal, RunFiles
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.spool.records import (
    NO_STEP,
    NO_VALUE,
    PAYLOAD_DTYPE,
    PAYLOAD_LENGTH,
    RECORD_DTYPE,
    Flag,
    Kind,
    Records,
)
from tfdbg_arrow.storage.layout import SpoolPaths, spool_paths
from tfdbg_arrow.writer.native import _core
from tfdbg_arrow.writer.sink.sink import Sink

RUN_ID = "20261120T163000.123456-myhost-4242"
COUNTERS = ("calls", "tensors", "values", "marks", "first_bad")
"""The names of the counters. `first_bad` is 1 + the number of the first bad tensor, or 0 if no tensor is bad yet."""
TENSORS_A_CALL = 3
CAPACITY = 4096
RUN_ROW = {
    "wall_time_ns": 1,
    "is_clean_end": False,
    "circular_buffer_size": -1,
    "pid": 1,
    **dict.fromkeys(("format_version", "tfdbg_arrow_version", "python_version", "platform", "host_name"), "x"),
    **dict.fromkeys(("command_line", "working_directory", "tensor_debug_mode", "health_backend", "settings"), "x"),
}


class CoreSpool:
    """Wraps the native spool as Backend does, in a process without TensorFlow."""

    def __init__(self, paths: SpoolPaths, journal: Journal, *, capacity: int) -> None:
        self._paths = (paths.spool, paths.values)
        self._recording = _core.Recording(str(paths.spool), str(paths.values), capacity, 3, 0, 1)
        self._recording.set_journal(journal.descriptor)

    def append(self, records: Records) -> bool:
        return bool(self._recording.append(np.ascontiguousarray(records).view(np.uint8)))

    def append_value(self, data: bytes) -> int:
        return int(self._recording.append_value(np.frombuffer(data, np.uint8)))

    def drain(self, max_records: int) -> Records:
        records: Records = self._recording.drain(max_records).view(RECORD_DTYPE)
        return records

    def intern_string(self, text: str) -> int:
        return int(_core.intern_string(text))

    def strings(self, start: int) -> list[str]:
        return list(_core.strings(start))

    def write_names(self) -> int:
        return int(_core.write_unwritten_strings())

    def remove_files(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        self._recording.set_journal(-1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recording, name)


class Recorder:
    """Records calls of functions with a few tensors each (some with elements, some bad), and marks."""

    num_sound_tensors = 300
    """None of the first `num_sound_tensors` tensors is bad."""
    bad_chance = 0.01

    def __init__(
        self,
        logdir: Path,
        counters: npt.NDArray[np.int64],
        *,
        seed: int,
        run_id: str = RUN_ID,
        capacity: int = CAPACITY,
        max_inputs: int = 300,
        **options: Any,
    ):
        self.counters, self.random, self.max_inputs = counters, random.Random(seed), max_inputs
        paths = spool_paths(logdir, run_id=run_id)
        self.files = RunFiles(paths, run_id=run_id, retention=options.get("retention"))
        self.spool = CoreSpool(paths, self.files.names, capacity=capacity)
        self.graphs = GraphLinks(self.files.names)
        self.sink = Sink(
            logdir,
            run_id,
            recorder=self.spool,
            files=self.files,
            links=self.graphs,
            flush_interval_s=0.05,
            on_failure=lambda text: sys.stderr.write(f"tfdbg_arrow: {text}\n"),
            **options,
        )
        self.sink.append("run", [RUN_ROW])
        self.sink.start()
        self.functions: list[tuple[int, list[int]]] = []
        self.num_calls = 0
        self.num_unkept = 0
        """Number of tensors whose elements could not be written to disk."""

    def trace(self) -> None:
        """Traces a new function: records its name, its graph and its nodes."""
        graph_id = len(self.functions)
        name = f"__inference_f_{graph_id}"
        self.graphs.add_function(name, graph_id)
        first_node = self.graphs.add_nodes([(graph_id, f"op_{i}", "MatMul", 0) for i in range(TENSORS_A_CALL)])
        nodes = range(first_node, first_node + TENSORS_A_CALL)
        self.sink.append("graph", [{"graph_id": graph_id, "graph_name": name, "wall_time_ns": 1}])
        self.functions.append((self.spool.intern_string(name), nodes))

    def call(self) -> None:
        """Records a call of a function."""
        if not self.functions or (len(self.functions) < 200 and self.random.random() < 0.02):
            self.trace()
        name, nodes = self.random.choice(self.functions)
        execution, counters = self.num_calls, self.counters
        num_inputs = self.random.choice((0, 2, 30, self.max_inputs))
        records = np.zeros(max(1, -(-num_inputs // PAYLOAD_LENGTH)), RECORD_DTYPE)
        records["step"], records["wall_time_ns"] = NO_STEP, 1_000 + execution
        records["kind"][0], records["node"][0], records["execution_index"] = Kind.EXECUTION, name, execution
        records["size"][0], records["step_id"][0], records["tensor_id"][0] = num_inputs, 7, NO_VALUE
        records.view(PAYLOAD_DTYPE)["payload"][0] = np.arange(PAYLOAD_LENGTH) + execution
        records["kind"][1:], records["slot"] = Kind.INPUTS, np.arange(len(records)) * PAYLOAD_LENGTH
        assert self.spool.append(records)
        self.num_calls += 1
        counters[0] = self.num_calls
        for number, node in enumerate(nodes):
            self.tensor(node, step_id=execution, keep=number == 0 and self.random.random() < 0.3)
        end = np.zeros(1, RECORD_DTYPE)
        end["kind"], end["execution_index"] = Kind.EXECUTION_END, execution
        assert self.spool.append(end)
        if execution % 10 == 0:
            row = {"event_index": self.spool.num_events(), "wall_time_ns": 1, "label": "step", "value": str(execution)}
            self.sink.append("mark", [row])
            counters[3] += 1

    def tensor(self, node: int, *, step_id: int, keep: bool) -> None:
        """Records a tensor of a call."""
        counters = self.counters
        is_bad = counters[1] > self.num_sound_tensors and self.random.random() < self.bad_chance
        record = np.zeros(1, RECORD_DTYPE)
        record["kind"], record["node"], record["step_id"], record["execution_index"] = 1, node, step_id, NO_VALUE
        record["step"], record["wall_time_ns"], record["dtype"] = NO_STEP, 1_000 + step_id, 1
        record["device"] = self.spool.intern_string(f"/device:CPU:{step_id % 3}")
        record["flags"] = Flag.COVERED | Flag.SHAPE | Flag.CHECKED | Flag.COUNTS | Flag.CONTEXT
        record["rank"], record["size"], record["num_nan"] = 1, 2, int(is_bad)
        record["dims"][0, 0] = 2
        record["tensor_id"] = NO_VALUE
        if is_bad:
            record["flags"] |= Flag.BAD
        if keep:
            value = np.array([step_id, step_id], np.float32).tobytes()
            record["value_offset"], record["value_bytes"] = self.spool.append_value(value), len(value)
            keep = record["value_offset"][0] != NO_VALUE
            record["flags"] |= Flag.VALUE if keep else 0
            self.num_unkept += not keep
        assert self.spool.append(record)
        counters[1] += 1
        if keep:
            counters[2] += 1
        if is_bad and counters[4] == 0:
            counters[4] = counters[1]


def record(logdir: str, counter: str, seed: str) -> NoReturn:
    """Records until the process is killed."""
    with open(counter, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 8 * len(COUNTERS))
    recorder = Recorder(Path(logdir), np.frombuffer(shared, np.int64), seed=int(seed))
    print(os.getpid(), flush=True)
    while True:
        recorder.call()


def main() -> None:
    pa.array([])  # makes pyarrow look for pandas and import it here, not in each child
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            record(*line.split())
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
