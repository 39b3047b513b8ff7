"""The circular buffer and the black box, which hold the last executions and the last graph tensors in memory.

A circular buffer is written again and again. A black box is written only when a bad value occurs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfdbg_arrow.spool.records import Batch, Flag, Ints, Kind, Mask, Records, join_records, pick

_SLACK = 4_096
"""Number of heads kept beyond the size before the oldest are dropped, because dropping copies all the others."""
_EAGER = (Kind.EXECUTION, Kind.EXECUTION_ERROR, Kind.EXECUTION_TENSOR, Kind.EXTERNAL_TENSOR)
MAX_DUMPS = 16
"""How often one kind of bad value can empty the box."""
Dump = tuple[Records, dict[int, bytes]]
"""The records in order of event_index, and the elements of tensors by event_index."""


class Ring:
    """A circular buffer of the last `size` executions, with their eager records, and the last `size` graph tensors.

    The content shortly after the first infinity and the first NaN is kept permanently, because these events are what
    users look for.

    Args:
        size: At least 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._last = LastEvents(size)
        self._stays: list[Records] = []
        self._values: dict[int, bytes] = {}
        self._num_heads = 0
        self._due: dict[str, int | None] = {"inf": None, "nan": None}

    @property
    def num_overwritten_executions(self) -> int:
        """Number of executions dropped so far."""
        return self._last.num_overwritten_executions

    @property
    def num_overwritten_graph_tensors(self) -> int:
        """Number of graph tensors dropped so far."""
        return self._last.num_overwritten_graph_tensors

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> None:
        """Adds complete groups of records, with the elements by event_index."""
        start = 0
        for cut in self._cuts(batch):
            self._last.add(batch, start, cut)
            self._stays.append(self._last.take())
            start = cut
        self._last.add(batch, start, len(batch))
        if values:
            self._values.update(values)
            self.content()  # elements can be large, so drop unneeded ones at once

    def content(self) -> tuple[Records, dict[int, bytes]]:
        """Returns the kept records in order of event_index, and the elements by event_index."""
        records = in_order(join_records([*self._stays, self._last.records()]))
        self._values = values_of(records, self._values)
        return records, self._values

    def _cuts(self, batch: Batch) -> list[int]:
        """Returns the positions of heads at which to keep the content: half a buffer after a first bad tensor."""
        heads = np.flatnonzero(batch.heads == np.arange(len(batch)))
        cuts = []
        for kind, positions in bad_positions(batch).items():
            if self._due[kind] is None and len(positions):
                self._due[kind] = self._num_heads + int(np.searchsorted(heads, positions[0])) + self._size // 2 + 1
            due = self._due[kind]
            if due is not None and self._num_heads <= due < self._num_heads + len(heads):
                cuts.append(int(heads[due - self._num_heads]))
        self._num_heads += len(heads)
        return sorted(cuts)


class BlackBox:
    """A black box, which holds the last `size` executions and the last `size` graph tensors.

    A healthy run writes nothing. A bad value writes the events in the box and a number of events after it; then the box
    fills again. Each kind of bad value (NaN; infinity without NaN) empties the box at its first occurrence. It empties
    the box again only after as many events without that kind as the box holds, so that a value that stays bad does not
    empty the box over and over.

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


class LastEvents:
    """The last `size` executions, with all eager records that belong to them, and the last `size` graph tensors.

    Args:
        size: At least 1.
    """

    def __init__(self, size: int) -> None:
        self._eager, self._graph = _Kept(size), _Kept(size)
        self._newest = -1

    @property
    def num_overwritten_executions(self) -> int:
        """Number of executions dropped so far."""
        return self._eager.num_overwritten

    @property
    def num_overwritten_graph_tensors(self) -> int:
        """Number of graph tensors dropped so far."""
        return self._graph.num_overwritten

    def add(self, batch: Batch, start: int, end: int) -> None:
        """Adds the records of a batch from `start` to `end`, which must be complete groups."""
        heads, kind = batch.heads, batch.kind
        own = start + np.flatnonzero(heads[start:end] >= 0)
        head_kind, covered = kind[heads[own]], (batch.flags[heads[own]] & Flag.COVERED) != 0
        graph = own[(head_kind == Kind.GRAPH_TENSOR) & covered]
        if len(graph):
            keys = batch.event_index[heads[graph]]
            self._graph.add(pick(batch.records, graph), keys=keys, is_counted=kind[graph] == Kind.GRAPH_TENSOR)
        eager = own[np.isin(head_kind, _EAGER)]
        if len(eager):
            keys = batch.field("execution_index", heads[eager])
            newest = np.maximum(np.maximum.accumulate(keys), self._newest)
            keys = np.where(keys < 0, newest, keys)  # without a known user, it stays with the newest execution
            self._newest = int(newest[-1])
            self._eager.add(pick(batch.records, eager), keys=keys, is_counted=kind[eager] == Kind.EXECUTION)

    def records(self) -> Records:
        """Returns the held records, eager ones first."""
        return join_records([self._eager.trim(), self._graph.trim()])

    def take(self) -> Records:
        """Returns the held records and empties the buffer."""
        records = self.records()
        self._eager, self._graph = self._eager.emptied(), self._graph.emptied()
        return records


class _Kept:
    """Records of one sort, each with the key that decides how long it is kept.

    A record that follows another has the key of its head; `heads` counts only the records that the size limits.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._records: list[Records] = []
        self._keys: list[Ints] = []
        self._is_counted: list[Mask] = []
        self.num_heads = 0
        self.num_overwritten = 0

    def add(self, records: Records, *, keys: Ints, is_counted: Mask) -> None:
        self._records.append(records)
        self._keys.append(keys)
        self._is_counted.append(is_counted)
        self.num_heads += int(is_counted.sum())
        if self.num_heads > 2 * self._size + _SLACK:
            self.trim()

    def trim(self) -> Records:
        """Drops all but the last `size` heads and their records; returns the kept records."""
        records = join_records(self._records)
        keys = np.concatenate([np.empty(0, np.int64), *self._keys])
        is_counted = np.concatenate([np.empty(0, np.bool_), *self._is_counted])
        if self.num_heads > self._size:
            head_keys = keys[is_counted]
            least = np.partition(head_keys, len(head_keys) - self._size)[-self._size]
            stays = keys >= least
            self.num_overwritten += int((is_counted & ~stays).sum())
            records, keys, is_counted = pick(records, np.flatnonzero(stays)), keys[stays], is_counted[stays]
        self._records, self._keys, self._is_counted = [records], [keys], [is_counted]
        self.num_heads = int(is_counted.sum())
        return records

    def emptied(self) -> _Kept:
        """Returns an empty instance that continues the counts."""
        empty = _Kept(self._size)
        empty.num_overwritten = self.num_overwritten
        return empty


def in_order(records: Records) -> Records:
    """Returns records in order of event_index."""
    return pick(records, np.argsort(records["commit"], kind="stable"))


def values_of(records: Records, values: Mapping[int, bytes]) -> dict[int, bytes]:
    """Returns the elements, by event_index, that belong to some of the records."""
    if not values:
        return {}
    kept = set((records["commit"].astype(np.int64) - 1).tolist())
    return {event: value for event, value in values.items() if event in kept}


def bad_positions(batch: Batch) -> dict[str, Ints]:
    """Returns the positions of bad tensors by kind: `nan` for tensors with a NaN, `inf` for all others."""
    bad = batch.covered[(batch.flags[batch.covered] & Flag.BAD) != 0]
    has_nan = batch.field("num_nan", bad) > 0
    return {"inf": bad[~has_nan], "nan": bad[has_nan]}


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
