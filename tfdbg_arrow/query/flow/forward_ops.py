"""Forward ops: the op whose gradient an op computes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.labels import Label


@dataclass(frozen=True, kw_only=True)
class ForwardOp:
    """The op whose gradient an op computes.

    Attributes:
        op_type: Its type, or the name of the function that it called; None if its graph does not contain it.
        op_name: Its name in its graph; None outside graphs.
        graph_id: Its graph; None outside graphs.
        layer: The Keras layer or module that it belongs to.
        stack_trace_id: The stack that created or executed it.
    """

    op_type: str | None
    op_name: str | None
    graph_id: int | None
    layer: str | None
    stack_trace_id: int | None


def forward_op(flow: DataFlow, label: Label) -> ForwardOp | None:
    """Returns the op whose gradient an op with this label computes, or None if the recording names none.

    For the gradient of a gradient, the layer and the stack are those of the original op.
    """
    forward = _next_forward_op(flow, label)
    if forward is None:
        return None
    first = forward_op(flow, _label_of_forward_op(flow, label))
    return forward if first is None else replace(forward, layer=first.layer, stack_trace_id=first.stack_trace_id)


def _label_of_forward_op(flow: DataFlow, label: Label) -> Label:
    if label.forward_graph_id is not None and label.forward_op_name is not None:
        return flow.labels.op(label.forward_graph_id, label.forward_op_name)
    assert label.forward_execution_index is not None
    return flow.labels.execution(label.forward_execution_index)


def _next_forward_op(flow: DataFlow, label: Label) -> ForwardOp | None:
    if label.forward_graph_id is not None and label.forward_op_name is not None:
        graph_id, op_name = label.forward_graph_id, label.forward_op_name
        op = flow.graphs.op(graph_id, op_name)
        return ForwardOp(
            op_type=None if op is None else op.op_type,
            op_name=op_name,
            graph_id=graph_id,
            layer=flow.labels.op(graph_id, op_name).layer,
            stack_trace_id=None if op is None else op.stack_trace_id,
        )
    index = label.forward_execution_index
    execution = None if index is None else flow.events.execution(index)
    if index is None or execution is None:
        return None
    return ForwardOp(
        op_type=execution.op_type,
        op_name=None,
        graph_id=None,
        layer=flow.labels.execution(index).layer,
        stack_trace_id=execution.stack_trace_id,
    )
