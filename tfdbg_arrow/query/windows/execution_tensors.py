"""The inputs and outputs of an execution, with their health and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.places import EagerValue
from tfdbg_arrow.query.health import TensorHealth, health_facts

MAX_TENSORS = 100
"""Maximum number of inputs, and of outputs, that are returned for an execution."""


@dataclass(frozen=True, kw_only=True)
class ExecutionTensor:
    """One input or output of an execution. An attribute is None if it is unknown or was not recorded.

    Attributes:
        index: Which input or output, from 0.
        tensor_id: Identifies the eager tensor.
        dtype: TensorFlow's name of the dtype.
        health: Its own health, or the health of the equal tensor on the other side of a call.
        op_type: The op or function that created it; None if no recorded op created it.
        output_slot: Which output of that op or function it is.
        execution_index: The execution that created it.
    """

    index: int
    tensor_id: int
    dtype: str | None
    health: TensorHealth | None
    op_type: str | None
    output_slot: int | None
    execution_index: int | None

    @property
    def op_name(self) -> None:
        """Always None, because an eager tensor belongs to no graph."""


def execution_tensors(
    logdir: Engine, execution_index: int, *, run_id: str
) -> tuple[tuple[ExecutionTensor, ...], tuple[ExecutionTensor, ...]]:
    """Returns (inputs, outputs) of an execution, in order, at most MAX_TENSORS of each.

    Args:
        logdir: The logdir.
        execution_index: The execution. If it was not recorded, there are no inputs and outputs.
        run_id: The run.
    """
    flow = DataFlow.of(logdir.of_run(run_id), run_id=run_id)
    with flow.lock:
        outputs = {slot: made for slot, (made, _) in flow.events.execution_outputs(execution_index).items()}
        return (
            _tensors(flow, flow.events.execution_inputs(execution_index), execution_index),
            _tensors(flow, outputs, execution_index),
        )


def _tensors(flow: DataFlow, ids: Mapping[int, int], execution_index: int) -> tuple[ExecutionTensor, ...]:
    execution = flow.events.execution(execution_index)
    near = 2**63 - 1 if execution is None else execution.event_index
    found = []
    for index, tensor_id in list(ids.items())[:MAX_TENSORS]:
        tensor = flow.events.eager(tensor_id)
        trace = flow.trace(EagerValue(tensor_id), how="eager", near=near)
        found.append(
            ExecutionTensor(
                index=index,
                tensor_id=tensor_id,
                dtype=tensor.dtype or trace.dtype,
                health=None if trace.health is None else TensorHealth(**health_facts(trace.health)),
                op_type=tensor.op_type,
                output_slot=tensor.output_slot,
                execution_index=tensor.execution_index,
            )
        )
    return tuple(found)
