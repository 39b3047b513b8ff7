"""Summarizes tensors with TensorFlow's own ops, on the device where the tensor is.

`device_graphs` makes graphs that count the elements of a tensor on its device. The native core copies their nodes into
graphs after TensorFlow has optimized them (`native/device_summaries.h`). `count_on_device` counts a large eager tensor.
`elements.py` counts and measures.

`graphs/summary_columns.py` has the columns of a summary row. `measure_array` uses the native core to make the summary
row of an array, and `fill_records` turns such rows into spool records. `native/reference.py` defines the counts.
tests/writer/magnitudes.py defines the other numbers. Here, mean and stddev are within the tolerance of that file, and
the modulus of a complex element is within one unit in the last place.

TensorFlow cannot compute with three of the float8 dtypes (`can_measure`).
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import kernels

from tfdbg_arrow.spool.records import COUNTS, MAGNITUDES, NUM_INLINE_DIMS, Flag
from tfdbg_arrow.writer.graphs.summary_columns import (
    COUNT_COLUMNS,
    DIM_COLUMNS,
    MAGNITUDE_COLUMNS,
    MAX_COLUMN,
    NUM_COLUMNS,
    NUM_FINITE_COLUMN,
)
from tfdbg_arrow.writer.hooks.unobserved import unobserved
from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.elements import (
    CHECKED_DTYPES,
    FORMATS,
    NUM_BAD_KINDS,
    bad_kinds,
    classes,
    classes_of_bits,
    magnitudes,
    num_classes,
    without_loss,
)

_COMPLEX_NUMBERS = (8, 18)
_FLOAT_NUMBERS = tuple(reference.TENSORFLOW_DTYPES[name] for name in reference.HISTOGRAM_DTYPES)
_STRING_NUMBER = 7
"""The number of strings in TensorFlow's enum DataType."""
_SHAPE_FLAG, _BAD_FLAG = int(Flag.SHAPE), int(Flag.BAD)
_FLAGS = {
    TensorDebugMode.NO_TENSOR: int(Flag.COVERED),
    TensorDebugMode.SHAPE: int(Flag.COVERED),
    TensorDebugMode.CURT_HEALTH: int(Flag.COVERED | Flag.CHECKED),
    TensorDebugMode.CONCISE_HEALTH: int(Flag.COVERED | Flag.CHECKED | Flag.COUNTS),
    TensorDebugMode.FULL_HEALTH: int(Flag.COVERED | Flag.CHECKED | Flag.COUNTS | Flag.SIGNS),
    TensorDebugMode.FULL_TENSOR: int(Flag.COVERED | Flag.CHECKED | Flag.COUNTS | Flag.SIGNS),
    TensorDebugMode.FULL_NUMERICS: int(Flag.COVERED | Flag.CHECKED | Flag.COUNTS | Flag.SIGNS | Flag.NUMERICS),
}
"""The flags of every tensor that is measured in a mode."""
# Neither Cast nor Bitcast takes these float8 dtypes (TensorFlow 2.18 to 2.21). Strings have no health.
_OPAQUE_DTYPES = frozenset(("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "string"))


def can_measure(dtype: Any) -> bool:
    """Returns True if TensorFlow's ops can measure tensors of this dtype."""
    return dtype.name not in _OPAQUE_DTYPES


def measure_array(array: npt.NDArray[Any], *, mode: TensorDebugMode) -> npt.NDArray[np.float64]:
    """Returns the summary row of an array, measured by the native core.

    Args:
        array: An array of a dtype that has a health, or of strings, which only have a shape.
        mode: The mode to measure in. Columns that the mode does not cover are 0. But the row of a single floating-point
            number has its value in any mode that reads elements.
    """
    row = shape_row(array.shape)
    if mode.measures_health and array.dtype != np.object_:
        core = importlib.import_module("tfdbg_arrow.writer.native._core")  # an installation may lack the core
        number = reference.TENSORFLOW_DTYPES[array.dtype.name]
        elements = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)
        if mode is TensorDebugMode.FULL_NUMERICS or (array.size == 1 and number in _FLOAT_NUMBERS):
            numbers = core.measure(number, elements)
            row[COUNT_COLUMNS] = numbers[: len(COUNTS)]
            row[MAGNITUDE_COLUMNS] = numbers[len(COUNTS) : len(COUNTS) + len(MAGNITUDES)]
            row[NUM_FINITE_COLUMN] = array.size - sum(numbers[:NUM_BAD_KINDS])
        else:
            row[COUNT_COLUMNS] = core.count_health(number, elements)
    return row


def shape_row(shape: Sequence[int]) -> npt.NDArray[np.float64]:
    """Returns a summary row that only holds a shape."""
    row = np.zeros(NUM_COLUMNS, np.float64)
    row[0] = len(shape)
    row[1] = math.prod(shape)
    dims = shape[DIM_COLUMNS.start - DIM_COLUMNS.stop :]
    row[DIM_COLUMNS.start : DIM_COLUMNS.start + len(dims)] = dims
    return row


def fill_records(records: npt.NDArray[np.void], rows: npt.NDArray[np.float64], *, mode: TensorDebugMode) -> None:
    """Writes summary rows into the records of covered tensors, in place: flags, shape, counts, magnitudes.

    Args:
        records: Records of RECORD_DTYPE, whose dtypes are set. A rank above NUM_INLINE_DIMS gets no SHAPE flag.
        rows: The summary rows, of shape [len(records), NUM_COLUMNS].
        mode: The mode in which the rows were measured.
    """
    rank = rows[:, 0]
    shaped = (rank >= 0) & (rank <= NUM_INLINE_DIMS)
    measured = np.where(records["dtype"] == _STRING_NUMBER, _FLAGS[TensorDebugMode.SHAPE], _FLAGS[mode])
    flags = np.where(shaped, measured | _SHAPE_FLAG, measured)
    records["rank"] = np.where(shaped, rank, 0)
    records["size"] = rows[:, 1]
    records["dims"] = np.where(shaped[:, None], rows[:, DIM_COLUMNS][:, :NUM_INLINE_DIMS], 0)
    if mode.measures_health:
        counts = rows[:, COUNT_COLUMNS]
        for index, measure in enumerate(COUNTS):
            records[measure.field] = counts[:, index]
        flags[counts[:, :NUM_BAD_KINDS].any(axis=1)] |= _BAD_FLAG
    if mode is TensorDebugMode.FULL_NUMERICS:
        any_finite = rows[:, NUM_FINITE_COLUMN] > 0
        flags[any_finite] |= int(Flag.ANY_FINITE)
        flags[any_finite & ~np.isin(records["dtype"], _COMPLEX_NUMBERS)] |= int(Flag.ORDERED)
        for index, measure in enumerate(MAGNITUDES):
            records[measure.field] = rows[:, MAGNITUDE_COLUMNS.start + index]
    if mode.measures_health:
        _fill_scalars(records, rows, flags)
    records["flags"] = flags


def _fill_scalars(records: npt.NDArray[np.void], rows: npt.NDArray[np.float64], flags: npt.NDArray[np.int64]) -> None:
    """Writes the values of single floating-point numbers into their records, and sets their flags."""
    # There are few such numbers. NumPy's functions for sets and selections take longer than a loop.
    for index in np.flatnonzero(rows[:, 1] == 1).tolist():
        if records["dtype"][index] in _FLOAT_NUMBERS:
            num_bad = rows[index, COUNT_COLUMNS][:NUM_BAD_KINDS].tolist()
            bad = [value for value, number in zip((-math.inf, math.inf, math.nan), num_bad, strict=True) if number]
            flags[index] |= int(Flag.SCALAR)
            records["max"][index] = bad[0] if bad else rows[index, MAX_COLUMN]


_COPIED_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128)
_DTYPES = (
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.bool),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    *(tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2),
)


