"""Where Python puts records of events."""

from __future__ import annotations

from typing import Protocol

from tfdbg_arrow.spool.records import Records


class EventWriter(Protocol):
    """Takes records: the native spool or the Python one."""

    def append(self, records: Records) -> bool:
        """Appends records that belong together; returns whether there was room."""

    def append_value(self, data: bytes) -> int:
        """Keeps the bytes of a tensor; returns their offset, -1 if they could not be kept."""

    def next_execution_index(self) -> int:
        """Returns the next execution index."""

    def last_event_index(self) -> int:
        """Returns the event index of what the calling thread appended last, -1 if there was no room."""

    def intern_string(self, text: str) -> int:
        """Returns the id of a string."""

    def intern_stack(self) -> int:
        """Returns the id of the calling thread's Python stack, -1 for none."""
