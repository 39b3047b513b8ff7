"""Defines the health of a tensor: a readable NumPy implementation of the native kernels (`health.h`).

The C++ code computes the same numbers fast, and tests/writer/test_health.py compares the two over bit patterns of every
dtype. This module looks at values, not at bits:

* -0.0 is a zero. A subnormal number is finite, not zero, and has a sign.
* An integer is negative, zero or positive. False is a zero and True is a positive number.
* A complex element is one element. The first of these rules that applies decides its kind: NaN if either part is NaN,
  -infinity if either part is -infinity, +infinity if either part is infinite, zero if both parts are zero. Otherwise it
  has the sign of its real part, or of its imaginary part if the real part is zero. It is subnormal if it is finite and
  either part is subnormal.

The processor must not flush subnormal numbers to zero while this code runs. Python threads do not do so by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.schema.dtypes import DTYPES

Array = np.ndarray[Any, np.dtype[Any]]

TENSORFLOW_DTYPES = {dtype.name: dtype.number for dtype in DTYPES if dtype.has_health}
"""The dtypes whose health is defined: the name in NumPy and the number in TensorFlow's enum DataType."""

HISTOGRAM_DTYPES = tuple(dtype.name for dtype in DTYPES if dtype.has_health and dtype.kind == "float")
"""The dtypes that have a histogram: the real floating-point types."""

RELATIVE_TOLERANCE = 1e-13
"""How far the mean and stddev of another implementation may differ from these, as a share of max_abs.

The tolerance is at least the smallest float64 (5e-324). All other numbers must be equal.
"""


@dataclass(frozen=True)
class HealthSummary:
    """The number of elements of each kind; the six counts add up to the number of elements."""

    num_neg_inf: int
    num_pos_inf: int
    num_nan: int
    num_neg_finite: int
    num_zero: int
    num_pos_finite: int


@dataclass(frozen=True)
class NumericsSummary:
    """Magnitudes of the finite elements, as float64; 64-bit integers are rounded to float64 first."""

    num_subnormal: int
    """Number of subnormal elements; 0 for integers."""
    min: float
    """Smallest element, 0.0 if it is -0.0; 0.0 if not `ordered`."""
    max: float
    """Largest element, 0.0 if it is -0.0; 0.0 if not `ordered`."""
    mean: float
    """Arithmetic mean; 0.0 if not `ordered`."""
    stddev: float
    """Population standard deviation; 0.0 if not `ordered`."""
    max_abs: float
    """Largest magnitude (the modulus for complex elements); 0.0 if not `any_finite`."""
    any_finite: bool
    """Whether max_abs exists."""
    ordered: bool
    """Whether min, max, mean and stddev exist: a real dtype with a finite element."""


@dataclass(frozen=True)
class HistogramSummary:
    """The finite elements other than zero, by their sign and power of two.

    Bucket i of both lists counts magnitudes from 2**(exponent + i) up to, but not including, the next power of two.
    """

    exponent: int | None
    """The exponent of the first bucket; None if there are no buckets."""
    negative: tuple[int, ...]
    """The negative elements of each bucket."""
    positive: tuple[int, ...]
    """The positive elements of each bucket; as many buckets as `negative`.

    The first and the last bucket have an element of either sign.
    """


@dataclass(frozen=True)
class BadPlace:
    """Where the infinite and NaN elements of a tensor are."""

    first_index: int
    """Index of the first one in row-major order."""
    num_slices: int | None
    """Number of slices along the first axis that have one; None for a scalar."""


def summarize(array: Array) -> HealthSummary:
    """Counts the elements of each kind.

    Args:
        array: An array of any shape with a dtype of TENSORFLOW_DTYPES; bfloat16 and float8 are those of ml_dtypes.

    Returns:
        The six counts.

    Raises:
        TypeError: The dtype is not one of TENSORFLOW_DTYPES.
    """
    kinds = _Kinds.of(array)
    return HealthSummary(
        num_neg_inf=_count(kinds.neg_inf),
        num_pos_inf=_count(kinds.pos_inf),
        num_nan=_count(kinds.nan),
        num_neg_finite=_count(kinds.finite & (kinds.sign < 0)),
        num_zero=_count(kinds.finite & (kinds.sign == 0)),
        num_pos_finite=_count(kinds.finite & (kinds.sign > 0)),
    )


def measure(array: Array) -> NumericsSummary:
    """Measures the finite elements.

    Args:
        array: An array of any shape with a dtype of TENSORFLOW_DTYPES; bfloat16 and float8 are those of ml_dtypes.

    Returns:
        The magnitudes. They are exact (mean and stddev use exact sums), also if a sum or a square of the elements
        would overflow or underflow in float64.

    Raises:
        TypeError: The dtype is not one of TENSORFLOW_DTYPES.
    """
    finite = _values(array)[_Kinds.of(array).finite]
    num_subnormal = _count_subnormal(finite, array.dtype)
    if finite.size == 0:
        return NumericsSummary(num_subnormal, 0.0, 0.0, 0.0, 0.0, 0.0, any_finite=False, ordered=False)
    if finite.dtype.kind == "c":
        with np.errstate(all="ignore"):
            max_abs = float(np.hypot(finite.real, finite.imag).max())
        return NumericsSummary(num_subnormal, 0.0, 0.0, 0.0, 0.0, max_abs, any_finite=True, ordered=False)
    mean, stddev = _moments(finite)
    return NumericsSummary(
        num_subnormal=num_subnormal,
        min=float(finite.min()) + 0.0,
        max=float(finite.max()) + 0.0,
        mean=mean,
        stddev=stddev,
        max_abs=float(np.abs(finite).max()),
        any_finite=True,
        ordered=True,
    )


