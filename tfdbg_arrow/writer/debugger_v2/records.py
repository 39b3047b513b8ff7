r"""The storage of a dump's records, and how an export restores them as equal messages in the same order.

The import makes one row of `dump_record` for each record of each of the six files, in the order of
`record_index`. Each row refers to a row of `dump_message`. To restore the record:

1. If `is_whole` is true, `message` is the record byte for byte: write it unchanged. This applies to records that could
   not be parsed, and to records that could not be restored exactly from the tables.
2. Otherwise parse `message` as a DebugEvent, and restore what was removed from it:

   * `wall_time` is `dump_record.wall_time_s`.
   * If `stack_trace_id` is not NULL, the `stack_frame_ids` of the CodeLocation (of a `graph_op_creation` or an
     `execution`) are those of the rows of `stack_trace` with that id, by descending `depth` (a dump lists the outermost
     frame first). The text of a frame's id is `stack_frame_with_id.id` in the message of the record of
     `stack_frames` whose `row_id` is that `stack_frame_id`. The host's name stayed in the message.
   * `source_file.lines` is `source_text.split("\n")` of the row of `source_file` with `source_file_id` = `row_id`;
     it is empty if `source_text` is NULL.
   * `execution.input_tensor_ids` and `execution.output_tensor_ids` are the `tensor_id`s of the rows of
     `execution_input` by `input_index`, and of `execution_output` by `output_slot`, with `execution_index` = `row_id`.
   * The `tensor_content` is restored for each TensorProto for which `is_measured()` is true. The n-th of an execution
     belongs to its n-th row of `tensor_health` by `event_index` (`scope` = 'execution', `execution_index` = `row_id`).
     That of a trace belongs to the row with `event_index` = `row_id`. In health and shape modes, a part of the content
     stayed in the message: append `summary_tail()` of the row's columns to it. In FULL_TENSOR, the content is
     `tensor_content()` of `tensor_value.value` of the row with that `event_index`. If there is no such row, the
     content stayed in the message. If the message lists the elements (`float_val` and so on), it has no content.

Records of the file `graphs` keep everything except their stack in the message, because names are short and differ in
each. A file of a file set exists (possibly without records) if `run.settings` lists it: see `importer.py`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from tfdbg_arrow.schema.strings import decode_strings
from tfdbg_arrow.writer.debugger_v2.protos.debug_event_pb2 import TensorDebugMode
from tfdbg_arrow.writer.debugger_v2.protos.tensor_pb2 import DataType, TensorProto
from tfdbg_arrow.writer.debugger_v2.string_content import pack_strings

FILES = ("metadata", "source_files", "stack_frames", "graphs", "execution", "graph_execution_traces")
"""Suffixes of the files of a dump."""

NUM_KEPT: dict[int, int] = {
    TensorDebugMode.CURT_HEALTH: 1,
    TensorDebugMode.CONCISE_HEALTH: 1,
    TensorDebugMode.FULL_HEALTH: 3,
    TensorDebugMode.SHAPE: 2,
}
"""Number of a summary's leading numbers that stay in the message: tensor id, and device id and dtype if present."""
NUM_SUMMARY: dict[int, int] = {
    TensorDebugMode.CURT_HEALTH: 2,
    TensorDebugMode.CONCISE_HEALTH: 5,
    TensorDebugMode.FULL_HEALTH: 11,
    TensorDebugMode.SHAPE: 10,
}
"""Number of numbers in a summary."""
NUM_SHAPE_DIMS = 6
"""Number of dimensions in a summary of mode SHAPE."""
TAIL_COLUMNS: dict[int, tuple[str, ...]] = {
    TensorDebugMode.CURT_HEALTH: ("has_inf_or_nan",),
    TensorDebugMode.CONCISE_HEALTH: ("size", "num_neg_inf", "num_pos_inf", "num_nan"),
    TensorDebugMode.FULL_HEALTH: (
        "rank", "size", "num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite",
    ),
    TensorDebugMode.SHAPE: ("rank", "size"),
}  # fmt: skip
"""Columns of tensor_health with the rest of a summary, in order; in mode SHAPE, the dimensions follow them."""


def is_measured(tensor: TensorProto, mode: int) -> bool:
    """Returns whether a TensorProto of a dump has measurements, and so a row in tensor_health.

    An execution's message has an empty TensorProto for each output that its mode does not cover.
    """
    if mode in NUM_SUMMARY:
        dims = tensor.tensor_shape.dim
        return bool(tensor.dtype == DataType.DT_DOUBLE and len(dims) == 1 and dims[0].size == NUM_SUMMARY[mode])
    return bool(mode == TensorDebugMode.FULL_TENSOR and tensor.dtype != DataType.DT_INVALID)


def summary_tail(mode: int, values: Sequence[float], shape: Sequence[int] | None) -> bytes:
    """Returns the bytes of a summary that follow those that stayed in the message.

    Args:
        mode: A key of TAIL_COLUMNS.
        values: The values of those columns in the row.
        shape: The row's shape, which only mode SHAPE needs.
    """
    numbers = [float(value) for value in values]
    if mode == TensorDebugMode.SHAPE:
        dims = list(shape or ())
        numbers += [float(dim) for dim in dims] + [0.0] * (NUM_SHAPE_DIMS - len(dims))
    return struct.pack(f"<{len(numbers)}d", *numbers)


def tensor_content(tensor: TensorProto, value: bytes) -> bytes:
    """Returns the original `tensor_content` of a TensorProto.

    Args:
        tensor: The TensorProto, which has dtype and shape but not its content.
        value: `tensor_value.value`: the elements in row-major order, little-endian; strings as in `schema.strings`.

    Raises:
        ValueError: The dtype is string, and the number of strings does not match the shape.
    """
    if tensor.dtype != DataType.DT_STRING:
        return value
    return pack_strings(decode_strings(value, math.prod(dim.size for dim in tensor.tensor_shape.dim)))
