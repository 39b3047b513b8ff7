"""Converts the spool of a dead process into tables.

The process may have been killed at any moment. For example, the process was writing a record or an entry, had sealed a
part but not yet freed the slots, or was ending. The lines of the manifest state how much of the spool is already in the
parts of each table. This module converts the rest with the code that the sink also uses.

The files are untrusted. Whatever they contain, the result is rows, or fewer rows and a note, or one error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfdbg_arrow.errors import BrokenPartError, LogdirError
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.spool.call_join import CallJoin
from tfdbg_arrow.spool.circular_buffer import CircularBuffer, Retention
from tfdbg_arrow.spool.convert import EVENT_TABLES, Converter, checked_tables, columns_of_rows, rows_of_columns
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.journal import JournalReader, recording_facts
from tfdbg_arrow.spool.names import GraphLinks, Names, TensorNode
from tfdbg_arrow.spool.records import (
    Batch,
    Flag,
    Kind,
    Records,
    ValueReader,
    join_records,
    num_whole,
    pick,
    split_by_value_bytes,
)
from tfdbg_arrow.spool.spool_file import SpoolHeader, read_committed, read_header
from tfdbg_arrow.storage.layout import SpoolPaths
from tfdbg_arrow.storage.manifest import ManifestEntry, SpoolProgress, resolve_part

_MAX_BATCH_VALUE_BYTES = 32 << 20
"""Maximum number of bytes of elements that are read at a time."""
_MAX_LOOKS = 20_000_000
"""Maximum number of examinations in the search for calls. Bounds the time for a spool that no recorder wrote."""
_MAX_ROWS = 5_000_000
"""Maximum number of rows that are read from the journal. A journal usually has a few thousand rows."""
_ROW_TABLES = frozenset(table.name for table in TABLES) - frozenset(EVENT_TABLES)
_REASON = "The process ended before its recording was closed; the data that it had not written was read from its spool."
_MAX_GRAPH_ID = 2**31 - 1
"""The largest id of a graph. A recorder counts graphs from 0, so a larger id is damage."""
_MAX_GRAPH_LOOKS = 5_000_000
"""Maximum number of examinations in the search for call sites. Bounds the time, as _MAX_LOOKS does."""
_UNKNOWN_NODE: TensorNode = (-1, "", "", -1)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Data of a dead process that is not in the parts of its run.

    Attributes:
        run_id: The run of the process.
        num_events: Number of executions and tensors.
        tables: The rows by table name, in pieces of limited size. The pieces are created when they are read, so each
            iterable can be read only once, and the tables must be read in this order.
    """

    run_id: str
    num_events: int
    tables: Mapping[str, Iterable[pa.Table]]


class SealedRows:
    """Reads facts from the sealed parts of a run.

    Args:
        logdir: The logdir.
        parts: The run's live parts by table.
    """

    def __init__(self, logdir: Path, parts: Mapping[str, Sequence[ManifestEntry]]) -> None:
        self._logdir, self._parts = logdir, parts

    def has_ended(self) -> bool:
        """Returns whether the recording ended and wrote all data. Only the removal of the spool then failed."""
        return True in self._column("run", "is_clean_end")

    def device_ids(self) -> frozenset[int]:
        """Returns the IDs of the devices that already have a row."""
        return frozenset(self._column("device", "device_id"))

    def _column(self, table: str, column: str) -> list[Any]:
        values: list[Any] = []
        for entry in self._parts.get(table, ()):
            if not entry.rows:
                continue
            path = resolve_part(self._logdir, entry)
            try:
                with pq.ParquetFile(path) as file:
                    values += file.read(columns=[column])[column].to_pylist()
            except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
                raise BrokenPartError(f"{path} cannot be read as Parquet ({error}); restore that file.") from error
        return values


def recovered(paths: SpoolPaths, *, run_id: str, progress: SpoolProgress, sealed: SealedRows) -> Recovered:
    """Reads the spool of a dead process.

    Reading needs memory of about five times the size of the spool.

    Args:
        paths: The spool files of the process.
        run_id: The run of the process.
        progress: Says how much of the spool is already in parts.
        sealed: The sealed parts of the run.

    Raises:
        LogdirError: A file cannot be read, or the spool file is not a spool.
    """
    try:
        return _Recovery(paths, run_id=run_id, progress=progress).read(sealed)
    except OSError as error:
        raise LogdirError(
            f"{paths.spool} cannot be recovered: {error.filename or 'a file of it'} cannot be read "
            f"({error.strerror or error}); check its permissions."
        ) from error


