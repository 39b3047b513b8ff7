"""Labels: the layer of the model that an op belongs to, its purpose, and the op whose gradient it computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.recorded import TensorEvent


@dataclass(frozen=True, slots=True)
class Label:
    """The recorded purpose of an op; None for what was not recorded.

    Attributes:
        role: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        layer: The Keras layer or module, as the user named it.
        forward_graph_id: For a graph op of a gradient, the graph of the op whose gradient it computes.
        forward_op_name: That op's name.
        forward_execution_index: For an eager op of a gradient, the execution whose gradient it computes.
    """

    role: str | None = None
    layer: str | None = None
    forward_graph_id: int | None = None
    forward_op_name: str | None = None
    forward_execution_index: int | None = None


_NO_LABEL = Label()
_BLOCK = 256
"""Number of executions that are read at a time."""


class Labels:
    """Reads the labels of the ops and executions of one run.

    Args:
        logdir: The logdir.
        graphs: The run's graphs.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, graphs: GraphReader, *, run_id: str) -> None:
        self._logdir = logdir
        self._graphs = graphs
        self._run_id = run_id
        self._of_graph = lru_cache(maxsize=256)(self._read_graph)
        self._of_block = lru_cache(maxsize=64)(self._read_block)

    @cached_property
    def has_roles(self) -> bool:
        """Whether the run has recorded roles of ops. Older recordings and imports do not."""
        rows = self._logdir.rows(
            "SELECT 1 FROM execution WHERE run_id = ? AND role IS NOT NULL UNION ALL "
            "SELECT 1 FROM graph_op WHERE run_id = ? AND role IS NOT NULL LIMIT 1",
            [self._run_id, self._run_id],
        )
        return bool(rows)

    def of(self, event: TensorEvent) -> Label:
        """Returns the label of the op that made a tensor."""
        if event.scope == "graph" and event.graph_id is not None and event.op_name is not None:
            return self.op(event.graph_id, event.op_name)
        if event.scope == "execution" and event.execution_index is not None:
            return self.execution(event.execution_index)
        return _NO_LABEL

    def op(self, graph_id: int, op_name: str) -> Label:
        """Returns the label of an op of a graph. A node that the optimizer made has the label of its `made_for`."""
        labels = self._of_graph(graph_id)
        if op_name not in labels and graph_id in self._graphs.executed_graph_ids():
            op = self._graphs.op(graph_id, op_name)
            op_name = op_name if op is None or op.made_for is None else op.made_for
        return labels.get(op_name, _NO_LABEL)

    def execution(self, execution_index: int) -> Label:
        """Returns the label of an execution."""
        return self._of_block(execution_index // _BLOCK).get(execution_index, _NO_LABEL)

    def _read_graph(self, graph_id: int) -> dict[str, Label]:
        rows = self._logdir.rows(
            "SELECT op_name, role, layer, forward_graph_id, forward_op_name FROM graph_op "
            "WHERE run_id = ? AND graph_id = ? AND (role IS NOT NULL OR layer IS NOT NULL)",
            [self._run_id, graph_id],
        )
        return {op_name: Label(*label) for op_name, *label in rows}

    def _read_block(self, block: int) -> dict[int, Label]:
        rows = self._logdir.rows(
            "SELECT execution_index, role, layer, forward_execution_index FROM execution "
            "WHERE run_id = ? AND execution_index BETWEEN ? AND ? AND (role IS NOT NULL OR layer IS NOT NULL)",
            [self._run_id, block * _BLOCK, (block + 1) * _BLOCK - 1],
        )
        return {index: Label(role, layer, forward_execution_index=forward) for index, role, layer, forward in rows}
