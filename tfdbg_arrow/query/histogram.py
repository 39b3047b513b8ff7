"""Histogram: the distribution of the elements of a recorded tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.values import MAX_BYTES, read_array

NUM_BINS = 40


@dataclass(frozen=True, kw_only=True)
class HistogramBin:
    """Number of finite elements in [low, high). In the last bin, and if `low` equals `high`, `high` is included."""

    low: float
    high: float
    num_elements: int


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The distribution of the elements of a tensor.

    Attributes:
        is_modulus: Whether it shows the modulus of complex elements.
        num_elements: Number of elements of the tensor.
        num_counted: Number of elements, starting at the first, that were counted.
        num_nan: Number of NaN among them.
        num_neg_inf: Number of -infinity among them.
        num_pos_inf: Number of +infinity among them. For complex dtypes, the number with an infinite part.
        bins: The finite elements in bins of equal width, or for few integer values one bin per value; empty if there
            are no finite elements.
    """

    is_modulus: bool
    num_elements: int
    num_counted: int
    num_nan: int
    num_neg_inf: int
    num_pos_inf: int
    bins: tuple[HistogramBin, ...]

    @property
    def num_finite(self) -> int:
        """Number of finite elements among those that were counted."""
        return sum(bin_.num_elements for bin_ in self.bins)


def read_histogram(
    logdir: Engine, event_index: int, *, run_id: str, num_bins: int = NUM_BINS, max_bytes: int = MAX_BYTES
) -> Histogram | None:
    """Returns the distribution of a recorded tensor's elements, or None if they were not kept or are not numbers.

    Args:
        logdir: The logdir.
        event_index: Its row in tensor_health.
        run_id: The run.
        num_bins: Maximum number of bins.
        max_bytes: Only count the first elements of a larger tensor, up to this number of bytes.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    found = read_array(logdir, event_index, run_id=run_id, max_bytes=max_bytes)
    return None if found is None else count_elements(found[0], num_elements=found[1], num_bins=num_bins)


def count_elements(array: npt.NDArray[Any], *, num_elements: int | None = None, num_bins: int = NUM_BINS) -> Histogram:
    """Returns the distribution of the elements of an array.

    Args:
        array: The elements, of any shape: booleans, integers, floats or complex numbers.
        num_elements: Number of elements of the whole tensor; None if the array holds all of them.
        num_bins: Maximum number of bins.
    """
    is_modulus = array.dtype.kind == "c"
    if is_modulus:
        with np.errstate(over="ignore", invalid="ignore"):
            # A number with an infinite part is infinite, even if the other part is NaN.
            array = np.abs(array)
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array.reshape(-1)
    is_float = array.dtype.kind == "f"
    return Histogram(
        is_modulus=is_modulus,
        num_elements=array.size if num_elements is None else num_elements,
        num_counted=array.size,
        num_nan=int(np.isnan(array).sum()) if is_float else 0,
        num_neg_inf=int(np.isneginf(array).sum()) if is_float else 0,
        num_pos_inf=int(np.isposinf(array).sum()) if is_float else 0,
        bins=_bins(finite, num_bins),
    )


def _bins(finite: npt.NDArray[Any], num_bins: int) -> tuple[HistogramBin, ...]:
    if not finite.size:
        return ()
    low, high = finite.min().item(), finite.max().item()
    if low == high:
        return (HistogramBin(low=float(low), high=float(high), num_elements=finite.size),)
    if finite.dtype.kind != "f" and high - low < num_bins:
        values, counts = np.unique(finite, return_counts=True)
        found = dict(zip(values.tolist(), counts.tolist(), strict=True))
        return tuple(
            HistogramBin(low=float(value), high=float(value), num_elements=found.get(value, 0))
            for value in range(int(low), int(high) + 1)
        )
    # The elements are divided by 4, because the range of the greatest float64 values would be infinite.
    counts, edges = np.histogram(finite.astype(np.float64) / 4, bins=num_bins, range=(low / 4, high / 4))
    ends = (edges * 4).tolist()
    return tuple(
        HistogramBin(low=ends[number], high=ends[number + 1], num_elements=count)
        for number, count in enumerate(counts.tolist())
    )