class _Recovery:
    def __init__(self, paths: SpoolPaths, *, run_id: str, progress: SpoolProgress) -> None:
        self._paths, self._run_id, self._progress = paths, run_id, progress
        self._failures = Failures(lambda sentence: None)
        self._last_wall_time_ns = -1
        self._next_event = 0
        self._retention = Retention.from_json(recording_facts(paths.journal).get("retention"))

    def read(self, sealed: SealedRows) -> Recovered:
        header = read_header(self._paths.spool)
        self._next_event = header.tail
        journaled = JournaledNames(self._paths.journal)
        if journaled.num_torn:
            self._note(self._paths.journal, "names", journaled.num_torn)
        names = Names(journaled, nodes=journaled, call_graph=journaled.graphs)
        rows, state = self._read_rows(header)
        converter = Converter(self._run_id, names=names)
        join = CallJoin(journaled.graphs, max_looks=_MAX_LOOKS)
        join.restore(state)
        pieces: dict[str, list[pa.Table]] = {}
        kept: dict[str, list[Records]] = {}
        devices: dict[int, str] = {}
        for batch in self._selected(header, names, join, num_strings=journaled.num_strings):
            with self._failures.caught("convert"):
                devices.update(converter.devices(batch))
                for table, data in self._convert(converter, batch):
                    pieces.setdefault(table, []).append(data)
                for table, records in self._with_values(batch, header):
                    kept.setdefault(table, []).append(records)
        num_events = sum(data.num_rows for table in ("execution", "tensor_health") for data in pieces.get(table, ()))
        given = {number for row in rows.get("device", ()) if isinstance(number := row.get("device_id"), int)}
        new = devices.keys() - given
        if new:
            new -= sealed.device_ids()
            rows.setdefault("device", []).extend({"device_id": i, "device_name": devices[i]} for i in sorted(new))
        if self._last_wall_time_ns < 0:
            self._last_wall_time_ns = self._paths.journal.stat().st_mtime_ns
        tables: dict[str, Iterable[pa.Table]] = {**pieces}
        for table, table_rows in rows.items():
            columns = columns_of_rows(table_rows)
            if data := list(checked_tables(table, columns, run_id=self._run_id, failures=self._failures)):
                tables[table] = data
        for table, with_values in kept.items():
            tables[table] = self._values(table, header, converter, with_values)
        # This table comes last, because notes about the other tables become its rows.
        tables["capture_stat"] = itertools.chain(tables.pop("capture_stat", ()), self._stats(num_events))
        return Recovered(run_id=self._run_id, num_events=num_events, tables=tables)

    def _stats(self, num_events: int) -> Iterator[pa.Table]:
        self._failures.note_repeats()
        stats = [self._stat(**note) for note in self._failures.take_notes()]
        stats.append(self._stat(stat="recovered", subject="events", reason=_REASON, num_events=num_events))
        columns = columns_of_rows(stats)
        yield from checked_tables("capture_stat", columns, run_id=self._run_id, failures=self._failures)

    def _note(self, path: Path, what: str, count: int) -> None:
        self._failures.note("failed", f"spool/{path.name}", f"damaged entries in the journal of {what}: {count}", None)

    def _stat(self, **columns: object) -> dict[str, object]:
        return {"event_index": self._next_event, "wall_time_ns": self._last_wall_time_ns, **columns}

    def _read_rows(self, header: SpoolHeader) -> tuple[dict[str, list[Mapping[str, object]]], Mapping[str, Any]]:
        """Returns the rows that are not in parts, by table, and the state of the call join at the tail of the spool."""
        rows: dict[str, list[Mapping[str, object]]] = {}
        state: Mapping[str, Any] = {}
        if not self._paths.rows.exists():
            return rows, state
        reader = JournalReader(self._paths.rows, start=header.rows_tail)
        num_rows = 0
        for entry in reader.entries():
            if num_rows > _MAX_ROWS:
                reason = f"it holds more than {_MAX_ROWS:,} rows that are not in parts; the rest was left out"
                self._failures.note("failed", f"spool/{self._paths.rows.name}", reason, None)
                break
            match entry.data:
                case ["columns", str(table), dict(columns), *long_text] if table in _ROW_TABLES:
                    if entry.offset >= self._progress.by_table.get(table, 0):
                        match long_text:
                            case [str(column), str(text)]:
                                columns[column] = [text]
                        entry_rows = rows_of_columns(columns)
                        rows.setdefault(table, []).extend(entry_rows)
                        num_rows += len(entry_rows)
                case ["tail", int(tail), dict(known)] if tail <= header.tail:
                    state = known
        if reader.num_torn:
            self._note(self._paths.rows, "rows", reader.num_torn)
        return rows, state

    def _selected(self, header: SpoolHeader, names: Names, join: CallJoin, *, num_strings: int) -> Iterator[Batch]:
        """Yields the records as batches of complete groups.

        If the recording used a circular buffer, yields only the records that the buffer would keep. All events of the
        spool are added to the buffer, even events that are already in parts, because earlier bad values determine which
        events the buffer keeps.
        """
        batches = self._batches(header, names, join, num_strings=num_strings)
        if self._retention is None:
            yield from batches
            return
        buffer = CircularBuffer(self._retention)
        for batch in batches:
            if len(kept := buffer.add(batch, values={})[0]):
                yield kept
        if len(kept := buffer.rest()[0]):
            yield kept

    def _batches(self, header: SpoolHeader, names: Names, join: CallJoin, *, num_strings: int) -> Iterator[Batch]:
        carry: Records = join_records([])
        for records in _with_end(read_committed(self._paths.spool, header)):
            joined = join_records([carry, records])
            whole = num_whole(joined) if len(records) else len(joined)
            carry = pick(joined, np.arange(whole, len(joined)))
            if not whole:
                continue
            taken = pick(joined, np.arange(whole))
            _bound_ids(taken, num_strings=num_strings)
            self._next_event = int(taken["commit"][-1])
            self._last_wall_time_ns = max(self._last_wall_time_ns, int(taken["wall_time_ns"].max()))
            batch = Batch(taken)
            graph = np.flatnonzero(batch.kind == Kind.GRAPH_TENSOR)
            batch.set_execution_index(graph, join.join(batch, graph_ids=names.graph_ids(batch))[graph])
            yield batch

    def _convert(self, converter: Converter, batch: Batch) -> Iterator[tuple[str, pa.Table]]:
        """Yields (table name, rows) for a batch. Rows that are already in parts are left out."""
        by_start: dict[int, list[str]] = {}
        for table in EVENT_TABLES:
            start = max(self._progress.events, self._progress.by_table.get(table, 0), int(batch.event_index[0]))
            by_start.setdefault(start, []).append(table)
        for start, wanted in by_start.items():
            records = _since(batch.records, start)
            if len(records):
                whole = batch if len(records) == len(batch) else Batch(records)
                made = converter.tables(whole, values={})
                yield from ((table, made[table]) for table in wanted if table in made)

    def _with_values(self, batch: Batch, header: SpoolHeader) -> Iterator[tuple[str, Records]]:
        """Yields (table name, records) for records whose elements are kept but not in parts, with their followers."""
        heads = batch.heads
        has_value = (batch.flags & Flag.VALUE) != 0
        # A circular buffer reads elements into memory when it adds the events. The space of these elements is freed.
        if self._retention is not None:
            has_value &= batch.field("value_offset") >= header.values_tail
        has_value = (heads >= 0) & has_value[heads]
        kind = batch.kind[heads]
        tables = {"input_value": kind == Kind.INPUT_VALUE, "step_input": kind == Kind.STEP_INPUT}
        tables["tensor_value"] = ~(tables["input_value"] | tables["step_input"])
        for table, is_of_table in tables.items():
            rows = has_value & is_of_table
            start = max(self._progress.events, self._progress.by_table.get(table, 0))
            records = _since(pick(batch.records, np.flatnonzero(rows)), start)
            if len(records):
                yield table, records

    def _values(
        self, table: str, header: SpoolHeader, converter: Converter, kept: Sequence[Records]
    ) -> Iterator[pa.Table]:
        if not self._paths.values.exists():
            return
        with open(self._paths.values, "rb", buffering=0) as file:
            reader = ValueReader(_ValueFile(file.fileno(), start=header.values_tail))
            for records in kept:
                for batch in split_by_value_bytes(Batch(records), max_bytes=_MAX_BATCH_VALUE_BYTES):
                    values = reader.read(batch, failures=self._failures)
                    made = converter.tables(batch, values=values).get(table)
                    if made is not None:
                        yield made


