"""Node: a row of a map. The row of a layer includes the tensors of all layers inside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tfdbg_arrow.query.model_health.answers import LayerRow
from tfdbg_arrow.query.model_health.cells import CellSums, Group, RowKey
from tfdbg_arrow.query.model_health.series import UpdateRatio

Numbers = npt.NDArray[np.float64]
LARGEST = np.finfo(np.float64).max
_ADDED = (
    "num_tensors", "num_measured", "num_bad", "num_sized", "num_zero", "norm_square", "gradient_square",
    "num_bad_gradients", "weight_square", "num_bad_weights", "num_activation_sized", "num_activation_zero",
)  # fmt: skip
"""The attributes of CellSums that are added up."""
_GREATEST = ("max_abs", "activation_max_abs", "update_ratio", "weight_update_ratio")
"""The quantities for which the maximum is taken: attributes of CellSums, and update ratios."""
_MOMENTS = ("num_elements", "mean", "squares")


class Sums:
    """Sums over tensors, one number for each column. NaN means that nothing was measured.

    The quantities are the attributes of CellSums, `update_ratio`, and `weight_update_ratio`. The latter counts only
    variables that forward ops or the loss read.
    """

    def __init__(self, num_columns: int) -> None:
        self._of = {name: np.full(num_columns, np.nan) for name in (*_ADDED, *_GREATEST, *_MOMENTS)}

    def __getitem__(self, name: str) -> Numbers:
        return self._of[name]

    @classmethod
    def of(cls, cells: Iterable[CellSums], num_columns: int) -> Sums:
        """Returns the sums of cells in different columns."""
        sums = cls(num_columns)
        for cell in cells:
            for name, of_columns in sums._of.items():
                value = getattr(cell, name, None)
                of_columns[cell.column] = np.nan if value is None else value
        return sums

    def add_ratio(self, ratio: UpdateRatio) -> None:
        """Adds an update ratio."""
        for name in ("update_ratio", *(("weight_update_ratio",) if ratio.is_weight else ())):
            self[name][ratio.column] = np.fmax(self[name][ratio.column], ratio.ratio)

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


@dataclass
class Node:
    """One row.

    Attributes:
        key: The row.
        sums: The sums over the tensors of the row and of the rows inside it.
        roles: Number of tensors by role.
        num_outputs: Number of op outputs.
        place: The sort key among siblings.
        has_children: Whether other rows of the same side are inside this row.
    """

    key: RowKey
    sums: Sums
    roles: Counter[str | None] = field(default_factory=Counter)
    num_outputs: int = 0
    place: tuple[int, int, int] = (2**63, 0, 0)
    has_children: bool = False

    @property
    def num_bad(self) -> int:
        """Number of bad tensors."""
        return int(np.nansum(self.sums["num_bad"]))

    def row(self) -> LayerRow:
        """Returns the row."""
        return LayerRow(
            layer=self.key.path,
            kind=self.key.kind,
            name=self.key.name,
            depth=self.key.depth,
            side="gradient" if self.key.is_gradient else "forward",
            role="gradient" if self.key.is_gradient else self.role,
            has_children=self.has_children,
            num_outputs=self.num_outputs,
            num_bad=self.num_bad,
        )

    @property
    def role(self) -> str:
        """The role of most tensors of the row; for gradients, the role of their forward ops."""
        role_counts = [(number, role) for role, number in self.roles.items() if role is not None]
        return max(role_counts)[1] if role_counts else "forward"


def make_nodes(groups: Iterable[Group], ratios: Iterable[UpdateRatio], num_columns: int) -> list[Node]:
    """Returns the rows in order, including rows for layers that contain only other layers."""
    nodes: dict[RowKey, Node] = {}
    for group in groups:
        sums = Sums.of(group.cells, num_columns)
        for depth, key in enumerate(_around(group.key)):
            node = nodes.get(key)
            if node is None:
                node = nodes[key] = Node(key, Sums(num_columns))
            node.sums.add(sums)
            node.roles[group.role] += sum(cell.num_tensors for cell in group.cells)
            node.num_outputs += group.num_outputs
            node.place = min(node.place, group.place)
            node.has_children |= depth > 0
    for ratio in ratios:
        for key in _around(ratio.key):
            if key in nodes:  # the variable was read, so it has a row
                nodes[key].sums.add_ratio(ratio)
    return _ordered(nodes)


def _around(key: RowKey) -> Iterator[RowKey]:
    """Yields a row and the rows of the layers that contain it."""
    yield key
    path = key.path
    while key.kind == "layer" and "/" in path:
        path = path.rpartition("/")[0]
        yield RowKey(key.kind, path, key.is_gradient)


def _ordered(nodes: dict[RowKey, Node]) -> list[Node]:
    """Returns the rows in the order in which the program made their first ops, each row before the rows inside it."""
    # The first forward op decides the place of both sides. Without forward tensors, the first gradient op decides.
    places: dict[tuple[str, str], tuple[bool, tuple[int, int, int]]] = {}
    for key, node in nodes.items():
        place = (key.is_gradient, node.place)
        places[key.kind, key.path] = min(place, places.get((key.kind, key.path), place))

    def order(node: Node) -> tuple[object, ...]:
        names = node.key.path.split("/") if node.key.kind == "layer" else [node.key.path]
        levels = ["/".join(names[: level + 1]) for level in range(len(names))]
        return (*[(places[node.key.kind, level][1], node.key.kind, level) for level in levels],), node.key.is_gradient

    return sorted(nodes.values(), key=order)


def measured(node: Node, name: str) -> Numbers:
    """Returns a measure of a row, with NaN where the measure is not known."""
    sums = node.sums
    match name:
        case "bad_share":
            return share(sums["num_bad"], sums["num_measured"])
        case "zero_share":
            return share(sums["num_zero"], sums["num_sized"])
        case "stddev":
            return root(share(sums["squares"], sums["num_elements"]))
        case "norm":
            is_of_variables = node.key.is_gradient and not np.isnan(sums["gradient_square"]).all()
            return root(sums["gradient_square" if is_of_variables else "norm_square"])
        case _:
            return sums[name]


def bad_numbers(node: Node) -> tuple[int, ...]:
    """Returns the number of bad tensors of a row in each column."""
    return tuple(int(number) for number in np.nan_to_num(node.sums["num_bad"]))


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
