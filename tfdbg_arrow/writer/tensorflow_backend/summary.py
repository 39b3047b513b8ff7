"""Summaries of tensors, measured with TensorFlow's own ops on the device where the tensor lives.

A summary row is what `TfdbgArrowRecordSummary` takes: NUM_COLUMNS float64 numbers, in the order of `SummaryColumn`
in `native/record_op.h`. `pack` makes the rows of many tensors of a graph at once, `measure_row` the row of an eager
tensor, `fill_records` turns rows into spool records as the native op does. The numbers mean what
`native/reference.py` says; mean and stddev within its tolerance, the modulus of a complex element within one
unit in the last place.

Counts are those of TensorFlow's own op (`counts`); magnitudes are taken of exact float64 values, those of float64
itself of its bits (`magnitudes`).

TensorFlow cannot compute with three of the float8 dtypes at all (`can_measure`): `measure_array` measures their
elements on the host, with the NumPy twin.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdbg_arrow.spool.records import NUM_INLINE_DIMS, Flag
from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.counts import count_eagerly, pack_counts, pack_counts_of_normal
from tfdbg_arrow.writer.tensorflow_backend.magnitudes import magnitudes, without_loss

# Columns: rank, size, six dims, six counts, num_subnormal, min, max, mean, stddev, max_abs, num_finite.
SHAPE_COLUMNS = slice(0, 8)
COUNT_COLUMNS = slice(8, 14)
MAGNITUDE_COLUMNS = slice(14, 20)
NUM_FINITE_COLUMN = 20
NUM_COLUMNS = 21

# Source: tensorflow/core/protobuf/debug_event.proto, TensorDebugMode.
_SHAPE = 5
_COUNTS = ("num_neg_inf", "num_pos_inf", "num_nan", "num_neg_finite", "num_zero", "num_pos_finite")
_MAGNITUDES = ("min", "max", "mean", "stddev", "max_abs")
_COMPLEX_NUMBERS = (8, 18)
_STRING_NUMBER = 7
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
"""What a mode measures of every tensor."""
# Neither Cast nor Bitcast takes these float8 dtypes (TensorFlow 2.17 to 2.21); strings have no health.
_OPAQUE_DTYPES = frozenset(("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz", "string"))


def measures_elements(mode: TensorDebugMode) -> bool:
    """Returns whether the mode looks at the elements of tensors."""
    return mode not in (TensorDebugMode.NO_TENSOR, TensorDebugMode.SHAPE)


def can_measure(dtype: Any) -> bool:
    """Returns whether TensorFlow's ops can measure tensors of that dtype."""
    return dtype.name not in _OPAQUE_DTYPES


def pack(tensors: Sequence[Any], *, mode: TensorDebugMode) -> Any:
    """Makes the summary rows of tensors of the current graph.

    Args:
        tensors: Symbolic tensors of dtypes that TensorFlow can measure; at least one.
        mode: What to measure; the columns that it does not cover are 0.

    Returns:
        A symbolic float64 tensor of shape [len(tensors), NUM_COLUMNS].
    """
    count = len(tensors)
    shapes = _pack_shapes(tensors)
    if not measures_elements(mode):
        return tf.concat([shapes, tf.zeros([count, NUM_COLUMNS - 8], tf.float64)], axis=1)
    flat = [_flat(tensor) for tensor in tensors]
    if mode is not TensorDebugMode.FULL_NUMERICS:
        counts = pack_counts(flat, mode=mode)
        return tf.concat([shapes, counts, tf.zeros([count, NUM_COLUMNS - 14], tf.float64)], axis=1)
    measured = [without_loss(tensor) for tensor in flat]
    counts = pack_counts_of_normal(measured)
    measures = tf.stack([magnitudes(*pair) for pair in zip(flat, measured, strict=True)])
    num_finite = tf.reduce_sum(counts[:, 3:], axis=1, keepdims=True)
    return tf.concat([shapes, counts, measures, num_finite], axis=1)


def measure_row(tensor: Any, *, mode: TensorDebugMode, device: str = "") -> npt.NDArray[np.float64]:
    """Returns the summary row of an eager tensor.

    Args:
        tensor: An eager tensor of a dtype that has a health, or of strings, which have a shape only.
        mode: What to measure; the columns that it does not cover are 0.
        device: Where to measure it; empty for where TensorFlow will.
    """
    row = shape_row(tuple(tensor.shape))
    if not measures_elements(mode) or tensor.dtype == tf.string:
        return row
    if not can_measure(tensor.dtype):
        return measure_array(tensor.numpy(), mode=mode)
    with tf.device(device) if device else nullcontext():
        if mode is TensorDebugMode.FULL_NUMERICS:
            row[COUNT_COLUMNS.start :] = _numerics_function(tensor.dtype, device)(tensor).numpy()
        else:
            row[COUNT_COLUMNS] = count_eagerly(_flat(tensor), mode=mode).numpy()
    return row


_functions: dict[tuple[Any, str], Any] = {}
_functions_lock = threading.RLock()


