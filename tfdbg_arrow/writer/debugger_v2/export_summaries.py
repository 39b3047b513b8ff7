"""Makes a dump's summary of a tensor in each mode from the columns of tensor_health.

Source: tensorflow/core/protobuf/debug_event.proto (enum TensorDebugMode), whose numbers are float64.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tfdbg_arrow.schema.dtypes import DTYPES
from tfdbg_arrow.schema.strings import decode_strings
from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import TensorDebugMode
from tfdbg_arrow.writer.debugger_v2.protos.tensor_pb2 import DataType, TensorProto
from tfdbg_arrow.writer.debugger_v2.records import NUM_SHAPE_DIMS

COUNTS = ("num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite")
HEALTH_COLUMNS = ("dtype", "rank", "shape", "size", "has_inf_or_nan", *COUNTS)
"""The columns of tensor_health from which a summary is made, in the order of Health."""

MODES = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE", "FULL_TENSOR")
"""The modes that Debugger V2 supports."""
_FROM_FULL_HEALTH = ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "FULL_HEALTH", "SHAPE")
EXPORTABLE: dict[str, tuple[str, ...]] = {
    "NO_TENSOR": ("NO_TENSOR",),
    "CURT_HEALTH": ("NO_TENSOR", "CURT_HEALTH", "SHAPE"),
    "CONCISE_HEALTH": ("NO_TENSOR", "CURT_HEALTH", "CONCISE_HEALTH", "SHAPE"),
    "FULL_HEALTH": _FROM_FULL_HEALTH,
    "FULL_NUMERICS": _FROM_FULL_HEALTH,
    "SHAPE": ("NO_TENSOR", "SHAPE"),
    "FULL_TENSOR": (*_FROM_FULL_HEALTH, "FULL_TENSOR"),
}
"""For each mode of a recording, the modes in which it can be exported."""

UNKNOWN_DEVICE = -1
"""The device id in every summary of Debugger V2."""
NO_TENSOR_ID = -1
"""The tensor id in Debugger V2's summaries of eager tensors."""

_DTYPE_NUMBERS = {dtype.name: dtype.number for dtype in DTYPES}


@dataclass(frozen=True)
class Health:
    """The measured columns of one row of tensor_health; None means NULL."""

    dtype: str | None
    rank: int | None
    shape: Sequence[int] | None
    size: int | None
    has_inf_or_nan: bool | None
    num_neg_inf: int | None
    num_pos_inf: int | None
    num_nan: int | None
    num_neg_finite: int | None
    num_zero: int | None
    num_pos_finite: int | None


def dtype_number(name: str | None) -> int:
    """Returns the number of a dtype; 0 (DT_INVALID) if it is unknown."""
    return _DTYPE_NUMBERS.get((name or "").removesuffix("_ref"), 0)


def summary(mode: int, health: Health, *, tensor_id: int) -> TensorProto:
    """Returns the summary of a tensor; it is empty if the mode's columns were not measured.

    In mode NO_TENSOR it is a float32 tensor without elements.

    Args:
        mode: A TensorDebugMode other than FULL_TENSOR.
        health: The measured columns of the tensor.
        tensor_id: The graph tensor's id in the dump; NO_TENSOR_ID for an eager tensor.
    """
    if mode == TensorDebugMode.NO_TENSOR:
        proto = TensorProto(dtype="DT_FLOAT")
        proto.tensor_shape.dim.add(size=0)
        return proto
    numbers = _numbers(mode, health, tensor_id)
    if any(number is None for number in numbers):
        return TensorProto()
    proto = TensorProto(dtype="DT_DOUBLE")
    proto.tensor_shape.dim.add(size=len(numbers))
    proto.tensor_content = struct.pack(f"<{len(numbers)}d", *numbers)
    return proto


def whole_tensor(dtype: str, shape: Sequence[int], value: bytes) -> TensorProto:
    """Returns a tensor with its elements.

    Args:
        dtype: TensorFlow's name of its dtype.
        shape: Its dimensions.
        value: The elements, in the encoding of tensor_value.
    """
    proto = TensorProto(dtype=DataType.Name(dtype_number(dtype)))
    proto.tensor_shape.SetInParent()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype == "string":
        # Listed as for an execution, because TensorFlow's own reader cannot read the packed content of a trace.
        proto.string_val.extend(decode_strings(value, math.prod(shape)))
    else:
        proto.tensor_content = value
    return proto


def _numbers(mode: int, health: Health, tensor_id: int) -> list[float | None]:
    bad = [health.num_neg_inf, health.num_pos_inf, health.num_nan]
    if mode == TensorDebugMode.CURT_HEALTH:
        return [tensor_id, health.has_inf_or_nan]
    if mode == TensorDebugMode.CONCISE_HEALTH:
        return [tensor_id, health.size, *bad]
    dtype = dtype_number(health.dtype)
    if mode == TensorDebugMode.FULL_HEALTH:
        finite = [health.num_neg_finite, health.num_zero, health.num_pos_finite]
        return [tensor_id, UNKNOWN_DEVICE, dtype, health.rank, health.size, *bad, *finite]
    if health.shape is None:
        return [None]
    dims = list(health.shape)[-NUM_SHAPE_DIMS:]
    return [tensor_id, dtype, health.rank, health.size, *dims, *[0] * (NUM_SHAPE_DIMS - len(dims))]