def device_graphs(
    mode: TensorDebugMode, *, dtype_mask: int, device_types: Sequence[str], is_exact: bool
) -> dict[int, tuple[int, bytes]]:
    """Returns graphs that count the elements of tensors on their devices, keyed by the number of the dtype.

    Dtypes that TensorFlow cannot count on all of these devices are omitted.

    Args:
        mode: The mode to count for.
        dtype_mask: Bit i stands for the dtype with number i.
        device_types: The types of the devices, such as `GPU`.
        is_exact: Whether to count subnormal numbers exactly, not as zeros. FULL_NUMERICS always counts them exactly.

    Returns:
        For each dtype, the number of classes, and a serialized GraphDef that computes the node `part` from the node
        `tensor`. If the mode only needs shapes, the number is 0, and the GraphDef has no such node. In CURT_HEALTH, the
        classes of dtypes in CHECKED_DTYPES are those of bad_kinds(). The shape of `tensor` is [1, n]. The dtype of
        `tensor` is the dtype of the elements, or the unsigned integer dtype of their bits.
    """
    graphs = {}
    for dtype in _DTYPES:
        number = dtype.as_datatype_enum
        if dtype_mask >> number & 1:
            graph_def = _device_graph(mode, dtype, is_exact)
            if all(_can_count(dtype, graph_def, device_type) for device_type in device_types):
                graphs[number] = (_num_classes(mode, dtype), graph_def)
    return graphs


def _num_classes(mode: TensorDebugMode, dtype: tf.DType) -> int:
    if _only_finds_bad(mode, dtype):
        return NUM_BAD_KINDS
    return num_classes(dtype) if mode.measures_health else 0