class _ValueFile:
    """The value spool of a dead process, which implements `KeptElements`."""

    def __init__(self, descriptor: int, *, start: int) -> None:
        self._descriptor, self._start = descriptor, start
        self._end = os.fstat(descriptor).st_size

    def read_value(self, offset: int, size: int) -> bytes:
        if offset < self._start or size < 0 or offset + size > self._end:
            raise ValueError(
                f"the value spool does not have {size} bytes at {offset}: it holds {self._start} to {self._end}"
            )
        content = os.pread(self._descriptor, size, offset)
        if len(content) != size:
            raise ValueError(f"the value spool returned only {len(content)} of {size} bytes at {offset}")
        return content

    def release_values(self, upto: int) -> None:
        """Does nothing, because the file belongs to another process."""


def _with_end(pieces: Iterator[Records]) -> Iterator[Records]:
    """Yields all pieces, and then an empty piece that marks the end."""
    yield from pieces
    yield join_records([])


def _since(records: Records, event_index: int) -> Records:
    return pick(records, np.flatnonzero(records["commit"] > np.uint64(event_index)))


def _bound_ids(records: Records, *, num_strings: int) -> None:
    """Clears device IDs that are not IDs of known strings. Untrusted records can have any ID."""
    device = records["device"]
    device[(device < 0) | (device >= num_strings)] = 0


