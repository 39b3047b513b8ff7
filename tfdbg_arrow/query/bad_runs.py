"""The runs of a logdir with bad tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.recorded import KINDS, bad_condition

_MAX_READ_SINGLY = 16
"""If at most this many runs are unread, they are read one by one. More unread runs are read in one pass."""
_KINDS_ASKED = (KINDS, ("nan",), ("inf",))


@dataclass(frozen=True, kw_only=True)
class BadRun:
    """The bad tensors of a run.

    Attributes:
        num_bad: Number of bad tensors.
        first_event_index: The first of them by arrival.
        first_step: The step of the first bad tensor that has a step; None if none of them has a step.
        first_wall_time_ns: The time at which the first bad tensor by arrival was recorded.
        first_times: The time of the first tensor that has a bad value of one of the kinds in the key.
    """

    num_bad: int
    first_event_index: int
    first_step: int | None
    first_wall_time_ns: int
    first_times: Mapping[tuple[str, ...], int]


class BadRuns:
    """Caches which runs have bad tensors. An entry is valid as long as the parts of its run do not change."""

    def __init__(self, logdir: OpenLogdir) -> None:
        self._logdir = logdir
        self._read_runs: dict[str, tuple[tuple[str, ...], BadRun | None]] = {}

    def bad_runs(self, run_ids: Collection[str]) -> dict[str, BadRun]:
        """Returns those of the given runs that have bad tensors, by ID."""
        self._logdir.fetch("tensor_health")
        parts = self._logdir.parts_by_run("tensor_health")
        self._read_runs = {run_id: read for run_id, read in self._read_runs.items() if parts.get(run_id) == read[0]}
        asked = [run_id for run_id in parts if run_id in run_ids]
        unread = [run_id for run_id in asked if run_id not in self._read_runs]
        if len(unread) > _MAX_READ_SINGLY:
            with self._logdir.of_runs(unread) as runs:
                bad = self._read(runs)
        else:
            bad = {run_id: run for new in unread for run_id, run in self._read(self._logdir.of_run(new)).items()}
        self._read_runs |= {run_id: (parts[run_id], bad.get(run_id)) for run_id in unread}
        return {run_id: run for run_id in asked if (run := self._read_runs[run_id][1]) is not None}

    def by_first(self, kinds: tuple[str, ...], run_ids: Collection[str]) -> list[str]:
        """Returns those of the given runs that have a tensor with bad values of these kinds.

        The runs are sorted by the time of the first of these tensors, and then by ID.
        """
        runs = self.bad_runs(run_ids)
        firsts = {run_id: run.first_times[kinds] for run_id, run in runs.items() if kinds in run.first_times}
        return sorted(firsts, key=lambda run_id: (firsts[run_id], run_id))

    def _read(self, logdir: OpenLogdir) -> dict[str, BadRun]:
        firsts = ", ".join(f"min(CASE WHEN {bad_condition(kinds)} THEN wall_time_ns END)" for kinds in _KINDS_ASKED)
        rows = logdir.rows(
            "SELECT run_id, count(*), min(event_index), min_by(step, event_index), min_by(wall_time_ns, event_index), "
            f"{firsts} FROM tensor_health WHERE has_inf_or_nan GROUP BY run_id"
        )
        return {
            run_id: BadRun(
                num_bad=num_bad,
                first_event_index=event_index,
                first_step=step,
                first_wall_time_ns=time_ns,
                first_times={
                    kinds: first for kinds, first in zip(_KINDS_ASKED, times, strict=True) if first is not None
                },
            )
            for run_id, num_bad, event_index, step, time_ns, *times in rows
        }
