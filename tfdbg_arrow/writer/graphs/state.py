"""The state of a graph of the program, while it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class GraphState:
    """The state of one graph.

    Attributes:
        graph_id: Identifies the graph within the run.
        num_described: How many ops have rows, in order of creation.
        is_described: Whether the graph itself has its row.
        creations: The native core's Creations: the place, time and scope in which each op without a row was created.
        layers: The layer of each op that was created in a layer during the recording.
        taped: Attributes and name of each op that a gradient tape keeps, by the `id()` of the attributes.
        callees: The called graph of each call that has a row, by op name, attribute and branch index.
        edges: How many inputs and outputs have rows, for each op with callees. A gradient may add more later.
    """

    graph_id: int
    creations: Any
    num_described: int = 0
    is_described: bool = False
    layers: dict[str, str] = field(default_factory=dict)
    taped: dict[int, tuple[object, str]] = field(default_factory=dict)
    callees: dict[tuple[str, str, int], int | None] = field(default_factory=dict)
    edges: dict[str, tuple[int, int]] = field(default_factory=dict)
