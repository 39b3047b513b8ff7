"""The spool's fixed-size records, batches of records as columns, and the elements of tensors that records refer to.

The C++ core and the Python recorder write the same layout. The sink reads the records as a NumPy structured array. This
module declares the layout, and `tools/native_headers.py` makes `native/record.h` from the declaration. A record has 256
bytes, in little-endian order. All fields up to `size` have the same meaning in every kind of record that uses them. The
fields after `value_offset` are either facts about a tensor or a payload of 19 integers (`PAYLOAD_DTYPE`).

The fields that each kind uses:

* GRAPH_TENSOR: uses all fields, but has `executed_graph`, the ID of the optimized graph, in place of `tensor_id`.
  `execution_index` is a call if the tensor is known to be an argument of that call, and -1 otherwise. `node` is the key
  that `GraphLinks` assigned to the tensor.
* EXECUTION_TENSOR, EXTERNAL_TENSOR: use `execution_index`, `slot` and `tensor_id`. `node` is the interned op type, only
  for EXECUTION_TENSOR.
* EXECUTION: `node` is the interned op type or function name. `num_inputs` and `num_outputs` are numbers of tensors.
  `stack` is the stack trace id, and `part_stack` is the id of the stack that made the Keras part (-1 if none). `thread`
  is the Python thread's identifier. `forward_execution` is the execution whose gradient this execution computes (-1 if
  none). `layer` and `role` are interned (0 if none). The payload holds the first 19 input tensor ids.
* INPUTS: further input tensor ids of the preceding execution. `slot` is the index of the first of these inputs.
* EXECUTION_END: the call `execution_index` has returned or raised.
* EXECUTION_ERROR: the execution `execution_index` has raised. `node` is the interned class name of the error.
* INPUT_VALUE: the elements of an input of an op that made a bad value. `execution_index` is the event index of the bad
  value, and `slot` is the index of the input.
* STEP_INPUT: the elements of an input of a training step with a bad value. For an eager tensor, `tensor_id` identifies
  the tensor. Otherwise, `tensor_id` is -1, and `node`, `step_id`, `frame_id` and `iteration` have the same meaning as
  in a GRAPH_TENSOR.
* DIMS: the payload has the dimensions of the preceding tensor from index 4 on.
* HISTOGRAM: the histogram of the preceding tensor. `slot` is the exponent of the first bucket. The payload has counts
  as unsigned integers of `histogram_width` bytes. Each bucket has two counts: first the number of negative elements,
  then the number of positive elements. The `flags` of the tensor's record contain the number of buckets, from bit
  BUCKETS_SHIFT on.

The `INPUTS` of an `EXECUTION` directly follow it. `DIMS` and then `HISTOGRAM` records directly follow their tensor,
`INPUT_VALUE` or `STEP_INPUT`.

Copy records with `pick` and `join_records`. NumPy's own functions copy one field at a time. Therefore, these functions
are slow, and do not copy bytes that belong to no field, such as the last integer of a payload.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.spool.failures import Failures
from tfdbg_arrow.storage.retries import repeated

SPOOL_VERSION = 3
"""Version of the layout of a spool. Only this version can be read. Raise it when the layout of records changes."""
RECORD_SIZE = 256
"""Bytes of a record. A power of two, so that no record crosses a page of memory."""
NUM_INLINE_DIMS = 4
"""Number of dimensions in a tensor's record. DIMS records hold the others, which few tensors have."""
PAYLOAD_LENGTH = 19
"""Number of integers of a payload. They take the bytes of a record behind the fields that all kinds share."""
PAYLOAD_BYTES = 8 * PAYLOAD_LENGTH
BUCKETS_SHIFT = 16
"""The number of buckets begins at this bit of `flags`."""
NO_VALUE = -1
"""Stands for an identifier or offset that does not apply."""
NO_STEP = -(2**63)
"""The value of `step` before the first mark."""


class Kind(IntEnum):
    """The kind of a record."""

    GRAPH_TENSOR = 1
    EXECUTION_TENSOR = 2
    EXTERNAL_TENSOR = 3
    EXECUTION = 4
    EXECUTION_END = 5
    INPUTS = 6
    DIMS = 7
    EXECUTION_ERROR = 8
    INPUT_VALUE = 9
    HISTOGRAM = 10
    STEP_INPUT = 11


