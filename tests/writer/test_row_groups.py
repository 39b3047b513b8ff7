"""The memory of row groups of the usual size. tests/durability has the other tests of row groups."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.storage.part_files import seal_parts

NUM_ROWS = 20_000


def marks(number: int) -> pa.Table:
    schema = arrow_schema("mark")
    columns = {name: pa.nulls(NUM_ROWS, schema.field(name).type) for name in schema.names}
    columns |= {name: pa.repeat(pa.scalar("r", pa.string()), NUM_ROWS) for name in ("run_id", "label", "value")}
    events = pa.array(range(number * NUM_ROWS, (number + 1) * NUM_ROWS))
    columns |= {"event_index": events, "wall_time_ns": events, "wall_time": events.cast(pa.timestamp("us"))}
    return pa.table(columns, schema=schema)


@pytest.mark.slow
def test_writing_a_part_holds_one_group_while_the_next_is_read(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    held: list[int] = []

    def pieces() -> Iterator[pa.Table]:
        for number in range(4):
            gc.collect()
            held.append(pa.total_allocated_bytes())
            yield marks(number)

    seal_parts(tmp_path, {"mark": pieces()}, run_id="r", numbers={"mark": 0})
    assert held[3] - held[0] < marks(0).nbytes / 2, "the memory for a piece, which is larger than this, was freed"
