"""Results: bad eager tensors that the program received, and the decisions that eager ops make from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.flow.decisions import SELF_CHECKS, effect_of_decision, is_decision, is_writer
from tfdbg_arrow.query.flow.discarded import DiscardedResults
from tfdbg_arrow.query.flow.graphs import CHECKS, DISCRETE, NEVER_BAD_IN_SQL
from tfdbg_arrow.query.flow.moved import MovedTensors
from tfdbg_arrow.query.flow.search import rows_behind
from tfdbg_arrow.query.flow.skipped import SkippedUses
from tfdbg_arrow.query.recorded import EFFECTS, Execution, TensorEvent, bad_condition, read_events
from tfdbg_arrow.schema.op_traits import CONTAINERS, READER

_DISCRETE_DTYPES = ", ".join(f"'{dtype}'" for dtype in sorted(DISCRETE))
_BATCH = 2048
"""Number of bad eager tensors that are read at a time."""
_MAX_KEPT = 100
"""Maximum number of tensors that one search examines."""


@dataclass(frozen=True, slots=True)
class _EagerUse:
    """How executions of one op type and role take an eager tensor.

    Attributes:
        op_type: The op type, or the name of the function.
        role: The role.
        can_be_bad: Whether an output can be bad, or a function takes the tensor.
        is_discrete: Whether an output of an op is an integer or a boolean.
    """

    op_type: str
    role: str | None
    can_be_bad: bool
    is_discrete: bool


class Results:
    """Finds the bad tensors that eager ops and calls returned to the program, within one run.

    Args:
        kinds: The kinds that count: `nan`, `inf` or both.
    """

    def __init__(
        self,
        logdir: Engine,
        flow: DataFlow,
        *,
        moved: MovedTensors,
        skipped_uses: SkippedUses,
        run_id: str,
        kinds: tuple[str, ...],
    ) -> None:
        self._logdir = logdir
        self._flow = flow
        self._moved = moved
        self._skipped_uses = skipped_uses
        self._run_id = run_id
        self._bad = bad_condition(kinds)
        self._num_outputs = lru_cache(maxsize=4096)(self._read_num_outputs)
        self._outputs = lru_cache(maxsize=4096)(self._read_outputs)
        self.discarded = DiscardedResults(logdir, flow, run_id=run_id)

    def of_effect(self, effect: str, first: int, last: int) -> Iterator[TensorEvent]:
        """Yields the bad tensors of one effect among the tensors that eager ops and calls returned.

        Either nothing is computed from such a tensor, or an op makes a decision from it.
        """
        after = (first, -1)
        while True:
            rows = read_events(
                self._logdir,
                f"{self._bad} AND scope = 'execution' AND execution_index BETWEEN ? AND ? "
                "AND (execution_index > ? OR event_index > ?) "
                f"ORDER BY execution_index, event_index LIMIT {_BATCH}",
                [self._run_id, after[0], last, *after],
            )
            if not rows:
                return
            after = (rows[-1].execution_index or 0, rows[-1].event_index)
            uses = self._uses_of(rows)
            for row in rows:
                own = uses.get(row.tensor_id, [])
                if not any(_computes(row, use) for use in own):
                    is_end = self._is_result(row, effect, is_taken=bool(own))
                else:
                    is_end = self._effect_of_uses(row, own) == effect
                if is_end:
                    yield row

    def _uses_of(self, rows: list[TensorEvent]) -> dict[int | None, list[_EagerUse]]:
        """Returns, for each eager tensor, how executions take the tensor."""
        ids = sorted({row.tensor_id for row in rows if row.tensor_id is not None})
        by_tensor: dict[int | None, list[_EagerUse]] = {}
        for tensor_id, op_type, role, can_be_bad, is_discrete in self._logdir.rows(
            "SELECT i.tensor_id, e.op_type, e.role, max(CASE WHEN e.graph_id IS NOT NULL "
            f"OR (o.output_slot IS NOT NULL AND coalesce(o.dtype, '') NOT IN ({NEVER_BAD_IN_SQL})) THEN 1 ELSE 0 END), "
            f"max(CASE WHEN e.graph_id IS NULL AND o.dtype IN ({_DISCRETE_DTYPES}) THEN 1 ELSE 0 END) "
            "FROM execution_input AS i "
            "JOIN execution AS e ON e.run_id = i.run_id AND e.execution_index = i.execution_index "
            "LEFT JOIN execution_output AS o ON o.run_id = e.run_id AND o.execution_index = e.execution_index "
            f"WHERE i.run_id = ? AND i.tensor_id IN ({', '.join('?' * len(ids))}) "
            "GROUP BY i.tensor_id, e.op_type, e.role",
            [self._run_id, *ids],
        ):
            use = _EagerUse(op_type, role, can_be_bad=bool(can_be_bad), is_discrete=bool(is_discrete))
            by_tensor.setdefault(tensor_id, []).append(use)
        return by_tensor

    def _effect_of_uses(self, row: TensorEvent, uses: list[_EagerUse]) -> str | None:
        """Returns the effect of the decisions that eager ops make from a NaN, or None if there is no decision."""
        if row.num_nan == 0 or row.tensor_id is None:
            return None
        deciding = [use for use in uses if use.is_discrete and is_decision(use.op_type)]
        if any(use.op_type in CHECKS for use in uses):
            deciding = [use for use in deciding if use.role != "metric"]
        if any(use.op_type in SELF_CHECKS for use in deciding):
            numbers = Counter(use.execution.execution_index for use in self._flow.events.uses(row.tensor_id))
            checking = {self._op_type(index) for index, number in numbers.items() if number > 1}
            deciding = [use for use in deciding if use.op_type not in checking]
        return min((effect_of_decision(use.role) for use in deciding), key=EFFECTS.index, default=None)

    def _op_type(self, execution_index: int) -> str | None:
        execution = self._flow.events.execution(execution_index)
        return None if execution is None else execution.op_type

    def is_given(self, row: TensorEvent) -> bool:
        """Returns whether the program received a tensor.

        Two kinds of outputs of calls do not count: a call's extra outputs for its gradient, and gradients that the tape
        dropped.
        """
        if row.scope != "execution" or row.execution_index is None:
            return False
        execution = self._flow.events.execution(row.execution_index)
        if execution is None or execution.graph_id is None:
            return True
        return (row.output_slot or 0) < self._num_outputs(execution) and not self._is_dropped_gradient(row, execution)

    def _is_dropped_gradient(self, row: TensorEvent, call: Execution) -> bool:
        """Returns whether a gradient tape dropped an output of a call.

        A function's gradient returns the gradients for all of its inputs, also for data and for variables that the
        program does not train. The tape gives the program only the gradients that it asked for. An output counts as
        dropped if no op takes this output, and ops take other outputs of the same call.
        """
        events = self._flow.events
        if self._flow.labels.execution(call.execution_index).role != "gradient" or row.tensor_id is None:
            return False
        return not events.uses(row.tensor_id) and any(map(events.uses, self._outputs(call)))

    def _read_outputs(self, call: Execution) -> list[int]:
        rows = self._logdir.rows(
            "SELECT tensor_id FROM execution_output WHERE run_id = ? AND execution_index = ? AND tensor_id IS NOT NULL",
            [self._run_id, call.execution_index],
        )
        return [int(tensor_id) for (tensor_id,) in rows]

    def _read_num_outputs(self, execution: Execution) -> int:
        rows = self._logdir.rows(
            "SELECT num_outputs FROM execution WHERE run_id = ? AND execution_index = ?",
            [self._run_id, execution.execution_index],
        )
        return int(rows[0][0])

    def _is_result(self, row: TensorEvent, effect: str, *, is_taken: bool) -> bool:
        """Returns whether a tensor from which nothing is computed is a result with this effect, or a skipped result."""
        is_skipped = self._skipped_uses.is_skipped(row, is_taken=is_taken) or self._skipped_uses.is_rejected(row)
        if effect == "skipped" and not is_skipped:
            return False  # checked first, because the other checks read all tensors of the call
        if not self.is_given(row) or self._moved.is_moved(row) or self.discarded.is_discarded(row):
            return False
        if is_taken and self._moved.is_given_infinity(row):
            return False
        if all(self._flow.labels.of(maker).role == "metric" for maker in self._makers(row)):
            return effect == "metric"
        return effect == ("skipped" if is_skipped else "result")

    def _makers(self, row: TensorEvent) -> list[TensorEvent]:
        """Returns the stored bad tensors if a tensor comes from a variable or a list; otherwise the tensor itself."""

        def put_in(stored: TensorEvent) -> list[TensorEvent]:
            is_stored = (stored.op_type or "").startswith((*CONTAINERS, READER))
            return [*map(self._flow.computed, self._flow.bad_sources_of(stored))] if is_stored else []

        computed = self._flow.computed(row)
        rows = rows_behind([computed], put_in, limit=_MAX_KEPT)
        return [maker for maker in rows if not put_in(maker)] or [computed]


def _computes(row: TensorEvent, use: _EagerUse) -> bool:
    """Returns whether an execution computes something with a bad tensor, and does not only test the tensor.

    A comparison of infinities, or a choice among infinities, is well-defined. With a NaN, it is not.
    """
    if use.can_be_bad or is_writer(use.op_type):
        return True
    return row.num_nan == 0 and use.op_type not in CHECKS
