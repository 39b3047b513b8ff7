"""Strips: a run from left to right in buckets of equal length. Each bucket shows how much of the bucket is bad.

`Strip` shows the tensors of a run, `ExecutionStrip` its executions. `AlignedStrips` shows many runs one below the other
along a common axis of steps or time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.bad_runs import BadRuns

_NUM_BUCKETS = 120
"""Maximum number of stretches of a strip, so that the pointer can hit each one."""
_NUM_ALIGNED_BUCKETS = 100
"""Maximum number of stretches of a strip in a list of runs, where strips are narrower."""


@dataclass(frozen=True)
class Bucket:
    """One stretch of a run.

    Attributes:
        bucket: The position of the stretch, counted from 0.
        first_event_index: The first tensor of the stretch.
        first_step: The lowest marked training step.
        last_step: The highest marked training step.
        num_tensors: Number of recorded tensors.
        num_bad: Number of tensors with an infinity or a NaN.
    """

    bucket: int
    first_event_index: int
    first_step: int | None
    last_step: int | None
    num_tensors: int
    num_bad: int

    @property
    def bad_percent(self) -> float:
        """The bad share of the stretch in percent; at least a visible minimum if anything is bad."""
        return _bad_percent(self.num_bad, self.num_tensors)


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A whole run.

    Attributes:
        run_id: The run.
        num_buckets: Number of stretches of equal length that the run is divided into.
        buckets: The stretches that contain tensors, in order.
        first_bad_event_index: The first bad tensor by arrival; None if no tensor is bad.
        first_bad_step: The marked training step of this tensor.
    """

    run_id: str
    num_buckets: int
    buckets: tuple[Bucket, ...]
    first_bad_event_index: int | None
    first_bad_step: int | None


def read_strip(logdir: Logdir, *, run_id: str) -> Strip | None:
    """Returns the strip of a run, from its first to its last recorded tensor; None if the run has no tensors."""
    ((low, high),) = logdir.rows(
        "SELECT min(event_index), max(event_index) FROM tensor_health WHERE run_id = ?", [run_id]
    )
    if low is None:
        return None
    num_buckets = min(_NUM_BUCKETS, high - low + 1)
    rows = logdir.rows(
        f"SELECT {_bucket('event_index')}, "
        "min(event_index), min(step), max(step), count(*), count(CASE WHEN has_inf_or_nan THEN 1 END) "
        "FROM tensor_health WHERE run_id = ? GROUP BY 1 ORDER BY 1",
        [low, num_buckets, high - low + 1, run_id],
    )
    bad_run = logdir.lasting(BadRuns).bad_runs([run_id]).get(run_id)
    return Strip(
        run_id=run_id,
        num_buckets=num_buckets,
        buckets=tuple(Bucket(*row) for row in rows),
        first_bad_event_index=None if bad_run is None else bad_run.first_event_index,
        first_bad_step=None if bad_run is None else bad_run.first_step,
    )


@dataclass(frozen=True)
class ExecutionBucket:
    """One stretch of a run.

    Attributes:
        bucket: The position of the stretch, counted from 0.
        first_execution_index: The first execution of the stretch.
        last_execution_index: The last execution of the stretch.
        first_step: The lowest marked training step.
        last_step: The highest marked training step.
        num_executions: Number of executions.
        num_calls: Number of executions that called a recorded function.
        num_bad: Number of executions that computed a tensor with an infinity or a NaN.
    """

    bucket: int
    first_execution_index: int
    last_execution_index: int
    first_step: int | None
    last_step: int | None
    num_executions: int
    num_calls: int
    num_bad: int

    @property
    def bad_percent(self) -> float:
        """The bad share of the stretch in percent; at least a visible minimum if anything is bad."""
        return _bad_percent(self.num_bad, self.num_executions)


@dataclass(frozen=True, kw_only=True)
class ExecutionStrip:
    """All executions of a run.

    Attributes:
        num_buckets: Number of stretches of equal length that the run is divided into.
        buckets: The stretches that contain executions, in order.
        num_executions: Number of all executions.
        num_bad: Number of executions that computed a tensor with an infinity or a NaN.
    """

    num_buckets: int
    buckets: tuple[ExecutionBucket, ...]
    num_executions: int
    num_bad: int


