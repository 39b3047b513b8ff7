"""Snapshots of a circular buffer: what it holds, in the place of what it held when last written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tfdbg_arrow.spool.batch import Batch
from tfdbg_arrow.spool.convert import Converter
from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.spool.ring import Ring
from tfdbg_arrow.writer.sink.parts import PartWriter

_REST = 10
"""A circular buffer is written for bad values at most this fraction of the time."""


class Snapshot:
    """A circular buffer, and the parts that hold what it held. Not thread-safe: its caller serialises.

    Args:
        size: How many executions, and how many graph tensors, it holds.
        parts: The run's parts.
        converter: Makes tables of what it holds.

    Attributes:
        has_changed: Whether the buffer holds something else than the parts.
    """

    def __init__(self, size: int, *, parts: PartWriter, converter: Converter) -> None:
        self._ring = Ring(size)
        self._parts, self._converter = parts, converter
        self._paths: list[str] = []
        self.has_changed = False
        self._next_s = 0.0

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> None:
        """Takes whole groups of records, and the elements by event_index."""
        self._ring.add(batch, values=values)
        self.has_changed = True

    @property
    def is_due(self) -> bool:
        """Whether the last one was long enough ago to write another for a bad value."""
        return time.monotonic() >= self._next_s

    def write(self, *, spool_upto: int, describe: Callable[[Batch], None]) -> None:
        """Writes what the buffer holds, if that has changed.

        Args:
            spool_upto: The event index behind all that was taken.
            describe: Writes what the events refer to.

        Raises:
            OSError: The parts cannot be written; then those of the last one hold.
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
        """Tells in the end what the buffer did not keep."""
        reason = "The circular buffer kept only the last ones, as it was asked to."
        for subject, count in (
            ("execution", self._ring.num_overwritten_executions),
            ("graph tensor", self._ring.num_overwritten_graph_tensors),
        ):
            if count:
                failures.note("dropped", subject, reason, count)
