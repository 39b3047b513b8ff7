"""How a recording divides its memory limit. `tests/faults/test_memory.py` measures the memory that a process uses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfdbg_arrow.spool.records import RECORD_SIZE
from tfdbg_arrow.writer.memory import DEFAULT_SHARES, MAX_MEMORY_BYTES, MIN_MEMORY_BYTES, MemoryShares

FIXED_BYTES = 112 << 20


@given(st.integers(MIN_MEMORY_BYTES, MAX_MEMORY_BYTES))
def test_shares_fit_into_the_bound(bound: int) -> None:
    shares = MemoryShares(bound)
    spool_bytes, work_bytes = shares.spool_records * RECORD_SIZE, 1024 * shares.batch_records
    assert FIXED_BYTES + spool_bytes + 2 * shares.waiting_bytes + work_bytes <= bound
    assert bound / 8 < spool_bytes <= bound / 4
    assert shares.spool_records.bit_count() == 1, "the core rounds other numbers up"
    assert 4 * shares.batch_value_bytes <= work_bytes + 1024
    assert 3 * shares.row_group_bytes <= work_bytes + 1024
    assert shares.batch_records >= 8192


def test_the_default() -> None:
    assert MemoryShares(256 << 20) == DEFAULT_SHARES
    assert DEFAULT_SHARES.spool_records == 262_144
    assert DEFAULT_SHARES.batch_records == 27_306
