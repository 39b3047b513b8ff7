"""Reads the recorded tensors and executions of one run, one call or one block of executions at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tfdbg_arrow.query.engine import MAX_ROWS, Engine
from tfdbg_arrow.query.flow.calls import CallReader
from tfdbg_arrow.query.flow.eager import EagerReader
from tfdbg_arrow.query.recorded import KINDS, Context, TensorEvent, bad_condition, read_events


class EventReader:
    """Reads the recorded tensors and executions of one run, and caches the most recent ones.

    Args:
        logdir: The logdir.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id
        self._calls = CallReader(logdir, run_id=run_id)
        self._eager = EagerReader(logdir, run_id=run_id)
        self.graph_tensor = self._calls.graph_tensor
        self.op_types_at = self._calls.op_types_at
        self.site_visits = self._calls.site_visits
        self.root_context = self._calls.root_context
        self.eager = self._eager.tensor
        self.execution = self._eager.execution
        self.execution_inputs = self._eager.inputs
        self.execution_outputs = self._eager.outputs
        self.taken_together = self._eager.taken_together
        self.op_types = self._eager.op_types
        self.executions_of = self._eager.executions_of
        self.uses = self._eager.uses
        self.uses_before = self._eager.uses_before
        self.ways_of_use = self._eager.ways_of_use

    def event(self, event_index: int) -> TensorEvent | None:
        """Returns a row by its event_index, or None."""
        rows = read_events(self._logdir, "event_index = ?", [self._run_id, event_index])
        return rows[0] if rows else None

    def bad_events(
        self, kinds: Sequence[str], *, limit: int | None = None, after: int = -1, before: int | None = None
    ) -> list[TensorEvent]:
        """Returns the tensors that hold one of the kinds, by event_index.

        Args:
            kinds: `nan`, `inf` or both.
            limit: Maximum number of rows; None means all.
            after: Only those with a greater event_index.
            before: Only those with a smaller event_index; None means all.
        """
        return read_events(
            self._logdir,
            f"{bad_condition(kinds)} AND event_index > ? AND event_index < ? ORDER BY event_index"
            + ("" if limit is None else f" LIMIT {min(limit, MAX_ROWS)}"),
            [self._run_id, after, 2**63 - 1 if before is None else before],
        )

    def first_bad_execution(self) -> int:
        """Returns the least execution_index of a bad tensor: everything that earlier executions made is clean.

        Returns 0 if it is not known because a bad tensor has no execution_index.
        """
        ((first, is_known),) = self._logdir.rows(
            "SELECT min(execution_index), count(*) = count(execution_index) FROM tensor_health "
            f"WHERE run_id = ? AND {bad_condition(KINDS)}",
            [self._run_id],
        )
        return int(first) if is_known and first is not None else 0

    def later_bad_iteration(self, context: Context, *, after: int, kinds: tuple[str, ...]) -> list[tuple[int, int]]:
        """Returns (frame_id, least iteration) of each frame of a step that holds bad tensors after an event."""
        rows = self._logdir.rows(
            f"SELECT frame_id, min(iteration) FROM tensor_health WHERE run_id = ? AND {bad_condition(kinds)} "
            "AND event_index > ? AND step_id = ? AND execution_index IS NOT DISTINCT FROM ? GROUP BY frame_id",
            [self._run_id, after, context.step_id, context.execution_index],
        )
        return [(frame_id or 0, iteration or 0) for frame_id, iteration in rows]
