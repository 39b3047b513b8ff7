"""FailedCalls: the calls that raised an error, and whether the program caught the error."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.data_flow import DataFlow
from tfdbg_arrow.query.recorded import GraphTensor
from tfdbg_arrow.schema.op_traits import Trait, types_with

_END_OF_DATA = "OutOfRangeError"
"""The error that tells a program that a pipeline has no more elements."""
_READS_IN_SQL = ", ".join(
    f"'{op_type}'" for op_type in sorted(types_with(Trait.READS | Trait.READS_PART | Trait.HOLDS_REFERENCE))
)


class FailedCalls:
    """Finds the calls of one run that raised an error.

    Args:
        next_call: Returns the next execution in which the line of a call called its function without an error.
    """

    def __init__(self, logdir: Engine, flow: DataFlow, *, next_call: Callable[[int], int | None], run_id: str) -> None:
        self._logdir = logdir
        self._flow = flow
        self._find_call = next_call
        self._run_id = run_id
        self._recorded_outputs = lru_cache(maxsize=64)(self._read_recorded_outputs)
        self._next_call = lru_cache(maxsize=4096)(self._find_next_call)
        self._is_undone = lru_cache(maxsize=4096)(self._find_whether_undone)

    def is_cut_off(self, place: GraphTensor) -> bool:
        """Returns whether a tensor would have been recorded, but was not computed because its call raised an error."""
        return (
            place.context.execution_index in self.executions
            and (place.op_name, place.output_slot) in self._recorded_outputs(place.graph_id)
            and not self._flow.borders.executed.is_absorbed(place)
            and self._flow.events.graph_tensor(place) is None
        )

    def is_caught(self, execution_index: int | None) -> bool:
        """Returns whether an execution raised an error, and the program caught the error and continued.

        If `on_nonfinite` stopped the program, no error counts as caught: the recording does not show what the program
        does without `on_nonfinite`.
        """
        return execution_index is not None and self._next_call(execution_index) is not None

    def _find_next_call(self, execution_index: int) -> int | None:
        """Returns a later execution that shows that the program caught the error of an execution, or None."""
        if self.is_stopped or execution_index not in self.executions:
            return None
        return self._find_call(execution_index)

    def is_undone(self, execution_index: int | None) -> bool:
        """Returns whether the program caught the error of an execution, and no variable was bad because of the error.

        No variable was bad because of the error if each bad read before the next call was also bad in the failed
        execution.
        """
        return execution_index is not None and self._is_undone(execution_index)

    def _find_whether_undone(self, execution_index: int) -> bool:
        following = self._next_call(execution_index)
        if following is None:
            return False
        bad_reads = (
            "SELECT op_type, op_name FROM tensor_health WHERE run_id = ? AND has_inf_or_nan "
            f"AND op_type IN ({_READS_IN_SQL}) AND execution_index BETWEEN ? AND ?"
        )
        new = self._logdir.rows(
            f"{bad_reads} EXCEPT {bad_reads}",
            [self._run_id, execution_index + 1, following, self._run_id, execution_index, execution_index],
        )
        return not new

    @cached_property
    def is_stopped(self) -> bool:
        """Whether `on_nonfinite` stopped the program. A stopped program computed nothing more from a bad value."""
        rows = self._logdir.rows(
            "SELECT 1 FROM execution_error WHERE run_id = ? AND error_type = 'NonFiniteError' LIMIT 1", [self._run_id]
        )
        return bool(rows)

    @cached_property
    def executions(self) -> frozenset[int]:
        """The executions that raised an error. The end of the data does not count as an error."""
        rows = self._logdir.rows(
            "SELECT execution_index FROM execution_error WHERE run_id = ? AND error_type <> ?",
            [self._run_id, _END_OF_DATA],
        )
        return frozenset(index for (index,) in rows)

    def _read_recorded_outputs(self, graph_id: int) -> frozenset[tuple[str, int]]:
        rows = self._logdir.rows(
            "SELECT op_name, output_slot FROM graph_op_output WHERE run_id = ? AND graph_id = ? AND is_recorded",
            [self._run_id, graph_id],
        )
        return frozenset((op_name, slot) for op_name, slot in rows)

    def has_failed(self, execution_index: int) -> bool:
        """Returns whether an execution raised an error."""
        rows = self._logdir.rows(
            "SELECT 1 FROM execution_error WHERE run_id = ? AND execution_index = ?", [self._run_id, execution_index]
        )
        return bool(rows)
