"""The circular buffer: the last executions and the last graph tensors, in memory as records."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tfdbg_arrow.writer.convert import Batch, Ints, Mask, Records, join_records, pick
from tfdbg_arrow.writer.records import Flag, Kind

_SLACK = 4_096
"""Heads kept beyond the size before the oldest are dropped: dropping touches all of the rest."""


class _Kept:
    """Records of one sort, each with the key that decides how long it stays.

    A record that follows another has its head's key; `heads` counts only those that the size is about.
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
        """Drops all but the last `size` heads and what goes with them; returns what stays."""
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


class Ring:
    """Keeps the last `size` executions, with all eager records that belong to them, and the last `size` graph tensors.

    Args:
        size: At least 1.
    """

    def __init__(self, size: int) -> None:
        self._eager, self._graph = _Kept(size), _Kept(size)
        self._values: dict[int, bytes] = {}
        self._newest = -1

    @property
    def num_overwritten_executions(self) -> int:
        """Executions dropped so far."""
        return self._eager.num_overwritten

    @property
    def num_overwritten_graph_tensors(self) -> int:
        """Graph tensors dropped so far."""
        return self._graph.num_overwritten

    def add(self, batch: Batch, *, values: Mapping[int, bytes]) -> None:
        """Takes whole groups of records, and the elements by event_index."""
        heads, kind = batch.heads, batch.kind
        own = np.flatnonzero(heads >= 0)
        head_kind, covered = kind[heads[own]], (batch.flags[heads[own]] & Flag.COVERED) != 0
        graph = own[(head_kind == Kind.GRAPH_TENSOR) & covered]
        if len(graph):
            keys = batch.event_index[heads[graph]]
            self._graph.add(pick(batch.records, graph), keys=keys, is_counted=kind[graph] == Kind.GRAPH_TENSOR)
        eager = own[np.isin(head_kind, (Kind.EXECUTION, Kind.EXECUTION_TENSOR, Kind.EXTERNAL_TENSOR))]
        if len(eager):
            keys = batch.field("execution_index", heads[eager])
            newest = np.maximum(np.maximum.accumulate(keys), self._newest)
            keys = np.where(keys < 0, newest, keys)  # no user known: it goes with the newest execution
            self._newest = int(newest[-1])
            self._eager.add(pick(batch.records, eager), keys=keys, is_counted=kind[eager] == Kind.EXECUTION)
        if values:
            self._values.update(values)
            self.content()  # elements can be large: drop at once what no record needs

    def content(self) -> tuple[Records, dict[int, bytes]]:
        """Returns what is kept: records in order of event_index, and the elements by event_index."""
        records = join_records([self._eager.trim(), self._graph.trim()])
        records = pick(records, np.argsort(records["commit"], kind="stable"))
        if self._values:
            kept = set((records["commit"].astype(np.int64) - 1).tolist())
            self._values = {event: value for event, value in self._values.items() if event in kept}
        return records, self._values
