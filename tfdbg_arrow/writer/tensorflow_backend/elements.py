"""Counts and measures the elements of tensors with TensorFlow's ops.

`classes` counts how often each combination of sign, exponent and first bit of the mantissa occurs. `classes` reads
bits, so the result does not depend on whether a device computes with subnormal numbers. But zeros and subnormal numbers
share a class. TensorFlow's own op for this, `DebugNumericSummaryV2`, takes 2.5 ms for each tensor on an H100, because
each of 270,000 threads adds to the same six numbers.

* Unsigned integers are shifted, because on GPUs the kernels for int32 run on the host.
* Other dtypes are converted to float32 exactly, except that integers only keep their sign.
* A complex element is represented by a real number of its kind.

Magnitudes of the finite elements are computed from exact numbers without subnormals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.debug_event_pb2 import TensorDebugMode

from tfdbg_arrow.schema.declaration import MAX_INT64

_MANTISSA_BITS = 52
"""Number of bits of a float64 below its exponent."""
_EXPONENT_OF_SMALLEST = -1074
"""The exponent of the smallest positive float64, which is 2**-1074."""


@dataclass(frozen=True)
class Format:
    """The bits of a floating dtype whose subnormal numbers TensorFlow's threads may flush to zero."""

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
    """Returns the elements, with each subnormal element replaced by the smallest normal number of its sign."""
    bits = Bits(tensor)
    one = bits.format.constant(1)
    least = tf.bitwise.left_shift(tf.minimum(bits.magnitude, one), bits.format.constant(bits.format.num_mantissa_bits))
    return tf.bitcast(tf.bitwise.bitwise_or(tf.maximum(bits.magnitude, least), bits.sign), tensor.dtype)


def without_loss(tensor: Any) -> Any:
    """Returns real numbers of the same kinds without subnormals: exact float64, or `representatives` if complex."""
    if tensor.dtype.is_complex:
        return representatives(tensor)
    return without_subnormals(tensor) if tensor.dtype == tf.float64 else _exact_float64(tensor)


def representatives(tensor: Any) -> Any:
    """Returns a real number of the same kind for each complex element."""
    real, imag = (without_subnormals(part) for part in (tf.math.real(tensor), tf.math.imag(tensor)))

    def either(is_kind: Any) -> Any:
        return tf.logical_or(is_kind(real), is_kind(imag))

    def constant(value: float) -> Any:
        return tf.constant(value, real.dtype)

    kind = tf.where(tf.not_equal(real, constant(0)), real, imag)
    for value in (np.inf, -np.inf):  # the last value wins
        kind = tf.where(either(lambda part, value=value: tf.equal(part, constant(value))), constant(value), kind)
    return tf.where(either(tf.math.is_nan), constant(np.nan), kind)


def _exact_float64(tensor: Any) -> Any:
    """Converts elements of any dtype except float64 and complex to float64, where no element is subnormal."""
    dtype = tensor.dtype
    if not dtype.is_floating:
        return tf.cast(tensor, tf.float64)
    if dtype not in FORMATS:
        return tf.cast(tf.cast(tensor, tf.float32), tf.float64)
    bits = Bits(tensor)
    subnormal = bits.signed(tf.cast(bits.magnitude, tf.float64) * bits.format.smallest)
    return tf.where(bits.is_subnormal, subnormal, tf.cast(tensor, tf.float64))


def magnitudes(tensor: Any, measured: Any) -> Any:
    """Returns num_subnormal, min, max, mean, stddev, max_abs of the finite elements, in shape [6]; 0 if undefined."""
    if tensor.dtype.is_complex:
        numbers = _complex_magnitudes(tf.math.real(tensor), tf.math.imag(tensor))
    elif tensor.dtype == tf.float64:
        numbers = _float64_magnitudes(tensor)
    else:
        numbers = _exact_magnitudes(measured, _smallest_normal(tensor.dtype))
    return tf.stack(numbers)


def _smallest_normal(dtype: Any) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype.as_numpy_dtype).smallest_normal) if dtype.is_floating else 0.0


def _exact_magnitudes(values: Any, smallest_normal: float) -> list[Any]:
    """Returns the magnitudes of float64 values, if neither the values nor their squares are subnormal."""
    finite = tf.math.is_finite(values)
    is_small = tf.less(tf.abs(values), tf.constant(smallest_normal, tf.float64))
    least = tf.reduce_min(tf.where(finite, values, _float64(np.inf)))
    most = tf.reduce_max(tf.where(finite, values, _float64(-np.inf)))
    mean, stddev = _moments(tf.where(finite, values, _float64(0)), finite)
    is_constant = tf.equal(least, most)
    numbers = [
        least,
        most,
        tf.where(is_constant, least, mean),
        tf.where(is_constant, _float64(0), stddev),
        tf.maximum(tf.abs(least), tf.abs(most)),
    ]
    any_finite = tf.reduce_any(finite)
    # The second condition turns -0.0 into 0.0.
    return [
        _count(tf.logical_and(is_small, tf.not_equal(values, _float64(0)))),
        *(
            tf.where(tf.logical_and(any_finite, tf.not_equal(number, _float64(0))), number, _float64(0))
            for number in numbers
        ),
    ]


