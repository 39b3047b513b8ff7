"""TensorHealth: what was measured of one tensor; every answer about a tensor has these attributes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorHealth:
    """The health of a tensor; None is "not measured in this mode".

    Attributes:
        event_index: Its row in tensor_health.
        dtype: Dtype by TensorFlow's name; None where an imported dump does not say it.
        shape: Dimensions.
        size: Number of elements.
        has_inf_or_nan: Whether any element is infinite or NaN.
        num_neg_inf: Elements that are -infinity.
        num_pos_inf: Elements that are +infinity.
        num_nan: Elements that are NaN.
        num_neg_finite: Finite elements below zero.
        num_zero: Elements that are zero.
        num_pos_finite: Finite elements above zero.
        num_subnormal: Subnormal elements.
        min_finite: Least finite element.
        max_finite: Greatest finite element.
        mean_finite: Mean of the finite elements.
        stddev_finite: Standard deviation of the finite elements.
        max_abs_finite: Greatest magnitude of a finite element.
    """

    event_index: int
    dtype: str | None
    shape: tuple[int, ...] | None
    size: int | None
    has_inf_or_nan: bool | None
    num_neg_inf: int | None
    num_pos_inf: int | None
    num_nan: int | None
    num_neg_finite: int | None
    num_zero: int | None
    num_pos_finite: int | None
    num_subnormal: int | None
    min_finite: float | None
    max_finite: float | None
    mean_finite: float | None
    stddev_finite: float | None
    max_abs_finite: float | None


HEALTH_COLUMNS = tuple(field.name for field in fields(TensorHealth))
"""The attributes, which are columns of tensor_health."""


def health_facts(tensor: TensorHealth) -> dict[str, Any]:
    """Returns the health of any answer about a tensor, by attribute, to make another about the same tensor with."""
    return {name: getattr(tensor, name) for name in HEALTH_COLUMNS}
