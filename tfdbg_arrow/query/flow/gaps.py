"""Gaps in the recording of a run: skipped steps, dropped parts, an overwritten buffer."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

from tfdbg_arrow.query.engine import Engine


class Gaps:
    """Finds executions that ran but were not recorded: their indexes are missing.

    Args:
        logdir: The logdir.
        run_id: The run.
    """

    def __init__(self, logdir: Engine, *, run_id: str) -> None:
        self._logdir = logdir
        self._run_id = run_id

    def between(self, after: int | None, before: int | None) -> bool:
        """Returns whether an execution is missing after one `execution_index` and before another.

        Args:
            after: The first index; -1 for the start of the run, None if it is not known.
            before: The second index; None if it is not known. If either is None, any gap in the run counts.
        """
        if not self._gaps:
            return False
        if after is None or before is None:
            return True
        place = bisect_right(self._gaps, (before,)) - 1
        return place >= 0 and self._gaps[place][1] > after

    @cached_property
    def _gaps(self) -> list[tuple[int, int]]:
        """First and last missing index of each gap, in order."""
        rows = self._logdir.rows(
            "SELECT before + 1, execution_index - 1 FROM (SELECT execution_index, "
            "coalesce(lag(execution_index) OVER (ORDER BY execution_index), -1) AS before FROM execution "
            "WHERE run_id = ?) WHERE execution_index > before + 1 "
            "AND EXISTS (SELECT 1 FROM capture_stat WHERE run_id = ? AND stat IN ('disabled', 'dropped')) "
            "ORDER BY 1",
            [self._run_id, self._run_id],
        )
        return [(first, last) for first, last in rows]