class Flag(IntFlag):
    """Flags that say which facts about a tensor are measured."""

    COVERED = 1
    """The tensor gets a row in tensor_health. Without this flag, it only gets a row in execution_output."""
    SHAPE = 2
    """`rank`, `dims` and `size` are measured."""
    BAD = 4
    """An element is infinite or NaN."""
    COUNTS = 8
    """The three counts of bad elements are measured (CONCISE_HEALTH and up)."""
    SIGNS = 16
    """The three counts of finite elements are also measured (FULL_HEALTH and up)."""
    NUMERICS = 32
    """Magnitudes are measured, and subnormal numbers are counted (FULL_NUMERICS)."""
    ORDERED = 64
    """min, max, mean and stddev exist, because the dtype is real and an element is finite."""
    ANY_FINITE = 128
    """max_abs exists, because an element is finite."""
    VALUE = 256
    """The elements are kept, as `value_bytes` bytes at `value_offset` of the value spool."""
    CHECKED = 512
    """The elements were checked for bad values (CURT_HEALTH and up). BAD is the result."""
    CONTEXT = 1024
    """step_id, frame_id, iteration and call_site are known."""
    HISTOGRAM_COUNTED = 2048
    """The histogram is measured. The counts are in HISTOGRAM records, unless the histogram has no buckets."""
    PLACED = 4096
    """first_bad_index and num_bad_slices are measured, because the tensor is bad and its elements were on the host."""
    SCALAR = 8192
    """The tensor has one element, a real floating-point number. `max` is this element, even if it is not finite."""


@dataclass(frozen=True)
class Measure:
    """A number that is measured for the elements of a tensor.

    Attributes:
        field: The name of the number in records and in the native core.
        column: The column of the number in tensor_health.
        flags: The number is measured if a record has all of these flags.
        format: The format of the field: `<i8` for a number of elements, or `<f8`. A negative number of elements or a
            NaN means that the number was not measured.
    """

    field: str
    column: str
    flags: Flag
    format: str = "<i8"


COUNTS = (
    Measure("num_neg_inf", "num_neg_inf", Flag.COUNTS),
    Measure("num_pos_inf", "num_pos_inf", Flag.COUNTS),
    Measure("num_nan", "num_nan", Flag.COUNTS),
    Measure("num_neg_finite", "num_neg_finite", Flag.SIGNS),
    Measure("num_zero", "num_zero", Flag.SIGNS),
    Measure("num_pos_finite", "num_pos_finite", Flag.SIGNS),
)
"""The numbers that `count_health()` of the native core measures (the struct `Health`). Add a new count at the end.

For tensors on devices, and for functions that XLA compiles for devices, TensorFlow's ops measure only the first six
counts.
"""
_ORDERED = Flag.NUMERICS | Flag.ORDERED
MAGNITUDES = (
    Measure("num_subnormal", "num_subnormal", Flag.NUMERICS),
    Measure("min", "min_finite", _ORDERED, "<f8"),
    Measure("max", "max_finite", _ORDERED, "<f8"),
    Measure("mean", "mean_finite", _ORDERED, "<f8"),
    Measure("stddev", "stddev_finite", _ORDERED, "<f8"),
    Measure("max_abs", "max_abs_finite", Flag.NUMERICS | Flag.ANY_FINITE, "<f8"),
)
"""The numbers that `measure()` of the native core measures (the struct `Magnitudes`). Add a new number at the end."""
_FIELDS = np.dtype(
    [
        ("commit", "<u8"),
        ("wall_time_ns", "<i8"),
        ("kind", "u1"),
        ("rank", "u1"),
        ("dtype", "<i2"),
        ("flags", "<i4"),
        ("node", "<i4"),
        ("call_site", "<i4"),
        ("device", "<i4"),
        ("slot", "<i4"),
        ("step_id", "<i8"),
        ("execution_index", "<i8"),
        ("frame_id", "<i8"),
        ("iteration", "<i8"),
        ("tensor_id", "<i8"),
        ("step", "<i8"),
        ("size", "<i8"),
        ("value_offset", "<i8"),
        ("dims", "<i8", (NUM_INLINE_DIMS,)),
        ("first_bad_index", "<i8"),
        ("num_bad_slices", "<i8"),  # NO_VALUE for a scalar
        *((measure.field, measure.format) for measure in (*COUNTS, *MAGNITUDES)),
        ("value_bytes", "<i8"),
    ]
)
ALIASES = {
    # In an EXECUTION:
    "num_outputs": "slot",
    "layer": "call_site",
    "role": "device",
    "thread": "step_id",
    "forward_execution": "frame_id",
    "part_stack": "iteration",
    "stack": "tensor_id",
    "num_inputs": "size",
    # In a GRAPH_TENSOR, because only eager tensors have an ID:
    "executed_graph": "tensor_id",
}
"""Names of the bytes of a field in the kinds of records that use them for another fact."""


