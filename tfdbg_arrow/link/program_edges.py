"""Edges within a graph: the edges of the program, and the edges of the optimized graphs that ran.

If all inputs of a node are known, the edges of the node replace the edges of the program. Otherwise, the node is at a
border of a call, a branch or a loop. In this case, the edges of the program are added, because they lead over the
border.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tfdbg_arrow.link.arrays import Ints, distinct, has, place_of
from tfdbg_arrow.link.edges import Column, Way
from tfdbg_arrow.link.ops import Ops
from tfdbg_arrow.link.tables import Tables

_OP_OF_NODE = (
    "JOIN linked_op AS {op} ON {op}.graph_id = {node}.graph_id AND {op}.text = {node}.call_site "
    "AND {op}.op_name = {node}.op_name AND {op}.is_made = {node}.is_made"
)
_PROGRAM = """
SELECT a.op, i.input_index, b.base + i.source_output_slot AS source, c.op_name IS NOT NULL AS is_call
FROM linked_op AS a
JOIN graph_op_input AS i ON i.graph_id = a.graph_id AND i.op_name = coalesce(a.made_for, a.op_name)
JOIN linked_op AS b ON b.site = a.site AND b.op_name = i.source_op_name AND NOT b.is_made
LEFT JOIN (SELECT DISTINCT graph_id, op_name FROM graph_call WHERE is_inline) AS c
ON c.graph_id = a.graph_id AND c.op_name = a.op_name AND NOT a.is_made
WHERE NOT i.is_control AND (NOT a.is_made OR a.made_for IS NOT NULL)
AND i.source_output_slot BETWEEN 0 AND b.num_outputs - 1
ORDER BY a.op, i.input_index"""
_RAN = f"""
SELECT a.op, i.input_index, b.base + coalesce(i.source_output_slot, 0) AS source, i.executed_graph_id AS executed
FROM executed_op_input AS i
JOIN linked_node AS x ON x.executed_graph_id = i.executed_graph_id AND x.node_name = i.node_name AND NOT x.is_border
JOIN linked_node AS y
ON y.executed_graph_id = i.executed_graph_id AND y.node_name = i.source_node_name AND NOT y.is_border
{_OP_OF_NODE.format(op="a", node="x")}
{_OP_OF_NODE.format(op="b", node="y")} AND b.root = a.root
WHERE NOT i.is_control AND coalesce(i.source_output_slot, 0) BETWEEN 0 AND b.num_outputs - 1
AND (a.is_made OR (a.graph_id, a.op_name) NOT IN (SELECT graph_id, op_name FROM graph_call WHERE is_inline))"""
_UNCLEAR = f"""
SELECT DISTINCT a.op, i.executed_graph_id AS executed
FROM executed_op_input AS i
JOIN linked_node AS x ON x.executed_graph_id = i.executed_graph_id AND x.node_name = i.node_name
{_OP_OF_NODE.format(op="a", node="x")}
LEFT JOIN linked_node AS y ON y.executed_graph_id = i.executed_graph_id AND y.node_name = i.source_node_name
WHERE NOT i.is_control AND (y.node_name IS NULL OR y.is_border)"""
_HAS_NODE = f"""
SELECT DISTINCT a.op, x.executed_graph_id AS executed FROM linked_node AS x {_OP_OF_NODE.format(op="a", node="x")}"""
_ABSORBED = """
SELECT DISTINCT a.base + k.slot AS tensor, m.base + least(k.slot, m.num_outputs - 1) AS source, n.executed_graph_id
AS executed, a.op
FROM linked_node AS n
JOIN linked_op AS m ON m.graph_id = n.graph_id AND m.text = n.call_site AND m.op_name = n.op_name AND m.is_made
JOIN linked_op AS a ON a.site = m.site AND a.op_name = n.made_for AND NOT a.is_made
JOIN (SELECT unnest(range(64)) AS slot) AS k ON k.slot < a.num_outputs
WHERE n.is_made AND NOT n.is_border
AND (a.graph_id, a.op_name) NOT IN (SELECT graph_id, op_name FROM graph_call WHERE is_inline)
AND (a.graph_id, a.op_name) NOT IN (SELECT graph_id, op_name FROM graph_function_input)"""


@dataclass(frozen=True, kw_only=True)
class ProgramEdges:
    """The edges within graphs.

    Attributes:
        of_ops: Edges that apply to all outputs of an op.
        of_tensors: Edges of single tensors.
        call_inputs: (calling op, input index) -> tensor.
        has_inputs: The ops that have an input in the program.
        executed_graphs: The IDs of the optimized graphs. The `detail` of an edge is an index in this array.
        replaced: Sorted numbers `op * len(executed_graphs) + executed graph`, for ops whose edges in that graph replace
            the edges of the program.
    """

    of_ops: list[Column]
    of_tensors: list[Column]
    call_inputs: dict[tuple[int, int], int]
    has_inputs: set[int]
    executed_graphs: Ints
    replaced: Ints


def read_program_edges(tables: Tables, ops: Ops) -> ProgramEdges:
    """Reads the edges within graphs, without the edges over borders."""
    program = tables.columns(_PROGRAM)
    owner, index, source, is_call = (program[name] for name in ("op", "input_index", "source", "is_call"))
    keys = zip(owner[is_call].tolist(), index[is_call].tolist(), strict=True)
    has_node = tables.columns(_HAS_NODE)
    graphs = distinct(has_node["executed"])
    ran, unclear, absorbed = tables.columns(_RAN), tables.columns(_UNCLEAR), tables.columns(_ABSORBED)
    nodes = distinct(_pairs(has_node["op"], has_node["executed"], graphs))
    replaced = nodes[~has(nodes, distinct(_pairs(unclear["op"], unclear["executed"], graphs)))]
    # For resources, the edges of the program are used: they lead to the handle of the variable.
    is_kept = ops.is_resource[source] & ~ops.is_made[owner]
    is_tensor = ~ops.is_resource[ran["source"]] | ops.is_made[ran["op"]]
    ran = {name: column[is_tensor] for name, column in ran.items()}
    plain, from_resource = ~is_call & ~is_kept, ~is_call & is_kept
    is_absorbed = ~has(_pairs(absorbed["op"], absorbed["executed"], graphs), nodes)
    return ProgramEdges(
        of_ops=[
            (owner[plain], index[plain], source[plain], Way.PROGRAM, owner[plain]),
            (
                owner[from_resource],
                index[from_resource],
                source[from_resource],
                Way.SAME,
                np.full(int(from_resource.sum()), -1),
            ),
            (ran["op"], ran["input_index"], ran["source"], Way.SAME, place_of(ran["executed"], graphs)),
        ],
        of_tensors=[
            (
                absorbed["tensor"][is_absorbed],
                np.zeros(int(is_absorbed.sum()), np.int64),
                absorbed["source"][is_absorbed],
                Way.SAME,
                place_of(absorbed["executed"][is_absorbed], graphs),
            )
        ],
        call_inputs=dict(zip(keys, source[is_call].tolist(), strict=True)),
        has_inputs=set(owner.tolist()),
        executed_graphs=graphs,
        replaced=replaced,
    )


def _pairs(op: Ints, executed: Ints, graphs: Ints) -> Ints:
    """Returns a number for each pair of an op and an optimized graph."""
    return op * len(graphs) + place_of(executed, graphs)
