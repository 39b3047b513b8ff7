"""The element counts of a tensor that follow from the counts of another tensor.

For example, `Relu` of one negative and two positive elements returns one zero and two positive elements. A reciprocal
that holds one infinity was computed from one zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tfdbg_arrow.query.recorded import TensorEvent

_MAGNITUDES = ("num_subnormal", "min_finite", "max_finite", "mean_finite", "stddev_finite", "max_abs_finite")
_PLACES = ("first_bad_index", "num_bad_slices")
NUMBERS = ("num_neg_inf", "num_neg_finite", "num_zero", "num_pos_finite", "num_pos_inf", "num_nan")
"""The columns that count elements by kind."""

Counts = dict[str, int | None]
"""The counts of a tensor by column. A count is None if it is unknown."""


def counted(row: TensorEvent, counts: Counts) -> TensorEvent | None:
    """Returns a row with other counts, or None if these counts are not known.

    The new row has no magnitudes and no places of bad elements: other elements may be bad, and an op such as Reshape or
    Transpose moves elements.
    """
    if any(getattr(row, name) is None for name in NUMBERS) or None in counts.values():
        return None
    bad = sum(counts[name] or 0 for name in ("num_neg_inf", "num_pos_inf", "num_nan"))
    changes: dict[str, Any] = {**counts, **dict.fromkeys((*_MAGNITUDES, *_PLACES)), "has_inf_or_nan": bad > 0}
    return replace(row, **changes)


def divided_by_0(dividend: TensorEvent | None, by_0: TensorEvent) -> TensorEvent | None:
    """Returns the row of a quotient by 0, given the row of its dividend; None if the quotient is not known.

    Args:
        dividend: The row of the dividend.
        by_0: A constant divided by the divisor. It is infinite everywhere.
    """
    if dividend is None or dividend.has_inf_or_nan is not False or by_0.shape not in ((), dividend.shape):
        return None
    made = {
        **dict.fromkeys(NUMBERS, 0), "num_nan": dividend.num_zero, "num_pos_inf": dividend.num_pos_finite,
        "num_neg_inf": dividend.num_neg_finite,
    }  # fmt: skip
    return counted(dividend, made)


def scaled(row: TensorEvent, divided_one: TensorEvent) -> TensorEvent | None:
    """Returns the row of a quotient, without magnitudes, given the row of its product with positive numbers.

    The product itself may overflow. So the result is None unless the row has as many bad elements as the reciprocal.
    """
    if row.shape != divided_one.shape or num_bad(row) != divided_one.num_pos_inf:
        return None
    unknown: dict[str, Any] = dict.fromkeys(_MAGNITUDES)
    return replace(row, **unknown)


def same(x: TensorEvent) -> Counts:
    """Returns the counts of x."""
    return {name: getattr(x, name) for name in NUMBERS}


def negative(x: TensorEvent) -> Counts:
    """Returns the counts of -x."""
    swapped = ("num_pos_inf", "num_pos_finite", "num_zero", "num_neg_finite", "num_neg_inf", "num_nan")
    return {name: getattr(x, source) for name, source in zip(NUMBERS, swapped, strict=True)}


def logarithm_undone(x: TensorEvent) -> Counts:
    """Returns the counts of the tensor whose logarithm is x. A NaN in x comes from a negative number or from a NaN."""
    return {
        **dict.fromkeys(NUMBERS, 0), "num_zero": x.num_neg_inf, "num_nan": None if x.num_nan else 0,
        "num_pos_finite": known_sum(x.num_neg_finite, x.num_zero, x.num_pos_finite), "num_pos_inf": x.num_pos_inf,
    }  # fmt: skip


def known_sum(*numbers: int | None) -> int | None:
    """Returns the sum of counts; None if a count is unknown."""
    counts = [number for number in numbers if number is not None]
    return sum(counts) if len(counts) == len(numbers) else None


def num_bad(x: TensorEvent) -> int | None:
    """Returns the number of bad elements; None if a count is unknown."""
    return known_sum(x.num_nan, x.num_neg_inf, x.num_pos_inf)


def ones(row: TensorEvent) -> TensorEvent:
    """Returns the row of a tensor of ones with the shape and dtype of another tensor."""
    counts = {**dict.fromkeys(NUMBERS, 0), "num_pos_finite": row.size}
    changes: dict[str, Any] = {
        **dict.fromkeys((*_MAGNITUDES, *_PLACES)), **counts, "num_subnormal": 0, "has_inf_or_nan": False,
    }  # fmt: skip
    return replace(row, **changes)


def _absolute(x: TensorEvent) -> Counts:
    return {
        **same(x), "num_neg_inf": 0, "num_neg_finite": 0,
        "num_pos_finite": known_sum(x.num_pos_finite, x.num_neg_finite),
        "num_pos_inf": known_sum(x.num_pos_inf, x.num_neg_inf),
    }  # fmt: skip


def _absolute_undone(x: TensorEvent) -> Counts:
    """Returns the counts of the tensor whose absolute value is x. The sign of an infinity is not known."""
    return {**same(x), "num_pos_inf": None if x.num_pos_inf else 0}


def _relu(x: TensorEvent) -> Counts:
    return {
        **same(x), "num_neg_inf": 0, "num_neg_finite": 0,
        "num_zero": known_sum(x.num_zero, x.num_neg_finite, x.num_neg_inf),
    }  # fmt: skip


def _root(x: TensorEvent) -> Counts:
    return {
        **same(x), "num_neg_inf": 0, "num_neg_finite": 0,
        "num_nan": known_sum(x.num_nan, x.num_neg_finite, x.num_neg_inf),
    }  # fmt: skip


def _root_undone(x: TensorEvent) -> Counts:
    """Returns the counts of the tensor whose root is x. A NaN in x comes from a negative number or from a NaN."""
    return {**same(x), "num_nan": None if x.num_nan else 0}


def reciprocal(x: TensorEvent) -> Counts:
    """Returns the counts of 1 / x. If x is a reciprocal, these are also the counts of its divisor."""
    return {**same(x), "num_neg_inf": 0, "num_pos_inf": x.num_zero, "num_zero": known_sum(x.num_pos_inf, x.num_neg_inf)}


COUNTS: dict[str, Callable[[TensorEvent], Counts]] = {
    **dict.fromkeys(("ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient", "Transpose"), same),
    "Abs": _absolute,
    "Neg": negative,
    "Relu": _relu,
    "Sqrt": _root,
}
"""By op type, the function that computes the counts of the output from the counts of the input.

Only op types whose counts are certain are included. Functions that can round to 0 or overflow, such as Square and Exp,
are left out.
"""
UNDONE: dict[str, Callable[[TensorEvent], Counts]] = {
    **dict.fromkeys(("ExpandDims", "Identity", "Relu", "Reshape", "Squeeze", "StopGradient", "Transpose"), same),
    "Abs": _absolute_undone,
    "Log": logarithm_undone,
    "Neg": negative,
    "Sqrt": _root_undone,
}
"""By op type, the function that computes the bad elements of the input from the bad elements of the output.

The finite elements before Abs and Relu are not known. The result has the finite elements of the output instead.
"""
