"""Histogram: how the elements of a recorded tensor are spread."""

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
    """Finite elements from `low` up to `high`; `high` itself is in it in the last bin, and where it is `low`."""

    low: float
    high: float
    num_elements: int


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How the elements of a tensor are spread.

    Attributes:
        is_modulus: Whether it is of the modulus of complex elements.
        num_elements: How many elements the tensor has.
        num_counted: How many of them, from the first on, were counted.
        num_nan: NaN among them.
        num_neg_inf: -infinity among them.
        num_pos_inf: +infinity among them; of complex ones, with an infinite part.
        bins: The finite ones, in bins of one width, or of integers a bin for each value; empty where there are none.
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
        """The finite elements among those that were counted."""
        return sum(bin_.num_elements for bin_ in self.bins)


def read_histogram(
    logdir: Engine, event_index: int, *, run_id: str, num_bins: int = NUM_BINS, max_bytes: int = MAX_BYTES
) -> Histogram | None:
    """Returns how the elements of a recorded tensor are spread, None where its values were not kept or are no numbers.

    Args:
        logdir: The logdir.
        event_index: Its row in tensor_health.
        run_id: The run.
        num_bins: At most so many bins.
        max_bytes: Of a larger tensor, only its first elements of so many bytes are counted.

    Raises:
        BrokenPartError: A part cannot be read.
    """
    found = read_array(logdir, event_index, run_id=run_id, max_bytes=max_bytes)
    return None if found is None else count_elements(found[0], num_elements=found[1], num_bins=num_bins)


def count_elements(array: npt.NDArray[Any], *, num_elements: int | None = None, num_bins: int = NUM_BINS) -> Histogram:
    """Returns how the elements of an array are spread.

    Args:
        array: The elements, of any shape; booleans, integers, floats or complex numbers.
        num_elements: How many elements there are of which these are the first; None: these.
        num_bins: At most so many bins.
    """
    is_modulus = array.dtype.kind == "c"
    if is_modulus:
        with np.errstate(over="ignore", invalid="ignore"):
            # An infinite part makes it infinite, whatever the other is; that is no NaN.
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
    # A quarter of it: the width of the greatest float64 would be infinite.
    counts, edges = np.histogram(finite.astype(np.float64) / 4, bins=num_bins, range=(low / 4, high / 4))
    ends = (edges * 4).tolist()
    return tuple(
        HistogramBin(low=ends[number], high=ends[number + 1], num_elements=count)
        for number, count in enumerate(counts.tolist())
    )
