"""The interface from which the sink drains records."""

from __future__ import annotations

from typing import Protocol

from tfdbg_arrow.spool.records import Records


class Recorder(Protocol):
    """The sink's view of the native core."""

    def drain(self, max_records: int) -> Records:
        """Returns a copy of the next committed records, in order; their slots stay occupied until `release`."""

    def release(self, upto: int, rows_upto: int) -> None:
        """Frees the slots of drained records before an event index, and stores which rows are in sealed parts."""

    def num_free(self) -> int:
        """Returns the number of free slots."""

    def capacity(self) -> int:
        """Returns the number of slots."""

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Blocks until a bad value occurs (returns True), `pending` records wait, or the time is up."""

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on."""

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns kept elements."""

    def release_values(self, upto: int) -> None:
        """Frees the space of kept elements before an offset."""

    def write_names(self) -> int:
        """Retries strings that could not be written to the journal; returns how many are still missing."""

    def num_dropped(self) -> int:
        """Returns the number of records that did not fit into the spool so far."""

    def num_unkept_values(self) -> int:
        """Returns the number of tensors whose elements could not be written so far."""
