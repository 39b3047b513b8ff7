"""Writes the spool of a killed recording, record by record, without TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.recovery.driver import RUN_ID, CoreSpool
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.spool.journal import RunFiles
from tfdbg_arrow.spool.names import GraphLinks
from tfdbg_arrow.spool.records import NO_STEP, NO_VALUE, PAYLOAD_DTYPE, RECORD_DTYPE, Flag, Kind
from tfdbg_arrow.spool.recovery import SealedRows, recovered
from tfdbg_arrow.storage.layout import spool_paths
from tfdbg_arrow.storage.manifest import SpoolProgress
from tfdbg_arrow.storage.marker import mark_logdir
from tfdbg_arrow.writer.sink.parts import PartWriter

MEASURED = Flag.COVERED | Flag.SHAPE | Flag.CHECKED | Flag.CONTEXT
NO_PROGRESS = SpoolProgress(by_table={}, events=0, is_recovered=False)
STAT_REASON = (
    "The process ended before its recording was closed; the data that it had not written was read from its spool."
)
EVENTS_RECOVERED = ("recovered", "events", STAT_REASON)
"""A row of capture_stat without its count."""


class DeadProcess:
    """A recording of one function with one op. `die` closes its files as a kill does."""

    def __init__(self, logdir: Path, *, capacity: int = 1024, run_id: str = RUN_ID, **facts: Any) -> None:
        self.logdir, self.run_id = logdir, run_id
        self.paths = spool_paths(logdir, run_id=run_id)
        self.files = RunFiles(self.paths, run_id=run_id, **facts)
        self.spool = CoreSpool(self.paths, self.files.names, capacity=capacity)
        graphs = GraphLinks(self.files.names)
        graphs.add_function("__inference_f_0", 0)
        self.node = graphs.add_nodes([(0, "op", "MatMul", 0)])
        self.function = self.spool.intern_string("__inference_f_0")
        mark_logdir(logdir)
        self.parts = PartWriter(logdir, run_id)
        self.parts.start()

    def record(self, kind: Kind, *, payload: Sequence[int] = (), **fields: Any) -> None:
        """Appends a record whose wall time in nanoseconds is 1,000 times its event index plus 7."""
        made = np.zeros(1, RECORD_DTYPE)
        made["kind"], made["wall_time_ns"] = kind, 1_000 * self.spool.num_events() + 7
        made["step"] = NO_STEP
        made["tensor_id"] = made["execution_index"] = NO_VALUE
        for name, value in fields.items():
            made[name] = value
        made.view(PAYLOAD_DTYPE)["payload"][0, : len(payload)] = payload
        assert self.spool.append(made)

    def call(self, execution_index: int, *, inputs: Sequence[int] = (), num_inputs: int | None = None) -> None:
        """Appends the beginning of a call. Inputs that do not fit into the first record get further records."""
        size = len(inputs) if num_inputs is None else num_inputs
        common = {"execution_index": execution_index}
        self.record(Kind.EXECUTION, node=self.function, thread=1, num_inputs=size, payload=inputs[:19], **common)
        for first in range(19, len(inputs), 19):
            self.record(Kind.INPUTS, slot=first, payload=inputs[first : first + 19], **common)

    def end(self, execution_index: int) -> None:
        self.record(Kind.EXECUTION_END, execution_index=execution_index)

    def tensor(
        self, step_id: int, *, value: bytes | None = None, device: int = 0, bad: bool = False, **fields: Any
    ) -> None:
        """Appends a one-dimensional tensor of the function's op."""
        flags = MEASURED | (Flag.BAD if bad else 0)
        if value is not None:
            fields = {"value_offset": self.spool.append_value(value), "value_bytes": len(value)} | fields
            flags |= Flag.VALUE
        fields = {"node": self.node, "step_id": step_id, "rank": 1, "size": 1, "dtype": 1, "device": device} | fields
        self.record(Kind.GRAPH_TENSOR, flags=flags, payload=[1], **fields)

    def row(self, table: str, **columns: Any) -> int:
        """Appends a row of a table. Returns the offset at which the row begins."""
        offset = self.files.rows.size()
        assert self.files.rows.append("columns", table, {name: [value] for name, value in columns.items()})
        return offset

    def mark(self, event_index: int) -> int:
        return self.row("mark", event_index=event_index, wall_time_ns=5, label="step", value=str(event_index))

    def die(self) -> None:
        self.files.close()

    def recovered(self, *, progress: SpoolProgress = NO_PROGRESS) -> tuple[int, dict[str, pa.Table]]:
        """Returns the number of recovered events, and the rows by table."""
        sealed = SealedRows(self.logdir, {table.name: self.parts.parts(table.name) for table in TABLES})
        found = recovered(self.paths, run_id=self.run_id, progress=progress, sealed=sealed)
        assert found.run_id == self.run_id
        return found.num_events, {name: pa.concat_tables(list(pieces)) for name, pieces in found.tables.items()}


def rows(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    """Returns some columns of a table as rows."""
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def stats(tables: dict[str, pa.Table]) -> list[tuple[Any, ...]]:
    return rows(tables["capture_stat"], "stat", "subject", "reason", "num_events")
