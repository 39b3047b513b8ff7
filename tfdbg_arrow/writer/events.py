"""The interface through which Python code writes records of events."""

from __future__ import annotations

from typing import Protocol

from tfdbg_arrow.spool.records import Records


class EventWriter(Protocol):
    """A writer of records: the native spool or the Python spool."""

    def append(self, records: Records) -> bool:
        """Appends records that belong together; returns whether there was enough space."""

    def append_value(self, data: bytes) -> int:
        """Stores the bytes of a tensor; returns their offset, or -1 if they could not be stored."""

    def next_execution_index(self) -> int:
        """Returns the next execution index."""

    def last_event_index(self) -> int:
        """Returns the event index of the calling thread's last append; -1 if there was not enough space."""

    def intern_string(self, text: str) -> int:
        """Returns the id of a string."""

    def intern_stack(self) -> int:
        """Returns the id of the calling thread's Python stack; -1 if there is none."""
