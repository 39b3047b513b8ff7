"""Describes the tensors that a comparison names, one side at a time."""

from __future__ import annotations

from tfdbg_arrow.query.diff.answer import DiffTensor
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.health import health_facts
from tfdbg_arrow.query.logdir import Logdir
from tfdbg_arrow.query.recorded import TensorEvent
from tfdbg_arrow.query.stacks import Frame, StackReader, user_source

_SEARCHED = 200
"""Maximum number of ops after a tensor that are searched for a random op."""


class Describer:
    """Describes tensors of one run.

    Args:
        logdir: The logdir.
        run_id: The run.

    Attributes:
        flow: The run's data flow.
    """

    def __init__(self, logdir: Logdir, *, run_id: str) -> None:
        self._run_id = run_id
        self._stacks = StackReader(logdir, run_id=run_id)
        self.flow = DataFlow(logdir, run_id=run_id)

    def tensor(self, event: TensorEvent) -> DiffTensor:
        """Returns the description of a row of tensor_health."""
        stack = self._stacks.stack(self._stack_trace_id(event))
        return DiffTensor(
            **health_facts(event),
            run_id=self._run_id,
            step=event.step,
            execution_index=event.execution_index,
            iteration=event.iteration,
            graph_name=None if event.graph_id is None else self.flow.graphs.names.get(event.graph_id),
            op_name=event.op_name,
            op_type=event.op_type,
            output_slot=event.output_slot,
            stack=stack,
            source=user_source(stack),
        )

    def event(self, event_index: int) -> TensorEvent:
        """Returns a row of tensor_health."""
        event = self.flow.events.event(event_index)
        assert event is not None
        return event

    def source(self, event: TensorEvent) -> Frame | None:
        """Returns the user's innermost frame of the op that made a tensor."""
        return user_source(self._stacks.stack(self._stack_trace_id(event)))

    def op_source(self, graph_id: int, op_name: str) -> Frame | None:
        """Returns the user's innermost frame of an op in a graph."""
        op = self.flow.graphs.op(graph_id, op_name)
        return None if op is None else user_source(self._stacks.stack(op.stack_trace_id))

    def random_op_after(self, event: TensorEvent) -> str | None:
        """Returns the type of a random op that a tensor leads to, or None if there is none."""
        if event.graph_id is None or event.op_name is None:
            return None
        graph = self.flow.graphs.graph(event.graph_id)
        seen = {event.op_name}
        waiting = [event.op_name]
        while waiting and len(seen) < _SEARCHED:
            for user in graph.users.get(waiting.pop(0), ()):
                op = graph.ops.get(user)
                if op is None or user in seen:
                    continue
                if is_random(op.op_type) and op.op_type not in _KEYS:
                    return op.op_type
                seen.add(user)
                waiting.append(user)
        return None

    def _stack_trace_id(self, event: TensorEvent) -> int | None:
        if event.scope == "graph":
            if event.graph_id is None or event.op_name is None:
                return None
            op = self.flow.graphs.op(event.graph_id, event.op_name)
            return None if op is None else op.stack_trace_id
        execution = None if event.execution_index is None else self.flow.events.execution(event.execution_index)
        return None if execution is None else execution.stack_trace_id


_KEYS = ("StatelessRandomGetKeyCounter", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg")
_RANDOM = ("Multinomial", "ParameterizedTruncatedNormal", "Random", "Stateful", "StatelessRandom", "TruncatedNormal")


def is_random(op_type: str | None) -> bool:
    """Returns whether an op draws random numbers, from a seed or a state."""
    if op_type is None or op_type in ("RandomDataset", "StatefulPartitionedCall"):
        return False
    return op_type.startswith(_RANDOM) or op_type in ("StatelessMultinomial", "StatelessTruncatedNormalV2")
