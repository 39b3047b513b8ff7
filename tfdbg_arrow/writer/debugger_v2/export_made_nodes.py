"""Reads the nodes that TensorFlow's optimizer made and that have rows in tensor_health, for a Debugger V2 dump.

Source: spec/README.md, "Optimized graphs".
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfdbg_arrow.writer.debugger_v2.export_tables import RunTables, to_rows

_GRAPH_WINDOW = 16
_HANDING_ON = frozenset({
    "Enter", "Exit", "Identity", "IdentityN", "NextIteration", "RefEnter", "RefExit", "RefNextIteration", "RefSwitch",
    "Switch", "_EagerConst", "_SwitchN",
})  # fmt: skip
"""Types of nodes that TensorFlow adds at the borders of calls, branches and loops, and that only forward a tensor."""

_NodeKey = tuple[int, str]
"""The optimized graph and the name of a node in it."""
_Tensor = tuple[str, int]
"""The name of a node and the index of its output."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """An input tensor of a node.

    Attributes:
        graph_id: The program's graph of the node that produces the tensor; None if unknown.
        op_name: The name of that node, as in tensor_health.
        output_slot: Index of the output.
        is_near: Whether that node ran in the same call of the same graph as the consuming node.
    """

    graph_id: int | None
    op_name: str
    output_slot: int
    is_near: bool


@dataclass(frozen=True, kw_only=True)
class MadeNode:
    """A node that the optimizer made.

    Attributes:
        graph_id: The program's graph that the node comes from.
        node_name: Its name.
        op_type: An op type that ran under that name.
        made_for: The op of the graph that the node was made for, or None.
        device_name: The device that TensorFlow chose, or None.
        num_outputs: Number of output tensors.
        sources: The input tensors, in order.
    """

    graph_id: int
    node_name: str
    op_type: str
    made_for: str | None
    device_name: str | None
    num_outputs: int
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class _Node:
    """One row of executed_op."""

    node_name: str
    op_type: str
    graph_id: int | None
    op_name: str | None
    made_for: str | None
    call_site: str | None
    device_name: str | None
    output_dtypes: str | None


def read_made_nodes(tables: RunTables) -> list[MadeNode]:
    """Returns the made nodes with rows in tensor_health, one for each graph and name, in the order of their graphs.

    Raises:
        BrokenPartError: A part cannot be read.
        PartGoneError: A part was replaced in the meantime.
    """
    if not tables.num_rows("executed_op"):
        return []
    key = ("graph_id", "op_name", "op_type")
    recorded = tables.greatest("tensor_health", "output_slot", by=key, where=("scope", "graph"))
    num_slots: dict[tuple[int, str], int] = defaultdict(int)
    for (graph_id, op_name, _), slot in recorded.items():
        num_slots[graph_id, op_name] = max(num_slots[graph_id, op_name], slot + 1)
    found: dict[tuple[int, str], MadeNode] = {}
    for nodes, inputs in _executed_graphs(tables):
        for (executed_graph_id, name), node in sorted(nodes.items()):
            graph_id = node.graph_id
            if node.op_name is not None or graph_id is None or (graph_id, name, node.op_type) not in recorded:
                continue
            if (graph_id, name) not in found:
                found[graph_id, name] = MadeNode(
                    graph_id=graph_id,
                    node_name=name,
                    op_type=node.op_type,
                    made_for=node.made_for,
                    device_name=node.device_name,
                    num_outputs=max(_num_dtypes(node.output_dtypes), num_slots[graph_id, name]),
                    sources=tuple(_sources(executed_graph_id, node, nodes, inputs)),
                )
    return [found[place] for place in sorted(found)]


def _executed_graphs(
    tables: RunTables,
) -> Iterator[tuple[dict[_NodeKey, _Node], dict[_NodeKey, dict[int, _Tensor]]]]:
    """Yields the nodes of some optimized graphs, and the data inputs of each node by index."""
    key = "executed_graph_id"
    ops = tables.keyed(
        "executed_op",
        key,
        (
            key, "node_name", "op_type", "graph_id", "op_name", "made_for", "call_site", "device_name", "output_dtypes",
        ),
    )  # fmt: skip
    edges = tables.keyed(
        "executed_op_input",
        key,
        (key, "node_name", "input_index", "is_control", "source_node_name", "source_output_slot"),
    )
    for first, end, window in ops.windows(_GRAPH_WINDOW):
        nodes = {(graph, name): _Node(name, *rest) for graph, name, *rest in to_rows(window)}
        inputs: dict[_NodeKey, dict[int, _Tensor]] = defaultdict(dict)
        for graph, name, index, is_control, source, slot in to_rows(edges.between(first, end)):
            if not is_control:
                inputs[graph, name][index] = (source, slot or 0)
        yield nodes, inputs


def _num_dtypes(text: str | None) -> int:
    """Returns the number of dtypes in output_dtypes; 0 if they are unknown."""
    try:
        dtypes = json.loads(text) if text is not None else None
    except ValueError:
        return 0
    return len(dtypes) if isinstance(dtypes, list) else 0


def _sources(
    executed_graph_id: int,
    node: _Node,
    nodes: Mapping[_NodeKey, _Node],
    inputs: Mapping[_NodeKey, Mapping[int, _Tensor]],
) -> Iterator[Source]:
    """Yields the input tensors of a node, traced back through nodes that only forward them."""
    for _, tensor in sorted(inputs.get((executed_graph_id, node.node_name), {}).items()):
        name, slot = _handed_on(executed_graph_id, tensor, nodes, inputs)
        source = nodes.get((executed_graph_id, name))
        if source is None:
            yield Source(graph_id=None, op_name=name, output_slot=slot, is_near=False)
        else:
            yield Source(
                graph_id=source.graph_id,
                op_name=source.op_name or name,
                output_slot=slot,
                is_near=(source.graph_id, source.call_site) == (node.graph_id, node.call_site),
            )


def _handed_on(
    executed_graph_id: int,
    tensor: _Tensor,
    nodes: Mapping[_NodeKey, _Node],
    inputs: Mapping[_NodeKey, Mapping[int, _Tensor]],
) -> _Tensor:
    """Returns the tensor that a chain of forwarding nodes received as its input."""
    seen: set[_Tensor] = set()
    while tensor not in seen:
        seen.add(tensor)
        name, slot = tensor
        node = nodes.get((executed_graph_id, name))
        if node is None or node.op_name is not None or node.op_type not in _HANDING_ON:
            return tensor
        taken = inputs.get((executed_graph_id, name), {})
        tensor = taken.get(slot if node.op_type == "IdentityN" else 0, tensor)
    return tensor
