"""Defines the health of a tensor: a readable NumPy implementation of the native kernels (`health.h`).

The C++ code computes the same numbers fast, and tests/writer/test_health.py compares the two over bit patterns of every
dtype. tests/writer/magnitudes.py defines the magnitudes, which only the C++ code computes. This module looks at values,
not at bits:

* -0.0 is a zero. A subnormal number is finite, not zero, and has a sign.
* An integer is negative, zero or positive. False is a zero and True is a positive number.
* A complex element is one element. The first of these rules that applies decides its kind: NaN if either part is NaN,
  -infinity if either part is -infinity, +infinity if either part is infinite, zero if both parts are zero. Otherwise,
  the element has the sign of its real part, or of its imaginary part if the real part is zero.

The processor must not flush subnormal numbers to zero while this code runs. Python threads do not do so by default.
"""

from __future__ import annotations

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
class HistogramSummary:
    """The finite elements other than zero, by their sign and power of two.

    Bucket i of both lists counts magnitudes from 2**(exponent + i) up to, but not including, the next power of two.
    """

    exponent: int | None
    """The exponent of the first bucket; None if there are no buckets."""
    negative: tuple[int, ...]
    """The number of negative elements in each bucket."""
    positive: tuple[int, ...]
    """The number of positive elements in each bucket, for the same buckets as `negative`.

    The first bucket and the last bucket each have at least one element, negative or positive.
    """


@dataclass(frozen=True)
class BadPlace:
    """Where the infinite and NaN elements of a tensor are."""

    first_index: int
    """Index of the first such element in row-major order."""
    num_slices: int | None
    """Number of slices along the first axis that contain such an element; None for a scalar."""


def summarize(array: Array) -> HealthSummary:
    """Counts the elements of each kind.

    Args:
        array: An array of any shape with a dtype of TENSORFLOW_DTYPES; bfloat16 and float8 are those of ml_dtypes.

    Returns:
        The six counts.

    Raises:
        TypeError: The dtype is not one of TENSORFLOW_DTYPES.
    """
    kinds = ElementKinds.of(array)
    return HealthSummary(
        num_neg_inf=_count(kinds.neg_inf),
        num_pos_inf=_count(kinds.pos_inf),
        num_nan=_count(kinds.nan),
        num_neg_finite=_count(kinds.finite & (kinds.sign < 0)),
        num_zero=_count(kinds.finite & (kinds.sign == 0)),
        num_pos_finite=_count(kinds.finite & (kinds.sign > 0)),
    )


def scalar_value(array: Array) -> float | None:
    """Returns the value of an array with one element (0.0 instead of -0.0); None for other numbers of elements.

    Args:
        array: An array of any shape and dtype; bfloat16 and float8 are those of ml_dtypes. Other dtypes than those of
            HISTOGRAM_DTYPES have no value.
    """
    if array.size != 1 or array.dtype.name not in HISTOGRAM_DTYPES:
        return None
    return float(float_values(array)[0]) + 0.0


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
    kinds = ElementKinds.of(array)
    values = float_values(array)[kinds.finite & (kinds.sign != 0)]
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
    is_bad = ~ElementKinds.of(array).finite
    if not is_bad.any():
        return None
    num_slices = sum(bool(slice_.any()) for slice_ in is_bad.reshape(len(array), -1)) if array.ndim else None
    return BadPlace(int(is_bad.argmax()), num_slices)


@dataclass(frozen=True)
class ElementKinds:
    """The kind of each element, and a number with its sign."""

    nan: npt.NDArray[np.bool_]
    neg_inf: npt.NDArray[np.bool_]
    pos_inf: npt.NDArray[np.bool_]
    finite: npt.NDArray[np.bool_]
    sign: Array

    @staticmethod
    def of(array: Array) -> ElementKinds:
        """Returns the kinds of an array's elements, in row-major order."""
        values = float_values(array)
        if values.dtype.kind == "c":
            real, imag = values.real, values.imag
            nan = np.isnan(real) | np.isnan(imag)
            neg_inf = ~nan & (np.isneginf(real) | np.isneginf(imag))
            pos_inf = ~nan & ~neg_inf & (np.isposinf(real) | np.isposinf(imag))
            sign = np.where(real != 0, real, imag)
        else:
            nan, neg_inf, pos_inf = np.isnan(values), np.isneginf(values), np.isposinf(values)
            sign = values
        return ElementKinds(nan, neg_inf, pos_inf, ~(nan | neg_inf | pos_inf), sign)


def float_values(array: Array) -> Array:
    """Returns the elements as a flat float64 or complex128 array, exactly except for large 64-bit integers."""
    if array.dtype.name not in TENSORFLOW_DTYPES:
        known = ", ".join(TENSORFLOW_DTYPES)
        raise TypeError(f"The health of dtype {array.dtype.name} is not defined; expected one of {known}.")
    with np.errstate(all="ignore"):  # a signaling NaN must not warn
        return array.reshape(-1).astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _count(condition: npt.NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(condition))
