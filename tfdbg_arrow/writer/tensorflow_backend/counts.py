"""Counts the elements of each kind in a tensor, with `DebugNumericSummaryV2` in FULL_HEALTH.

Three measures keep its result correct:

* TensorFlow's threads flush subnormal numbers to zero, at least on a CPU. So where zeros and signs matter, the elements
  are counted a second time, rounded away from zero by operations on their bits (`bits.rounded_away`). No rounded
  element is subnormal, and 0 is still 0.
* The op's GPU kernel takes only float16, float32 and float64. Other dtypes are converted exactly, except that 64-bit
  integers only keep their sign. float8 tensors are never passed to the op, because that ends the process.
* A complex element is represented by a real number of its kind.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.bits import FORMATS, rounded_away
from tfdbg_arrow.writer.tensorflow_backend.magnitudes import representatives

# Source: tensorflow/core/protobuf/debug_event.proto, TensorDebugMode.
_FULL_HEALTH = 4
# Columns of the op's result: negative and positive infinities, NaN, finite negative numbers, zeros, positive numbers.
_COUNTS = slice(5, 11)
_ZERO = 4
_MODES_OF_BAD_ELEMENTS = (TensorDebugMode.CURT_HEALTH, TensorDebugMode.CONCISE_HEALTH)


def count_eagerly(tensor: Any, *, mode: TensorDebugMode) -> Any:
    """Counts the elements of an eager tensor, and counts them a second time only if there are zeros.

    Args:
        tensor: A flat tensor of a dtype that TensorFlow can measure.
        mode: The mode to count for. In modes that only count bad elements, subnormal elements may count as zeros.

    Returns:
        A float64 tensor of shape [6].
    """
    counts = count(readable(tensor))
    if mode in _MODES_OF_BAD_ELEMENTS or tensor.dtype not in FORMATS or counts.numpy()[_ZERO] == 0:
        return counts
    return _combined(counts, count(readable(rounded_away(tensor))))


def _combined(once: Any, again: Any) -> Any:
    """Returns the counts [..., 6] of elements, from their own counts and from those of the rounded elements.

    Rounding makes the largest numbers infinite, and NaN zero. So the bad elements are those of the first count. The
    finite elements of a sign are the rounded elements of this sign, without the elements that were infinite before.
    The zeros are the rest.
    """
    bad, finite = once[..., :3], once[..., 3:]
    infinite = bad[..., :2]
    signed = again[..., 3::2] + again[..., :2] - infinite
    zero = tf.reduce_sum(finite, axis=-1, keepdims=True) - tf.reduce_sum(signed, axis=-1, keepdims=True)
    return tf.concat([bad, signed[..., :1], zero, signed[..., 1:]], axis=-1)


def count_parts(tensor: Any) -> Any:
    """Returns the op's result for a readable tensor, as float64 of shape [11]; the counts come last."""
    return tf.raw_ops.DebugNumericSummaryV2(
        input=tensor, output_dtype=tf.float64, tensor_debug_mode=_FULL_HEALTH, tensor_id=-1
    )


def count(tensor: Any) -> Any:
    """Returns the counts of a readable tensor without subnormal elements, as float64 of shape [6]."""
    return count_parts(tensor)[_COUNTS]


def readable(tensor: Any) -> Any:
    """Returns the elements in a dtype that the op takes on all devices."""
    dtype = tensor.dtype
    if dtype in (tf.float16, tf.float32, tf.float64):
        return tensor
    if dtype.is_complex:
        return representatives(tensor)
    return tf.cast(tensor, tf.float32 if dtype.is_floating else tf.float64)