def _with_aliases(fields: np.dtype[np.void]) -> np.dtype[np.void]:
    places = dict(fields.fields or {})
    places |= {alias: places[name] for alias, name in ALIASES.items()}
    formats, offsets = zip(*(place[:2] for place in places.values()), strict=True)
    return np.dtype({"names": list(places), "formats": formats, "offsets": offsets, "itemsize": RECORD_SIZE})


RECORD_DTYPE = _with_aliases(_FIELDS)
"""The layout of a record. `tools/native_headers.py` makes the struct of the native core from this layout.

`commit` is event_index + 1 if the record is complete.
"""
PAYLOAD_DTYPE = np.dtype(
    {
        "names": ["payload"],
        "formats": [("<i8", (PAYLOAD_LENGTH,))],
        "offsets": [RECORD_SIZE - PAYLOAD_BYTES],
        "itemsize": RECORD_SIZE,
    }
)
"""The layout of records that have a payload (EXECUTION, INPUTS, DIMS, HISTOGRAM). Use `array.view(PAYLOAD_DTYPE)`."""
Records = npt.NDArray[np.void]
"""An array of RECORD_DTYPE."""
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_COLUMN_PLACES: dict[str, tuple[np.dtype[Any], int]] = {n: f[:2] for n, f in (RECORD_DTYPE.fields or {}).items()}
_RAW = np.dtype(f"V{RECORD_SIZE}")
_WORDS = RECORD_SIZE // 8
_PAYLOAD_WORD = _WORDS - PAYLOAD_LENGTH
_TRANSPOSE_ROWS = 512
"""Number of records that are transposed at a time. The 128 KiB of these records fit into the processor's cache."""
_MAX_VALUE_BYTES = 2**31 - 1
"""Maximum size of one BLOB value that Arrow can write."""
_HOLE_PATIENCE_S = 10.0
"""Elements that no record refers to are kept for this time, because their record may still arrive."""


_SHAPED = (Kind.GRAPH_TENSOR, Kind.EXECUTION_TENSOR, Kind.EXTERNAL_TENSOR, Kind.INPUT_VALUE, Kind.STEP_INPUT)
"""The kinds of records that can have a shape and kept elements."""


def is_follower(kind: npt.NDArray[np.uint8]) -> Mask:
    """Returns, for each record, whether it belongs to the record before it."""
    # np.isin takes 4 times as long for one record, and 70 times as long for 50,000 records.
    followers: Mask = (kind == Kind.INPUTS) | (kind == Kind.DIMS) | (kind == Kind.HISTOGRAM)
    return followers


def pick(records: Records, rows: Ints) -> Records:
    """Returns a copy of some records. The copy has all bytes of the records."""
    picked: Records = records.view(_RAW).take(rows).view(RECORD_DTYPE)
    return picked


def join_records(pieces: Sequence[Records]) -> Records:
    """Concatenates the records of all pieces. The result has all bytes of the records."""
    joined: Records = np.concatenate([np.empty(0, _RAW), *(piece.view(_RAW) for piece in pieces)]).view(RECORD_DTYPE)
    return joined


