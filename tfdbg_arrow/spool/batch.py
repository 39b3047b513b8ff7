"""Batches of spool records, as columns.

Copy records with `pick` and `join_records`. NumPy's own functions copy the fields one by one, which is slow and loses
the bytes that belong to no field, such as the last integer of a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.records import (
    NUM_INLINE_DIMS,
    PAYLOAD_LENGTH,
    RECORD_DTYPE,
    RECORD_SIZE,
    Flag,
    Kind,
    Records,
)

Ints = npt.NDArray[np.int64]

Mask = npt.NDArray[np.bool_]

_FIELDS: dict[str, tuple[np.dtype[Any], int]] = {n: f[:2] for n, f in (RECORD_DTYPE.fields or {}).items()}

_RAW = np.dtype(f"V{RECORD_SIZE}")

_WORDS = RECORD_SIZE // 8

_PAYLOAD_WORD = _WORDS - PAYLOAD_LENGTH

_TRANSPOSE_ROWS = 512
"""Number of records that are transposed at a time: 128 KiB, which stay in the cache."""


def pick(records: Records, rows: Ints) -> Records:
    """Returns a copy of some records with all of their bytes."""
    picked: Records = records.view(_RAW).take(rows).view(RECORD_DTYPE)
    return picked


def join_records(pieces: Sequence[Records]) -> Records:
    """Returns the concatenated records of all pieces with all of their bytes."""
    joined: Records = np.concatenate([np.empty(0, _RAW), *(piece.view(_RAW) for piece in pieces)]).view(RECORD_DTYPE)
    return joined


def num_whole(records: Records) -> int:
    """Returns how many records from the start form complete groups, in which no EXECUTION or tensor lacks followers."""
    last = len(records) - 1
    while last >= 0 and records["kind"][last] in (Kind.INPUTS, Kind.DIMS):
        last -= 1
    if last < 0:
        return len(records)
    missing = int(num_followers(records[last : last + 1])[0]) - (len(records) - 1 - last)
    return last if missing > 0 else len(records)


def num_followers(records: Records) -> Ints:
    """Returns how many INPUTS or DIMS records must follow each record."""
    kind = records["kind"]
    shaped = (kind <= Kind.EXTERNAL_TENSOR) & ((records["flags"] & Flag.SHAPE) != 0)
    more = np.where(kind == Kind.EXECUTION, records["size"] - PAYLOAD_LENGTH, 0)
    more = np.where(shaped, records["rank"].astype(np.int64) - NUM_INLINE_DIMS, more)
    followers: Ints = -(-np.maximum(more, 0) // PAYLOAD_LENGTH)
    return followers


class Batch:
    """A batch of records in order of event_index, with their fields as columns.

    The records are transposed once, because otherwise each column would read the memory of every record.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        words = np.ascontiguousarray(records).view("<i8").reshape(len(records), _WORDS)
        self._columns = np.empty((_WORDS, len(records)), dtype="<i8")
        for start in range(0, len(records), _TRANSPOSE_ROWS):
            self._columns[:, start : start + _TRANSPOSE_ROWS] = words[start : start + _TRANSPOSE_ROWS].T
        self.kind: npt.NDArray[np.uint8] = np.ascontiguousarray(self.field("kind"))
        self.flags: npt.NDArray[np.int32] = np.ascontiguousarray(self.field("flags"))
        self.event_index: Ints = self.field("commit") - 1

    def __len__(self) -> int:
        return len(self.records)

    def field(self, name: str, rows: Ints | None = None) -> npt.NDArray[Any]:
        """Returns a field of all records or of the given rows; `commit` is returned as a signed integer."""
        dtype, offset = _FIELDS[name]
        word = self._columns[offset // 8]
        if name != "commit":
            word = word.view(dtype)[(offset % 8) // dtype.itemsize :: 8 // dtype.itemsize]
        column: npt.NDArray[Any] = word if rows is None else word[rows]
        return column

    def dims(self, rows: Ints) -> Ints:
        """Returns the inline dimensions, of shape (rows, NUM_INLINE_DIMS)."""
        dims: Ints = np.ascontiguousarray(self._columns[_PAYLOAD_WORD : _PAYLOAD_WORD + NUM_INLINE_DIMS, rows].T)
        return dims

    def payload(self, rows: Ints) -> Ints:
        """Returns the payloads, of shape (rows, PAYLOAD_LENGTH)."""
        payload: Ints = np.ascontiguousarray(self._columns[_PAYLOAD_WORD:, rows].T)
        return payload

    def set_execution_index(self, rows: Ints, execution_index: Ints) -> None:
        """Sets the execution_index of some records."""
        self.field("execution_index")[rows] = execution_index
        self.records["execution_index"][rows] = execution_index

    @cached_property
    def heads(self) -> Ints:
        """For each record, the position of the record that it follows: its own for a head, -1 for an orphan."""
        is_head = (self.kind != Kind.INPUTS) & (self.kind != Kind.DIMS)
        heads: Ints = np.maximum.accumulate(np.where(is_head, np.arange(len(self)), -1))
        return heads

    @cached_property
    def covered(self) -> Ints:
        """Positions of the tensors that get a row in tensor_health."""
        is_tensor = (self.kind >= Kind.GRAPH_TENSOR) & (self.kind <= Kind.EXTERNAL_TENSOR)
        return np.flatnonzero(is_tensor & ((self.flags & Flag.COVERED) != 0))
