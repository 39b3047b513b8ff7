"""One op of a graph, with its inputs, outputs and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import Context
from tfdbg_arrow.query.structure.output_health import OpOutput, op_outputs

MAX_LISTED = 100
"""Maximum number of inputs, of control inputs and of consumers that are listed for an op."""


@dataclass(frozen=True, kw_only=True)
class OpInput:
    """One input of an op.

    Attributes:
        input_index: Which input, from 0. Control inputs are counted separately.
        op_name: The op that it comes from.
        op_type: The type of that op; None if the graph does not contain it.
        output: The output of that op; None for a control input, or if unknown.
    """

    input_index: int
    op_name: str
    op_type: str | None
    output: OpOutput | None


@dataclass(frozen=True, kw_only=True)
class OpConsumer:
    """One use of an op's output by another op, or another op that waits for it.

    Attributes:
        op_name: The other op.
        op_type: Its type; None if the graph does not contain it.
        input_index: Which of its inputs; None if it only waits.
        output_slot: Which output it uses; None if it only waits.
    """

    op_name: str
    op_type: str | None
    input_index: int | None
    output_slot: int | None


@dataclass(frozen=True, kw_only=True)
class OpFacts:
    """One op of a graph.

    Attributes:
        op_index: Its position in the order of creation.
        op_name: Its name.
        op_type: Its type.
        device_name: The device that was requested when it was created; None means any device.
        devices: The devices on which its tensors were computed.
        attributes: Its attributes, as a JSON object; None if unknown.
        stack_trace_id: The stack that created it.
        inputs: Its first MAX_LISTED inputs, in order.
        num_inputs: Total number of inputs.
        control_inputs: Its first MAX_LISTED control inputs.
        num_control_inputs: Total number of control inputs.
        outputs: Its outputs, in order.
        consumers: The first MAX_LISTED uses of its outputs and ops that wait for it, by output.
        num_consumers: Total number of uses and waiting ops.
    """

    op_index: int
    op_name: str
    op_type: str
    device_name: str | None
    devices: tuple[str, ...]
    attributes: str | None
    stack_trace_id: int | None
    inputs: tuple[OpInput, ...]
    num_inputs: int
    control_inputs: tuple[OpInput, ...]
    num_control_inputs: int
    outputs: tuple[OpOutput, ...]
    consumers: tuple[OpConsumer, ...]
    num_consumers: int


def op_facts(
    logdir: Engine,
    op_name: str,
    *,
    run_id: str,
    graph_id: int,
    context: Context | None = None,
    known: Mapping[str, tuple[OpOutput, ...]] | None = None,
) -> OpFacts | None:
    """Returns an op, or None if the graph has no such op.

    Args:
        logdir: The logdir.
        op_name: The op.
        run_id: The run.
        graph_id: The graph.
        context: The run of the graph whose health to read; None means the whole run.
        known: Outputs of ops that were read before, by op name. Reading their health is the expensive step.
    """
    of_op = [run_id, graph_id, op_name]
    rows = logdir.rows(
        "SELECT op_index, op_name, op_type, device_name, attributes, stack_trace_id FROM graph_op "
        "WHERE run_id = ? AND graph_id = ? AND op_name = ? LIMIT 1",
        of_op,
    )
    if not rows:
        return None
    devices = logdir.rows(
        "SELECT device_name FROM device WHERE run_id = ? AND device_id IN (SELECT device_id FROM tensor_health "
        f"WHERE run_id = ? AND graph_id = ? AND op_name = ?) ORDER BY device_name LIMIT {MAX_LISTED}",
        [run_id, *of_op],
    )
    inputs = {
        is_control: logdir.rows(
            "SELECT i.input_index, i.source_op_name, o.op_type, i.source_output_slot FROM graph_op_input AS i "
            "LEFT JOIN graph_op AS o ON o.run_id = i.run_id AND o.graph_id = i.graph_id "
            "AND o.op_name = i.source_op_name WHERE i.run_id = ? AND i.graph_id = ? AND i.op_name = ? "
            f"AND i.is_control = ? ORDER BY i.input_index LIMIT {MAX_LISTED}",
            [*of_op, is_control],
        )
        for is_control in (False, True)
    }
    ((num_inputs, num_control_inputs),) = logdir.rows(
        "SELECT count(CASE WHEN NOT is_control THEN 1 END), count(CASE WHEN is_control THEN 1 END) "
        "FROM graph_op_input WHERE run_id = ? AND graph_id = ? AND op_name = ?",
        of_op,
    )
    ((num_consumers,),) = logdir.rows(
        "SELECT count(*) FROM graph_op_input WHERE run_id = ? AND graph_id = ? AND source_op_name = ?", of_op
    )
    consumers = logdir.rows(
        "SELECT i.op_name, o.op_type, i.input_index, i.source_output_slot, i.is_control FROM graph_op_input AS i "
        "LEFT JOIN graph_op AS o ON o.run_id = i.run_id AND o.graph_id = i.graph_id AND o.op_name = i.op_name "
        "WHERE i.run_id = ? AND i.graph_id = ? AND i.source_op_name = ? "
        "ORDER BY i.is_control, i.source_output_slot NULLS LAST, o.op_index NULLS LAST, i.op_name, i.input_index "
        f"LIMIT {MAX_LISTED}",
        of_op,
    )
    outputs = dict(known or {})
    names = dict.fromkeys([op_name, *(source for _, source, _, _ in inputs[False])])
    unknown = [name for name in names if name not in outputs]
    outputs |= op_outputs(logdir, unknown, run_id=run_id, graph_id=graph_id, context=context)
    by_slot = {(name, output.output_slot): output for name, some in outputs.items() for output in some}
    found = {
        is_control: tuple(
            OpInput(
                input_index=index,
                op_name=source,
                op_type=op_type,
                output=None if is_control else by_slot.get((source, slot)),
            )
            for index, source, op_type, slot in some
        )
        for is_control, some in inputs.items()
    }
    index, name, op_type, device_name, attributes, stack_trace_id = rows[0]
    return OpFacts(
        op_index=index,
        op_name=name,
        op_type=op_type,
        device_name=device_name,
        devices=tuple(device for (device,) in devices),
        attributes=attributes,
        stack_trace_id=stack_trace_id,
        inputs=found[False],
        num_inputs=num_inputs,
        control_inputs=found[True],
        num_control_inputs=num_control_inputs,
        outputs=outputs.get(op_name, ()),
        consumers=tuple(
            OpConsumer(
                op_name=consumer,
                op_type=consumer_type,
                input_index=None if is_control else input_index,
                output_slot=None if is_control else slot,
            )
            for consumer, consumer_type, input_index, slot, is_control in consumers
        ),
        num_consumers=num_consumers,
    )
