"""Node: a row of a map. The row of a layer includes the tensors of all layers inside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tfdbg_arrow.query.model_health.answers import LayerRow
from tfdbg_arrow.query.model_health.cells import Group, RowKey
from tfdbg_arrow.query.model_health.series import UpdateRatio
from tfdbg_arrow.query.model_health.sums import Numbers, Sums, root, share


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
        num_tensors = int(np.nansum(group.sums["num_tensors"]))
        for depth, key in enumerate(_around(group.key)):
            node = nodes.get(key)
            if node is None:
                node = nodes[key] = Node(key, Sums(num_columns))
            node.sums.add(group.sums)
            node.roles[group.role] += num_tensors
            node.num_outputs += group.num_outputs
            node.place = min(node.place, group.place)
            node.has_children |= depth > 0
    for ratio in ratios:
        for key in _around(ratio.key):
            if key in nodes:  # the variable was read, so it has a row
                nodes[key].sums.add_ratio(ratio.column, ratio.ratio, is_weight=ratio.is_weight)
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
