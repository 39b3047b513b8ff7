"""Defines the magnitudes of a tensor: a readable NumPy implementation of `measure` of the native core."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tfdbg_arrow.writer.native.reference import Array, ElementKinds, float_values

RELATIVE_TOLERANCE = 1e-13
"""By how much the mean and stddev of another implementation may differ, as a share of max_abs.

The tolerance is at least the smallest float64 (5e-324). All other numbers must be equal.
"""


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


def measure(array: Array) -> NumericsSummary:
    """Measures the finite elements.

    Args:
        array: An array of any shape with a dtype of TENSORFLOW_DTYPES; bfloat16 and float8 are those of ml_dtypes.

    Returns:
        The magnitudes. The results are exact (mean and stddev use exact sums), even if a sum or a square of the
        elements would overflow or underflow in float64.

    Raises:
        TypeError: The dtype is not one of TENSORFLOW_DTYPES.
    """
    finite = float_values(array)[ElementKinds.of(array).finite]
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


def _count_subnormal(finite: Array, dtype: np.dtype[Any]) -> int:
    """Returns the number of finite elements between zero and the smallest normal number of the dtype.

    A complex element is subnormal if either part is subnormal.
    """
    if dtype.kind in "biu":
        return 0
    smallest = _smallest_normal(dtype)
    parts = (finite.real, finite.imag) if finite.dtype.kind == "c" else (finite,)
    return int(np.count_nonzero(np.any([(part != 0) & (np.abs(part) < smallest) for part in parts], axis=0)))


def _smallest_normal(dtype: np.dtype[Any]) -> float:
    if dtype.name in ("float16", "float32", "float64", "complex64", "complex128"):
        return float(np.finfo(dtype).smallest_normal)
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
