"""The black box, which holds the last events in memory and writes them only when a bad value occurs.

A healthy run writes nothing. A bad value writes the events in the box and a number of events after it; then the box
fills again. Each kind of bad value (NaN; infinity without NaN) empties the box at its first occurrence. It empties the
box again only after as many events without that kind as the box holds, so that a value that stays bad does not empty
the box over and over.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfdbg_arrow.spool.batch import Batch, Ints, Mask, join_records, pick
from tfdbg_arrow.spool.records import Flag, Kind, Records
from tfdbg_arrow.spool.ring import LastEvents, bad_positions, in_order, values_of

MAX_DUMPS = 16
"""How often one kind of bad value can empty the box."""

Dump = tuple[Records, dict[int, bytes]]
"""The records in order of event_index, and the elements of tensors by event_index."""


class BlackBox:
    """Holds the last `size` executions and the last `size` graph tensors.

    Args:
        size: At least 1.
        dump_after: How many events after a bad value are written: executions and graph tensors, counted together.
    """

    def __init__(self, size: int, *, dump_after: int) -> None:
        self._size = size
        self._dump_after = dump_after
        self._last = LastEvents(size)
        self._values: dict[int, bytes] = {}
        self._num_counted = 0
        self._num_left = 0
        """How many events are still to be written after the last bad value."""
        self._last_bad: dict[str, int] = {}
        self._num_dumps: dict[str, int] = {"inf": 0, "nan": 0}
        self.num_given_out = 0
        """Number of executions and graph tensors written so far."""

    @property
    def num_kept_back(self) -> int:
        """Number of executions and graph tensors that have not been written so far."""
        return self._num_counted - self.num_given_out

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> Dump | None:
        """Adds complete groups of records, with the elements by event_index.

        Returns:
            The records and elements to write; None if there are none.
        """
        self._values.update(values)
        is_counted = _is_counted(batch)
        counts = np.cumsum(is_counted, dtype=np.int64)
        given_out: list[Records] = []
        start = 0
        for cut in self._cuts(batch, counts):
            given_out += self._pass(batch, is_counted, start, cut)
            given_out.append(self._last.take())
            self._num_left, start = self._dump_after, cut
        given_out += self._pass(batch, is_counted, start, len(batch))
        self._num_counted += int(is_counted.sum())
        records = in_order(join_records(given_out))
        found = values_of(records, self._values)
        if self._values:
            self._values = values_of(self._last.records(), self._values)
        if not len(records):
            return None
        self.num_given_out += int(_is_counted(Batch(records)).sum())
        return records, found

    def _pass(self, batch: Batch, is_counted: Mask, start: int, end: int) -> list[Records]:
        """Returns the records that are still due after a bad value, and adds the others to the box."""
        if not self._num_left:
            self._last.add(batch, start, end)
            return []
        counted = start + np.flatnonzero(is_counted[start:end])
        cut = int(counted[self._num_left]) if len(counted) > self._num_left else end
        self._num_left = max(0, self._num_left - len(counted))
        self._last.add(batch, cut, end)
        return [pick(batch.records, np.arange(start, cut))]

    def _cuts(self, batch: Batch, counts: Ints) -> list[int]:
        """Returns the positions after bad tensors at which the box is emptied, in order."""
        cuts: set[int] = set()
        for kind, positions in bad_positions(batch).items():
            if not len(positions):
                continue
            numbers = self._num_counted + counts[positions]
            before = np.concatenate([[self._last_bad.get(kind, -self._size - 1)], numbers[:-1]])
            fires = positions[numbers - before > self._size][: MAX_DUMPS - self._num_dumps[kind]]
            self._last_bad[kind] = int(numbers[-1])
            self._num_dumps[kind] += len(fires)
            cuts.update(_end_of_event(batch, position) for position in fires.tolist())
        return sorted(cuts)


_EAGER = (Kind.EXECUTION, Kind.EXECUTION_ERROR, Kind.EXECUTION_TENSOR, Kind.EXTERNAL_TENSOR)


def _end_of_event(batch: Batch, position: int) -> int:
    """Returns the position after a tensor and the adjacent records of the same execution."""
    execution_index = batch.field("execution_index")
    is_eager = batch.kind[position] in _EAGER
    end = position + 1
    while end < len(batch):
        if batch.heads[end] == end and not (
            is_eager and batch.kind[end] in _EAGER and execution_index[end] == execution_index[position]
        ):
            break
        end += 1
    return end


def _is_counted(batch: Batch) -> Mask:
    is_tensor = (batch.kind == Kind.GRAPH_TENSOR) & ((batch.flags & Flag.COVERED) != 0)
    is_counted: Mask = is_tensor | (batch.kind == Kind.EXECUTION)
    return is_counted
