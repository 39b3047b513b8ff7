"""Contents: what a variable or another resource held when it was read, by the writes before."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tfdbg_arrow.query.flow.gaps import Gaps
from tfdbg_arrow.query.flow.places import Place, Trace
from tfdbg_arrow.query.flow.variables import Resources, Write
from tfdbg_arrow.query.recorded import TensorEvent

_MAX_VALUES = 500
"""Written values that are looked through for one read."""


@dataclass(frozen=True)
class Content:
    """What a resource held at a read.

    Attributes:
        values: What was written and is in it still: (place, whether `eager` or `graph` code wrote it), latest first.
        old_value: A recorded read of what it held before these; None where there is none, or where they replaced it.
        is_known: Whether these decide what it held.
    """

    values: tuple[tuple[Place, str], ...]
    old_value: TensorEvent | None
    is_known: bool


class Contents:
    """Tells what resources held, within one run; keeps what it found.

    Args:
        resources: The run's resources.
        gaps: What the run did not record.
    """

    def __init__(self, resources: Resources, gaps: Gaps) -> None:
        self._resources = resources
        self._gaps = gaps
        self._contents: dict[tuple[Place, int, int], Content] = {}

    def last_write(self, handle: Trace, reader: TensorEvent) -> tuple[Write | None, bool]:
        """Returns the last write to a resource before it was read, and whether it is known what that was.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.

        Returns:
            (the write, True); (None, True) where it held what came from outside; (None, False) where that is not known.
        """
        write = next(self._resources.writes(handle, reader=reader), None)
        if write is None:
            return None, not handle.is_lost and not self._gaps.between(-1, reader.execution_index)
        if self._is_unrecorded_between(write, reader.execution_index):
            return None, False
        return write, True

    def content(self, handle: Trace, reader: TensorEvent, *, since: int = 0) -> Content:
        """Returns what a resource held when it was read.

        Of writes that change what is there, all back to one that replaces it, or to a recorded read of the old value.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.
            since: Only what executions from this execution_index on wrote and read; from any but 0 nothing `is_known`.
        """
        key = (handle.place, reader.event_index, since)
        if key not in self._contents:
            found = self._find(handle, reader, since)
            self._contents[key] = replace(found, is_known=False) if since else found
        return self._contents[key]

    def clear(self) -> None:
        """Forgets what was found."""
        self._contents.clear()

    def _find(self, handle: Trace, reader: TensorEvent, since: int) -> Content:
        later: Write | None = None
        values: list[tuple[Place, str]] = []
        until = reader.execution_index
        for write in itertools.chain(self._resources.writes(handle, reader=reader, since=since), [None]):
            if later is not None:
                old = self._resources.read_between(handle, after=write, before=later, since=since)
                if old is not None:
                    is_known = not self._gaps.between(old.execution_index, later.execution_index)
                    return Content(tuple(values), old, is_known)
            if write is None:
                # Before its first write it holds what came from outside, and that is known.
                is_known = not handle.is_lost and not self._gaps.between(-1, until)
                return Content(tuple(values), None, is_known)
            if self._is_unrecorded_between(write, until):
                return Content(tuple(values), None, is_known=False)
            until = write.execution_index
            how = "eager" if write.graph_id is None else "graph"
            values += [(value, how) for value in write.values]
            if write.is_replacing or write.old_value is not None:
                return Content(tuple(values), write.old_value, is_known=True)
            if len(values) > _MAX_VALUES:
                break
            later = write
        return Content(tuple(values), None, is_known=False)

    def _is_unrecorded_between(self, write: Write, until: int | None) -> bool:
        """Returns whether anything was not recorded between a write and a later execution."""
        is_same = write.execution_index is not None and write.execution_index == until
        return not is_same and self._gaps.between(write.execution_index, until)
