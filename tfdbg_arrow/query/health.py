"""TensorHealth: the measurements of one tensor. Every answer about a tensor has these attributes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorHealth:
    """The health of a tensor. None means not measured in this mode.

    Attributes:
        event_index: Its row in tensor_health.
        dtype: TensorFlow's name of the dtype; None if an imported dump does not contain it.
        shape: Dimensions.
        size: Number of elements.
        has_inf_or_nan: Whether any element is infinite or NaN.
        num_neg_inf: Number of elements that are -infinity.
        num_pos_inf: Number of elements that are +infinity.
        num_nan: Number of elements that are NaN.
        num_neg_finite: Number of finite elements below zero.
        num_zero: Number of elements that are zero.
        num_pos_finite: Number of finite elements above zero.
        num_subnormal: Number of subnormal elements.
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
"""The attributes of TensorHealth, which are columns of tensor_health."""


def health_facts(tensor: TensorHealth) -> dict[str, Any]:
    """Returns the health attributes of an answer, as keyword arguments for another answer about the same tensor."""
    return {name: getattr(tensor, name) for name in HEALTH_COLUMNS}
