"""Reads the tensors of a dump: the facts about them in messages, and the measured columns of tensor_health."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import TensorDebugMode
from tfdbg_arrow.debugger_v2.scan import Ints
from tfdbg_arrow.debugger_v2.summaries import NUM_KEPT, NUM_SHAPE_DIMS, NUM_SUMMARY, TAIL_COLUMNS, is_measured
from tfdbg_arrow.query.values import decode
from tfdbg_arrow.schema import arrow_schema
from tfdbg_arrow.schema.dtypes import dtype_itemsize, dtype_name, encode_strings
from tfdbg_arrow.writer.native.reference import TENSORFLOW_DTYPES, find_bad, scalar_value, summarize

_LISTS = {
    "half_val": "<u2", "float_val": "<f4", "double_val": "<f8", "int64_val": "<i8", "bool_val": "?",
    "scomplex_val": "<f4", "dcomplex_val": "<f8", "uint32_val": "<u4", "uint64_val": "<u8",
}  # fmt: skip
"""Fields that list elements, each with the dtype of its elements in memory.

`int_val` (its dtype varies) and `float8_val` (bytes) are left out.
"""
_MAX_LISTED_BYTES = 64 * 2**20
"""Maximum size of a list of elements, because a message of a few bytes can claim any size."""
Mask = npt.NDArray[np.bool_]
_COUNTS = ("num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite")
_COLUMNS = ("rank", "size", "has_inf_or_nan", *_COUNTS, "first_bad_index", "num_bad_slices")
_LARGEST = 2.0**53
"""The largest number in a summary. TensorFlow computes a summary as float64, which is exact up to this integer."""
_MAX_RANK = 255
"""The largest rank in a summary. TensorFlow stores the rank of a shape in one byte."""


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """The facts in a message about a measured tensor.

    Attributes:
        mode: The TensorDebugMode.
        output_slot: Index of the output; None if the index is ambiguous.
        dtype: TensorFlow's name of the dtype; None if unknown.
        shape: The dimensions, if the message has them (FULL_TENSOR); otherwise None.
        value: The elements, if the message lists them; otherwise None.
        value_bytes: The required size of the content (FULL_TENSOR); None if the elements are not plain bytes.
    """

    mode: int
    output_slot: int | None
    dtype: str | None
    shape: tuple[int, ...] | None = None
    value: bytes | None = None
    value_bytes: int | None = None


def tensor_facts(tensor: Any, *, mode: int, output_slot: int | None) -> TensorFacts | None:
    """Returns the facts in a TensorProto without its hole; None if the TensorProto has no measurements."""
    if not is_measured(tensor, mode):
        return None
    if mode in NUM_KEPT:
        numbers = np.frombuffer(tensor.tensor_content[: len(tensor.tensor_content) // 8 * 8], dtype="<f8")
        number = numbers[-1] if NUM_KEPT[mode] > 1 and len(numbers) == NUM_KEPT[mode] else -1.0
        is_known = number == int(number) and number > 0 if np.isfinite(number) else False
        return TensorFacts(mode=mode, output_slot=output_slot, dtype=dtype_name(int(number)) if is_known else None)
    shape = None if tensor.tensor_shape.unknown_rank else tuple(dim.size for dim in tensor.tensor_shape.dim)
    itemsize = dtype_itemsize(tensor.dtype)
    size = None if shape is None or any(dim < 0 for dim in shape) else math.prod(shape)
    value = None
    if size is not None:
        name = dtype_name(tensor.dtype)
        if name == "string":
            value = _listed_strings(tensor, size=size)
        elif itemsize is not None:
            value = _listed_value(tensor, itemsize=itemsize, size=size)
    return TensorFacts(
        mode=mode,
        output_slot=output_slot,
        dtype=dtype_name(tensor.dtype),
        shape=shape if size is not None else None,
        value=value,
        value_bytes=None if itemsize is None or size is None else itemsize * size,
    )


def execution_facts(execution: Any, *, num_output_ids: int) -> tuple[TensorFacts | None, ...]:
    """Returns the facts in each TensorProto of an execution; None for a TensorProto without measurements."""
    tensors = execution.tensor_protos
    # Outputs that are filtered, variants or resources have no TensorProto. The message does not say which outputs have
    # a TensorProto.
    is_certain = len(tensors) == num_output_ids == execution.num_outputs
    return tuple(
        tensor_facts(tensor, mode=execution.tensor_debug_mode, output_slot=slot if is_certain else None)
        for slot, tensor in enumerate(tensors)
    )


def mode_name(mode: int) -> str:
    """Returns the name of a TensorDebugMode, such as `FULL_HEALTH`."""
    names: dict[int, str] = {number: name for name, number in TensorDebugMode.items()}
    return names.get(mode, f"UNKNOWN_{mode}")


def _listed_strings(tensor: Any, *, size: int) -> bytes | None:
    """Returns the listed strings of a TensorProto, encoded as in tensor_value; None if there are none or too many."""
    items = list(tensor.string_val)
    if not 0 < len(items) <= size or size * max(8, len(items[-1])) > _MAX_LISTED_BYTES:
        return None
    return encode_strings(items + items[-1:] * (size - len(items)))


def _listed_value(tensor: Any, *, itemsize: int, size: int) -> bytes | None:
    """Returns the listed elements of a TensorProto in row-major order; None if there are none or too many."""
    if tensor.float8_val:
        items = bytes(tensor.float8_val)
    elif len(tensor.int_val):
        items = np.array(tensor.int_val, dtype="<i8").astype(f"<i{min(itemsize, 8)}").tobytes()
    else:
        name = next((name for name in _LISTS if len(getattr(tensor, name))), None)
        if name is None:
            return None
        items = np.array(getattr(tensor, name)).astype(_LISTS[name]).tobytes()
    if len(items) % itemsize or not 0 < len(items) <= itemsize * size:
        return None
    if itemsize * size > _MAX_LISTED_BYTES:
        return None
    return items + items[-itemsize:] * (size - len(items) // itemsize)


def _unpacked_strings(content: bytes, size: int) -> list[bytes] | None:
    """Returns the strings in packed content (all lengths as varints, then all bytes); None if it is not valid."""
    if size > len(content):
        return None
    lengths: list[int] = []
    length = shift = offset = 0
    while len(lengths) < size and offset < len(content):
        byte = content[offset]
        offset += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            lengths.append(length)
            length = shift = 0
        elif shift > 63:  # decoding a longer number takes quadratic time
            return None
    ends = list(accumulate(lengths, initial=offset))
    if len(lengths) < size or ends[-1] != len(content):
        return None
    return [content[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """The measured tensors of some records.

    Attributes:
        mode: The TensorDebugMode of each tensor; below 0 if nothing was measured.
        facts: The index of each tensor in the templates' facts; below 0 if there are none.
        start: The offset of each tensor's content in `buffer`.
        length: The size of each tensor's content in bytes.
        buffer: The contents.
    """

    mode: Ints
    facts: Ints
    start: Ints
    length: Ints
    buffer: bytes


class Health:
    """The measured columns of some tensors.

    Attributes:
        columns: Arrow arrays by column of tensor_health.
        values: For each tensor with recorded elements, by index: the elements, the dtype and the shape.
    """

    def __init__(self, tensors: Tensors, facts: list[TensorFacts]) -> None:
        self._tensors = tensors
        count = len(tensors.mode)
        # A masked number is unknown.
        self._numbers: dict[str, Any] = {name: np.ma.array(np.zeros(count, np.int64), mask=True) for name in _COLUMNS}
        self._dims = np.zeros((count, NUM_SHAPE_DIMS), dtype=np.int64)
        self._has_dims = np.zeros(count, dtype=np.bool_)
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._scalars: Any = np.ma.array(np.zeros(count), mask=True)
        self.values: dict[int, tuple[bytes, TensorFacts]] = {}
        for mode in np.unique(tensors.mode).tolist():
            indexes = np.flatnonzero(tensors.mode == mode)
            if mode in NUM_SUMMARY:
                self._read_summaries(mode, indexes)
            elif mode == TensorDebugMode.FULL_TENSOR:
                for index in indexes.tolist():
                    self._read_value(index, facts[int(tensors.facts[index])])
        self.columns: Mapping[str, pa.Array] = self._to_arrow()

    def _read_summaries(self, mode: int, indexes: Ints) -> None:
        tensors = self._tensors
        width = NUM_SUMMARY[mode] - NUM_KEPT[mode]
        indexes = indexes[tensors.length[indexes] == 8 * width]
        if not len(indexes):
            return
        content = np.frombuffer(tensors.buffer, dtype=np.uint8)
        numbers = content[tensors.start[indexes][:, None] + np.arange(8 * width)].view("<f8")
        with np.errstate(invalid="ignore"):
            # TensorFlow writes no other numbers.
            fine = (numbers >= 0) & (numbers <= _LARGEST) & (numbers == np.floor(numbers))
        if mode == TensorDebugMode.CURT_HEALTH:
            fine &= numbers <= 1
        elif mode != TensorDebugMode.CONCISE_HEALTH:
            fine[:, 0] &= numbers[:, 0] <= _MAX_RANK
        is_fine = fine.all(axis=1)
        indexes, numbers = indexes[is_fine], numbers[is_fine].astype(np.int64)
        for column, name in enumerate(TAIL_COLUMNS[mode]):
            self._numbers[name][indexes] = numbers[:, column]
        if mode in (TensorDebugMode.CONCISE_HEALTH, TensorDebugMode.FULL_HEALTH):
            bad = sum(self._numbers[name][indexes] for name in _COUNTS[:3])
            self._numbers["has_inf_or_nan"][indexes] = bad > 0
        if mode == TensorDebugMode.SHAPE:
            self._read_dims(indexes, rank=numbers[:, 0], dims=numbers[:, 2:])

    def _read_dims(self, indexes: Ints, *, rank: Ints, dims: Ints) -> None:
        unused = np.arange(NUM_SHAPE_DIMS) >= rank[:, None]
        # For a higher rank, the first dimensions are missing.
        is_shape = (rank <= NUM_SHAPE_DIMS) & ~(unused & (dims != 0)).any(axis=1)
        self._has_dims[indexes[is_shape]] = True
        self._dims[indexes] = dims

    def _read_value(self, index: int, facts: TensorFacts) -> None:
        tensors = self._tensors
        start, length = int(tensors.start[index]), int(tensors.length[index])
        value, shape = facts.value, facts.shape
        content = tensors.buffer[start : start + length]
        if value is None and length == facts.value_bytes:
            value = content
        elif value is None and facts.dtype == "string" and shape is not None:
            strings = _unpacked_strings(content, math.prod(shape))
            value = None if strings is None else encode_strings(strings)
        if shape is not None:
            self._shapes[index] = shape
            self._numbers["rank"][index] = len(shape)
            self._numbers["size"][index] = np.prod(shape, dtype=np.int64)
        if value is None:
            return
        self.values[index] = (value, facts)
        if shape is None or facts.dtype not in TENSORFLOW_DTYPES:
            return
        array = decode(np.frombuffer(value, np.uint8), facts.dtype)
        assert array is not None, facts.dtype
        counts, bad, scalar = summarize(array), find_bad(array.reshape(shape)), scalar_value(array)
        for name in _COUNTS:
            self._numbers[name][index] = getattr(counts, name)
        self._numbers["has_inf_or_nan"][index] = bad is not None
        if scalar is not None:
            self._scalars[index] = scalar
        if bad is not None:
            self._numbers["first_bad_index"][index] = bad.first_index
            if bad.num_slices is not None:
                self._numbers["num_bad_slices"][index] = bad.num_slices

    def _to_arrow(self) -> dict[str, pa.Array]:
        columns = {name: pa.array(numbers) for name, numbers in self._numbers.items()}
        columns["has_inf_or_nan"] = pa.array(self._numbers["has_inf_or_nan"] != 0)
        columns["rank"] = pa.array(self._numbers["rank"].astype(np.int32))
        return {**columns, "shape": self._shape_column(), "scalar_value": pa.array(self._scalars)}

    def _shape_column(self) -> pa.Array:
        type_ = arrow_schema("tensor_health").field("shape").type
        count = len(self._tensors.mode)
        if self._shapes:
            shapes: list[tuple[int, ...] | None] = [self._shapes.get(index) for index in range(count)]
            for index in np.flatnonzero(self._has_dims).tolist():
                shapes[index] = tuple(self._dims[index, : self._numbers["rank"][index]].tolist())
            return pa.array(shapes, type=type_)
        if not self._has_dims.any():
            return pa.nulls(count, type_)
        lengths = np.where(self._has_dims, self._numbers["rank"].data, 0)
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        flat = self._dims[np.arange(NUM_SHAPE_DIMS) < lengths[:, None]]
        mask = None if self._has_dims.all() else pa.array(~self._has_dims)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat), type=type_, mask=mask)
