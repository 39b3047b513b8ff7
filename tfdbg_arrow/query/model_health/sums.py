"""Sums over tensors, with one number for each column, and the means and ratios that are computed from them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
LARGEST = np.finfo(np.float64).max
_ADDED = (
    "num_tensors", "num_measured", "num_bad", "num_sized", "num_zero", "norm_square", "gradient_square",
    "num_bad_gradients", "weight_square", "num_bad_weights", "num_activation_sized", "num_activation_zero",
)  # fmt: skip
"""The quantities that are added up."""
_GREATEST = ("max_abs", "activation_max_abs", "update_ratio", "weight_update_ratio")
"""The quantities whose maximum is taken."""
_MOMENTS = ("num_elements", "mean", "squares")


class Sums:
    """Sums over the tensors of each column. NaN means that nothing was measured.

    Statistics of elements count only finite elements. The quantities are:

    * `num_tensors`: number of tensors;
    * `num_measured`: number of tensors that are known to be bad or not bad;
    * `num_bad`: number of bad tensors;
    * `num_sized`: number of elements of the tensors whose zeros were counted;
    * `num_zero`: number of these elements that are zero;
    * `max_abs`: largest magnitude;
    * `num_elements`: number of finite elements of the tensors whose mean is known;
    * `mean`: the mean of these elements;
    * `squares`: sum of the squared distances of these elements from the mean;
    * `norm_square`: the square of the norm. For each op output, the sums of squares of its tensors in the column are
      averaged; the averages of all op outputs are added;
    * `gradient_square`: like `norm_square`, for gradients of variables that are not bad;
    * `num_bad_gradients`: number of bad gradients of variables;
    * `weight_square`: like `norm_square`, for reads of trained variables that are not bad;
    * `num_bad_weights`: number of bad reads of trained variables;
    * `activation_max_abs`, `num_activation_sized`, `num_activation_zero`: the same quantities for the activations;
    * `update_ratio`: the greatest ratio of an update to its variable;
    * `weight_update_ratio`: like `update_ratio`, for variables that forward ops or the loss read.
    """

    def __init__(self, num_columns: int) -> None:
        self._of = {name: np.full(num_columns, np.nan) for name in (*_ADDED, *_GREATEST, *_MOMENTS)}

    def __getitem__(self, name: str) -> Numbers:
        return self._of[name]

    def set(self, column: int, names: Sequence[str], values: Sequence[float | None]) -> None:
        """Sets quantities of one column. None means that nothing was measured."""
        for name, value in zip(names, values, strict=True):
            self[name][column] = np.nan if value is None else value

    def add_ratio(self, column: int, ratio: float, *, is_weight: bool) -> None:
        """Adds the ratio of an update to its variable.

        Args:
            column: The column of the update.
            ratio: The ratio.
            is_weight: Whether a forward op or the loss reads the variable.
        """
        for name in ("update_ratio", "weight_update_ratio") if is_weight else ("update_ratio",):
            self[name][column] = np.fmax(self[name][column], ratio)

    def add(self, other: Sums) -> None:
        """Adds the tensors of another group.

        The formulas for the mean and the squares are from Chan, Golub and LeVeque, "Updating Formulae and a Pairwise
        Algorithm for Computing Sample Variances", 1979.
        """
        with np.errstate(all="ignore"):
            self._add_moments(other)
            for name in _ADDED:
                self._of[name] = _either(self[name], other[name], self[name] + other[name])
            for name in _GREATEST:
                self._of[name] = np.fmax(self[name], other[name])

    def _add_moments(self, other: Sums) -> None:
        number = self["num_elements"] + other["num_elements"]
        distance = other["mean"] - self["mean"]
        mean = self["mean"] + distance * (other["num_elements"] / number)
        between = distance * distance * (self["num_elements"] * (other["num_elements"] / number))
        squares = self["squares"] + other["squares"] + between
        for name, combined in (("mean", mean), ("squares", squares), ("num_elements", number)):
            is_one_sided = np.isnan(number)
            self._of[name] = np.where(is_one_sided, _either(self[name], other[name], combined), combined)


def _either(first: Numbers, second: Numbers, both: Numbers) -> Numbers:
    return np.where(np.isnan(first), second, np.where(np.isnan(second), first, both))


def share(part: Numbers, whole: Numbers) -> Numbers:
    """Returns part / whole, with NaN where the whole is 0 or unknown."""
    with np.errstate(all="ignore"):
        return np.where(whole > 0, part / whole, np.nan)


def root(squares: Numbers) -> Numbers:
    """Returns square roots, with NaN where the square is unknown."""
    with np.errstate(all="ignore"):
        return np.sqrt(np.maximum(squares, 0))


def numbers(values: Numbers) -> tuple[float | None, ...]:
    """Returns numbers, with None for NaN and the largest number for infinity."""
    return tuple(None if math.isnan(value) else min(max(value, -LARGEST), LARGEST) for value in values.tolist())
