"""BadRuns: which runs recorded a bad tensor, and when they recorded the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir import Logdir

_MAX_SINGLE = 16
"""Maximum number of changed runs to read one by one. If more runs changed, all runs are read in one pass."""
_Times = dict[tuple[str, ...], int]
"""The time of the first tensor that holds one of the kinds, by kinds."""
_ASKED = (("nan", "inf"), ("nan",), ("inf",))


class BadRuns:
    """Caches which runs have bad tensors. Parts never change, so an entry is valid while the run's parts are the same.

    Args:
        logdir: The logdir.
    """

    def __init__(self, logdir: Logdir) -> None:
        self._logdir = logdir
        self._known: dict[str, tuple[tuple[str, ...], _Times]] = {}

    def by_first(self, kinds: tuple[str, ...]) -> list[str]:
        """Returns the runs with a tensor that holds one of the kinds, by the time of its first one, then by id."""
        self._logdir.fetch("tensor_health")
        parts = self._logdir.parts_by_run("tensor_health")
        self._known = {run_id: fact for run_id, fact in self._known.items() if parts.get(run_id) == fact[0]}
        unknown = [run_id for run_id in parts if run_id not in self._known]
        if len(unknown) > _MAX_SINGLE:
            found = self._read(self._logdir)
        else:
            found = {run_id: times for new in unknown for run_id, times in self._read(self._logdir.of_run(new)).items()}
        for run_id in unknown:
            self._known[run_id] = (parts[run_id], found.get(run_id, {}))
        firsts = {run_id: times[kinds] for run_id, (_, times) in self._known.items() if kinds in times}
        return sorted(firsts, key=lambda run_id: (firsts[run_id], run_id))

    def _read(self, logdir: Logdir) -> dict[str, _Times]:
        from tfdbg_arrow.query.recorded import bad_condition

        firsts = ", ".join(f"min(CASE WHEN {bad_condition(kinds)} THEN wall_time_ns END)" for kinds in _ASKED)
        rows = logdir.rows(f"SELECT run_id, {firsts} FROM tensor_health WHERE has_inf_or_nan GROUP BY run_id")
        return {
            run_id: {kinds: time for kinds, time in zip(_ASKED, times, strict=True) if time is not None}
            for run_id, *times in rows
        }