def _only_finds_bad(mode: TensorDebugMode, dtype: tf.DType) -> bool:
    return mode is TensorDebugMode.CURT_HEALTH and dtype in CHECKED_DTYPES


def count_on_device(tensor: Any, *, mode: TensorDebugMode, is_exact: bool) -> bytes:
    """Returns the bytes of the numbers that a graph of device_graphs() computes for an eager tensor.

    Args:
        tensor: An eager tensor of a dtype for which device_graphs() has a graph.
        mode: The mode to count for, which is not FULL_NUMERICS.
        is_exact: Whether to count subnormal numbers exactly, not as zeros.
    """
    with unobserved(), tf.device(tensor.device):
        counted: bytes = _counting_function(mode, tensor.dtype, is_exact)(tensor).numpy().tobytes()
        return counted


@functools.cache
def _counting_function(mode: TensorDebugMode, dtype: tf.DType, is_exact: bool) -> Any:
    def count(tensor: Any) -> Any:
        row = tf.reshape(tensor, [1, -1])
        return bad_kinds(row) if _only_finds_bad(mode, dtype) else classes(row, is_exact=is_exact)

    with tf.device(None):
        return tf.function(count, autograph=False).get_concrete_function(tf.TensorSpec(None, dtype))


@functools.cache
def _device_graph(mode: TensorDebugMode, dtype: tf.DType, is_exact: bool) -> bytes:
    with unobserved(), tf.Graph().as_default() as graph:
        if mode is TensorDebugMode.FULL_NUMERICS:
            tensor = _row_input(dtype)
            counts = tf.reshape(tf.cast(classes(tensor, is_exact=True), tf.float64), [-1])
            tf.concat([counts, magnitudes(tensor, without_loss(tensor))], axis=0, name="part")
        elif _only_finds_bad(mode, dtype):
            bad_kinds(_row_input(dtype), name="part")
        elif mode.measures_health and dtype in FORMATS and not is_exact:
            classes_of_bits(_row_input(FORMATS[dtype].bits), dtype, name="part")
        elif mode.measures_health:
            classes(_row_input(dtype), is_exact=is_exact, name="part")
        else:
            _row_input(dtype)
        serialized: bytes = graph.as_graph_def().SerializeToString()
        return serialized


def _row_input(dtype: tf.DType) -> Any:
    return tf.compat.v1.placeholder(dtype, [1, None], name="tensor")


def small_dtypes(mode: TensorDebugMode, *, device_types: Sequence[str]) -> dict[int, int]:
    """Returns the size of an element in bytes, keyed by the number of the dtype, for tensors that are copied whole.

    Dtypes that TensorFlow cannot copy on all of these devices are omitted.

    Args:
        mode: The mode. There are no dtypes if the mode only needs shapes.
        device_types: The types of the devices, such as `GPU`.
    """
    return {
        dtype.as_datatype_enum: dtype.size
        for dtype in (_COPIED_DTYPES if mode.measures_health else ())
        if all(_can_run(dtype, [_node("Snapshot", dtype)], device_type) for device_type in device_types)
    }


def _can_count(dtype: tf.DType, graph_def: bytes, device_type: str) -> bool:
    """Returns True if a graph, and the nodes that the native core adds to it, can run on devices of a type."""
    nodes = [node for node in tf.compat.v1.GraphDef.FromString(graph_def).node if node.op != "Placeholder"]
    return _can_run(dtype, nodes, device_type)


def _can_run(dtype: tf.DType, nodes: Sequence[tf.compat.v1.NodeDef], device_type: str) -> bool:
    if device_type != "CPU" and dtype == tf.int32:
        return False  # TensorFlow keeps these tensors in the memory of the host
    added = (_node("Identity", dtype), _node("ConcatV2", tf.uint8))
    return all(_has_kernel(node, device_type) for node in (*nodes, *added))


def _node(op: str, dtype: tf.DType) -> tf.compat.v1.NodeDef:
    node = tf.compat.v1.NodeDef(op=op)
    node.attr["T"].type = dtype.as_datatype_enum
    return node


def _has_kernel(node: tf.compat.v1.NodeDef, device_type: str) -> bool:
    for kernel in _kernels(node.op):
        if kernel.device_type in (device_type, "DEFAULT") and all(
            node.attr[constraint.name].type in constraint.allowed_values.list.type for constraint in kernel.constraint
        ):
            return True
    return False


@functools.cache  # TensorFlow describes all kernels of an op anew in each call
def _kernels(op_type: str) -> tuple[Any, ...]:
    return tuple(kernels.get_registered_kernels_for_op(op_type).kernel)
