"""Handles floating-point elements as bits, because TensorFlow's threads flush subnormal numbers to zero, but not bits.

All operations use unsigned integers, because on GPUs the kernels for int32 run on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Format:
    """The bits of a floating dtype that TensorFlow's threads may flush."""

    bits: Any
    """The unsigned integer dtype of the same width."""
    num_mantissa_bits: int
    num_bits: int
    smallest: float
    """The smallest subnormal number, as float64; 0 for float64 itself."""

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.num_bits - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return self.sign - self.smallest_normal

    @property
    def smallest_normal(self) -> int:
        """The bits of the smallest normal number."""
        return 1 << self.num_mantissa_bits

    def constant(self, value: int) -> Any:
        """Returns bits as a tensor of their dtype."""
        return tf.constant(value, self.bits)


FORMATS = {
    tf.bfloat16: Format(tf.uint16, 7, 16, 2.0**-133),
    tf.float32: Format(tf.uint32, 23, 32, 2.0**-149),
    tf.float64: Format(tf.uint64, 52, 64, 0.0),
}


class Bits:
    """The elements of a tensor as unsigned integers: their signs, magnitudes and kinds."""

    def __init__(self, tensor: Any) -> None:
        self.format = FORMATS[tensor.dtype]
        self._all = tf.bitcast(tensor, self.format.bits)
        self.magnitude = tf.bitwise.bitwise_and(self._all, self.format.constant(self.format.sign - 1))

    @property
    def sign(self) -> Any:
        """The sign bit of each element; all other bits are 0."""
        return tf.bitwise.bitwise_and(self._all, self.format.constant(self.format.sign))

    @property
    def is_negative(self) -> Any:
        """True for each element whose sign bit is set."""
        return tf.greater_equal(self._all, self.format.constant(self.format.sign))

    @property
    def is_finite(self) -> Any:
        """True for each element that is neither infinite nor NaN."""
        return tf.less(self.magnitude, self.format.constant(self.format.infinity))

    @property
    def is_subnormal(self) -> Any:
        """True for each element that is subnormal; 0 is not subnormal."""
        is_small = tf.less(self.magnitude, self.format.constant(self.format.smallest_normal))
        return tf.logical_and(is_small, tf.not_equal(self.magnitude, self.format.constant(0)))

    def signed(self, values: Any) -> Any:
        """Returns values with the signs of the elements."""
        return tf.where(self.is_negative, -values, values)


def without_subnormals(tensor: Any) -> Any:
    """Returns the elements, with each subnormal one replaced by the smallest normal number of its sign."""
    bits = Bits(tensor)
    one = bits.format.constant(1)
    least = tf.bitwise.left_shift(tf.minimum(bits.magnitude, one), bits.format.constant(bits.format.num_mantissa_bits))
    return tf.bitcast(tf.bitwise.bitwise_or(tf.maximum(bits.magnitude, least), bits.sign), tensor.dtype)


def rounded_away(tensor: Any) -> Any:
    """Returns the elements rounded away from zero to powers of two, with their signs, so that none is subnormal.

    0 stays 0, infinity stays, the largest elements become infinite, and NaN becomes 0 of either sign. This takes two
    operations: adding a mantissa of ones, which carries into the exponent unless the mantissa was 0, and clearing the
    mantissa.
    """
    form = FORMATS[tensor.dtype]
    mantissa = form.smallest_normal - 1
    carried = tf.bitcast(tensor, form.bits) + form.constant(mantissa)
    return tf.bitcast(tf.bitwise.bitwise_and(carried, form.constant(form.sign | form.infinity)), tensor.dtype)
