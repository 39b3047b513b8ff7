"""Recorded tensors of one run, read a call at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from tfdbg_arrow.query.engine import MAX_ROWS, Engine
from tfdbg_arrow.query.health import TensorHealth

KINDS = ("nan", "inf")
"""The kinds of bad element."""


@dataclass(frozen=True, slots=True)
class TensorEvent(TensorHealth):
    """One row of tensor_health; the attributes are its columns, None for NULL."""

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
        """Returns which of the kinds the tensor holds.

        Where only `has_inf_or_nan` was measured (CURT_HEALTH), a bad tensor may hold either: all of them.
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


_COLUMNS = tuple(field.name for field in fields(TensorEvent))
_SHAPE = _COLUMNS.index("shape")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM tensor_health WHERE run_id = ? AND "


@dataclass(frozen=True, slots=True)
class Context:
    """Where in the run's control flow a graph ran; None is unknown.

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
    """Where one graph left rows within one step: a call site in one control-flow frame.

    Attributes:
        graph_id: The graph.
        call_site: Its call site.
        frame_id: Its control-flow frame.
        first_iteration: Least iteration with a row.
        last_iteration: Greatest iteration with a row.
        first_event_index: Least event_index of the rows.
    """

    graph_id: int
    call_site: str
    frame_id: int
    first_iteration: int
    last_iteration: int
    first_event_index: int


@dataclass(frozen=True, slots=True)
class EagerTensor:
    """What is known of an eager tensor.

    Attributes:
        tensor_id: Its id.
        event: Its row in tensor_health, or None.
        execution_index: The execution that made it; None for one from outside.
        execution_event_index: That execution's event_index.
        op_type: That execution's op type or function name.
        graph_id: The called function's graph; None for an op.
        output_slot: Which output of the execution.
        dtype: Its dtype, None where unknown.
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
    """One eager op or call; the attributes are columns of execution, None for NULL."""

    execution_index: int
    event_index: int
    op_type: str
    graph_id: int | None
    stack_trace_id: int | None


_SliceKey = tuple[int, str, int]


