"""The base of the facts about a bad tensor that are read on demand."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.explanation.computed import Inputs
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.stacks import Frame

MAX_BEHIND = 300
"""The search back from an op examines at most this many tensors."""
_MAX_UNSCALING = 3
"""The maximum number of ops between a gradient and its norm, such as a division by the scale of the loss."""


@dataclass(frozen=True)
class BadTensorFacts:
    """The base class for facts about a bad tensor that are read on demand.

    Attributes:
        logdir: The logdir.
        flow: The run's data flow. The caller must hold the lock of the data flow.
        event: The bad tensor.
        run_id: The run.
    """

    logdir: Engine
    flow: DataFlow
    event: TensorEvent
    run_id: str

    def inputs_of(self, event: TensorEvent) -> Inputs:
        """Returns the recorded inputs of the op that made a tensor."""
        return {index: row for index, _, row in self.flow.taken_by(event)}

    def made_by(self, row: TensorEvent) -> str | None:
        """Returns the type of the program's op that made a tensor, even if TensorFlow ran another op in its place."""
        return self._type_of(row.graph_id, row.op_name) or row.op_type

    def _type_of(self, graph_id: int | None, op_name: str | None) -> str | None:
        op = None if graph_id is None or op_name is None else self.flow.graphs.op(graph_id, op_name)
        return None if op is None else op.op_type

    def is_of_gradient(self, row: TensorEvent, *, depth: int = 0) -> bool:
        """Returns whether an op of a gradient made a tensor, directly or through a few later ops."""
        if self.flow.labels.of(row).role == "gradient":
            return True
        return depth < _MAX_UNSCALING and any(
            self.is_of_gradient(source, depth=depth + 1) for source in self.inputs_of(row).values()
        )

    def op_to_change(self) -> tuple[tuple[Frame, ...], str | None]:
        """Returns the stack and type of the program's op that made the tensor, directly or through its gradient."""
        forward = self.flow.labels.forward_op(self.flow.label_of_maker(self.event))
        stack_id = self.flow.stack_trace_id(self.event) if forward is None else forward.stack_trace_id
        maker = self.flow.program_ops.maker(self.event)
        own_type = self.event.op_type if maker is None else maker.op.op_type
        return self.flow.stacks.stack(stack_id), own_type if forward is None else forward.op_type

    def own_key(self) -> str | int:
        """Returns the key of the bad tensor's op."""
        return self.key_of(self.event)

    def key_of(self, row: TensorEvent) -> str | int:
        """Returns the key of a tensor's op: the name of the op in its graph, or the ID of the eager tensor."""
        if row.scope != "graph":
            return -1 if row.tensor_id is None else row.tensor_id
        op = None if row.graph_id is None else self.flow.graphs.op(row.graph_id, row.op_name or "")
        return (row.op_name or "") if op is None else op.made_for or op.op_name
