"""What the sink drains."""

from __future__ import annotations

from typing import Protocol

from tfdbg_arrow.spool.records import Records


class Recorder(Protocol):
    """The native core or the Python recorder, as the sink sees it."""

    def drain(self, max_records: int) -> Records:
        """Returns a copy of the next committed records, in order; their slots stay theirs until they are released."""

    def release(self, upto: int, rows_upto: int) -> None:
        """Frees the slots of drained records before an event index, and notes what of the rows is in sealed parts."""

    def num_free(self) -> int:
        """Returns how many slots are free."""

    def capacity(self) -> int:
        """Returns how many slots there are."""

    def wait(self, timeout_s: float, pending: int) -> bool:
        """Blocks until a bad value came (True), `pending` records wait, or the time is out."""

    def strings(self, start: int) -> list[str]:
        """Returns the interned strings from id `start` on."""

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns kept elements."""

    def release_values(self, upto: int) -> None:
        """Gives back the space of kept elements before that offset."""

    def write_names(self) -> int:
        """Writes to the journal the strings that it refused before; returns how many it still lacks."""

    def num_dropped(self) -> int:
        """Returns how many records found no room in the spool so far."""

    def num_unkept_values(self) -> int:
        """Returns of how many tensors the elements could not be written so far."""
