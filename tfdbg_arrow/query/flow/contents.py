"""Contents: what a variable or another resource held when it was read, according to the writes before the read."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tfdbg_arrow.query.flow.gaps import Gaps
from tfdbg_arrow.query.flow.places import Place, Trace
from tfdbg_arrow.query.flow.variables import Resources, Write
from tfdbg_arrow.query.recorded import TensorEvent

_MAX_VALUES = 500
"""Number of written values that are examined for one read."""


@dataclass(frozen=True)
class Content:
    """What a resource held at a read.

    Attributes:
        values: The written values that the resource still contained, latest first: (place, `eager` or `graph` for the
            code that wrote it).
        old_value: A recorded read of the value before these writes; None if there is none or a write replaced it.
        is_known: Whether these determine what the resource held.
    """

    values: tuple[tuple[Place, str], ...]
    old_value: TensorEvent | None
    is_known: bool


class Contents:
    """Determines what resources held within one run, and caches the answers.

    Args:
        resources: The run's resources.
        gaps: What the run did not record.
    """

    def __init__(self, resources: Resources, gaps: Gaps) -> None:
        self._resources = resources
        self._gaps = gaps
        self._contents: dict[tuple[Place, int, int], Content] = {}

    def last_write(self, handle: Trace, reader: TensorEvent) -> tuple[Write | None, bool]:
        """Returns the last write to a resource before it was read, and whether this is certain.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.

        Returns:
            (the write, True); (None, True) if the resource held its initial value from outside; (None, False) if the
            last write is not known.
        """
        write = next(self._resources.writes(handle, reader=reader), None)
        if write is None:
            return None, not handle.is_lost and not self._gaps.between(-1, reader.execution_index)
        if self._is_unrecorded_between(write, reader.execution_index):
            return None, False
        return write, True

    def content(self, handle: Trace, reader: TensorEvent, *, since: int = 0) -> Content:
        """Returns what a resource held when it was read.

        For writes that only change the value, goes back to a write that replaces it or a recorded read of the old one.

        Args:
            handle: Where the resource came from, seen from the reading op.
            reader: The row of the reading op's output.
            since: Consider only writes and reads of executions from this execution_index on. Unless it is 0, `is_known`
                is False.
        """
        key = (handle.place, reader.event_index, since)
        if key not in self._contents:
            found = self._find(handle, reader, since)
            self._contents[key] = replace(found, is_known=False) if since else found
        return self._contents[key]

    def clear(self) -> None:
        """Clears the cache."""
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
                # Before the first write, the resource held its initial value from outside, and that is known.
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
        """Returns whether the recording has a gap between a write and a later execution."""
        is_same = write.execution_index is not None and write.execution_index == until
        return not is_same and self._gaps.between(write.execution_index, until)
