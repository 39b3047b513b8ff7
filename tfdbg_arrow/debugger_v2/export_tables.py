"""Reads the tables of one run, one row group at a time: by key, in order, and in bounded memory.

Source: spec/README.md, "Manifest" (live parts) and "Layout of a logdir" (rows have no order).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.schema.declaration import MAX_INT64
from tfdbg_arrow.storage.manifest import read_live_parts, resolve_part

HELD_BYTES = 128 * 2**20
"""Maximum bytes of row groups, read by key, that stay in memory; the row group read last always stays."""

Row = tuple[Any, ...]


class PartGoneError(Exception):
    """A part does not exist: either it was replaced after the manifest was read, or it was lost.

    Attributes:
        path: The part.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """The columns of the table run that an export needs, under the same names."""

    run_id: str
    wall_time_ns: int
    end_wall_time_ns: int | None
    tensorflow_version: str | None
    host_name: str | None
    tensor_debug_mode: str | None
    health_backend: str

    @property
    def is_imported(self) -> bool:
        """Whether the run was made from a dump."""
        return self.health_backend == "debugger_v2"


@dataclass(frozen=True, kw_only=True)
class _RowGroup:
    path: Path
    metadata: pq.FileMetaData
    index: int

    def read(self, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
        """Returns some columns; a column that an older part does not have is NULL."""
        try:
            with pq.ParquetFile(self.path, metadata=self.metadata, page_checksum_verification=True) as file:
                part_columns = set(file.schema_arrow.names)
                part_table = file.read_row_group(self.index, columns=[name for name in columns if name in part_columns])
        except FileNotFoundError:
            raise PartGoneError(self.path) from None
        except (OSError, pa.ArrowException) as error:
            raise _broken(self.path, error) from error
        rows = self.metadata.row_group(self.index).num_rows
        arrays = [
            part_table[name] if name in part_table.column_names else pa.nulls(rows, schema.field(name).type)
            for name in columns
        ]
        return pa.table(arrays, names=list(columns))

    def range_of(self, column: str) -> tuple[int, int] | None:
        """Returns the smallest and largest value of a column, from the statistics; None if the column has no value."""
        group = self.metadata.row_group(self.index)
        for number in range(group.num_columns):
            chunk = group.column(number)
            if chunk.path_in_schema == column:
                statistics = chunk.statistics
                if statistics is not None and statistics.has_min_max:
                    return int(statistics.min), int(statistics.max)
                if statistics is not None and statistics.null_count == group.num_rows:
                    return None
                return -MAX_INT64 - 1, MAX_INT64
        return None


class RunTables:
    """The live parts of one run. Not thread-safe.

    Every method that reads rows raises BrokenPartError if a part cannot be read, and PartGoneError if a part was
    replaced in the meantime.

    Args:
        logdir: The logdir.
        run_id: The run.

    Raises:
        LogdirError: The manifest is damaged, or the path of a part leads out of the logdir.
        BrokenPartError: A part is not a Parquet file.
        PartGoneError: A part was replaced in the meantime.
    """

    def __init__(self, logdir: Path, run_id: str) -> None:
        self._groups: dict[str, list[_RowGroup]] = {}
        for entry in read_live_parts(logdir, run_id=run_id):
            path = resolve_part(logdir, entry)
            try:
                metadata = pq.read_metadata(path)
            except FileNotFoundError:
                raise PartGoneError(path) from None
            except (OSError, pa.ArrowException) as error:
                raise _broken(path, error) from error
            groups = self._groups.setdefault(entry.table, [])
            groups += [_RowGroup(path=path, metadata=metadata, index=index) for index in range(metadata.num_row_groups)]

    def num_rows(self, table: str) -> int:
        """Returns the number of rows of a table."""
        return sum(group.metadata.row_group(group.index).num_rows for group in self._groups.get(table, ()))

    def run(self) -> RunRow | None:
        """Returns the run's own row; None if this row is not yet written."""
        names = [field.name for field in fields(RunRow)]
        row = next(self.rows("run", names), None)
        return None if row is None else RunRow(**dict(zip(names, row, strict=True)))

    def count(self, table: str, column: str, value: str) -> int:
        """Returns the number of rows of a table with a given value in a VARCHAR column."""
        schema = arrow_schema(table)
        return sum(
            pc.sum(pc.equal(group.read((column,), schema)[column], value)).as_py() or 0
            for group in self._groups.get(table, ())
        )

    def greatest(self, table: str, column: str, *, by: Sequence[str], where: tuple[str, str]) -> dict[Row, int]:
        """Returns the largest value of a column for each combination of other columns; NULLs are ignored.

        Args:
            table: The table.
            column: The column, which contains integers.
            by: The other columns.
            where: A VARCHAR column and its value in the rows to read.
        """
        schema = arrow_schema(table)
        greatest: dict[Row, int] = {}
        for group in self._groups.get(table, ()):
            rows = group.read((*by, column, where[0]), schema)
            groups = rows.filter(pc.equal(rows[where[0]], where[1])).group_by(list(by)).aggregate([(column, "max")])
            for *key, value in to_rows(groups.select([*by, f"{column}_max"])):
                if value is not None:
                    greatest[tuple(key)] = max(greatest.get(tuple(key), value), value)
        return greatest

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yields the rows of a table in no particular order, with one row group in memory at a time."""
        schema = arrow_schema(table)
        for group in self._groups.get(table, ()):
            yield from to_rows(group.read(columns, schema))

    def keyed(self, table: str, key: str, columns: Sequence[str], *, where: tuple[str, str] | None = None) -> KeyedRows:
        """Returns a table for reading by the values of a BIGINT column.

        Args:
            table: The table.
            key: The column; rows with NULL in this column are left out.
            columns: The columns to read.
            where: A VARCHAR column and its value in the rows to read; None means all rows.
        """
        return KeyedRows(self._groups.get(table, ()), arrow_schema(table), key, columns, where=where)


class KeyedRows:
    """The rows of a table, accessed by the values of a BIGINT column, regardless of their order. Not thread-safe.

    Row groups are found by their statistics. The rows of a few row groups stay in memory. If the rows are nearly in
    order, as a recording writes them, access by ascending key reads each row group once. Otherwise access is slower,
    but does not take more memory.
    """

    def __init__(
        self,
        groups: Sequence[_RowGroup],
        schema: pa.Schema,
        key: str,
        columns: Sequence[str],
        *,
        where: tuple[str, str] | None,
    ) -> None:
        ranges = [(group, group.range_of(key)) for group in groups]
        sorted_groups = sorted(
            ((group, range_) for group, range_ in ranges if range_ is not None), key=lambda pair: pair[1]
        )
        self._groups = [group for group, _ in sorted_groups]
        self._firsts = np.array([range_[0] for _, range_ in sorted_groups], np.int64)
        self._lasts = np.array([range_[1] for _, range_ in sorted_groups], np.int64)
        self._schema, self._key, self._columns, self._where = schema, key, tuple(columns), where
        self._held: OrderedDict[int, tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]] = OrderedDict()
        self._held_bytes = 0

    def windows(self, width: int) -> Iterator[tuple[int, int, pa.Table]]:
        """Yields (first key, end key, rows by ascending key) until all rows have been yielded.

        Args:
            width: Number of key values that a window spans.
        """
        first = self._next_key(-MAX_INT64 - 1)
        while first is not None:
            end = first + width
            yield first, end, self.between(first, end)
            first = self._next_key(end)

    def between(self, first: int, end: int) -> pa.Table:
        """Returns the requested columns of the rows with first <= key < end, by ascending key."""
        last = min(end - 1, MAX_INT64)
        pieces, keys = [], []
        for number in np.flatnonzero((self._firsts <= last) & (self._lasts >= first)):
            table, values = self._load(int(number))
            start, stop = np.searchsorted(values, first, "left"), np.searchsorted(values, last, "right")
            if stop > start:
                pieces.append(table.slice(start, stop - start))
                keys.append(values[start:stop])
        if len(pieces) == 1:
            return pieces[0]
        whole = pa.concat_tables(pieces) if pieces else _empty(self._schema, self._columns)
        if any(left[-1] > right[0] for left, right in pairwise(keys)):
            whole = whole.take(pa.array(np.argsort(np.concatenate(keys), kind="stable")))
        return whole

    def get(self, key: int) -> Row | None:
        """Returns the row with a unique key; None if no row has this key."""
        rows = self.between(key, key + 1)
        return next(to_rows(rows)) if rows.num_rows else None

    def _next_key(self, at_least: int) -> int | None:
        """Returns the smallest key that is at least a given value; None if there is no such key."""
        if at_least > MAX_INT64:
            return None
        least: int | None = None
        for number in np.flatnonzero(self._lasts >= at_least):
            if least is not None and self._firsts[number] >= least:
                break  # the groups are sorted by their first key
            _, values = self._load(int(number))
            index = np.searchsorted(values, at_least, "left")
            if index < len(values) and (least is None or values[index] < least):
                least = int(values[index])
        return least

    def _load(self, number: int) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.int64]]]:
        held = self._held.get(number)
        if held is not None:
            self._held.move_to_end(number)
            return held
        names = list(dict.fromkeys([*self._columns, self._key, *([self._where[0]] if self._where else [])]))
        table = self._groups[number].read(names, self._schema)
        if self._where is not None:
            table = table.filter(pc.equal(table[self._where[0]], self._where[1]))
        if table[self._key].null_count:
            table = table.filter(pc.is_valid(table[self._key]))
        keys = table[self._key].to_numpy()
        if np.any(keys[1:] < keys[:-1]):
            order = np.argsort(keys, kind="stable")
            table, keys = table.take(pa.array(order)), keys[order]
        table = table.select(list(self._columns)).combine_chunks()
        self._held[number] = table, keys
        self._held_bytes += table.nbytes
        while self._held_bytes > HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= self._held.popitem(last=False)[1][0].nbytes
        return table, keys


def to_rows(table: pa.Table) -> Iterator[Row]:
    """Yields the rows of a table as tuples, in the order of its columns."""
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def listed(rows: KeyedRows, first: int, end: int) -> dict[int, list[tuple[int, int]]]:
    """Returns, by execution_index in [first, end), the (index, tensor id) pairs of each execution, in order."""
    pairs_of_execution: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for execution_index, index, tensor_id in to_rows(rows.between(first, end)):
        pairs_of_execution[execution_index].append((index, tensor_id))
    for pairs in pairs_of_execution.values():
        pairs.sort()
    return pairs_of_execution


def read_stacks(tables: RunTables) -> dict[int, list[int]]:
    """Returns the frames of each stack, outermost first."""
    frames: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for stack_id, depth, frame_id in tables.rows("stack_trace", ("stack_trace_id", "depth", "stack_frame_id")):
        frames[stack_id].append((depth, frame_id))
    return {stack_id: [frame_id for _, frame_id in sorted(stack, reverse=True)] for stack_id, stack in frames.items()}


def _empty(schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    return pa.schema([schema.field(name) for name in columns]).empty_table()


def _broken(path: Path, error: Exception) -> BrokenPartError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return BrokenPartError(f"{path} cannot be read as Parquet ({reason}); restore that file.")
