"""The ops of a graph: windows of ops, single ops with their inputs and consumers, and the health of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query.display.row_window import Window, given_conditions
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.recorded import Context


@dataclass(frozen=True)
class OutputHealth:
    """The health of one output of an op. An attribute is None if the mode does not measure it.

    Attributes:
        num_tensors: Number of recorded tensors.
        num_measured: Number of tensors that are known to be bad or not bad.
        num_bad: Number of tensors that hold an infinity or a NaN.
        first_event_index: The first tensor.
        first_bad_event_index: The first bad tensor; None if no tensor is bad.
        num_neg_inf: Total number of elements that are -infinity.
        num_pos_inf: Total number of elements that are +infinity.
        num_nan: Total number of elements that are NaN.
        min_finite: Least finite element.
        max_finite: Greatest finite element.
        max_abs_finite: Greatest magnitude of a finite element.
    """

    num_tensors: int
    num_measured: int
    num_bad: int
    first_event_index: int
    first_bad_event_index: int | None
    num_neg_inf: int | None
    num_pos_inf: int | None
    num_nan: int | None
    min_finite: float | None
    max_finite: float | None
    max_abs_finite: float | None


@dataclass(frozen=True)
class OpOutput:
    """One output of an op: columns of graph_op_output, and its health (None if no tensor was recorded)."""

    output_slot: int
    dtype: str | None
    static_shape: tuple[int, ...] | None
    is_recorded: bool | None
    not_recorded_reason: str | None
    health: OutputHealth | None


def context_condition(context: Context | None) -> tuple[str, list[object]]:
    """Returns SQL to append to a condition on tensor_health, and its parameters.

    None means any call, with empty SQL.
    """
    if context is None:
        return "", []
    names = ("execution_index", "step_id", "call_site", "frame_id", "iteration")
    text = "".join(f" AND {name} IS NOT DISTINCT FROM ?" for name in names)
    return text, [getattr(context, name) for name in names]


def op_outputs(
    logdir: Engine, op_names: Sequence[str], *, run_id: str, graph_id: int, context: Context | None = None
) -> dict[str, tuple[OpOutput, ...]]:
    """Returns the outputs of some ops in order of slots, by op name.

    Args:
        logdir: The logdir.
        op_names: The ops.
        run_id: The run.
        graph_id: The graph of the ops.
        context: The run of the graph whose health to read; None means the whole run.
    """
    if not op_names:
        return {}
    where, parameters = context_condition(context)
    of_ops = f"run_id = ? AND graph_id = ? AND op_name IN ({', '.join('?' * len(op_names))})"
    health_rows = logdir.rows(
        "SELECT op_name, output_slot, count(*), count(has_inf_or_nan), count(CASE WHEN has_inf_or_nan THEN 1 END), "
        "min(event_index), min(CASE WHEN has_inf_or_nan THEN event_index END), CAST(sum(num_neg_inf) AS BIGINT), "
        "CAST(sum(num_pos_inf) AS BIGINT), CAST(sum(num_nan) AS BIGINT), min(min_finite), max(max_finite), "
        f"max(max_abs_finite) FROM tensor_health WHERE {of_ops} AND scope = 'graph' AND output_slot IS NOT NULL{where} "
        "GROUP BY op_name, output_slot",
        [run_id, graph_id, *op_names, *parameters],
    )
    health_of = {(op_name, slot): OutputHealth(*health) for op_name, slot, *health in health_rows}
    rows = logdir.rows(
        "SELECT op_name, output_slot, dtype, static_shape, is_recorded, not_recorded_reason FROM graph_op_output "
        f"WHERE {of_ops} ORDER BY op_name, output_slot",
        [run_id, graph_id, *op_names],
    )
    outputs_of_op: dict[str, list[OpOutput]] = {}
    for name, slot, dtype, shape, is_recorded, reason in rows:
        static_shape = None if shape is None else tuple(shape)
        output = OpOutput(slot, dtype, static_shape, is_recorded, reason, health_of.get((name, slot)))
        outputs_of_op.setdefault(name, []).append(output)
    return {name: tuple(outputs) for name, outputs in outputs_of_op.items()}


def bad_ops(*, run_id: str, graph_id: int, context: Context | None = None) -> tuple[str, list[object]]:
    """Returns SQL that selects the ops of a graph with a bad output, and its parameters.

    The columns are `op_name` and `num_bad`, the number of bad tensors of the op.

    Args:
        run_id: The run.
        graph_id: The graph.
        context: Only this run of the graph; None means the whole run.
    """
    where, parameters = context_condition(context)
    select = (
        "SELECT op_name, count(*) AS num_bad FROM tensor_health WHERE run_id = ? "
        f"AND graph_id = ? AND has_inf_or_nan AND op_name IS NOT NULL{where} GROUP BY op_name"
    )
    return select, [run_id, graph_id, *parameters]


MAX_LISTED = 100
"""Maximum number of inputs that are listed for an op. The limit also applies to control inputs and consumers."""


@dataclass(frozen=True)
class OpInput:
    """One input of an op.

    Attributes:
        input_index: Index of the input, from 0. Control inputs are counted separately.
        op_name: The op that the input comes from.
        op_type: The type of this op; None if the graph does not contain it.
        output: The output of this op; None for a control input, or if unknown.
    """

    input_index: int
    op_name: str
    op_type: str | None
    output: OpOutput | None


@dataclass(frozen=True)
class OpConsumer:
    """One use of an op's output by another op, or a control edge to another op, which waits for the op.

    Attributes:
        op_name: The other op.
        op_type: The type of the other op; None if the graph does not contain the op.
        input_index: The input of the other op that uses the output; None if the other op only waits.
        output_slot: The output that the other op uses; None if the other op only waits.
    """

    op_name: str
    op_type: str | None
    input_index: int | None
    output_slot: int | None


@dataclass(frozen=True, kw_only=True)
class OpFacts:
    """One op of a graph.

    Attributes:
        op_index: The position of the op in the order of creation.
        op_name: The name of the op.
        op_type: The type of the op.
        device_name: The device that was requested when the op was created; None means any device.
        devices: The devices that computed the tensors of the op.
        attributes: The attributes of the op, as a JSON object; None if unknown.
        stack_trace_id: The stack that created the op.
        inputs: The first MAX_LISTED inputs of the op, in order.
        num_inputs: Total number of inputs.
        control_inputs: The first MAX_LISTED control inputs of the op.
        num_control_inputs: Total number of control inputs.
        outputs: The outputs of the op, in order.
        consumers: The uses of the op's outputs, and the ops that wait for the op, by output. Only the first MAX_LISTED
            are included.
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
        "WHERE run_id = ? AND graph_id = ? AND op_name = ?) ORDER BY device_name",
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
    inputs_of_kind = {
        is_control: tuple(
            OpInput(index, source, op_type, None if is_control else by_slot.get((source, slot)))
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
        inputs=inputs_of_kind[False],
        num_inputs=num_inputs,
        control_inputs=inputs_of_kind[True],
        num_control_inputs=num_control_inputs,
        outputs=outputs.get(op_name, ()),
        consumers=tuple(
            OpConsumer(consumer, op_type, None if is_control else input_index, None if is_control else slot)
            for consumer, op_type, input_index, slot, is_control in consumers
        ),
        num_consumers=num_consumers,
    )


_MAX_TYPES = 500
"""Maximum number of op types that a page suggests. A user can also type another one."""


@dataclass(frozen=True, kw_only=True)
class OpFilter:
    """A filter for the ops of a graph. None means any.

    Attributes:
        name: Text that the op name or op type contains, ignoring case.
        op_type: Type of the op.
        is_bad: Only ops with a bad output.
    """

    name: str | None = None
    op_type: str | None = None
    is_bad: bool = False


@dataclass(frozen=True)
class OpRow:
    """One op of a graph.

    Attributes:
        op_index: The position of the op in order of creation.
        op_name: The name of the op.
        op_type: The type of the op.
        layer: The layer that made the op, as in the table graph_op.
        role: The purpose of the op, as in the table graph_op.
        num_bad: Number of bad tensors of the op.
    """

    op_index: int
    op_name: str
    op_type: str
    layer: str | None
    role: str | None
    num_bad: int


@dataclass(frozen=True, kw_only=True)
class OpWindow(Window[OpRow]):
    """A window of the ops that match a filter, and the op types that a user can choose from."""

    op_types: tuple[str, ...]


def op_window(
    logdir: Engine,
    filter_: OpFilter,
    *,
    run_id: str,
    graph_id: int,
    first: int = 0,
    before: int | None = None,
    limit: int = 100,
) -> OpWindow:
    """Returns a window of a graph's ops.

    Args:
        logdir: The logdir.
        filter_: Selects the ops.
        run_id: The run.
        graph_id: The graph.
        first: The window starts at the first op with at least this op_index.
        before: The window ends directly before this op_index instead; None makes the window start at `first`.
        limit: Maximum number of ops.
    """
    select_bad, of_bad = bad_ops(run_id=run_id, graph_id=graph_id)
    conditions, parameters = given_conditions(
        [("run_id = ?", run_id), ("graph_id = ?", graph_id), ("op_type = ?", filter_.op_type or None)]
    )
    if filter_.name:
        conditions.append("(contains(lower(op_name), ?) OR contains(lower(op_type), ?))")
        parameters += [filter_.name.lower()] * 2
    if filter_.is_bad:
        conditions.append(f"op_name IN (SELECT op_name FROM ({select_bad}) AS bad)")
        parameters += of_bad
    condition = " AND ".join(conditions)
    bound, order, at = (">=", "", first) if before is None else ("<", " DESC", before)
    rows = logdir.rows(
        f"SELECT op_index, op_name, op_type, layer, role FROM graph_op WHERE {condition} AND op_index {bound} ? "
        f"ORDER BY op_index{order} LIMIT {int(limit)}",
        [*parameters, at],
    )
    rows.sort(key=lambda row: row[0])
    names = [name for _, name, *_ in rows] or [""]
    num_bad = dict(
        logdir.rows(
            f"SELECT op_name, num_bad FROM ({select_bad}) AS bad WHERE op_name IN ({', '.join('?' * len(names))})",
            [*of_bad, *names],
        )
    )
    ((num_matching, num_before),) = logdir.rows(
        f"SELECT count(*), count(CASE WHEN op_index < ? THEN 1 END) FROM graph_op WHERE {condition}",
        [rows[0][0] if rows else at, *parameters],
    )
    types = logdir.rows(
        f"SELECT DISTINCT op_type FROM graph_op WHERE run_id = ? AND graph_id = ? ORDER BY op_type LIMIT {_MAX_TYPES}",
        [run_id, graph_id],
    )
    return OpWindow(
        rows=tuple(
            OpRow(index, name, op_type, layer, role, num_bad.get(name, 0)) for index, name, op_type, layer, role in rows
        ),
        num_matching=num_matching,
        num_before=num_before,
        op_types=tuple(op_type for (op_type,) in types),
    )
