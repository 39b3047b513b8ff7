"""Recorded tensors and executions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.health import TensorHealth

KINDS = ("nan", "inf")
"""The kinds of bad element."""


@dataclass(frozen=True, slots=True)
class TensorEvent(TensorHealth):
    """One row of tensor_health. The attributes are its columns, with None for NULL."""

    wall_time_ns: int
    scope: str
    execution_index: int | None
    step_id: int | None
    frame_id: int | None
    iteration: int | None
    call_site: str | None
    graph_id: int | None
    op_name: str | None
    op_type: str | None
    output_slot: int | None
    tensor_id: int | None
    device_id: int | None
    step: int | None

    def bad_kinds(self, kinds: Iterable[str] = KINDS) -> frozenset[str]:
        """Returns the kinds, among the given ones, that the tensor holds.

        If only `has_inf_or_nan` was measured (CURT_HEALTH), a bad tensor may hold any kind, so all are returned.
        """
        if not self.has_inf_or_nan:
            return frozenset()
        counts = {
            "nan": self.num_nan,
            "inf": None
            if self.num_neg_inf is None or self.num_pos_inf is None
            else self.num_neg_inf + self.num_pos_inf,
        }
        return frozenset(kind for kind in kinds if counts[kind] is None or counts[kind])

    @property
    def context(self) -> Context:
        """Where in the run's control flow a graph tensor was computed."""
        return Context(self.step_id, self.execution_index, self.call_site, self.frame_id, self.iteration)


@dataclass(frozen=True, slots=True)
class Context:
    """Where in the run's control flow a graph ran. None means unknown.

    Attributes:
        step_id: TensorFlow's step id.
        execution_index: The call from eager code.
        call_site: Path of calling ops from the outermost graph.
        frame_id: Control-flow frame.
        iteration: Iteration of that frame's loop, from 0.
    """

    step_id: int | None
    execution_index: int | None
    call_site: str | None
    frame_id: int | None
    iteration: int | None


@dataclass(frozen=True, slots=True)
class SiteVisit:
    """The rows of one graph at a call site in one control-flow frame, within one step.

    Attributes:
        graph_id: The graph.
        call_site: Its call site.
        frame_id: Its control-flow frame.
        iterations: The iterations with a row, in order.
        first_event_index: Least event_index of the rows.
        num_rows: Number of rows.
    """

    graph_id: int
    call_site: str
    frame_id: int
    iterations: tuple[int, ...]
    first_event_index: int
    num_rows: int

    @property
    def last_iteration(self) -> int:
        """The greatest iteration with a row."""
        return self.iterations[-1]


@dataclass(frozen=True, slots=True)
class EagerTensor:
    """The recorded facts about an eager tensor.

    Attributes:
        tensor_id: Its id.
        event: Its row in tensor_health, or None.
        execution_index: The execution that made it; None for a tensor from outside.
        execution_event_index: That execution's event_index.
        op_type: That execution's op type or function name.
        graph_id: The called function's graph; None for an op.
        output_slot: Index of the execution's output.
        dtype: Its dtype; None if unknown.
    """

    tensor_id: int
    event: TensorEvent | None
    execution_index: int | None
    execution_event_index: int | None
    op_type: str | None
    graph_id: int | None
    output_slot: int | None
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Execution:
    """One eager op or call. The attributes are columns of execution, with None for NULL."""

    execution_index: int
    event_index: int
    op_type: str
    graph_id: int | None
    stack_trace_id: int | None


@dataclass(frozen=True, slots=True)
class Use:
    """One input of an execution."""

    execution: Execution
    input_index: int


_COLUMNS = tuple(field.name for field in fields(TensorEvent))
_SHAPE = _COLUMNS.index("shape")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM tensor_health WHERE run_id = ? AND "


def read_events(logdir: Engine, condition: str, parameters: Sequence[object]) -> list[TensorEvent]:
    """Returns rows of tensor_health.

    Args:
        logdir: The logdir.
        condition: SQL behind `WHERE run_id = ? AND`.
        parameters: The run, then the values for the `?` of the condition.
    """
    return [_event(row) for row in logdir.rows(_SELECT + condition, parameters)]


def bad_condition(kinds: Sequence[str]) -> str:
    """Returns the SQL condition on tensor_health that selects tensors with one of the kinds.

    The condition first tests one boolean column, so a scan of a healthy run does not read the counts.
    """
    if set(kinds) == set(KINDS):
        return "has_inf_or_nan"
    if tuple(kinds) == ("nan",):
        return "(has_inf_or_nan AND (num_nan IS NULL OR num_nan > 0))"
    return "(has_inf_or_nan AND (num_neg_inf IS NULL OR num_neg_inf > 0 OR num_pos_inf > 0))"


def _event(row: tuple[Any, ...]) -> TensorEvent:
    values = list(row)
    values[_SHAPE] = None if row[_SHAPE] is None else tuple(row[_SHAPE])
    return TensorEvent(*values)
