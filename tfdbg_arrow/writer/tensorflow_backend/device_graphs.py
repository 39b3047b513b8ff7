"""Graphs that count the elements of a tensor on its device.

The native core copies their nodes into graphs after TensorFlow has optimized them (`native/device_summaries.h`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import IntEnum

import tensorflow as tf
from tensorflow.python.framework import kernels

from tfdbg_arrow.writer.hooks.unobserved import unobserved
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend import summary
from tfdbg_arrow.writer.tensorflow_backend.bits import FORMATS, rounded_away
from tfdbg_arrow.writer.tensorflow_backend.counts import count_parts, readable


class Layout(IntEnum):
    """What a graph counts; equal to `SummaryLayout` of the native core."""

    SHAPE_ONLY = 0
    COUNTS = 1
    COUNTS_TWICE = 2
    NUMERICS = 3


_MODES_OF_BAD_ELEMENTS = (TensorDebugMode.CURT_HEALTH, TensorDebugMode.CONCISE_HEALTH)
_DTYPES = (
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.bool),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2),
)


def device_graphs(
    mode: TensorDebugMode, *, dtype_mask: int, device_types: Sequence[str]
) -> dict[int, tuple[int, bytes]]:
    """Returns graphs that count the elements of tensors on their devices, keyed by the number of the dtype.

    Dtypes that TensorFlow cannot count on all of these devices are omitted.

    Args:
        mode: The mode to count for.
        dtype_mask: Bit i stands for the dtype with number i.
        device_types: The types of the devices, such as `GPU`.

    Returns:
        For each dtype, the layout and a serialized GraphDef, which computes the nodes `part_0`, `part_1` ... from the
        node `tensor`.
    """
    found = {}
    for dtype in _DTYPES:
        number = dtype.as_datatype_enum
        if dtype_mask >> number & 1:
            layout, graph_def = _device_graph(mode, dtype)
            if all(_can_count(dtype, graph_def, device_type) for device_type in device_types):
                found[number] = (int(layout), graph_def)
    return found


@functools.cache
def _device_graph(mode: TensorDebugMode, dtype: tf.DType) -> tuple[Layout, bytes]:
    with unobserved(), tf.Graph().as_default() as graph:
        tensor = tf.compat.v1.placeholder(dtype, name="tensor")
        if not summary.measures_elements(mode):
            parts, layout = [], Layout.SHAPE_ONLY
        elif mode is TensorDebugMode.FULL_NUMERICS:
            parts, layout = [summary.numerics(tf.reshape(tensor, [-1]))], Layout.NUMERICS
        elif mode in _MODES_OF_BAD_ELEMENTS or dtype not in FORMATS:
            # Complex numbers need SelectV2, which takes ranks up to 8.
            flat = tf.reshape(tensor, [-1]) if dtype.is_complex else tensor
            parts, layout = [count_parts(readable(flat))], Layout.COUNTS
        else:
            parts = [count_parts(readable(tensor)), count_parts(readable(rounded_away(tensor)))]
            layout = Layout.COUNTS_TWICE
        for index, part in enumerate(parts):
            tf.identity(part, name=f"part_{index}")
        return layout, graph.as_graph_def().SerializeToString()


def _can_count(dtype: tf.DType, graph_def: bytes, device_type: str) -> bool:
    """Returns True if a graph, and the nodes that the native core adds to it, can run on devices of a type."""
    if device_type != "CPU" and dtype == tf.int32:
        return False  # TensorFlow keeps these tensors in the memory of the host
    shape, same = tf.compat.v1.NodeDef(op="Shape"), tf.compat.v1.NodeDef(op="Identity")
    shape.attr["out_type"].type = tf.int64.as_datatype_enum
    for node in (shape, same):
        node.attr["T"].type = dtype.as_datatype_enum
    nodes = [node for node in tf.compat.v1.GraphDef.FromString(graph_def).node if node.op != "Placeholder"]
    return all(_has_kernel(node, device_type) for node in (shape, same, *nodes))


def _has_kernel(node: tf.compat.v1.NodeDef, device_type: str) -> bool:
    for kernel in kernels.get_registered_kernels_for_op(node.op).kernel:
        if kernel.device_type in (device_type, "DEFAULT") and all(
            node.attr[constraint.name].type in constraint.allowed_values.list.type for constraint in kernel.constraint
        ):
            return True
    return False
