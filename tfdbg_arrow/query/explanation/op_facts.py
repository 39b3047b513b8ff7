"""Facts about the ops of a graph other than their data flow: the layer, and the forward op of a gradient."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import TensorEvent


@dataclass(frozen=True)
class OpFacts:
    """Facts about one op.

    Attributes:
        layer: The layer that made it; None outside layers and if it is not known.
        forward_type: For an op of a gradient, the type of the op whose gradient it computes; None for other ops and
            if it is not known.
    """

    layer: str | None = None
    forward_type: str | None = None


def op_facts(logdir: Engine, event: TensorEvent, *, run_id: str) -> OpFacts:
    """Returns the facts about the op of a tensor. The facts of a graph's ops are read once.

    Args:
        logdir: The logdir.
        event: The tensor.
        run_id: The run.
    """
    if event.scope == "graph" and event.graph_id is not None and event.op_name is not None:
        key = ("explanation.op_facts", run_id, event.graph_id)
        of_graph = logdir.kept(key, lambda: _of_graph(logdir, event.graph_id, run_id=run_id))
        return of_graph.get(event.op_name, OpFacts())
    if event.scope == "execution" and event.execution_index is not None:
        return _of_execution(logdir, event.execution_index, run_id=run_id)
    return OpFacts()


def _of_graph(logdir: Engine, graph_id: int | None, *, run_id: str) -> dict[str, OpFacts]:
    rows = logdir.rows(
        "SELECT o.op_name, o.layer, f.op_type FROM graph_op AS o LEFT JOIN graph_op AS f "
        "ON f.run_id = o.run_id AND f.graph_id = o.forward_graph_id AND f.op_name = o.forward_op_name "
        "WHERE o.run_id = ? AND o.graph_id = ? AND (o.layer IS NOT NULL OR f.op_type IS NOT NULL)",
        [run_id, graph_id],
    )
    return {op_name: OpFacts(layer, forward_type) for op_name, layer, forward_type in rows}


def _of_execution(logdir: Engine, execution_index: int, *, run_id: str) -> OpFacts:
    rows = logdir.rows(
        "SELECT e.layer, f.op_type FROM execution AS e LEFT JOIN execution AS f "
        "ON f.run_id = e.run_id AND f.execution_index = e.forward_execution_index "
        "WHERE e.run_id = ? AND e.execution_index = ?",
        [run_id, execution_index],
    )
    return OpFacts(*rows[0]) if rows else OpFacts()
