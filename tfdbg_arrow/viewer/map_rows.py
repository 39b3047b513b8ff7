"""The rows of a drawn map of layers: both sides of a layer are one row, and rows inside others can be folded."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.model_health.answers import LayerMap

MAX_SHOWN = 40
"""If a map has more rows than this, deep rows are folded."""


@dataclass(frozen=True, kw_only=True)
class MapRow:
    """One row of a drawn map: a layer with its forward side and its gradient side.

    Attributes:
        layer: As in LayerRow.
        kind: As in LayerRow.
        name: As in LayerRow.
        role: The role of the forward side. If there is no forward side, the role of the gradient side.
        depth: As in LayerRow.
        parent: Index of the row that contains this row; None for an outermost row.
        has_children: Whether this row contains other rows.
        is_open: Whether the rows inside this row are shown at first.
        forward: Index in `LayerMap.rows`; None if the layer has no forward side.
        gradient: Index in `LayerMap.rows`; None if the layer has no gradient side.
    """

    layer: str
    kind: str
    name: str
    role: str
    depth: int
    parent: int | None
    has_children: bool
    is_open: bool
    forward: int | None
    gradient: int | None


def mark_numbers(layers: LayerMap) -> dict[int, int]:
    """Returns the numbers of the marks on the way of the bad value, by row. The outlined cell is 1."""
    way = () if layers.origin is None else dict.fromkeys((layers.origin.row, *layers.path))
    return {index: number for number, index in enumerate(way, start=1)}


def map_rows(health: LayerMap) -> tuple[MapRow, ...]:
    """Returns the rows of a drawn map. If there are many rows, deep rows are folded, except on the origin's path."""
    sides: dict[tuple[str, str], dict[str, int]] = {}
    for index, row in enumerate(health.rows):
        sides.setdefault((row.kind, row.layer), {})[row.side] = index
    number_of_layer = {key: number for number, key in enumerate(sides)}
    parents: list[int | None] = []
    for kind, layer in sides:
        around = None
        while kind == "layer" and around is None and "/" in layer:
            layer = layer.rpartition("/")[0]
            around = number_of_layer.get((kind, layer))
        parents.append(around)
    depths = [health.rows[min(index_of_side.values())].depth for index_of_side in sides.values()]
    most = max(depths, default=0)
    while most and sum(depth <= most for depth in depths) > MAX_SHOWN:
        most -= 1
    is_open = [depth < most or len(sides) <= MAX_SHOWN for depth in depths]
    for index in health.path if health.origin is None else (health.origin.row, *health.path):
        at = parents[number_of_layer[health.rows[index].kind, health.rows[index].layer]]
        while at is not None:
            is_open[at] = True
            at = parents[at]
    rows = []
    for number, ((kind, layer), index_of_side) in enumerate(sides.items()):
        first = health.rows[min(index_of_side.values())]
        rows.append(
            MapRow(
                layer=layer,
                kind=kind,
                name="outside layers" if (kind, layer) == ("role", "forward") else first.name,
                role=first.role,
                depth=first.depth,
                parent=parents[number],
                has_children=number in parents,
                is_open=is_open[number],
                forward=index_of_side.get("forward"),
                gradient=index_of_side.get("gradient"),
            )
        )
    return tuple(rows)