def _float64(value: float) -> Any:
    return tf.constant(value, tf.float64)


def _count(condition: Any) -> Any:
    return tf.reduce_sum(tf.cast(condition, tf.float64))


def _moments(values: Any, finite: Any) -> tuple[Any, Any]:
    """Returns mean and population standard deviation of the finite values; `values` must be 0 elsewhere."""
    count = tf.maximum(_count(finite), _float64(1))
    mean = tf.reduce_sum(values) / count
    distance = tf.where(finite, values - mean, _float64(0))
    return mean, tf.sqrt(tf.reduce_sum(distance * distance) / count)


# float64 is measured as bits, or as multiples of 2**exponent, a power of two near the largest magnitude. So no square
# overflows, and a value that underflows is negligible against the largest value.


def _float64_magnitudes(tensor: Any) -> list[Any]:
    bits = Bits(tensor)
    finite, subnormal = bits.is_finite, bits.is_subnormal
    zero = tf.constant(0, tf.int64)
    magnitude = tf.where(finite, tf.bitcast(bits.magnitude, tf.int64), zero)
    key = bits.signed(magnitude)  # has the same order as the values
    any_finite = tf.reduce_any(finite)
    # Do not use reduce_min(): GPUs have no kernel for it with int64.
    least = tf.where(any_finite, -tf.reduce_max(tf.where(finite, -key, tf.constant(-MAX_INT64, tf.int64))), zero)
    most = tf.where(any_finite, tf.reduce_max(tf.where(finite, key, tf.constant(-MAX_INT64, tf.int64))), zero)
    max_magnitude = tf.maximum(tf.abs(least), tf.abs(most))
    exponent = _exponent(max_magnitude)
    mean, stddev = (_unscaled(number, exponent) for number in _moments(_scaled(bits, tensor, exponent), finite))
    is_constant = tf.equal(least, most)
    return [
        _count(subnormal),
        _from_key(least),
        _from_key(most),
        tf.where(is_constant, _from_key(least), mean),
        tf.where(is_constant, _float64(0), stddev),
        _from_key(max_magnitude),
    ]


def _complex_magnitudes(real: Any, imag: Any) -> list[Any]:
    parts = [Bits(real), Bits(imag)]
    finite = tf.logical_and(parts[0].is_finite, parts[1].is_finite)
    subnormal = tf.logical_and(finite, tf.logical_or(parts[0].is_subnormal, parts[1].is_subnormal))
    if real.dtype == tf.float64:
        zero = tf.constant(0, tf.int64)
        larger = tf.bitcast(tf.maximum(parts[0].magnitude, parts[1].magnitude), tf.int64)
        max_magnitude = tf.reduce_max(tf.where(finite, larger, zero))
        exponent = _exponent(tf.maximum(max_magnitude, zero))  # reduce_max of no elements is the smallest integer
        values = [_scaled(bits, part, exponent) for bits, part in zip(parts, (real, imag), strict=True)]
    else:
        values = [_exact_float64(part) for part in (real, imag)]
    modulus = tf.sqrt(values[0] * values[0] + values[1] * values[1])
    max_abs = tf.maximum(tf.reduce_max(tf.where(finite, modulus, _float64(0))), _float64(0))
    if real.dtype == tf.float64:
        max_abs = _unscaled(max_abs, exponent)
    return [_count(subnormal), *[_float64(0)] * 4, max_abs]


def _exponent(magnitude: Any) -> Any:
    """Returns the exponent, as int64, of a power of two that is near the float64 with these bits.

    The inverse of the power is a normal number.
    """
    exponent = tf.bitwise.right_shift(magnitude, tf.constant(_MANTISSA_BITS, tf.int64)) - 1022
    return tf.clip_by_value(exponent, tf.constant(-1021, tf.int64), tf.constant(1021, tf.int64))


def _power_of_two(exponent: Any) -> Any:
    """Returns 2**exponent, clipped to the normal powers of two."""
    biased = tf.clip_by_value(exponent, tf.constant(-1022, tf.int64), tf.constant(1023, tf.int64)) + 1023
    return tf.bitcast(tf.bitwise.left_shift(biased, tf.constant(_MANTISSA_BITS, tf.int64)), tf.float64)


# Do not multiply three factors: Grappler reorders them, and the product of two may be out of range.


