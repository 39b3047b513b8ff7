"""How many elements of a tensor are of each kind, counted by `DebugNumericSummaryV2` in FULL_HEALTH.

Three things keep its answer right:

* TensorFlow's threads flush subnormal numbers to zero, on a CPU at least. So where zeros and signs matter, the elements
  are counted a second time, rounded away from zero by operations on their bits (`bits.rounded_away`): then none is
  subnormal, and 0 is still 0.
* Its kernel on GPUs takes float16, float32 and float64 of those dtypes that matter: the others are converted,
  exactly (64-bit integers keep their sign). float8 is never fed to it: that ends the process.
* A complex element is represented by the real number that is of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdbg_arrow.writer.settings import TensorDebugMode
from tfdbg_arrow.writer.tensorflow_backend.bits import FORMATS, rounded_away
from tfdbg_arrow.writer.tensorflow_backend.magnitudes import representatives

# Source: tensorflow/core/protobuf/debug_event.proto, TensorDebugMode.
_FULL_HEALTH = 4
# Columns of the op's answer: the infinities below and above zero, NaN, the finite below zero, zero, above zero.
_COUNTS = slice(5, 11)
_ZERO = 4
_MODES_OF_BAD_ELEMENTS = (TensorDebugMode.CURT_HEALTH, TensorDebugMode.CONCISE_HEALTH)


def pack_counts(tensors: Sequence[Any], *, mode: TensorDebugMode) -> Any:
    """Counts the elements of tensors of the current graph.

    Args:
        tensors: Symbolic tensors of dtypes that TensorFlow can measure, flat; at least one.
        mode: In the modes that are about bad elements alone, subnormal ones may be among the zeros.

    Returns:
        A symbolic float64 tensor of shape [len(tensors), 6].
    """
    once = [_count(readable(tensor)) for tensor in tensors]
    if mode in _MODES_OF_BAD_ELEMENTS:
        return tf.stack(once)
    again = [
        _count(readable(rounded_away(tensor))) if tensor.dtype in FORMATS else counts
        for tensor, counts in zip(tensors, once, strict=True)
    ]
    return _combined(tf.stack(once), tf.stack(again))


def count_eagerly(tensor: Any, *, mode: TensorDebugMode) -> Any:
    """Returns the same of one eager tensor, of shape [6]; a second time only where there are zeros."""
    counts = _count(readable(tensor))
    if mode in _MODES_OF_BAD_ELEMENTS or tensor.dtype not in FORMATS or counts.numpy()[_ZERO] == 0:
        return counts
    return _combined(counts, _count(readable(rounded_away(tensor))))


def pack_counts_of_normal(tensors: Sequence[Any]) -> Any:
    """As `pack_counts`, of tensors of float64 of which no element is subnormal."""
    return tf.stack([_count(tensor) for tensor in tensors])


def _combined(once: Any, again: Any) -> Any:
    """The counts [..., 6] of elements, from theirs and from those of the elements rounded away from zero.

    Rounding makes the greatest numbers infinite, and NaN zero. So bad elements are counted as they are; of the others
    those with a sign are what has this sign then, but for the infinities, and the zeros are the rest.
    """
    bad, finite = once[..., :3], once[..., 3:]
    infinite = bad[..., :2]
    signed = again[..., 3::2] + again[..., :2] - infinite
    zero = tf.reduce_sum(finite, axis=-1, keepdims=True) - tf.reduce_sum(signed, axis=-1, keepdims=True)
    return tf.concat([bad, signed[..., :1], zero, signed[..., 1:]], axis=-1)


def count_parts(tensor: Any) -> Any:
    """Returns what the op says of a readable tensor, float64 of shape [11]: the counts come last."""
    return tf.raw_ops.DebugNumericSummaryV2(
        input=tensor, output_dtype=tf.float64, tensor_debug_mode=_FULL_HEALTH, tensor_id=-1
    )


def _count(tensor: Any) -> Any:
    return count_parts(tensor)[_COUNTS]


def readable(tensor: Any) -> Any:
    """Returns the elements in a dtype that the op takes everywhere."""
    dtype = tensor.dtype
    if dtype in (tf.float16, tf.float32, tf.float64):
        return tensor
    if dtype.is_complex:
        return representatives(tensor)
    return tf.cast(tensor, tf.float32 if dtype.is_floating else tf.float64)