def read_execution_strip(logdir: Logdir, *, run_id: str) -> ExecutionStrip | None:
    """Returns the strip of a run, from its first to its last execution; None if the run has no executions."""
    ((low, high),) = logdir.kept_rows(
        "SELECT min(execution_index), max(execution_index) FROM execution WHERE run_id = ?", [run_id]
    )
    if low is None:
        return None
    num_buckets = min(_NUM_BUCKETS, high - low + 1)
    bucket, cut = _bucket("execution_index"), [low, num_buckets, high - low + 1]
    bad = dict(
        logdir.kept_rows(
            f"SELECT {bucket}, count(DISTINCT execution_index) FROM tensor_health "
            "WHERE run_id = ? AND has_inf_or_nan AND scope <> 'external' AND execution_index >= ? GROUP BY 1",
            [*cut, run_id, low],
        )
    )
    rows = logdir.kept_rows(
        f"SELECT {bucket}, min(execution_index), max(execution_index), min(step), max(step), count(*), "
        "count(graph_id) FROM execution WHERE run_id = ? GROUP BY 1 ORDER BY 1",
        [*cut, run_id],
    )
    rows_with_bad = [(*row, min(bad.get(row[0], 0), row[5])) for row in rows]
    buckets = tuple(ExecutionBucket(*row) for row in rows_with_bad)
    return ExecutionStrip(
        num_buckets=num_buckets,
        buckets=buckets,
        num_executions=sum(bucket.num_executions for bucket in buckets),
        num_bad=sum(bucket.num_bad for bucket in buckets),
    )


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a run: adjacent healthy buckets, or one bucket with bad tensors.

    Attributes:
        first: The first bucket of the part, counted from 0.
        num_buckets: Number of buckets.
        num_tensors: Number of recorded tensors.
        num_bad: Number of tensors with an infinity or a NaN.
        first_bad_event_index: The first bad tensor; None if no tensor is bad.
    """

    first: int
    num_buckets: int
    num_tensors: int
    num_bad: int
    first_bad_event_index: int | None


@dataclass(frozen=True, kw_only=True)
class AlignedStrips:
    """Many runs along one axis.

    Attributes:
        axis: `step`, or `time` if no run has a marked training step.
        low: The lowest step, or time in nanoseconds since 1970-01-01T00:00:00Z; None if nothing is recorded.
        high: The highest step or time.
        num_buckets: Number of buckets of equal length on the axis.
        strips: For each run ID, the stretches of that run, in their order along the axis. On an axis of steps, runs
            without steps are left out.
    """

    axis: str
    low: int | None
    high: int | None
    num_buckets: int
    strips: Mapping[str, tuple[Stretch, ...]]


def read_aligned_strips(logdir: Logdir, run_ids: Sequence[str], *, steps: tuple[int, int] | None) -> AlignedStrips:
    """Returns many runs along one axis. One query reads all of them.

    Tensors that a run recorded before its first marked step are in the first bucket.

    Args:
        logdir: The logdir.
        run_ids: The runs.
        steps: The lowest and highest training step of the axis. The range may include steps of other runs. None means
            an axis of time.
    """
    runs = f"run_id IN ({', '.join('?' * len(run_ids))})" if run_ids else "1 = 0"
    if steps is None:
        axis, position, given = "time", "wall_time_ns", []
        ((low, high),) = logdir.rows(
            f"SELECT min(wall_time_ns), max(wall_time_ns) FROM tensor_health WHERE {runs}", run_ids
        )
    else:
        axis, (low, high) = "step", steps
        position, given = "coalesce(step, ?)", [low]
    if low is None:
        return AlignedStrips(axis=axis, low=None, high=None, num_buckets=0, strips={})
    num_buckets = min(_NUM_ALIGNED_BUCKETS, high - low + 1)
    rows = logdir.rows(
        f"SELECT run_id, {_bucket(position)}, count(*), "
        "count(CASE WHEN has_inf_or_nan THEN 1 END), min(CASE WHEN has_inf_or_nan THEN event_index END), count(step) "
        f"FROM tensor_health WHERE {runs} GROUP BY 1, 2 ORDER BY 1, 2",
        [*given, low, num_buckets, high - low + 1, *run_ids],
    )
    strips: dict[str, list[Stretch]] = {}
    has_steps = {row[0] for row in rows if row[5]}
    for run_id, bucket, num_tensors, num_bad, first_bad, _ in rows:
        if axis == "step" and run_id not in has_steps:
            continue
        strip = strips.setdefault(run_id, [])
        last = strip[-1] if strip else None
        if last is not None and not last.num_bad and not num_bad and last.first + last.num_buckets == bucket:
            strip[-1] = replace(last, num_buckets=last.num_buckets + 1, num_tensors=last.num_tensors + num_tensors)
            continue
        strip.append(
            Stretch(
                first=bucket, num_buckets=1, num_tensors=num_tensors, num_bad=num_bad, first_bad_event_index=first_bad
            )
        )
    return AlignedStrips(
        axis=axis,
        low=low,
        high=high,
        num_buckets=num_buckets,
        strips={run_id: tuple(strip) for run_id, strip in strips.items()},
    )


def _bucket(column: str) -> str:
    """Returns the SQL column `bucket`, whose parameters are the lowest value, the number of buckets and the length."""
    return f"CAST(floor(({column} - ?) * CAST(? AS DOUBLE) / ?) AS BIGINT) AS bucket"


def _bad_percent(num_bad: int, number: int) -> float:
    return max(12.0, 100 * num_bad / number) if num_bad else 0.0