class JournaledNames:
    """The strings, nodes and graphs of a recording, read from its journal.

    Missing and invalid entries are left out. Records that refer to such entries get no name.

    Args:
        journal: The journal of names.

    Attributes:
        graphs: The calls between graphs.
        num_torn: Number of damaged entries in the journal.

    Raises:
        OSError: The journal cannot be read.
    """

    def __init__(self, journal: Path) -> None:
        self.graphs = GraphLinks(max_looks=_MAX_GRAPH_LOOKS)
        strings: dict[int, str] = {}
        nodes: dict[int, TensorNode] = {}
        num_entries = 0
        reader = JournalReader(journal)
        for entry in reader.entries():
            num_entries += 1
            if entry.string is not None:
                strings[entry.string[0]] = entry.string[1]
            else:
                self._take(entry.data, nodes)
        self.num_torn = reader.num_torn
        # No recording assigns a number far above the number of entries.
        self._strings = _as_list(strings, "", max_length=2 * num_entries)
        self._nodes = _as_list(nodes, _UNKNOWN_NODE, max_length=2 * max(num_entries, len(nodes)))

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings with IDs from `start` on."""
        return self._strings[start:]

    def nodes(self, start: int) -> Sequence[TensorNode]:
        """Returns the tensors with keys from `start` on."""
        return self._nodes[start:]

    @property
    def num_strings(self) -> int:
        """Number of strings."""
        return len(self._strings)

    def _take(self, data: Sequence[Any], nodes: dict[int, TensorNode]) -> None:
        match data:
            case ["nodes", int(first), list(entries)] if first >= 0:
                nodes.update((key, node) for key, entry in enumerate(entries, start=first) if (node := _as_node(entry)))
            case ["function", str(name), int(graph_id)] if _is_graph(graph_id):
                self.graphs.add_function(name, graph_id)
            case ["callee", int(graph_id), str(op_name), str(attribute), int(index), int(callee)] if (
                op_name and _is_graph(graph_id) and _is_graph(callee)
            ):
                self.graphs.add_callee(graph_id, (op_name, attribute, index), callee)
            case ["rename", int(graph_id), str(op_name), str(node_name)] if node_name and _is_graph(graph_id):
                self.graphs.add_rename(graph_id, op_name, node_name)


def _as_node(entry: object) -> TensorNode | None:
    match entry:
        case [int(graph_id), str(op_name), str(op_type), int(slot)] if _is_graph(graph_id) and -1 <= slot < 2**31:
            return graph_id, op_name, op_type, slot
    return None


def _is_graph(graph_id: int) -> bool:
    return 0 <= graph_id <= _MAX_GRAPH_ID


def _as_list(by_number: dict[int, Any], missing: Any, *, max_length: int) -> list[Any]:
    length = min(max(by_number, default=-1) + 1, max_length)
    return [by_number.get(number, missing) for number in range(length)]
