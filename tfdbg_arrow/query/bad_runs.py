"""The runs of a logdir with bad tensors."""

from __future__ import annotations

from collections.abc import Collection

from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.recorded import KINDS, bad_condition

_MAX_READ_SINGLY = 16
"""If at most this many runs are unread, they are read one by one. More unread runs are read in one pass."""
_FirstTimes = dict[tuple[str, ...], int]
"""The time of the first tensor that has a bad value of one of the kinds in the key."""
_KINDS_ASKED = (KINDS, ("nan",), ("inf",))


class BadRuns:
    """Caches which runs have bad tensors. An entry is valid as long as the parts of its run do not change."""

    def __init__(self, logdir: OpenLogdir) -> None:
        self._logdir = logdir
        self._first_times: dict[str, tuple[tuple[str, ...], _FirstTimes]] = {}
        """By run: its parts, and the times of its first bad tensors."""

    def by_first(self, kinds: tuple[str, ...], run_ids: Collection[str]) -> list[str]:
        """Returns those of the given runs that have a tensor with bad values of these kinds.

        The runs are sorted by the time of the first of these tensors, and then by ID.
        """
        times_of = self._first_times_of(run_ids)
        firsts = {run_id: times[kinds] for run_id, times in times_of.items() if kinds in times}
        return sorted(firsts, key=lambda run_id: (firsts[run_id], run_id))

    def _first_times_of(self, run_ids: Collection[str]) -> dict[str, _FirstTimes]:
        """Returns the first times of those of the given runs that have tensors."""
        self._logdir.fetch("tensor_health")
        parts = self._logdir.parts_by_run("tensor_health")
        self._first_times = {
            run_id: read_before
            for run_id, read_before in self._first_times.items()
            if parts.get(run_id) == read_before[0]
        }
        asked = [run_id for run_id in parts if run_id in run_ids]
        unread = [run_id for run_id in asked if run_id not in self._first_times]
        if len(unread) > _MAX_READ_SINGLY:
            with self._logdir.of_runs(unread) as runs:
                read = self._read(runs)
        else:
            read = {run_id: times for new in unread for run_id, times in self._read(self._logdir.of_run(new)).items()}
        for run_id in unread:
            self._first_times[run_id] = (parts[run_id], read.get(run_id, {}))
        return {run_id: self._first_times[run_id][1] for run_id in asked}

    def _read(self, logdir: OpenLogdir) -> dict[str, _FirstTimes]:
        firsts = ", ".join(f"min(CASE WHEN {bad_condition(kinds)} THEN wall_time_ns END)" for kinds in _KINDS_ASKED)
        rows = logdir.rows(f"SELECT run_id, {firsts} FROM tensor_health WHERE has_inf_or_nan GROUP BY run_id")
        return {
            run_id: {kinds: time for kinds, time in zip(_KINDS_ASKED, times, strict=True) if time is not None}
            for run_id, *times in rows
        }
