"""Summaries of tensors, measured with TensorFlow's own ops on the device where the tensor lives.

A summary row is what `TfdbgArrowRecordSummary` takes: NUM_COLUMNS float64 numbers, in the order of `SummaryColumn`
in `native/record_op.h`. `pack` makes the rows of many tensors of a graph at once, `measure_row` the row of an eager
tensor, `fill_records` turns rows into spool records as the native op does. The numbers mean what
`native/reference.py` says; mean and stddev within its tolerance, the modulus of a complex element within one
unit in the last place.

The counts come from `DebugNumericSummaryV2` in FULL_HEALTH. Three things keep its answer right:

* TensorFlow's threads flush subnormal numbers to zero, on a CPU at least. So a subnormal is first replaced, by
  operations on the bits, with the smallest normal number of its sign; and magnitudes are taken of exact float64
  values, those of float64 itself of its bits.
* Its kernel on GPUs takes float16, float32 and float64 of those dtypes that matter: the others are converted,
  exactly (64-bit integers keep their sign). float8 is never fed to it: that ends the process.
* A complex element is represented by the real number that is of its kind.

TensorFlow cannot compute with three of the float8 dtypes at all (`can_measure`): `measure_array` measures their
elements on the host, with the NumPy twin.

All operations on bits are on unsigned integers: on GPUs the kernels for int32 run on the host.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfdbg_arrow.spool.records import NUM_INLINE_DIMS, Flag
from tfdbg_arrow.writer.native import reference
from tfdbg_arrow.writer.settings import TensorDebugMode

# Columns: rank, size, six dims, six counts, num_subnormal, min, max, mean, stddev, max_abs, num_finite.
SHAPE_COLUMNS = slice(0, 8)
COUNT_COLUMNS = slice(8, 14)
MAGNITUDE_COLUMNS = slice(14, 20)
NUM_FINITE_COLUMN = 20
NUM_COLUMNS = 21

# Source: tensorflow/core/protobuf/debug_event.proto, TensorDebugMode.
_FULL_HEALTH, _SHAPE = 4, 5
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
    measured = [_measurable(tensor, mode) for tensor in flat]
    counts = tf.stack([_summarize(tensor, _FULL_HEALTH) for tensor in measured])[:, 5:11]
    if mode is not TensorDebugMode.FULL_NUMERICS:
        return tf.concat([shapes, counts, tf.zeros([count, NUM_COLUMNS - 14], tf.float64)], axis=1)
    magnitudes = tf.stack([_magnitudes(*pair) for pair in zip(flat, measured, strict=True)])
    num_finite = tf.reduce_sum(counts[:, 3:], axis=1, keepdims=True)
    return tf.concat([shapes, counts, magnitudes, num_finite], axis=1)


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
            row[COUNT_COLUMNS] = _count_eagerly(tensor, mode).numpy()[5:11]
    return row


def _count_eagerly(tensor: Any, mode: TensorDebugMode) -> Any:
    """The FULL_HEALTH summary; subnormals are looked for only where there are zeros, as which they may be counted."""
    dtype = tensor.dtype
    tensor = _flat(tensor)
    if dtype in _FORMATS:
        counts = _summarize(tf.cast(tensor, tf.float32) if dtype == tf.bfloat16 else tensor, _FULL_HEALTH)
        if counts.numpy()[9] == 0:
            return counts
    return _summarize(_measurable(tensor, mode), _FULL_HEALTH)


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


def _summarize(tensor: Any, mode: int) -> Any:
    return tf.raw_ops.DebugNumericSummaryV2(input=tensor, output_dtype=tf.float64, tensor_debug_mode=mode, tensor_id=-1)


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
        return _summarize(tensor, _SHAPE)[2:]
    shape = tf.shape(tensor, out_type=tf.int64)
    dims = tf.concat([shape[-NUM_INLINE_DIMS:], tf.zeros([NUM_INLINE_DIMS], tf.int64)], axis=0)[:NUM_INLINE_DIMS]
    rank_and_size = tf.stack([tf.size(shape, out_type=tf.int64), tf.size(tensor, out_type=tf.int64)])
    return tf.cast(tf.concat([rank_and_size, dims], axis=0), tf.float64)


@dataclass(frozen=True)
class _Format:
    """The bits of a floating dtype that TensorFlow's threads may flush."""

    bits: Any
    """Unsigned integer dtype of the same width."""
    num_mantissa_bits: int
    num_bits: int
    smallest: float
    """The smallest subnormal, as float64; 0 for float64 itself."""

    @property
    def sign(self) -> int:
        return 1 << (self.num_bits - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return self.sign - self.smallest_normal

    @property
    def smallest_normal(self) -> int:
        return 1 << self.num_mantissa_bits

    def constant(self, value: int) -> Any:
        return tf.constant(value, self.bits)


_FORMATS = {
    tf.bfloat16: _Format(tf.uint16, 7, 16, 2.0**-133),
    tf.float32: _Format(tf.uint32, 23, 32, 2.0**-149),
    tf.float64: _Format(tf.uint64, 52, 64, 0.0),
}


class _Bits:
    """The elements of a tensor as unsigned integers: sign, magnitude, and what kind each is."""

    def __init__(self, tensor: Any) -> None:
        self.format = _FORMATS[tensor.dtype]
        self._all = tf.bitcast(tensor, self.format.bits)
        self.magnitude = tf.bitwise.bitwise_and(self._all, self.format.constant(self.format.sign - 1))

    @property
    def sign(self) -> Any:
        """The sign bit, the others 0."""
        return tf.bitwise.bitwise_and(self._all, self.format.constant(self.format.sign))

    @property
    def is_negative(self) -> Any:
        return tf.greater_equal(self._all, self.format.constant(self.format.sign))

    @property
    def is_finite(self) -> Any:
        return tf.less(self.magnitude, self.format.constant(self.format.infinity))

    @property
    def is_subnormal(self) -> Any:
        is_small = tf.less(self.magnitude, self.format.constant(self.format.smallest_normal))
        return tf.logical_and(is_small, tf.not_equal(self.magnitude, self.format.constant(0)))

    def signed(self, values: Any) -> Any:
        """Returns values with the elements' signs."""
        return tf.where(self.is_negative, -values, values)


def _without_subnormals(tensor: Any) -> Any:
    """The elements, each subnormal one replaced with the smallest normal number of its sign."""
    bits = _Bits(tensor)
    one = bits.format.constant(1)
    least = tf.bitwise.left_shift(tf.minimum(bits.magnitude, one), bits.format.constant(bits.format.num_mantissa_bits))
    return tf.bitcast(tf.bitwise.bitwise_or(tf.maximum(bits.magnitude, least), bits.sign), tensor.dtype)


def _measurable(tensor: Any, mode: TensorDebugMode) -> Any:
    """A tensor of float16, float32 or float64 whose elements are of the same kinds, none of them subnormal.

    A float16 may be: TensorFlow compares it as float32.
    """
    dtype = tensor.dtype
    if dtype.is_complex:
        return _representatives(tensor)
    if mode is TensorDebugMode.FULL_NUMERICS and dtype != tf.float64:
        return _exact_float64(tensor)  # which the magnitudes are taken of, too
    if dtype == tf.float16:
        return tensor
    if dtype in (tf.float32, tf.float64):
        return _without_subnormals(tensor)
    if dtype == tf.bfloat16:
        return tf.cast(_without_subnormals(tensor), tf.float32)
    return tf.cast(tensor, tf.float32 if dtype.is_floating else tf.float64)


def _representatives(tensor: Any) -> Any:
    """For each complex element a real number of its kind."""
    real, imag = (_without_subnormals(part) for part in (tf.math.real(tensor), tf.math.imag(tensor)))

    def either(is_kind: Any) -> Any:
        return tf.logical_or(is_kind(real), is_kind(imag))

    def constant(value: float) -> Any:
        return tf.constant(value, real.dtype)

    kind = tf.where(tf.not_equal(real, constant(0)), real, imag)
    for value in (np.inf, -np.inf):  # the later wins
        kind = tf.where(either(lambda part, value=value: tf.equal(part, constant(value))), constant(value), kind)
    return tf.where(either(tf.math.is_nan), constant(np.nan), kind)


def _exact_float64(tensor: Any) -> Any:
    """The elements of anything but float64 and complex as float64, where none is subnormal."""
    dtype = tensor.dtype
    if not dtype.is_floating:
        return tf.cast(tensor, tf.float64)
    if dtype not in _FORMATS:
        return tf.cast(tf.cast(tensor, tf.float32), tf.float64)
    bits = _Bits(tensor)
    subnormal = bits.signed(tf.cast(bits.magnitude, tf.float64) * bits.format.smallest)
    return tf.where(bits.is_subnormal, subnormal, tf.cast(tensor, tf.float64))


def _magnitudes(tensor: Any, measured: Any) -> Any:
    """num_subnormal, min, max, mean, stddev, max_abs over the finite elements, of shape [6]; 0 where there is none."""
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
    """The magnitudes of float64 values of which none is subnormal, nor the square of one."""
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
    # The second condition gives -0.0 as 0.0.
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
    """Mean and population standard deviation of values that are 0 where they are not finite."""
    count = tf.maximum(_count(finite), _float64(1))
    mean = tf.reduce_sum(values) / count
    distance = tf.where(finite, values - mean, _float64(0))
    return mean, tf.sqrt(tf.reduce_sum(distance * distance) / count)


# float64 is measured as its bits, or as multiples of 2**exponent, which is near the largest magnitude: so no square
# is too large, and what is too small vanishes against the largest.


def _float64_magnitudes(tensor: Any) -> list[Any]:
    bits = _Bits(tensor)
    finite, subnormal = bits.is_finite, bits.is_subnormal
    zero = tf.constant(0, tf.int64)
    magnitude = tf.where(finite, tf.bitcast(bits.magnitude, tf.int64), zero)
    key = bits.signed(magnitude)  # of the same order as the values
    any_finite = tf.reduce_any(finite)
    least = tf.where(any_finite, tf.reduce_min(tf.where(finite, key, tf.constant(_MAX_KEY, tf.int64))), zero)
    most = tf.where(any_finite, tf.reduce_max(tf.where(finite, key, tf.constant(-_MAX_KEY, tf.int64))), zero)
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
    parts = [_Bits(real), _Bits(imag)]
    finite = tf.logical_and(parts[0].is_finite, parts[1].is_finite)
    subnormal = tf.logical_and(finite, tf.logical_or(parts[0].is_subnormal, parts[1].is_subnormal))
    if real.dtype == tf.float64:
        zero = tf.constant(0, tf.int64)
        larger = tf.bitcast(tf.maximum(parts[0].magnitude, parts[1].magnitude), tf.int64)
        max_magnitude = tf.reduce_max(tf.where(finite, larger, zero))
        exponent = _exponent(tf.maximum(max_magnitude, zero))  # the greatest of no elements is the least integer
        values = [_scaled(bits, part, exponent) for bits, part in zip(parts, (real, imag), strict=True)]
    else:
        values = [_exact_float64(part) for part in (real, imag)]
    modulus = tf.sqrt(values[0] * values[0] + values[1] * values[1])
    max_abs = tf.maximum(tf.reduce_max(tf.where(finite, modulus, _float64(0))), _float64(0))
    if real.dtype == tf.float64:
        max_abs = _unscaled(max_abs, exponent)
    return [_count(subnormal), *[_float64(0)] * 4, max_abs]


_MAX_KEY = 2**63 - 1
_MANTISSA_BITS = 52
_EXPONENT_OF_SMALLEST = -1074


def _exponent(magnitude: Any) -> Any:
    """The exponent, as int64, of a power of two near the float64 with these bits, and with a normal inverse."""
    exponent = tf.bitwise.right_shift(magnitude, tf.constant(_MANTISSA_BITS, tf.int64)) - 1022
    return tf.clip_by_value(exponent, tf.constant(-1021, tf.int64), tf.constant(1021, tf.int64))


def _power_of_two(exponent: Any) -> Any:
    """2**exponent, between the smallest normal number and the greatest power of two."""
    biased = tf.clip_by_value(exponent, tf.constant(-1022, tf.int64), tf.constant(1023, tf.int64)) + 1023
    return tf.bitcast(tf.bitwise.left_shift(biased, tf.constant(_MANTISSA_BITS, tf.int64)), tf.float64)


# No product of three: Grappler reorders it, and what were factors in range become one out of range.


def _scaled(bits: _Bits, tensor: Any, exponent: Any) -> Any:
    """The elements as multiples of 2**exponent, 0 where they are not finite."""
    multiples = bits.signed(tf.cast(bits.magnitude, tf.float64))  # of the smallest subnormal
    subnormal = bits.is_subnormal
    is_normal = tf.logical_and(bits.is_finite, tf.logical_not(subnormal))
    normal = tf.where(is_normal, tensor, _float64(0)) * _power_of_two(-exponent)
    return tf.where(subnormal, multiples * _power_of_two(_EXPONENT_OF_SMALLEST - exponent), normal)


def _unscaled(number: Any, exponent: Any) -> Any:
    """Returns number * 2**exponent, also where that is subnormal."""
    least_normal = _float64(2.0**_MANTISSA_BITS)
    multiple = tf.minimum(tf.abs(number) * _power_of_two(exponent - _EXPONENT_OF_SMALLEST), least_normal)
    key = tf.cast(tf.round(multiple), tf.int64)
    subnormal = _from_key(tf.where(tf.less(number, _float64(0)), -key, key))
    # Where the power above is cut off, the result is either normal or nothing against the largest element.
    is_subnormal = tf.logical_and(tf.less(multiple, least_normal), tf.less(exponent, tf.constant(-51, tf.int64)))
    return tf.where(is_subnormal, subnormal, number * _power_of_two(exponent))


def _from_key(key: Any) -> Any:
    """The float64 whose magnitude has the bits abs(key), of the key's sign."""
    sign = tf.where(tf.less(key, tf.constant(0, tf.int64)), tf.int64.min, tf.constant(0, tf.int64))
    return tf.bitcast(tf.bitwise.bitwise_or(tf.abs(key), sign), tf.float64)
