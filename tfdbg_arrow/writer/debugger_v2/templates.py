"""Interprets the messages of a dump's events, once for all records that share a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdbg_arrow.schema.dtypes import dtype_itemsize, dtype_name
from tfdbg_arrow.schema.strings import encode_strings
from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import TensorDebugMode
from tfdbg_arrow.writer.debugger_v2.records import NUM_KEPT, is_measured

_LISTS = {
    "half_val": "<u2", "float_val": "<f4", "double_val": "<f8", "int64_val": "<i8", "bool_val": "?",
    "scomplex_val": "<f4", "dcomplex_val": "<f8", "uint32_val": "<u4", "uint64_val": "<u8",
}  # fmt: skip
"""The fields that list elements, and their layout in memory; `int_val` depends on the dtype, `float8_val` is bytes."""

_MAX_LISTED_BYTES = 64 * 2**20
"""Maximum size of a list of elements, because a few bytes can claim any size."""


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """The facts in a message about a tensor that its records measured.

    Attributes:
        mode: The TensorDebugMode.
        output_slot: Index of the output; None if it is ambiguous.
        dtype: TensorFlow's name of the dtype; None if unknown.
        shape: Dimensions, if the message has them (FULL_TENSOR); else None.
        value: The elements, if the message lists them; else None.
        value_bytes: The required size of the content (FULL_TENSOR); None if the elements are not plain bytes.
        has_elements: Whether the message holds the elements, so that the records have no content.
    """

    mode: int
    output_slot: int | None
    dtype: str | None
    shape: tuple[int, ...] | None = None
    value: bytes | None = None
    value_bytes: int | None = None
    has_elements: bool = False


def tensor_facts(tensor: Any, *, mode: int, output_slot: int | None) -> TensorFacts | None:
    """Returns the facts in a TensorProto without its hole; None if it has no measurements."""
    if not is_measured(tensor, mode):
        return None
    if mode in NUM_KEPT:
        kept = np.frombuffer(tensor.tensor_content[: len(tensor.tensor_content) // 8 * 8], dtype="<f8")
        number = kept[-1] if NUM_KEPT[mode] > 1 and len(kept) == NUM_KEPT[mode] else -1.0
        known = number == int(number) and number > 0 if np.isfinite(number) else False
        return TensorFacts(mode=mode, output_slot=output_slot, dtype=dtype_name(int(number)) if known else None)
    shape = None if tensor.tensor_shape.unknown_rank else tuple(dim.size for dim in tensor.tensor_shape.dim)
    itemsize = dtype_itemsize(tensor.dtype)
    size = None if shape is None or any(dim < 0 for dim in shape) else _product(shape)
    value = None
    if size is not None:
        name = dtype_name(tensor.dtype)
        if name == "string":
            value = _listed_strings(tensor, size=size)
        elif itemsize is not None:
            value = _listed_value(tensor, itemsize=itemsize, size=size)
    fields = {field.name for field, _ in tensor.ListFields()}
    return TensorFacts(
        mode=mode,
        output_slot=output_slot,
        dtype=dtype_name(tensor.dtype),
        shape=shape if size is not None else None,
        value=value,
        value_bytes=None if itemsize is None or size is None else itemsize * size,
        has_elements=bool(fields - {"dtype", "tensor_shape", "version_number"}),
    )


def execution_facts(execution: Any, *, num_output_ids: int) -> tuple[TensorFacts | None, ...]:
    """Returns the facts in each TensorProto of an execution; None for those without measurements."""
    tensors = execution.tensor_protos
    # Filtered, variant and resource outputs have no TensorProto, and the message does not say which outputs these are.
    is_certain = len(tensors) == num_output_ids == execution.num_outputs
    return tuple(
        tensor_facts(tensor, mode=execution.tensor_debug_mode, output_slot=slot if is_certain else None)
        for slot, tensor in enumerate(tensors)
    )


def mode_name(mode: int) -> str:
    """Returns the name of a TensorDebugMode, such as `FULL_HEALTH`."""
    names: dict[int, str] = {number: name for name, number in TensorDebugMode.items()}
    return names.get(mode, f"UNKNOWN_{mode}")


def _product(shape: Sequence[int]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size


def _listed_strings(tensor: Any, *, size: int) -> bytes | None:
    """Returns the listed strings of a TensorProto, encoded as in tensor_value; None in the cases of _listed_value."""
    items = list(tensor.string_val)
    if not 0 < len(items) <= size or size * max(8, len(items[-1])) > _MAX_LISTED_BYTES:
        return None
    return encode_strings(items + items[-1:] * (size - len(items)))


def _listed_value(tensor: Any, *, itemsize: int, size: int) -> bytes | None:
    """Returns the listed elements of a TensorProto in row-major order; None if it lists none or too many."""
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
