"""Executions: windows of executions with the health of their outputs, and single executions with their tensors."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.query.display.row_window import Rows, given_conditions
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import HEALTH_COLUMNS, EagerValue, TensorHealth, health_of
from tfdbg_arrow.query.stacks import Frame, StackReader

MAX_TENSORS = 100
"""Maximum number of inputs that are returned for an execution. It also limits the outputs."""
MAX_OUTPUTS = 2
"""Maximum number of outputs whose health a row of an execution holds."""
_FACTS = (
    "run_id", "execution_index", "event_index", "wall_time_ns", "op_type", "graph_id", "num_inputs", "num_outputs",
    "stack_trace_id", "thread_id", "step",
)  # fmt: skip
_BAD = (
    "SELECT execution_index FROM tensor_health WHERE run_id = ? AND has_inf_or_nan AND scope <> 'external' "
    "AND execution_index >= ? AND execution_index < ?"
)


@dataclass(frozen=True, kw_only=True)
class ExecutionFilter:
    """A filter for executions. None means any.

    Attributes:
        op_type: Type of the op, or the called function's runtime name.
        name: Text that the op type, function name or graph name contains, ignoring case.
        graph_id: The called graph.
        thread_id: The Python thread.
        first_step: Least training step.
        last_step: Greatest training step.
        is_call: Only calls of functions.
        is_bad: Only executions that created a tensor with an infinity or a NaN, as an output or inside the call.
    """

    op_type: str | None = None
    name: str | None = None
    graph_id: int | None = None
    thread_id: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    is_call: bool = False
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class ExecutionOutput(TensorHealth):
    """One recorded output of an execution; it also has the attributes of TensorHealth.

    Attributes:
        output_slot: Index of the output; None if it is unknown because the run was imported.
        tensor_id: Identifies the eager tensor.
    """

    output_slot: int | None
    tensor_id: int | None


@dataclass(frozen=True, kw_only=True)
class ExecutionRow:
    """One execution. An attribute is None if it is unknown or does not apply.

    Attributes:
        run_id: The run.
        execution_index: Identifies the execution. Executions are numbered in the order of their start.
        event_index: The position of the execution among all events.
        wall_time_ns: When the execution was recorded, in nanoseconds since 1970-01-01T00:00:00Z.
        op_type: Op type, or the called function's runtime name.
        graph_id: The called function's graph; None for an op.
        graph_name: The name of this graph.
        num_inputs: Number of input tensors.
        num_outputs: Number of output tensors.
        stack_trace_id: The Python stack of the execution.
        thread_id: The Python thread.
        step: The marked training step.
        devices: Names of the devices that computed the tensors of the execution.
        outputs: The recorded outputs, bad outputs first; at most MAX_OUTPUTS.
        num_recorded_outputs: Number of recorded outputs.
        num_inside: Number of recorded tensors inside the call.
        num_bad_outputs: Number of recorded outputs with an infinity or a NaN.
        num_bad_inside: Number of recorded tensors inside the call with an infinity or a NaN.
        source: The innermost frame of the user's code.
    """

    run_id: str
    execution_index: int
    event_index: int
    wall_time_ns: int
    op_type: str
    graph_id: int | None
    graph_name: str | None
    num_inputs: int
    num_outputs: int
    stack_trace_id: int | None
    thread_id: int | None
    step: int | None
    devices: tuple[str, ...]
    outputs: tuple[ExecutionOutput, ...]
    num_recorded_outputs: int
    num_inside: int
    num_bad_outputs: int
    num_bad_inside: int
    source: Frame | None

    @property
    def is_call(self) -> bool:
        """Whether the execution called a function.

        A function whose graph was not recorded is recognized by its name.
        """
        return self.graph_id is not None or self.op_type.startswith("__")

    @property
    def is_bad(self) -> bool:
        """Whether the execution created a tensor with an infinity or a NaN."""
        return self.num_bad_outputs + self.num_bad_inside > 0


def executions(logdir: Engine, filter_: ExecutionFilter, *, run_id: str) -> Rows[ExecutionRow]:
    """Returns the executions of a run that match a filter, by execution_index."""
    return Rows(
        logdir=logdir,
        table="execution AS e",
        index="e.execution_index",
        condition=functools.partial(_condition, filter_, run_id=run_id),
        read=functools.partial(_read_rows, logdir, run_id),
    )


def read_execution(logdir: Engine, execution_index: int, *, run_id: str) -> ExecutionRow | None:
    """Returns one execution of a run, or None if no execution has this execution_index."""
    rows = _read_rows(logdir, run_id, "e.run_id = ? AND e.execution_index = ?", [run_id, execution_index], 1, 0)
    return rows[0] if rows else None


def _condition(filter_: ExecutionFilter, low: int, end: int, *, run_id: str) -> tuple[str, list[object]]:
    """Returns the condition on execution AS e with `low` <= execution_index < `end`, and its parameters."""
    conditions, parameters = given_conditions(
        [
            ("e.run_id = ?", run_id),
            ("e.execution_index >= ?", low),
            ("e.execution_index < ?", end),
            ("e.op_type = ?", filter_.op_type),
            ("e.graph_id = ?", filter_.graph_id),
            ("e.thread_id = ?", filter_.thread_id),
            ("e.step >= ?", filter_.first_step),
            ("e.step <= ?", filter_.last_step),
        ]
    )
    if filter_.name:
        text = filter_.name.lower()
        conditions.append(
            "(contains(lower(e.op_type), ?) OR e.graph_id IN "
            "(SELECT graph_id FROM graph WHERE run_id = ? AND contains(lower(graph_name), ?)))"
        )
        parameters += [text, run_id, text]
    if filter_.is_call:
        conditions.append("(e.graph_id IS NOT NULL OR substr(e.op_type, 1, 2) = '__')")
    if filter_.is_bad:
        conditions.append(f"e.execution_index IN ({_BAD})")
        # The range is repeated, because the table may hold millions of bad tensors outside the range.
        parameters += [run_id, low, end]
    return " AND ".join(conditions), parameters


def _read_rows(
    logdir: Engine, run_id: str, condition: str, parameters: list[object], limit: int, offset: int
) -> tuple[ExecutionRow, ...]:
    columns = ", ".join(f"e.{column}" for column in _FACTS)
    rows = logdir.rows(
        f"SELECT {columns}, g.graph_name FROM execution AS e "
        "LEFT JOIN graph AS g ON g.run_id = e.run_id AND g.graph_id = e.graph_id "
        f"WHERE {condition} ORDER BY e.execution_index LIMIT {limit} OFFSET {offset}",
        parameters,
    )
    facts = [dict(zip((*_FACTS, "graph_name"), row, strict=True)) for row in rows]
    indexes = [int(fact["execution_index"]) for fact in facts]
    if not indexes:
        return ()
    created = _Made(logdir, indexes, run_id=run_id)
    stacks = {fact["stack_trace_id"] for fact in facts if fact["stack_trace_id"] is not None}
    sources = StackReader(logdir, run_id=run_id).user_sources(stacks)
    return tuple(
        ExecutionRow(**fact, **created.facts(index), source=sources.get(fact["stack_trace_id"]))
        for index, fact in zip(indexes, facts, strict=True)
    )


class _Made:
    """The recorded tensors that some executions created."""

    def __init__(self, logdir: Engine, indexes: Sequence[int], *, run_id: str) -> None:
        # With the range, DuckDB skips most of the table. With only the list, DuckDB reads most of it.
        condition = (
            "run_id = ? AND execution_index >= ? AND execution_index <= ? "
            f"AND execution_index IN ({', '.join('?' * len(indexes))})"
        )
        parameters = [run_id, indexes[0], indexes[-1], *indexes]
        self._counts: dict[tuple[int, str], tuple[int, int]] = {}
        self._devices: dict[int, list[str]] = {}
        self._outputs: dict[int, list[ExecutionOutput]] = {}
        for index, scope, num_all, num_bad in logdir.rows(
            "SELECT execution_index, scope, count(*), count(CASE WHEN has_inf_or_nan THEN 1 END) FROM tensor_health "
            f"WHERE {condition} AND scope <> 'external' GROUP BY 1, 2",
            parameters,
        ):
            self._counts[index, scope] = (num_all, num_bad)
        for index, name in logdir.rows(
            "SELECT DISTINCT h.execution_index, d.device_name FROM (SELECT execution_index, device_id "
            f"FROM tensor_health WHERE {condition} AND scope <> 'external') AS h "
            "JOIN (SELECT device_id, device_name FROM device WHERE run_id = ?) AS d ON d.device_id = h.device_id "
            "ORDER BY 1, 2",
            [*parameters, run_id],
        ):
            self._devices.setdefault(index, []).append(name)
        columns = ", ".join(("output_slot", "tensor_id", *HEALTH_COLUMNS))
        for index, *row in logdir.rows(
            f"SELECT execution_index, {columns} FROM (SELECT *, row_number() OVER (PARTITION BY execution_index "
            "ORDER BY CASE WHEN has_inf_or_nan THEN 0 ELSE 1 END, event_index) AS place FROM tensor_health "
            f"WHERE {condition} AND scope = 'execution') AS h WHERE place <= {MAX_OUTPUTS} ORDER BY 1, place",
            parameters,
        ):
            facts = dict(zip(("output_slot", "tensor_id", *HEALTH_COLUMNS), row, strict=True))
            shape = facts["shape"]
            facts["shape"] = None if shape is None else tuple(shape)
            self._outputs.setdefault(index, []).append(ExecutionOutput(**facts))

    def facts(self, index: int) -> dict[str, Any]:
        """Returns the attributes of an ExecutionRow that describe the tensors which the execution created."""
        num_outputs, num_bad_outputs = self._counts.get((index, "execution"), (0, 0))
        num_inside, num_bad_inside = self._counts.get((index, "graph"), (0, 0))
        return {
            "devices": tuple(self._devices.get(index, ())),
            "outputs": tuple(self._outputs.get(index, ())),
            "num_recorded_outputs": num_outputs,
            "num_inside": num_inside,
            "num_bad_outputs": num_bad_outputs,
            "num_bad_inside": num_bad_inside,
        }


@dataclass(frozen=True, kw_only=True)
class ExecutionTensor:
    """One input or output of an execution. An attribute is None if it is unknown or was not recorded.

    Attributes:
        index: Index of the input or output, from 0.
        tensor_id: Identifies the eager tensor.
        dtype: TensorFlow's name of the dtype.
        health: The health of the tensor, or of the equal tensor on the other side of a call.
        op_type: The op or function that created the tensor; None if no recorded op created it.
        output_slot: The output of this op or function.
        execution_index: The execution that created the tensor.
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
    """Returns (inputs, outputs) of an execution, in order, each with at most MAX_TENSORS tensors.

    Args:
        logdir: The logdir.
        execution_index: The execution. If it was not recorded, there are no inputs and outputs.
        run_id: The run.
    """
    flow = DataFlow.of(logdir.of_run(run_id), run_id=run_id)
    with flow.lock:
        outputs = {slot: tensor_id for slot, (tensor_id, _) in flow.events.execution_outputs(execution_index).items()}
        return (
            _tensors(flow, flow.events.execution_inputs(execution_index), execution_index),
            _tensors(flow, outputs, execution_index),
        )


def _tensors(flow: DataFlow, ids: Mapping[int, int], execution_index: int) -> tuple[ExecutionTensor, ...]:
    execution = flow.events.execution(execution_index)
    near = 2**63 - 1 if execution is None else execution.event_index
    tensors = []
    for index, tensor_id in list(ids.items())[:MAX_TENSORS]:
        tensor = flow.events.eager(tensor_id)
        trace = flow.trace(EagerValue(tensor_id), how="eager", near=near)
        tensors.append(
            ExecutionTensor(
                index=index,
                tensor_id=tensor_id,
                dtype=tensor.dtype or trace.dtype,
                health=None if trace.health is None else health_of(trace.health),
                op_type=tensor.op_type,
                output_slot=tensor.output_slot,
                execution_index=tensor.execution_index,
            )
        )
    return tuple(tensors)