class EventReader:
    """Reads the recorded tensors of one run; keeps what it read last.

    Args:
        logdir: The logdir.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._slice = lru_cache(maxsize=512)(self._read_slice)
        self.site_visits = lru_cache(maxsize=64)(self._read_site_visits)
        self.eager = lru_cache(maxsize=10_000)(self._read_eager)
        self.execution_inputs = lru_cache(maxsize=4096)(self._read_execution_inputs)
        self.execution = lru_cache(maxsize=4096)(self._read_execution)
        self.root_context = lru_cache(maxsize=256)(self._read_root_context)
        self.consumers = lru_cache(maxsize=10_000)(self._read_consumers)
        self.execution_outputs = lru_cache(maxsize=4096)(self._read_execution_outputs)
        self._nearest = lru_cache(maxsize=10_000)(self._read_nearest)

    def bad_events(
        self, kinds: Sequence[str], *, limit: int | None = None, after: int = -1, before: int | None = None
    ) -> list[TensorEvent]:
        """Returns the tensors that hold one of the kinds, by event_index.

        Args:
            kinds: `nan`, `inf` or both.
            limit: At most so many; None: all.
            after: Only those with a greater event_index.
            before: Only those with a smaller event_index; None: all.
        """
        return self._events(
            f"{bad_condition(kinds)} AND event_index > ? AND event_index < ? ORDER BY event_index"
            + ("" if limit is None else f" LIMIT {min(limit, MAX_ROWS)}"),
            [after, 2**63 - 1 if before is None else before],
        )

    def later_bad_iteration(self, context: Context, *, after: int, kinds: tuple[str, ...]) -> list[tuple[int, int]]:
        """Returns (frame_id, least iteration) of the frames of a step that hold bad tensors after an event."""
        rows = self._logdir.rows(
            f"SELECT frame_id, min(iteration) FROM tensor_health WHERE run_id = ? AND {bad_condition(kinds)} "
            "AND event_index > ? AND step_id = ? AND execution_index IS NOT DISTINCT FROM ? GROUP BY frame_id",
            [self._run_id, after, context.step_id, context.execution_index],
        )
        return [(frame_id or 0, iteration or 0) for frame_id, iteration in rows]

    def graph_tensor(
        self, context: Context, *, graph_id: int, op_name: str, output_slot: int, near: int
    ) -> TensorEvent | None:
        """Returns the row of a graph's tensor, or None where it has none.

        Args:
            context: Where the graph ran; where it is unknown, the row nearest before `near` is meant.
            graph_id: The graph.
            op_name: The op.
            output_slot: Which output.
            near: event_index of the tensor's user.
        """
        key = (graph_id, op_name, output_slot)
        if context.step_id is None or context.call_site is None:
            return self._nearest(key, context.execution_index, near)
        rows = self._slice(context).get(key, ())
        if len(rows) <= 1:
            return rows[0] if rows else None
        # A loop that was not lowered runs its iterations in one context.
        return next((row for row in reversed(rows) if row.event_index < near), rows[0])

    def has_rows(self, context: Context) -> bool:
        """Returns whether anything was recorded in a context whose step is known."""
        return bool(self._slice(context))

    def _read_slice(self, context: Context) -> dict[_SliceKey, list[TensorEvent]]:
        conditions = ["step_id = ?", "execution_index IS NOT DISTINCT FROM ?", "call_site = ?"]
        parameters: list[object] = [context.step_id, context.execution_index, context.call_site]
        for name, value in (("frame_id", context.frame_id), ("iteration", context.iteration)):
            if value is not None:
                conditions.append(f"{name} = ?")
                parameters.append(value)
        found: dict[_SliceKey, list[TensorEvent]] = {}
        for row in self._events(" AND ".join(conditions) + " ORDER BY event_index", parameters):
            if row.graph_id is not None and row.op_name is not None and row.output_slot is not None:
                found.setdefault((row.graph_id, row.op_name, row.output_slot), []).append(row)
        return found

    def _read_nearest(self, key: _SliceKey, execution_index: int | None, near: int) -> TensorEvent | None:
        condition = "graph_id = ? AND op_name = ? AND output_slot = ? AND event_index < ?"
        parameters: list[object] = [*key, near]
        if execution_index is not None:
            condition += " AND execution_index = ?"
            parameters.append(execution_index)
        rows = self._events(condition + " ORDER BY event_index DESC LIMIT 1", parameters)
        return rows[0] if rows else None

    def _read_site_visits(self, step_id: int, execution_index: int | None) -> tuple[SiteVisit, ...]:
        rows = self._logdir.rows(
            "SELECT graph_id, call_site, coalesce(frame_id, 0), min(coalesce(iteration, 0)), "
            "max(coalesce(iteration, 0)), min(event_index) AS first_event_index "
            "FROM tensor_health WHERE run_id = ? AND step_id = ? AND execution_index IS NOT DISTINCT FROM ? "
            "AND graph_id IS NOT NULL AND call_site IS NOT NULL "
            "GROUP BY graph_id, call_site, coalesce(frame_id, 0) ORDER BY first_event_index",
            [self._run_id, step_id, execution_index],
        )
        return tuple(SiteVisit(*row) for row in rows)

    def _read_root_context(self, execution_index: int, graph_id: int) -> Context:
        rows = self._logdir.rows(
            "SELECT step_id FROM tensor_health WHERE run_id = ? AND execution_index = ? AND scope = 'graph' "
            "AND step_id IS NOT NULL ORDER BY graph_id = ? AND call_site = '' DESC NULLS LAST, event_index LIMIT 1",
            [self._run_id, execution_index, graph_id],
        )
        if not rows:
            return Context(None, execution_index, None, None, None)
        return Context(rows[0][0], execution_index, "", 0, 0)

    def _read_eager(self, tensor_id: int) -> EagerTensor:
        made = self._logdir.rows(
            "SELECT o.execution_index, e.event_index, e.op_type, e.graph_id, o.output_slot, o.dtype "
            "FROM execution_output AS o JOIN execution AS e "
            "ON e.run_id = o.run_id AND e.execution_index = o.execution_index "
            "WHERE o.run_id = ? AND o.tensor_id = ? ORDER BY o.execution_index LIMIT 1",
            [self._run_id, tensor_id],
        )
        events = self._events("tensor_id = ? AND scope <> 'graph' ORDER BY event_index LIMIT 1", [tensor_id])
        event = events[0] if events else None
        if made:
            execution_index, event_index, op_type, graph_id, slot, dtype = made[0]
            return EagerTensor(tensor_id, event, execution_index, event_index, op_type, graph_id, slot, dtype)
        if event is not None and event.scope == "execution":
            return EagerTensor(
                tensor_id, event, event.execution_index, None, event.op_type, None, event.output_slot, event.dtype
            )
        return EagerTensor(tensor_id, event, None, None, None, None, None, None if event is None else event.dtype)

    def _read_execution_inputs(self, execution_index: int) -> dict[int, int]:
        rows = self._logdir.rows(
            "SELECT input_index, tensor_id FROM execution_input WHERE run_id = ? AND execution_index = ? "
            "ORDER BY input_index",
            [self._run_id, execution_index],
        )
        return dict(rows)

    def _read_execution(self, execution_index: int) -> Execution | None:
        rows = self._logdir.rows(
            "SELECT execution_index, event_index, op_type, graph_id, stack_trace_id FROM execution "
            "WHERE run_id = ? AND execution_index = ?",
            [self._run_id, execution_index],
        )
        return Execution(*rows[0]) if rows else None

    def event(self, event_index: int) -> TensorEvent | None:
        """Returns a row by its event_index, or None."""
        rows = self._events("event_index = ?", [event_index])
        return rows[0] if rows else None

    def _read_consumers(self, tensor_id: int) -> tuple[tuple[Execution, int], ...]:
        """Returns (execution, input index) of every use of an eager tensor by an execution."""
        rows = self._logdir.rows(
            "SELECT e.execution_index, e.event_index, e.op_type, e.graph_id, e.stack_trace_id, i.input_index "
            "FROM execution_input AS i JOIN execution AS e "
            "ON e.run_id = i.run_id AND e.execution_index = i.execution_index "
            "WHERE i.run_id = ? AND i.tensor_id = ? ORDER BY e.event_index, i.input_index",
            [self._run_id, tensor_id],
        )
        return tuple((Execution(*row[:-1]), row[-1]) for row in rows)

    def _read_execution_outputs(self, execution_index: int) -> dict[int, tuple[int, str]]:
        """Returns (tensor id, dtype) of each output of an execution, by its slot."""
        rows = self._logdir.rows(
            "SELECT output_slot, tensor_id, dtype FROM execution_output WHERE run_id = ? AND execution_index = ? "
            "ORDER BY output_slot",
            [self._run_id, execution_index],
        )
        return {slot: (tensor_id, dtype) for slot, tensor_id, dtype in rows}

    def executions_of(self, op_types: Sequence[str]) -> list[Execution]:
        """Returns the executions of these op types or functions, by event_index."""
        if not op_types:
            return []
        rows = self._logdir.rows(
            "SELECT execution_index, event_index, op_type, graph_id, stack_trace_id FROM execution "
            f"WHERE run_id = ? AND op_type IN ({', '.join('?' * len(op_types))}) ORDER BY event_index",
            [self._run_id, *op_types],
        )
        return [Execution(*row) for row in rows]

    def users(self, tensor_id: int) -> list[tuple[str, int | None, int]]:
        """Returns (op type, called graph, input index) of every way in which executions take an eager tensor."""
        rows = self._logdir.rows(
            "SELECT DISTINCT e.op_type, e.graph_id, i.input_index FROM execution_input AS i JOIN execution AS e "
            "ON e.run_id = i.run_id AND e.execution_index = i.execution_index "
            "WHERE i.run_id = ? AND i.tensor_id = ? "
            "ORDER BY e.op_type, e.graph_id NULLS LAST, i.input_index",
            [self._run_id, tensor_id],
        )
        return [(op_type, graph_id, index) for op_type, graph_id, index in rows]

    def last_user(self, tensor_id: int, *, op_types: Sequence[str], before: int) -> Execution | None:
        """Returns the last execution of these op types or functions that takes an eager tensor and starts before."""
        if not op_types:
            return None
        rows = self._logdir.rows(
            "SELECT e.execution_index, e.event_index, e.op_type, e.graph_id, e.stack_trace_id "
            "FROM execution_input AS i JOIN execution AS e "
            "ON e.run_id = i.run_id AND e.execution_index = i.execution_index "
            f"WHERE i.run_id = ? AND i.tensor_id = ? AND e.op_type IN ({', '.join('?' * len(op_types))}) "
            "AND e.event_index < ? ORDER BY e.event_index DESC LIMIT 1",
            [self._run_id, tensor_id, *op_types, before],
        )
        return Execution(*rows[0]) if rows else None

    def _events(self, condition: str, parameters: Sequence[object]) -> list[TensorEvent]:
        return [_event(row) for row in self._logdir.rows(_SELECT + condition, [self._run_id, *parameters])]


def bad_condition(kinds: Sequence[str]) -> str:
    """Returns the SQL condition on tensor_health for holding one of the kinds.

    The one boolean column decides for healthy rows, so a scan of a healthy run reads no count.
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
