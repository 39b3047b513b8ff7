"""The layout of the tensors in a dump: TensorProtos with the summary of a mode, or with all elements."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tfdbg_arrow.debugger_v2.protos.debug_event_pb2 import TensorDebugMode
from tfdbg_arrow.debugger_v2.protos.tensor_pb2 import DataType, TensorProto
from tfdbg_arrow.schema.dtypes import DTYPES_BY_NAME, decode_strings

NUM_KEPT: dict[int, int] = {
    TensorDebugMode.CURT_HEALTH: 1,
    TensorDebugMode.CONCISE_HEALTH: 1,
    TensorDebugMode.FULL_HEALTH: 3,
    TensorDebugMode.SHAPE: 2,
}
"""How many of a summary's first numbers stay in the message: tensor id, and if present, device id and dtype."""
NUM_SHAPE_DIMS = 6
"""Number of dimensions in a summary of mode SHAPE: the tensor's last dimensions, followed by zeros."""
TAIL_COLUMNS: dict[int, tuple[str, ...]] = {
    TensorDebugMode.CURT_HEALTH: ("has_inf_or_nan",),
    TensorDebugMode.CONCISE_HEALTH: ("size", "num_neg_inf", "num_pos_inf", "num_nan"),
    TensorDebugMode.FULL_HEALTH: (
        "rank", "size", "num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite",
    ),
    TensorDebugMode.SHAPE: ("rank", "size"),
}  # fmt: skip
"""Columns of tensor_health that hold the rest of a summary, in order; in mode SHAPE, the dimensions follow them."""
NUM_SUMMARY: dict[int, int] = {
    mode: NUM_KEPT[mode] + len(columns) + (NUM_SHAPE_DIMS if mode == TensorDebugMode.SHAPE else 0)
    for mode, columns in TAIL_COLUMNS.items()
}
"""How many numbers a summary has."""
UNKNOWN_DEVICE = -1
"""The device id in every summary of Debugger V2."""
NO_TENSOR_ID = -1
"""The tensor id in Debugger V2's summaries of eager tensors."""


def is_measured(tensor: TensorProto, mode: int) -> bool:
    """Returns whether a TensorProto of a dump has measurements, and therefore gets a row in tensor_health.

    An execution's message has an empty TensorProto for each output that the mode does not cover.
    """
    if mode in NUM_SUMMARY:
        dims = tensor.tensor_shape.dim
        return bool(tensor.dtype == DataType.DT_DOUBLE and len(dims) == 1 and dims[0].size == NUM_SUMMARY[mode])
    return bool(mode == TensorDebugMode.FULL_TENSOR and tensor.dtype != DataType.DT_INVALID)


@lru_cache(maxsize=64)
def dtype_number(name: str | None) -> int:
    """Returns the number of a dtype; 0 (DT_INVALID) if the dtype is unknown."""
    dtype = DTYPES_BY_NAME.get((name or "").removesuffix("_ref"))
    return 0 if dtype is None else dtype.number


class Summaries:
    """Makes the summaries of tensors in one mode.

    Args:
        mode: A TensorDebugMode other than FULL_TENSOR.

    Attributes:
        columns: The columns of tensor_health that a summary is made from.
    """

    def __init__(self, mode: int) -> None:
        self._num_kept = NUM_KEPT.get(mode, 0)
        self._has_shape = mode == TensorDebugMode.SHAPE
        self.columns = ("dtype", *TAIL_COLUMNS.get(mode, ()), *(("shape",) if self._has_shape else ()))
        # In mode NO_TENSOR, the summary has no numbers.
        self._without_numbers = TensorProto(dtype="DT_DOUBLE" if mode in NUM_SUMMARY else "DT_FLOAT")
        self._without_numbers.tensor_shape.dim.add(size=NUM_SUMMARY.get(mode, 0))

    def summary(self, health: Sequence[Any], *, tensor_id: int) -> TensorProto:
        """Returns the summary of a tensor; the summary is empty if the mode's columns were not measured.

        Args:
            health: The columns of the tensor.
            tensor_id: The graph tensor's id in the dump; NO_TENSOR_ID for an eager tensor.
        """
        proto = TensorProto()
        dtype, *measured = health
        if None in measured:
            return proto
        proto.CopyFrom(self._without_numbers)
        if self._num_kept:
            number = dtype_number(dtype)
            head = {1: (tensor_id,), 2: (tensor_id, number), 3: (tensor_id, UNKNOWN_DEVICE, number)}[self._num_kept]
            if self._has_shape:
                dims = measured.pop()[-NUM_SHAPE_DIMS:]
                measured += [*dims, *[0] * (NUM_SHAPE_DIMS - len(dims))]
            numbers = (*head, *measured)
            proto.tensor_content = struct.pack(f"<{len(numbers)}d", *numbers)
        return proto


def whole_tensor(dtype: str, shape: Sequence[int], value: bytes) -> TensorProto:
    """Returns a tensor with its elements.

    Args:
        dtype: TensorFlow's name of the dtype.
        shape: The dimensions.
        value: The elements, in the encoding of tensor_value.
    """
    proto = TensorProto(dtype=DataType.Name(dtype_number(dtype)))
    proto.tensor_shape.SetInParent()
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype == "string":
        # Strings are listed as for an execution, because TensorFlow's own reader cannot read the packed content of a
        # trace.
        proto.string_val.extend(decode_strings(value, math.prod(shape)))
    else:
        proto.tensor_content = value
    return proto
