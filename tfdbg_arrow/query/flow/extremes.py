"""Extremes: ops that return the lowest or the largest number of the dtype for NaN, or for no elements."""

from __future__ import annotations

from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.schema.dtypes import DTYPES

POOLS = frozenset({"MaxPool", "MaxPoolV2", "MaxPool3D"})
"""Types of ops that return the lowest number of the dtype for a window of NaN."""
MAXIMA = POOLS | {"SegmentMaxV2", "UnsortedSegmentMax"}
"""Types of ops that return the lowest number of the dtype as the maximum of no elements."""
MINIMA = frozenset({"SegmentMinV2", "UnsortedSegmentMin"})
"""Types of ops that return the largest number of the dtype as the minimum of no elements."""
_LARGEST = {dtype.name: dtype.largest for dtype in DTYPES if dtype.largest is not None}


def largest_of(event: TensorEvent) -> float:
    """Returns the largest number of a tensor's dtype, or infinity if that number is not known."""
    return _LARGEST.get(event.dtype or "", float("inf"))


def may_hold_extreme(made: TensorEvent) -> bool:
    """Returns whether a maximum or minimum may hold the extreme value for no elements, as far as its signs show.

    If the smallest and largest elements were recorded, `holds_extreme` decides instead, and the result is False.
    """
    num_of_sign = made.num_neg_finite if made.op_type in MAXIMA else made.num_pos_finite
    is_of_type = made.op_type in (MAXIMA - POOLS) | MINIMA
    return is_of_type and made.has_inf_or_nan is False and made.min_finite is None and bool(num_of_sign)


def holds_extreme(made: TensorEvent, taken: TensorEvent) -> bool:
    """Returns whether an op of this module returned the extreme of the dtype for NaN or for no elements.

    The recorded smallest and largest elements show whether the output is an extreme. If these elements were not
    recorded, the signs show it: a maximum of non-negative numbers is not negative.

    Args:
        made: The finite output of the op.
        taken: The first input of the op.
    """
    is_max = made.op_type in MAXIMA
    if made.has_inf_or_nan is not False or not (is_max or made.op_type in MINIMA):
        return False
    if made.op_type in POOLS and not taken.num_nan:
        return False
    one, other = (made.min_finite, taken.min_finite) if is_max else (made.max_finite, taken.max_finite)
    if one is not None and other is not None:
        return abs(one) > largest_of(made) * 0.999 > abs(other)
    num_made = made.num_neg_finite if is_max else made.num_pos_finite
    num_taken = (taken.num_neg_finite, taken.num_neg_inf) if is_max else (taken.num_pos_finite, taken.num_pos_inf)
    return bool(num_made) and num_taken == (0, 0)