def num_whole(records: Records) -> int:
    """Returns the number of records that form complete groups, counted from the start.

    In complete groups, each EXECUTION and each tensor has all its followers, and each EXTERNAL_TENSOR has the execution
    that uses the tensor. Without this execution, a circular buffer would treat a bad input as a separate event.
    """
    last = _last_head(records, len(records))
    if last < 0:
        return len(records)
    missing = int(num_followers(records[last : last + 1])[0]) - (len(records) - 1 - last)
    whole = last if missing > 0 else len(records)
    while (last := _last_head(records, whole)) >= 0 and records["kind"][last] == Kind.EXTERNAL_TENSOR:
        whole = last
    return whole


def _last_head(records: Records, end: int) -> int:
    """Returns the position of the last record before `end` that is not a follower; -1 if all are followers."""
    last = end - 1
    while last >= 0 and is_follower(records["kind"][last]):
        last -= 1
    return last


def num_followers(records: Records) -> Ints:
    """Returns how many followers (INPUTS, DIMS or HISTOGRAM records) each record must have."""
    kind = records["kind"]
    inputs = np.where(kind == Kind.EXECUTION, records["num_inputs"] - PAYLOAD_LENGTH, 0)
    counts = num_histogram_records(records["flags"], records["size"])
    followers: Ints = -(-np.maximum(inputs, 0) // PAYLOAD_LENGTH) + num_dims_records(records) + counts
    return followers


def num_dims_records(records: Records) -> Ints:
    """Returns how many DIMS records must follow each record."""
    shaped = np.isin(records["kind"], _SHAPED) & ((records["flags"] & Flag.SHAPE) != 0)
    more = np.where(shaped, records["rank"].astype(np.int64) - NUM_INLINE_DIMS, 0)
    num_records: Ints = -(-np.maximum(more, 0) // PAYLOAD_LENGTH)
    return num_records


def num_histogram_records(flags: npt.NDArray[np.int32], sizes: Ints) -> Ints:
    """Returns how many HISTOGRAM records must follow each record.

    Args:
        flags: The flags of each record.
        sizes: The number of elements of each record's tensor.
    """
    num_counts = 2 * num_buckets(flags)
    num_records: Ints = -(-num_counts * histogram_width(sizes) // PAYLOAD_BYTES)
    return num_records


def num_buckets(flags: npt.NDArray[np.int32]) -> Ints:
    """Returns the number of buckets of each tensor's histogram; 0 if the histogram was not measured."""
    number: Ints = np.maximum(flags, 0).astype(np.int64) >> BUCKETS_SHIFT
    return number


def histogram_width(sizes: Ints) -> Ints:
    """Returns the number of bytes of a count in HISTOGRAM records, for each of these numbers of elements."""
    return np.select([sizes < 1 << 8, sizes < 1 << 16, sizes < 1 << 32], [1, 2, 4], 8)


class Batch:
    """A batch of records in the order of event_index, with their fields as columns.

    The records are transposed once. Otherwise, each access to a column would read the memory of all records.
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
        """Returns a field of all records or of the given rows. `commit` is returned as a signed integer."""
        dtype, offset = _COLUMN_PLACES[name]
        word = self._columns[offset // 8]
        if name != "commit":
            word = word.view(dtype)[(offset % 8) // dtype.itemsize :: 8 // dtype.itemsize]
        column: npt.NDArray[Any] = word if rows is None else word[rows]
        return column

    def dims(self, rows: Ints) -> Ints:
        """Returns the inline dimensions, as an array of shape (rows, NUM_INLINE_DIMS)."""
        dims: Ints = np.ascontiguousarray(self._columns[_PAYLOAD_WORD : _PAYLOAD_WORD + NUM_INLINE_DIMS, rows].T)
        return dims

    def payload(self, rows: Ints) -> Ints:
        """Returns the payloads, as an array of shape (rows, PAYLOAD_LENGTH)."""
        payload: Ints = np.ascontiguousarray(self._columns[_PAYLOAD_WORD:, rows].T)
        return payload

    def set_execution_index(self, rows: Ints, execution_index: Ints) -> None:
        """Sets the execution_index of some records."""
        self.field("execution_index")[rows] = execution_index
        self.records["execution_index"][rows] = execution_index

    @cached_property
    def heads(self) -> Ints:
        """For each record, the position of the first record (the head) of its group; -1 if the head is missing."""
        heads: Ints = np.maximum.accumulate(np.where(is_follower(self.kind), -1, np.arange(len(self))))
        return heads

    @cached_property
    def covered(self) -> Ints:
        """Positions of the tensors that get a row in tensor_health."""
        is_tensor = (self.kind >= Kind.GRAPH_TENSOR) & (self.kind <= Kind.EXTERNAL_TENSOR)
        return np.flatnonzero(is_tensor & ((self.flags & Flag.COVERED) != 0))


class KeptElements(Protocol):
    """The storage of kept elements."""

    def read_value(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes of kept elements from an offset on."""

    def release_values(self, upto: int) -> None:
        """Frees the space of kept elements before an offset."""


class ValueReader:
    """Reads kept elements and frees their space.

    Threads store elements before they commit the record, so records and their elements can be in different orders.
    Space is freed only up to the first elements that no drained record refers to yet.

    Args:
        kept: The storage of the elements.
    """

    def __init__(self, kept: KeptElements) -> None:
        self._kept = kept
        self._held: deque[tuple[int, int, int]] = deque()
        """(event index, offset, end) of the elements that have been read, in the order of their events."""
        self._read: list[tuple[int, int]] = []
        """(offset, end) of elements that have been read and are no longer needed."""
        self._released = 0
        self._hole_since: float | None = None

    def read(self, batch: Batch, *, failures: Failures) -> dict[int, bytes]:
        """Returns the elements of a batch's tensors, by event_index. Elements that cannot be read count as failures."""
        values: dict[int, bytes] = {}
        sizes = _value_bytes(batch)
        rows = np.flatnonzero(sizes >= 0)
        fields = zip(
            batch.event_index[rows].tolist(),
            batch.field("value_offset", rows).tolist(),
            sizes[rows].tolist(),
            ((batch.flags[rows] & Flag.COVERED) != 0).tolist(),
            strict=True,
        )
        for event, offset, size, is_covered in fields:
            if is_covered:
                try:
                    if size > _MAX_VALUE_BYTES:
                        raise ValueError(f"a tensor has {size} bytes, a BLOB holds at most {_MAX_VALUE_BYTES}")
                    read = partial(self._kept.read_value, offset, size)
                    # Repeat a failed read once, because the elements cannot be read later.
                    values[event] = repeated(read, attempts=2, may_pass=_may_pass) if size else b""
                except Exception as error:
                    failures.add("tensor_value", error, num_events=1)
            if size:
                self._held.append((event, offset, offset + size))
        return values

    def release(self, upto: int) -> None:
        """Frees the space of elements whose events come before an event index."""
        while self._held and self._held[0][0] < upto:
            _, offset, end = self._held.popleft()
            heapq.heappush(self._read, (offset, end))
        before = self._released
        while self._read:
            offset, end = self._read[0]
            if offset > self._released:
                now = time.monotonic()
                self._hole_since = now if self._hole_since is None else self._hole_since
                if now - self._hole_since < _HOLE_PATIENCE_S:
                    break
            self._hole_since = None
            heapq.heappop(self._read)
            self._released = max(self._released, end)
        if self._released > before:
            self._kept.release_values(self._released)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, (OSError, RuntimeError))


def _value_bytes(batch: Batch) -> Ints:
    """Returns the number of bytes of each tensor's kept elements; -1 if its elements are not kept."""
    wanted = Flag.VALUE | Flag.SHAPE
    rows = np.flatnonzero(np.isin(batch.kind, _SHAPED) & ((batch.flags & wanted) == wanted))
    sizes = np.full(len(batch), -1, dtype=np.int64)
    sizes[rows] = batch.field("value_bytes", rows)
    return sizes


def split_by_value_bytes(batch: Batch, *, max_bytes: int) -> Iterator[Batch]:
    """Splits a batch into batches with at most about `max_bytes` bytes of kept elements. Groups are never split."""
    sizes = np.maximum(_value_bytes(batch), 0)
    if int(sizes.sum()) <= max_bytes:
        yield batch
        return
    number = np.cumsum(sizes) // max_bytes
    number = np.where(batch.heads >= 0, number[batch.heads], number)
    cuts = np.flatnonzero(np.diff(number)) + 1
    for records in np.split(batch.records, cuts):
        yield Batch(records)
