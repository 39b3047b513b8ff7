"""Aligned strips: many runs drawn one below the other along a common axis of steps or time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdbg_arrow.query import Logdir

NUM_BUCKETS = 100


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a run: adjacent healthy buckets, or one bucket with bad tensors.

    Attributes:
        first: Its first bucket, from 0.
        num_buckets: Number of buckets.
        num_tensors: Number of recorded tensors.
        num_bad: Number of tensors with an infinity or a NaN.
        first_bad_event_index: The first bad tensor; None if none is bad.
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
        strips: The stretches of each run in order, by run ID; without runs that have no steps on an axis of steps.
    """

    axis: str
    low: int | None
    high: int | None
    num_buckets: int
    strips: Mapping[str, tuple[Stretch, ...]]


def read_aligned_strips(
    logdir: Logdir, run_ids: Sequence[str], *, steps: tuple[int, int] | None, num_buckets: int = NUM_BUCKETS
) -> AlignedStrips:
    """Returns many runs along one axis. One query reads all of them.

    Tensors that a run recorded before its first marked step are in the first bucket.

    Args:
        logdir: The logdir.
        run_ids: The runs.
        steps: The lowest and highest training step of the axis, which may include other runs; None means an axis of
            time.
        num_buckets: Maximum number of buckets on the axis.
    """
    runs = f"run_id IN ({', '.join('?' * len(run_ids))})" if run_ids else "1 = 0"
    if steps is None:
        axis, place, given = "time", "wall_time_ns", []
        ((low, high),) = logdir.rows(
            f"SELECT min(wall_time_ns), max(wall_time_ns) FROM tensor_health WHERE {runs}", run_ids
        )
    else:
        axis, (low, high) = "step", steps
        place, given = "coalesce(step, ?)", [low]
    if low is None:
        return AlignedStrips(axis=axis, low=None, high=None, num_buckets=0, strips={})
    num_buckets = min(num_buckets, high - low + 1)
    rows = logdir.rows(
        f"SELECT run_id, CAST(floor(({place} - ?) * CAST(? AS DOUBLE) / ?) AS BIGINT) AS bucket, count(*), "
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
            strip[-1] = Stretch(
                first=last.first,
                num_buckets=last.num_buckets + 1,
                num_tensors=last.num_tensors + num_tensors,
                num_bad=0,
                first_bad_event_index=None,
            )
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
