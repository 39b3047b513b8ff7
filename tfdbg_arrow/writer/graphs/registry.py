"""Ids of graphs, keys of their tensors, and which graph calls which."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfdbg_arrow.spool.graph_links import GraphLinks
from tfdbg_arrow.spool.journal import Journal
from tfdbg_arrow.writer.scopes import Scope

CallKey = tuple[str, str, int]
"""One call of an op: op name, attribute, branch index."""


@dataclass
class GraphState:
    """What is known of one graph.

    Attributes:
        graph_id: Identifies the graph within the run.
        num_described: How many of its ops, in order of creation, have rows.
        is_described: Whether the graph itself has its row.
        creations: For each op seen at its creation: stack trace id, wall time and scope.
        layers: For each op seen at its creation within a layer: the layer.
        taped: For each op that a gradient tape keeps, by the id of its attributes: these, and the op's name.
        callees: Calls that have rows: (op name, attribute, branch index) to callee's graph.
        edges: For each op with callees: how many inputs and outputs have rows. A gradient may add some later.
        unreached: Tensors to record as soon as a function runs their op, by op name and output slot: their keys,
            whether their elements are kept, and whether they stop the program if they are bad.
    """

    graph_id: int
    num_described: int = 0
    is_described: bool = False
    creations: dict[str, tuple[int, int, Scope]] = field(default_factory=dict)
    layers: dict[str, str] = field(default_factory=dict)
    taped: dict[int, tuple[object, str]] = field(default_factory=dict)
    callees: dict[CallKey, int | None] = field(default_factory=dict)
    edges: dict[str, tuple[int, int]] = field(default_factory=dict)
    unreached: dict[tuple[str, int], tuple[int, bool, bool]] = field(default_factory=dict)


class GraphRegistry(GraphLinks):
    """Gives out graph ids and tensor keys, and knows which graph calls which; the arguments are those of GraphLinks."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__(journal)
        self._num_graphs = 0

    def new_graph(self) -> GraphState:
        """Returns the state of a graph not seen before."""
        with self._lock:
            state = GraphState(graph_id=self._num_graphs)
            self._num_graphs += 1
            return state
