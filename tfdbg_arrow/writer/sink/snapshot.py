"""Snapshots of a circular buffer, each of which replaces the previous one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tfdbg_arrow.spool.batch import Batch
from tfdbg_arrow.spool.convert import Converter
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.ring import Ring
from tfdbg_arrow.writer.sink.parts import PartWriter

_REST = 10
"""After a snapshot, the next one for a bad value waits this many times as long as the snapshot took."""


class Snapshot:
    """A circular buffer and the parts with its last written content. Not thread-safe; the caller must serialise calls.

    Args:
        size: Number of executions, and number of graph tensors, that the buffer holds.
        parts: The run's parts.
        converter: Converts the content of the buffer into tables.

    Attributes:
        has_changed: Whether the content of the buffer differs from the parts.
    """

    def __init__(self, size: int, *, parts: PartWriter, converter: Converter) -> None:
        self._ring = Ring(size)
        self._parts, self._converter = parts, converter
        self._paths: list[str] = []
        self.has_changed = False
        self._next_s = 0.0

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> None:
        """Adds complete groups of records, with the elements by event_index."""
        self._ring.add(batch, values=values)
        self.has_changed = True

    @property
    def is_due(self) -> bool:
        """Whether the last snapshot was long enough ago to write another one for a bad value."""
        return time.monotonic() >= self._next_s

    def write(self, *, spool_upto: int, describe: Callable[[Batch], None]) -> None:
        """Writes the content of the buffer, if it has changed.

        Args:
            spool_upto: The event index after all events that were added.
            describe: Called to write the rows that the events refer to.

        Raises:
            OSError: The parts cannot be written; then those of the last snapshot remain live.
        """
        if not self.has_changed:
            return
        begin = time.monotonic()
        records, values = self._ring.content()
        batch = Batch(records)
        describe(batch)
        tables = self._converter.tables(batch, values=values)
        made = self._parts.replace(
            self._paths, {name: [table] for name, table in tables.items()}, spool_upto=spool_upto
        )
        self._paths = [entry.path for entry in made]
        self.has_changed = False
        self._next_s = time.monotonic() + _REST * (time.monotonic() - begin)

    def note_overwritten(self, failures: Failures) -> None:
        """Reports, at the end, the events that the buffer did not keep."""
        reason = "The circular buffer kept only the last ones, as requested."
        for subject, count in (
            ("execution", self._ring.num_overwritten_executions),
            ("graph tensor", self._ring.num_overwritten_graph_tensors),
        ):
            if count:
                failures.note("dropped", subject, reason, count)
