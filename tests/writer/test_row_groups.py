"""Row groups are made from many small tables, and only the tables of one group are in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from tfdbg_arrow.schema import ROW_GROUP_ROWS, arrow_schema
from tfdbg_arrow.storage.part_files import RowGroups, seal_part

NUM_ROWS = 20_000
MAX_BYTES = 2**30


def marks(number: int) -> pa.Table:
    schema = arrow_schema("mark")
    columns = {name: pa.nulls(NUM_ROWS, schema.field(name).type) for name in schema.names}
    columns |= {name: pa.repeat(pa.scalar("r", pa.string()), NUM_ROWS) for name in ("run_id", "label", "value")}
    events = pa.array(range(number * NUM_ROWS, (number + 1) * NUM_ROWS))
    columns |= {"event_index": events, "wall_time_ns": events, "wall_time": events.cast(pa.timestamp("us"))}
    return pa.table(columns, schema=schema)


def some(num_tables: int, taken: list[int]) -> Iterator[pa.Table]:
    for number in range(num_tables):
        taken.append(number)
        yield marks(number)


@pytest.mark.parametrize("max_rows", [2 * ROW_GROUP_ROWS, 150_000, 10**9])
def test_all_rows_are_returned_in_order(max_rows: int) -> None:
    groups = RowGroups(some(20, []), max_bytes=MAX_BYTES)
    parts = []
    while groups.has_more:
        parts.append(pa.concat_tables(groups.part(max_rows)))
    assert all(part.num_rows == max_rows for part in parts[:-1])
    assert pa.concat_tables(parts)["event_index"].to_pylist() == list(range(20 * NUM_ROWS))


def test_no_rows_are_lost_if_a_part_ends_before_its_rows() -> None:
    groups = RowGroups(some(20, []), max_bytes=MAX_BYTES)
    found = []
    while groups.has_more:
        found.append(next(groups.part(10**9)))
    assert pa.concat_tables(found)["event_index"].to_pylist() == list(range(20 * NUM_ROWS))


def test_tables_are_read_when_they_are_needed() -> None:
    taken: list[int] = []
    groups = RowGroups(some(20, taken), max_bytes=MAX_BYTES)
    assert taken == []
    counts = [len(taken) for _ in groups.part(10**9)]
    needed = -(-ROW_GROUP_ROWS // NUM_ROWS)
    assert counts[0] == needed
    assert all(after - before <= needed for before, after in pairwise(counts))


@pytest.mark.slow
def test_writing_a_part_holds_one_group_while_the_next_is_read(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    held: list[int] = []

    def pieces() -> Iterator[pa.Table]:
        for number in range(4):
            gc.collect()
            held.append(pa.total_allocated_bytes())
            yield marks(number)

    seal_part(tmp_path, "mark", pieces(), run_id="r", number=0)
    assert held[3] - held[0] < marks(0).nbytes / 2, "the memory for a piece, which is larger than this, was freed"
