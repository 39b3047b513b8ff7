"""MemoryShares: divides the memory that a recording may take.

`benchmarks/memory.py` measures the memory that a flood of events takes with several limits, and if all writes to the
disk fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.spool.records import RECORD_SIZE
from tfdbg_arrow.spool.spool_file import MAX_CAPACITY

DEFAULT_MAX_MEMORY_BYTES = 256 << 20
"""The default limit. Its spool has room for 262,144 records."""
MIN_MEMORY_BYTES = 192 << 20
"""The smallest limit. It leaves 16 MiB for each of the three other shares."""
MAX_MEMORY_BYTES = 4 * MAX_CAPACITY * RECORD_SIZE
_FIXED_BYTES = 112 << 20
"""Memory of the libraries that recording loads, and of Parquet's writer for a table with many columns."""
_WORK_BYTES_A_RECORD = 1024
"""Memory for converting one record: the record, its transposition, and its rows in Arrow and in Parquet."""


@dataclass(frozen=True)
class MemoryShares:
    """The shares of a recording's memory.

    A quarter is for the spool. The rest is divided equally between waiting events, other waiting rows, and work.

    Attributes:
        max_memory_bytes: Maximum memory of a recording, in addition to the description of the program (its graphs,
            names and stacks).
    """

    max_memory_bytes: int

    @property
    def spool_records(self) -> int:
        """Number of records that the spool holds, a power of two. The spool counts because it is mapped into memory."""
        return int(1 << ((self.max_memory_bytes // 4 // RECORD_SIZE).bit_length() - 1))

    @property
    def _third(self) -> int:
        return (self.max_memory_bytes - _FIXED_BYTES - self.spool_records * RECORD_SIZE) // 3

    @property
    def waiting_bytes(self) -> int:
        """Maximum bytes of events that wait while parts cannot be written. Other waiting rows have the same limit."""
        return self._third

    @property
    def batch_records(self) -> int:
        """Number of records that are converted into rows at once."""
        return self._third // _WORK_BYTES_A_RECORD

    @property
    def batch_value_bytes(self) -> int:
        """Maximum bytes of kept elements in a batch. Memory holds the elements raw, in Arrow and in Parquet."""
        return self._third // 4

    @property
    def row_group_bytes(self) -> int:
        """Arrow bytes of a merged row group. The rows read ahead and the writer's buffers have shares of this size."""
        return self._third // 3


DEFAULT_SHARES = MemoryShares(DEFAULT_MAX_MEMORY_BYTES)
