"""The circular buffer, which holds the last executions and the last graph tensors in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tfdbg_arrow.spool.records import Batch, Flag, Ints, Kind, Mask, Records, join_records, pick

_SLACK = 4_096
"""Number of extra events that are kept before the oldest events are dropped, because dropping copies all other events.
"""
_EAGER = (Kind.EXECUTION, Kind.EXECUTION_ERROR, Kind.EXECUTION_TENSOR, Kind.EXTERNAL_TENSOR)
MAX_DUMPS = 16
"""Maximum number of times that one kind of bad value empties the buffer."""
_MAX_SIZE = 2**24
"""The largest size that is read from a file. A larger buffer would take too much memory."""
Dump = tuple[Batch, dict[int, bytes]]
"""The records in the order of event_index, and the elements of tensors by event_index."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Says which events a circular buffer keeps.

    Attributes:
        size: The number of executions that the buffer holds, at least 1. The buffer holds the same number of graph
            tensors.
        num_after: The number of executions and graph tensors together that are kept after a bad value.
        only_bad: Whether only the events around bad values are kept. Otherwise, the last events of the recording are
            also kept.
    """

    size: int
    num_after: int
    only_bad: bool

    @property
    def kept(self) -> str:
        """The kept events in words, for use in a sentence."""
        return "the events around bad values" if self.only_bad else "the last events and those around bad values"

    @staticmethod
    def from_json(value: object) -> Retention | None:
        """Returns the retention that untrusted data describes; None if the data is not valid."""
        match value:
            case {"size": int(size), "num_after": int(num_after), "only_bad": bool(only_bad)}:
                if 0 < size <= _MAX_SIZE and num_after >= 0:
                    return Retention(size=size, num_after=num_after, only_bad=only_bad)
        return None


class CircularBuffer:
    """A buffer of the last executions with all eager records that belong to them, and of the last graph tensors.

    A bad value empties the buffer: the events in the buffer and some events after the bad value are kept. Then the
    buffer fills again. There are two kinds of bad values: NaN, and infinity without NaN. Each kind empties the buffer
    when it first occurs, and again when it occurs after `size` events without this kind. Therefore, a value that stays
    bad does not empty the buffer repeatedly.

    Args:
        retention: The events to keep.
    """

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self._executions = _LastEvents(retention.size, Kind.EXECUTION)
        self._graph_tensors = _LastEvents(retention.size, Kind.GRAPH_TENSOR)
        self._values: dict[int, bytes] = {}
        self._newest_execution = -1
        self._num_left = 0
        """Number of events that are still to be kept after the last bad value."""
        self._last_bad: dict[str, int] = {}
        self._num_dumps: dict[str, int] = {"inf": 0, "nan": 0}
        self._num_added = self._num_given_out = 0

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> Dump:
        """Adds complete groups of records, and elements by event_index. Returns the records and elements to keep."""
        self._values.update(values)
        is_counted = _is_counted(batch)
        given_out: list[Records] = []
        start = 0
        for cut in self._cuts(batch, np.cumsum(is_counted, dtype=np.int64)):
            given_out += [self._pass(batch, is_counted, start, cut), self._take()]
            self._num_left, start = self.retention.num_after, cut
        given_out.append(self._pass(batch, is_counted, start, len(batch)))
        self._num_added += int(is_counted.sum())
        return self._give_out(given_out)

    def rest(self) -> Dump:
        """Removes the last events from the buffer, and returns them if they are to be kept."""
        return self._give_out([] if self.retention.only_bad else [self._take()])

    @property
    def num_kept_back(self) -> int:
        """Number of executions and graph tensors that were added but not returned."""
        return self._num_added - self._num_given_out

    def _give_out(self, pieces: list[Records]) -> Dump:
        records = join_records(pieces)
        batch = Batch(pick(records, np.argsort(records["commit"], kind="stable")))
        values = _values_of(records, self._values)
        if self._values:  # elements can be large, so drop unneeded elements immediately
            self._values = _values_of(self._content(), self._values)
        self._num_given_out += int(_is_counted(batch).sum())
        return batch, values

    def _pass(self, batch: Batch, is_counted: Mask, start: int, end: int) -> Records:
        """Adds records to the buffer, and returns the records that are kept because they follow a bad value."""
        cut = start
        if self._num_left:
            counted = start + np.flatnonzero(is_counted[start:end])
            cut = int(counted[self._num_left]) if len(counted) > self._num_left else end
            self._num_left = max(0, self._num_left - len(counted))
        self._hold(batch, cut, end)
        return pick(batch.records, np.arange(start, cut))

    def _hold(self, batch: Batch, start: int, end: int) -> None:
        heads, kind = batch.heads, batch.kind
        own = start + np.flatnonzero(heads[start:end] >= 0)
        head_kind, covered = kind[heads[own]], (batch.flags[heads[own]] & Flag.COVERED) != 0
        graph = own[(head_kind == Kind.GRAPH_TENSOR) & covered]
        if len(graph):
            self._graph_tensors.add(pick(batch.records, graph), keys=batch.event_index[heads[graph]])
        eager = own[np.isin(head_kind, _EAGER)]
        if len(eager):
            keys = batch.field("execution_index", heads[eager])
            newest = np.maximum(np.maximum.accumulate(keys), self._newest_execution)
            # A record whose execution is not known is kept as long as the newest execution.
            keys = np.where(keys < 0, newest, keys)
            self._newest_execution = int(newest[-1])
            self._executions.add(pick(batch.records, eager), keys=keys)

    def _content(self) -> Records:
        return join_records([self._executions.trim(), self._graph_tensors.trim()])

    def _take(self) -> Records:
        content = self._content()
        self._executions.clear()
        self._graph_tensors.clear()
        return content

    def _cuts(self, batch: Batch, counts: Ints) -> list[int]:
        """Returns the positions at which the buffer is emptied, in order. Each one comes after a bad tensor."""
        cuts: set[int] = set()
        for kind, positions in bad_positions(batch).items():
            if not len(positions):
                continue
            numbers = self._num_added + counts[positions]
            before = np.concatenate([[self._last_bad.get(kind, -self.retention.size - 1)], numbers[:-1]])
            fires = positions[numbers - before > self.retention.size][: MAX_DUMPS - self._num_dumps[kind]]
            self._last_bad[kind] = int(numbers[-1])
            self._num_dumps[kind] += len(fires)
            cuts.update(_end_of_event(batch, position) for position in fires.tolist())
        return sorted(cuts)


class _LastEvents:
    """The last `size` records of one kind, and the records that belong to them.

    Each record has a key that decides how long the record is kept. All records of a group have the key of the group's
    first record.
    """

    def __init__(self, size: int, kind: Kind) -> None:
        self._size, self._kind = size, kind
        self.clear()

    def clear(self) -> None:
        self._records: list[Records] = []
        self._keys: list[Ints] = []
        self._num_counted = 0

    def add(self, records: Records, *, keys: Ints) -> None:
        self._records.append(records)
        self._keys.append(keys)
        self._num_counted += int((records["kind"] == self._kind).sum())
        if self._num_counted > 2 * self._size + _SLACK:
            self.trim()

    def trim(self) -> Records:
        """Drops all records except the last `size` ones and the records that belong to them. Returns these records."""
        records, keys = join_records(self._records), np.concatenate([np.empty(0, np.int64), *self._keys])
        if self._num_counted > self._size:
            least = np.partition(keys[records["kind"] == self._kind], -self._size)[-self._size]
            records, keys = pick(records, np.flatnonzero(keys >= least)), keys[keys >= least]
        self.clear()
        self._records, self._keys = [records], [keys]
        self._num_counted = int((records["kind"] == self._kind).sum())
        return records


def _values_of(records: Records, values: Mapping[int, bytes]) -> dict[int, bytes]:
    """Returns the elements of the given records, by event_index."""
    if not values:
        return {}
    events = set((records["commit"].astype(np.int64) - 1).tolist())
    return {event: value for event, value in values.items() if event in events}


def bad_positions(batch: Batch) -> dict[str, Ints]:
    """Returns the positions of bad tensors by kind: `nan` for tensors with a NaN, `inf` for other bad tensors."""
    bad = batch.covered[(batch.flags[batch.covered] & Flag.BAD) != 0]
    has_nan = batch.field("num_nan", bad) > 0
    return {"inf": bad[~has_nan], "nan": bad[has_nan]}


def _end_of_event(batch: Batch, position: int) -> int:
    """Returns the position after a tensor and after the adjacent records of the same execution."""
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
