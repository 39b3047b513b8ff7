"""How the memory that a recording may take is shared out.

Measured by `benchmarks/memory.py`: what a flood of events takes under several bounds, also on a disk that refuses all.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.spool.records import RECORD_SIZE
from tfdbg_arrow.spool.spool_file import MAX_CAPACITY

DEFAULT_MAX_MEMORY_BYTES = 256 << 20
MIN_MEMORY_BYTES = 192 << 20
MAX_MEMORY_BYTES = 4 * MAX_CAPACITY * RECORD_SIZE
_FIXED_BYTES = 112 << 20
"""The libraries that recording loads, and what Parquet's writer takes for a table of many columns."""
_WORK_BYTES_A_RECORD = 1024
"""A record while it is turned into rows: itself, its transposition, and the rows as Arrow and as Parquet hold them."""


@dataclass(frozen=True)
class MemoryShares:
    """A quarter is the spool's; of the rest a third each is for events that wait, for other rows that do, and for work.

    Attributes:
        max_memory_bytes: What a recording may take beside what describes the program: its graphs, names and stacks.
    """

    max_memory_bytes: int

    @property
    def spool_records(self) -> int:
        """Records that the spool holds, a power of two; its file is mapped, so it counts."""
        return int(1 << ((self.max_memory_bytes // 4 // RECORD_SIZE).bit_length() - 1))

    @property
    def _third(self) -> int:
        return (self.max_memory_bytes - _FIXED_BYTES - self.spool_records * RECORD_SIZE) // 3

    @property
    def waiting_bytes(self) -> int:
        """Rows of events that wait while parts cannot be written, in bytes; as much of other rows."""
        return self._third

    @property
    def batch_records(self) -> int:
        """Records that are turned into rows at once."""
        return self._third // _WORK_BYTES_A_RECORD

    @property
    def batch_value_bytes(self) -> int:
        """Bytes of kept elements among them, which stand in memory as they are, as Arrow and as Parquet hold them."""
        return self._third // 4

    @property
    def row_group_bytes(self) -> int:
        """Arrow bytes of a row group that is merged: the rows, those read beyond, and what digests them."""
        return self._third // 3


DEFAULT_SHARES = MemoryShares(DEFAULT_MAX_MEMORY_BYTES)
