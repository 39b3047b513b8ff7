"""Reads the labels of the ops and executions of one run: their roles, layers and forward ops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.events import EventReader
from tfdbg_arrow.query.flow.graphs import GraphReader
from tfdbg_arrow.query.recorded import Execution, Op, TensorEvent

_BLOCK = 256
"""Number of executions whose labels are read at a time."""


@dataclass(frozen=True, slots=True)
class Label:
    """The recorded purpose of an op. An attribute is None if it was not recorded.

    Attributes:
        role: `forward`, `gradient`, `optimizer`, `loss`, `metric` or `input`.
        layer: The Keras layer or module, as the user named it.
        forward_graph_id: For a gradient op of a graph, the graph of its forward op. The forward op is the op whose
            gradient the gradient op computes.
        forward_op_name: The name of the forward op.
        forward_execution_index: For an eager gradient op, the execution whose gradient the op computes.
        part_stack_trace_id: The stack that made the Keras layer, loss, metric or optimizer to which the op belongs.
    """

    role: str | None = None
    layer: str | None = None
    forward_graph_id: int | None = None
    forward_op_name: str | None = None
    forward_execution_index: int | None = None
    part_stack_trace_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ForwardOp:
    """The op whose gradient an op computes.

    Attributes:
        op_type: The type of the op, or the name of the function that it called; None if the graph does not contain the
            op.
        op_name: The name of the op in its graph; None outside graphs.
        graph_id: The graph of the op; None outside graphs.
        layer: The Keras layer or module to which the op belongs.
        stack_trace_id: The stack that created or executed the op.
        part_stack_trace_id: The stack that made the Keras layer, loss, metric or optimizer to which the op belongs.
        order: 1 for an op of the forward pass, 2 for an op of its gradient, and so on.
    """

    op_type: str | None
    op_name: str | None
    graph_id: int | None
    layer: str | None
    stack_trace_id: int | None
    part_stack_trace_id: int | None
    order: int = 1


NO_LABEL = Label()
_IN_GRADIENT = re.compile(r"gradients(?:_\d+)?/(.+)_grad/")
"""The name of an op that TensorFlow's gradient function of another op created."""


def _of_loaded_gradient(op_name: str, label: Label, forward_graph_id: int, forward_ops: Mapping[str, Op]) -> Label:
    """Returns the label of an op of a gradient from a SavedModel. The name of the op contains its forward op."""
    forward_op = _IN_GRADIENT.match(op_name)
    if forward_op is None or forward_op[1] not in forward_ops:
        return replace(label, role="gradient")
    return replace(label, role="gradient", forward_graph_id=forward_graph_id, forward_op_name=forward_op[1])