def _scaled(bits: Bits, tensor: Any, exponent: Any) -> Any:
    """Returns the elements as multiples of 2**exponent; 0 for elements that are not finite."""
    multiples = bits.signed(tf.cast(bits.magnitude, tf.float64))  # multiples of the smallest subnormal number
    subnormal = bits.is_subnormal
    is_normal = tf.logical_and(bits.is_finite, tf.logical_not(subnormal))
    normal = tf.where(is_normal, tensor, _float64(0)) * _power_of_two(-exponent)
    return tf.where(subnormal, multiples * _power_of_two(_EXPONENT_OF_SMALLEST - exponent), normal)


def _unscaled(number: Any, exponent: Any) -> Any:
    """Returns number * 2**exponent, even if the result is subnormal."""
    least_normal = _float64(2.0**_MANTISSA_BITS)
    multiple = tf.minimum(tf.abs(number) * _power_of_two(exponent - _EXPONENT_OF_SMALLEST), least_normal)
    key = tf.cast(tf.round(multiple), tf.int64)
    subnormal = _from_key(tf.where(tf.less(number, _float64(0)), -key, key))
    # If the power above is clipped, the result is normal, or negligible against the largest element.
    is_subnormal = tf.logical_and(tf.less(multiple, least_normal), tf.less(exponent, tf.constant(-51, tf.int64)))
    return tf.where(is_subnormal, subnormal, number * _power_of_two(exponent))


def _from_key(key: Any) -> Any:
    """Returns the float64 whose magnitude has the bits abs(key), with the sign of the key."""
    sign = tf.where(tf.less(key, tf.constant(0, tf.int64)), tf.int64.min, tf.constant(0, tf.int64))
    return tf.bitcast(tf.bitwise.bitwise_or(tf.abs(key), sign), tf.float64)


NUM_BAD_KINDS = 3
"""Number of kinds of bad elements: negative and positive infinities, and NaN. Their counts come first."""


def bad_kinds(tensor: Any, *, name: str | None = None) -> Any:
    """Returns whether a tensor has -infinity, infinity and NaN, as float32 of shape [3], where 0 means no.

    On an H200, this takes at most a third of the time of classes() for tensors of 16 million elements or more.

    Args:
        tensor: A tensor of a dtype in CHECKED_DTYPES.
        name: The name of the op that checks; None for any name.
    """
    mode = TensorDebugMode.REDUCE_INF_NAN_THREE_SLOTS
    return tf.raw_ops.DebugNumericSummaryV2(input=tensor, tensor_debug_mode=mode, output_dtype=tf.float32, name=name)


CHECKED_DTYPES = frozenset((tf.float16, tf.float32, tf.float64))
"""The dtypes for which bad_kinds() has kernels on GPUs."""


def num_classes(dtype: Any) -> int:
    """Returns the number of classes of a dtype's elements."""
    return 1 << _class_bits(tf.float64 if dtype in (tf.float64, tf.complex128) else tf.float32)


def classes(tensor: Any, *, is_exact: bool = False, name: str | None = None) -> Any:
    """Returns how many elements are in each class, as int32 of shape [1, num_classes(dtype)].

    The classes of positive numbers come first, by exponent. The last two classes of a sign are infinities and NaN. A
    NaN counts as an infinity if the first bit of its mantissa is not set; no computation makes such a NaN.

    Args:
        tensor: A tensor of shape [1, n]. TensorFlow counts a matrix in the shared memory of a GPU's processors.
            TensorFlow counts a vector in the memory of the whole GPU, where all processors wait for each other.
        is_exact: Whether to count subnormal numbers as the smallest normal number, and not as zeros.
        name: The name of the op that counts; None for any name.
    """
    values = tensor if tensor.dtype in FORMATS else readable(tensor)
    if is_exact and tensor.dtype in FORMATS:
        values = without_subnormals(tensor)
    return classes_of_bits(tf.bitcast(values, FORMATS[values.dtype].bits), values.dtype, name=name)


def classes_of_bits(bits: Any, dtype: Any, *, name: str | None = None) -> Any:
    """Returns the same as classes(), without `is_exact`, for the bits of elements of a dtype in FORMATS."""
    form = FORMATS[dtype]
    kinds = tf.bitwise.right_shift(bits, form.constant(form.num_bits - _class_bits(dtype)))
    indexes = tf.bitcast(kinds, tf.int32) if form.num_bits == 32 else tf.cast(kinds, tf.int32)
    return tf.raw_ops.DenseBincount(
        input=indexes, size=num_classes(dtype), weights=tf.constant([], tf.int32), name=name
    )


def _class_bits(dtype: Any) -> int:
    form = FORMATS[dtype]
    return form.num_bits - form.num_mantissa_bits + 1


def readable(tensor: Any) -> Any:
    """Returns numbers of the same kinds, in float32 or float64."""
    if tensor.dtype.is_complex:
        return representatives(tensor)
    return tensor if tensor.dtype in (tf.float32, tf.float64) else tf.cast(tensor, tf.float32)
