"""Follows a recording: the progress of a training, and the runs whose processes are still recording."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import TimeLimitError
from tfdbg_arrow.query.alert_rules.answer import RuleSummary
from tfdbg_arrow.query.answers import Logdir
from tfdbg_arrow.query.asked_runs import asked_runs
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.info import Run
from tfdbg_arrow.query.model_health import training_curves
from tfdbg_arrow.query.nonfinite_tensor import NonFinite
from tfdbg_arrow.spool.journal import held_if_dead
from tfdbg_arrow.storage.layout import spool_paths, spooled_run_ids

_NUM_LAST_STEPS = 20
"""The search for the latest value of a curve covers this many of the last steps.

If the program marks no steps, the search covers this many of the last executions.
"""
_LAST_FACTOR = 10
"""After the recording has ended, the time limit is multiplied by this factor."""
_SHARE_OF_TIME = 4
"""The wait between two rounds of reading, as a multiple of the duration of the first of them.

The long wait leaves most of the machine to the training.
"""
_SHARES = ("bad_share", "zero_share", "saturated_share")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The latest value of one curve of `training_curves`.

    Attributes:
        name: The curve.
        title: The readable name of the curve.
        value: The latest value. The value can be NaN or an infinity.
        is_share: Whether the value is a fraction between 0 and 1.
    """

    name: str
    title: str
    value: float
    is_share: bool

    @property
    def is_bad(self) -> bool:
        """Whether the value is an infinity or a NaN."""
        return not math.isfinite(self.value)


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """The progress of a recorded training.

    Attributes:
        run: The newest of the runs.
        run_ids: The runs: one run, or the runs of all processes of one program.
        is_ended: Whether all processes have stopped recording these runs.
        last_event_ns: When the last tensor or execution was recorded, in nanoseconds since 1970-01-01T00:00:00Z; None
            if nothing was recorded.
        step: The last training step; None if no step was marked.
        num_tensors: Number of recorded tensors.
        num_nonfinite: Number of recorded tensors with an infinity or a NaN.
        figures: The latest values of the curves.
        nonfinite: The first bad tensor, as `first_nonfinite` returns it; None if no tensor is bad.
        rules: The findings of the alert rules.
        is_cut: Whether a question took longer than its time limit. If True, `figures`, `nonfinite` and `rules` may be
            incomplete.
    """

    run: Run
    run_ids: tuple[str, ...]
    is_ended: bool
    last_event_ns: int | None
    step: int | None
    num_tensors: int
    num_nonfinite: int
    figures: tuple[Figure, ...]
    nonfinite: NonFinite | None
    rules: tuple[RuleSummary, ...]
    is_cut: bool

    @property
    def has_harm(self) -> bool:
        """Whether a bad value did harm or may have done harm."""
        return self.nonfinite is not None and not self.nonfinite.is_expected


def read_progress(
    logdir: Logdir, *, run_id: str | None = None, seconds: float, before: TrainingProgress | None = None
) -> TrainingProgress | None:
    """Returns the progress of a training; None if the logdir has no run yet.

    Args:
        logdir: The logdir. The caller refreshes it.
        run_id: The run. None means the newest run and the runs of the other processes of its program.
        seconds: Time limit of each of the three questions: the first bad tensor, the figures, and the alerts. After the
            recording has ended, the limit is ten times as long.
        before: An earlier result. The values of the earlier result are used for questions that take too long.

    Raises:
        QueryError: There is no such run.
        LogdirError: The logdir cannot be read.
    """
    # Find the active recordings before reading rows. A recording that ends in the meantime then still counts as active,
    # so the next round reads its last rows.
    alive = recording_runs(logdir)
    runs = logdir.runs()
    if not runs:
        return None
    run_ids = asked_runs(logdir, run_id).run_ids
    own = [run for run in runs if run.run_id in run_ids]
    condition, parameters = f"run_id IN ({', '.join('?' * len(run_ids))})", list(run_ids)
    ((num_tensors, num_nonfinite, last_tensor_ns, step),) = logdir.rows(
        "SELECT count(*), count(CASE WHEN has_inf_or_nan THEN 1 END), max(wall_time_ns), max(step) "
        f"FROM tensor_health WHERE {condition}",
        parameters,
    )
    ((last_execution_ns,),) = logdir.rows(f"SELECT max(wall_time_ns) FROM execution WHERE {condition}", parameters)
    last_event_ns = max((time for time in (last_tensor_ns, last_execution_ns) if time is not None), default=None)
    is_ended = alive is not None and alive.isdisjoint(run_ids)
    earlier = before if before is not None and before.run_ids == run_ids else None
    figures, nonfinite = (() if earlier is None else earlier.figures), (None if earlier is None else earlier.nonfinite)
    rules = () if earlier is None else earlier.rules
    # A question that takes too long does not prevent answers to the other questions. After the recording has ended, the
    # answers are final, so the questions get more time.
    limit = _LAST_FACTOR * seconds if is_ended else seconds
    num_cut = 3
    with contextlib.suppress(TimeLimitError), logdir.within(limit):
        if num_nonfinite and (is_ended or earlier is None or not earlier.has_harm):
            nonfinite = logdir.first_nonfinite(run_id=run_id)
        num_cut -= 1
    with contextlib.suppress(TimeLimitError), logdir.within(limit):
        figures = _figures(logdir, run_id=run_ids[-1])
        num_cut -= 1
    with contextlib.suppress(TimeLimitError), logdir.within(limit):
        rules = logdir.alerts(run_id=run_id).summary
        num_cut -= 1
    return TrainingProgress(
        run=own[-1],
        run_ids=run_ids,
        is_ended=is_ended,
        last_event_ns=last_event_ns,
        step=step,
        num_tensors=num_tensors,
        num_nonfinite=num_nonfinite,
        figures=figures,
        nonfinite=nonfinite,
        rules=rules,
        is_cut=num_cut > 0,
    )


def wait_after_look(started_s: float, *, interval_s: float) -> None:
    """Waits until a recording should be read again.

    Args:
        started_s: When the last round of reading began, by `time.monotonic`.
        interval_s: Minimum wait in seconds.
    """
    time.sleep(max(interval_s, _SHARE_OF_TIME * (time.monotonic() - started_s)))


def recording_runs(logdir: Engine) -> frozenset[str] | None:
    """Returns the runs that a process is still recording; None for a logdir at a URL, where this is not known."""
    path = logdir.path
    if not isinstance(path, Path):
        return None
    alive = set()
    for run_id in spooled_run_ids(path):
        with (
            contextlib.suppress(OSError),
            held_if_dead(spool_paths(path, run_id=run_id).journal, to_change=False) as dead,
        ):
            if not dead:
                alive.add(run_id)
    return frozenset(alive)


def _figures(logdir: Logdir, *, run_id: str) -> tuple[Figure, ...]:
    """Returns the latest value of each curve in the last steps."""
    condition = "SELECT max(step), max(execution_index) FROM tensor_health WHERE run_id = ?"
    ((step, execution),) = logdir.rows(condition, [run_id])
    last = step if step is not None else execution
    if last is None:
        return ()
    curves = training_curves(logdir, run_id=run_id, positions=(max(last - _NUM_LAST_STEPS, 0), None))
    figures = []
    for curve in () if curves is None else curves.curves:
        values = [value for value in curve.values if value is not None]
        if values:
            is_share = curve.name in _SHARES
            figures.append(Figure(name=curve.name, title=curve.title, value=values[-1], is_share=is_share))
    return tuple(figures)