class Labels:
    """Reads the labels of the ops and executions of one run."""

    def __init__(self, logdir: Engine, graphs: GraphReader, events: EventReader, *, run_id: str) -> None:
        self._logdir = logdir
        self._graphs = graphs
        self._events = events
        self._run_id = run_id
        self._of_graph = lru_cache(maxsize=256)(self._read_graph)
        self._of_block = lru_cache(maxsize=64)(self._read_block)
        self._has_gradient = lru_cache(maxsize=4096)(self._read_has_gradient)

    @cached_property
    def has_roles(self) -> bool:
        """Whether the run has recorded roles of ops. Imported runs have no roles."""
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
        return NO_LABEL

    def is_in_data_set(self, event: TensorEvent) -> bool:
        """Returns whether a tensor was computed by a function of a data set, in a step that belongs to no execution."""
        is_apart = event.scope == "graph" and event.execution_index is None and event.step_id is not None
        return is_apart and self.of(event).role == "input"

    def op(self, graph_id: int, op_name: str) -> Label:
        """Returns the label of an op of a graph. A node that the optimizer made has the label of its `made_for`."""
        labels = self._of_graph(graph_id)
        if op_name not in labels and graph_id in self._graphs.executed_graph_ids():
            op = self._graphs.op(graph_id, op_name)
            op_name = op_name if op is None or op.made_for is None else op.made_for
        return labels.get(op_name, NO_LABEL)

    def execution(self, execution_index: int) -> Label:
        """Returns the label of an execution."""
        return self._of_block(execution_index // _BLOCK).get(execution_index, NO_LABEL)

    def is_of_loss(self, event: TensorEvent) -> bool:
        """Returns whether the op that made a tensor belongs to the loss, or has a recorded gradient."""
        return self.of(event).role == "loss" or self._has_gradient(event.graph_id, event.op_name, event.execution_index)

    def _read_has_gradient(self, graph_id: int | None, op_name: str | None, execution_index: int | None) -> bool:
        if graph_id is not None and op_name is not None:
            table, condition, key = "graph_op", "forward_graph_id = ? AND forward_op_name = ?", [graph_id, op_name]
        else:
            table, condition, key = "execution", "forward_execution_index = ?", [execution_index]
        rows = self._logdir.rows(
            f"SELECT 1 FROM {table} WHERE run_id = ? AND {condition} LIMIT 1", [self._run_id, *key]
        )
        return bool(rows)

    def forward_op(self, label: Label) -> ForwardOp | None:
        """Returns the op whose gradient an op with this label computes, or None if it was not recorded.

        For the gradient of a gradient, the layer and the stacks are those of the original op.
        """
        graph_id, op_name, index = label.forward_graph_id, label.forward_op_name, label.forward_execution_index
        made: Op | Execution | None
        if graph_id is not None and op_name is not None:
            made, own = self._graphs.op(graph_id, op_name), self.op(graph_id, op_name)
        elif index is not None and (made := self._events.execution(index)) is not None:
            own, graph_id, op_name = self.execution(index), None, None
        else:
            return None
        first = self.forward_op(own)
        forward = ForwardOp(
            op_type=None if made is None else made.op_type,
            op_name=op_name,
            graph_id=graph_id,
            layer=own.layer,
            stack_trace_id=None if made is None else made.stack_trace_id,
            part_stack_trace_id=own.part_stack_trace_id,
        )
        if first is None:
            return forward
        return replace(
            forward,
            layer=first.layer,
            stack_trace_id=first.stack_trace_id,
            part_stack_trace_id=first.part_stack_trace_id,
            order=first.order + 1,
        )

    def _read_graph(self, graph_id: int) -> dict[str, Label]:
        rows = self._logdir.rows(
            "SELECT op_name, role, layer, forward_graph_id, forward_op_name, NULL, part_stack_trace_id FROM graph_op "
            "WHERE run_id = ? AND graph_id = ? AND (role IS NOT NULL OR layer IS NOT NULL)",
            [self._run_id, graph_id],
        )
        labels = {op_name: Label(*label) for op_name, *label in rows}
        forward_graph_id = self._loaded_forward_graph(graph_id, labels)
        if forward_graph_id is None:
            return labels
        return {
            op_name: _of_loaded_gradient(op_name, label, forward_graph_id, self._graphs.graph(forward_graph_id).ops)
            for op_name, label in labels.items()
        }

    def _loaded_forward_graph(self, graph_id: int, labels: Mapping[str, Label]) -> int | None:
        """Returns the graph of the function whose gradient a graph from a SavedModel computes; None for other graphs.

        A program that loads a SavedModel creates these graphs without a tape, so no op has the role `gradient`.
        """
        if {label.role for label in labels.values()} != {"forward"}:
            return None
        is_of_gradient = self._logdir.rows(
            "SELECT 1 FROM graph WHERE run_id = ? AND graph_id = ? AND substr(graph_name, 1, 11) = '__backward_'",
            [self._run_id, graph_id],
        )
        if not is_of_gradient:
            return None
        for caller in self._graphs.callers(graph_id):
            call = self._graphs.op(caller.graph_id, caller.op_name)
            for source, _ in () if call is None else call.inputs:
                forward_calls = self._graphs.calls(caller.graph_id, source)
                if forward_calls:
                    return forward_calls[0].callee_graph_id
        return None

    def _read_block(self, block: int) -> dict[int, Label]:
        rows = self._logdir.rows(
            "SELECT execution_index, role, layer, NULL, NULL, forward_execution_index, part_stack_trace_id "
            "FROM execution WHERE run_id = ? AND execution_index BETWEEN ? AND ? "
            "AND (role IS NOT NULL OR layer IS NOT NULL)",
            [self._run_id, block * _BLOCK, (block + 1) * _BLOCK - 1],
        )
        return {index: Label(*label) for index, *label in rows}