def scalar_value(array: Array) -> float | None:
    """Returns the only element, 0.0 if it is -0.0; None if there is another number of elements.

    Args:
        array: An array of any shape and dtype; bfloat16 and float8 are those of ml_dtypes. Other dtypes than those of
            HISTOGRAM_DTYPES have no value.
    """
    if array.size != 1 or array.dtype.name not in HISTOGRAM_DTYPES:
        return None
    return float(_values(array)[0]) + 0.0


def count_histogram(array: Array) -> HistogramSummary:
    """Counts the finite elements other than zero by their sign and power of two.

    Args:
        array: An array of any shape with a dtype of HISTOGRAM_DTYPES; bfloat16 and float8 are those of ml_dtypes.

    Returns:
        The histogram. Subnormal numbers are in the bucket of their true power of two.

    Raises:
        TypeError: The dtype is not one of HISTOGRAM_DTYPES.
    """
    if array.dtype.name not in HISTOGRAM_DTYPES:
        dtypes = ", ".join(HISTOGRAM_DTYPES)
        raise TypeError(f"dtype {array.dtype.name} has no histogram; expected one of {dtypes}.")
    kinds = _Kinds.of(array)
    values = _values(array)[kinds.finite & (kinds.sign != 0)]
    if values.size == 0:
        return HistogramSummary(None, (), ())
    exponents = np.frexp(values)[1].astype(np.int64) - 1  # frexp's fractions are from 0.5 to below 1
    first = int(exponents.min())
    num_buckets = int(exponents.max()) - first + 1
    negative, positive = (
        tuple(np.bincount(exponents[is_on_side] - first, minlength=num_buckets).tolist())
        for is_on_side in (values < 0, values > 0)
    )
    return HistogramSummary(first, negative, positive)


def find_bad(array: Array) -> BadPlace | None:
    """Returns where the infinite and NaN elements are, or None if there are none.

    Args:
        array: An array with a dtype of TENSORFLOW_DTYPES; bfloat16 and float8 are those of ml_dtypes.

    Raises:
        TypeError: The dtype is not one of TENSORFLOW_DTYPES.
    """
    is_bad = ~_Kinds.of(array).finite
    if not is_bad.any():
        return None
    num_slices = sum(bool(slice_.any()) for slice_ in is_bad.reshape(len(array), -1)) if array.ndim else None
    return BadPlace(int(is_bad.argmax()), num_slices)


@dataclass(frozen=True)
class _Kinds:
    """The kind of each element, and a number with its sign."""

    nan: npt.NDArray[np.bool_]
    neg_inf: npt.NDArray[np.bool_]
    pos_inf: npt.NDArray[np.bool_]
    finite: npt.NDArray[np.bool_]
    sign: Array

    @staticmethod
    def of(array: Array) -> _Kinds:
        values = _values(array)
        if values.dtype.kind == "c":
            real, imag = values.real, values.imag
            nan = np.isnan(real) | np.isnan(imag)
            neg_inf = ~nan & (np.isneginf(real) | np.isneginf(imag))
            pos_inf = ~nan & ~neg_inf & (np.isposinf(real) | np.isposinf(imag))
            sign = np.where(real != 0, real, imag)
        else:
            nan, neg_inf, pos_inf = np.isnan(values), np.isneginf(values), np.isposinf(values)
            sign = values
        return _Kinds(nan, neg_inf, pos_inf, ~(nan | neg_inf | pos_inf), sign)


def _values(array: Array) -> Array:
    """Returns the elements as a flat float64 or complex128 array, exactly except for large 64-bit integers."""
    if array.dtype.name not in TENSORFLOW_DTYPES:
        known = ", ".join(TENSORFLOW_DTYPES)
        raise TypeError(f"The health of dtype {array.dtype.name} is not defined; expected one of {known}.")
    with np.errstate(all="ignore"):  # a signaling NaN must not warn
        return array.reshape(-1).astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _count(condition: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(condition))


def _count_subnormal(finite: Array, dtype: np.dtype[Any]) -> int:
    """Returns the number of finite elements between zero and the smallest normal number of the dtype."""
    if dtype.kind in "biu":
        return 0
    smallest = _smallest_normal(dtype)
    parts = (finite.real, finite.imag) if finite.dtype.kind == "c" else (finite,)
    return _count(np.any([(part != 0) & (np.abs(part) < smallest) for part in parts], axis=0))


def _smallest_normal(dtype: np.dtype[Any]) -> float:
    if dtype.name in ("float16", "float32", "float64", "complex64", "complex128"):
        return float(np.finfo(dtype).smallest_normal)
    import ml_dtypes  # comes with TensorFlow; only ml_dtypes can make an array of such a dtype

    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).smallest_normal)


def _moments(finite: Array) -> tuple[float, float]:
    """Returns mean and population standard deviation, computed from elements scaled to about 1 by a power of two."""
    if finite.min() == finite.max():
        return float(finite[0]) + 0.0, 0.0
    _, exponent = math.frexp(float(np.abs(finite).max()))
    scaled = np.ldexp(finite, -exponent)
    mean = math.fsum(scaled) / scaled.size
    variance = math.fsum((scaled - mean) ** 2) / scaled.size
    return math.ldexp(mean, exponent), math.ldexp(math.sqrt(variance), exponent)