def _numerics_function(dtype: Any, device: str) -> Any:
    """A compiled function from a tensor to the columns behind the shape: some 60 ops are slow one by one."""
    found = _functions.get((dtype, device))
    if found is not None:
        return found
    with _functions_lock, tf.device(None), tf.device(device or None):
        function = tf.function(
            lambda tensor: pack([tensor], mode=TensorDebugMode.FULL_NUMERICS)[0, COUNT_COLUMNS.start :],
            autograph=False,
        )
        return _functions.setdefault((dtype, device), function.get_concrete_function(tf.TensorSpec(None, dtype)))


def measure_array(array: npt.NDArray[Any], *, mode: TensorDebugMode) -> npt.NDArray[np.float64]:
    """Returns the summary row of an array, measured with NumPy.

    Args:
        array: Of a dtype that has a health, or of strings, which have a shape only.
        mode: What to measure; the columns that it does not cover are 0.
    """
    row = shape_row(array.shape)
    if measures_elements(mode) and array.dtype != np.object_:
        row[COUNT_COLUMNS] = astuple(reference.summarize(array))
        if mode is TensorDebugMode.FULL_NUMERICS:
            row[MAGNITUDE_COLUMNS] = astuple(reference.measure(array))[:6]
            row[NUM_FINITE_COLUMN] = row[COUNT_COLUMNS][3:].sum()
    return row


def shape_row(shape: Sequence[int]) -> npt.NDArray[np.float64]:
    """Returns a summary row that holds a shape only."""
    row = np.zeros(NUM_COLUMNS, np.float64)
    row[0] = len(shape)
    row[1] = math.prod(shape)
    dims = shape[-NUM_INLINE_DIMS:]
    row[2 : 2 + len(dims)] = dims
    return row


def fill_records(records: npt.NDArray[np.void], rows: npt.NDArray[np.float64], *, mode: TensorDebugMode) -> None:
    """Writes summary rows into the records of covered tensors, in place: flags, shape, counts, magnitudes.

    Args:
        records: Of RECORD_DTYPE, their dtypes set. A rank above NUM_INLINE_DIMS gets no SHAPE flag.
        rows: Of shape [len(records), NUM_COLUMNS].
        mode: In which the rows were measured.
    """
    rank = rows[:, 0]
    shaped = (rank >= 0) & (rank <= NUM_INLINE_DIMS)
    measured = np.where(records["dtype"] == _STRING_NUMBER, _FLAGS[TensorDebugMode.SHAPE], _FLAGS[mode])
    flags = np.where(shaped, measured | _SHAPE_FLAG, measured)
    records["rank"] = np.where(shaped, rank, 0)
    records["size"] = rows[:, 1]
    records["dims"] = np.where(shaped[:, None], rows[:, 2:8], 0)
    if measures_elements(mode):
        counts = rows[:, COUNT_COLUMNS]
        for index, name in enumerate(_COUNTS):
            records[name] = counts[:, index]
        flags[counts[:, :3].any(axis=1)] |= _BAD_FLAG
    if mode is TensorDebugMode.FULL_NUMERICS:
        any_finite = rows[:, NUM_FINITE_COLUMN] > 0
        flags[any_finite] |= int(Flag.ANY_FINITE)
        flags[any_finite & ~np.isin(records["dtype"], _COMPLEX_NUMBERS)] |= int(Flag.ORDERED)
        for index, name in enumerate(("num_subnormal", *_MAGNITUDES)):
            records[name] = rows[:, MAGNITUDE_COLUMNS.start + index]
    records["flags"] = flags


def _flat(tensor: Any) -> Any:
    """The elements in a row: TensorFlow's ops on two tensors take ranks up to 8 only."""
    return tf.reshape(tensor, [-1])


def _pack_shapes(tensors: Sequence[Any]) -> Any:
    """Rank, size and dims of each tensor, of shape [n, 8]: constants where they are known already."""
    known = [i for i, tensor in enumerate(tensors) if tensor.shape.is_fully_defined()]
    unknown = [i for i in range(len(tensors)) if i not in set(known)]
    parts: list[Any] = []
    if known:
        rows = np.stack([shape_row(tensors[i].shape.as_list())[SHAPE_COLUMNS] for i in known])
        parts.append(tf.constant(rows, tf.float64))
    if unknown:
        parts.append(tf.stack([_shape_columns(tensors[i]) for i in unknown]))
    if len(parts) == 1:
        return parts[0]
    places = np.argsort(np.array(known + unknown))
    return tf.gather(tf.concat(parts, axis=0), tf.constant(places, tf.int64))


def _shape_columns(tensor: Any) -> Any:
    if tensor.dtype in (tf.float16, tf.float32, tf.float64):
        summary = tf.raw_ops.DebugNumericSummaryV2(
            input=tensor, output_dtype=tf.float64, tensor_debug_mode=_SHAPE, tensor_id=-1
        )
        return summary[2:]
    shape = tf.shape(tensor, out_type=tf.int64)
    dims = tf.concat([shape[-NUM_INLINE_DIMS:], tf.zeros([NUM_INLINE_DIMS], tf.int64)], axis=0)[:NUM_INLINE_DIMS]
    rank_and_size = tf.stack([tf.size(shape, out_type=tf.int64), tf.size(tensor, out_type=tf.int64)])
    return tf.cast(tf.concat([rank_and_size, dims], axis=0), tf.float64)
