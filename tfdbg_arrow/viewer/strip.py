"""Strip: a whole run from left to right, with the number of bad tensors in each stretch."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir

NUM_BUCKETS = 120


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One stretch of a run.

    Attributes:
        bucket: Its position, from 0.
        first_event_index: Its first tensor.
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
        """The bad share of the stretch; if anything is bad, at least a visible minimum."""
        return max(12.0, 100 * self.num_bad / self.num_tensors) if self.num_bad else 0.0


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A whole run.

    Attributes:
        run_id: The run.
        num_buckets: Number of stretches of equal length that the run is divided into.
        buckets: The stretches that contain tensors, in order.
        first_bad_event_index: The first bad tensor by arrival; None if none is bad.
        first_bad_step: Its training step, as marked.
    """

    run_id: str
    num_buckets: int
    buckets: tuple[Bucket, ...]
    first_bad_event_index: int | None
    first_bad_step: int | None


def read_strip(logdir: Logdir, *, run_id: str, num_buckets: int = NUM_BUCKETS) -> Strip | None:
    """Returns a run from its first to its last recorded tensor; None if it has no tensors."""
    ((low, high, first_bad, first_bad_step),) = logdir.rows(
        "SELECT min(event_index), max(event_index), min(CASE WHEN has_inf_or_nan THEN event_index END), "
        "min_by(step, CASE WHEN has_inf_or_nan THEN event_index END) FROM tensor_health WHERE run_id = ?",
        [run_id],
    )
    if low is None:
        return None
    num_buckets = min(num_buckets, high - low + 1)
    rows = logdir.rows(
        "SELECT CAST(floor((event_index - ?) * CAST(? AS DOUBLE) / ?) AS BIGINT) AS bucket, "
        "min(event_index), min(step), max(step), count(*), count(CASE WHEN has_inf_or_nan THEN 1 END) "
        "FROM tensor_health WHERE run_id = ? GROUP BY 1 ORDER BY 1",
        [low, num_buckets, high - low + 1, run_id],
    )
    names = ("bucket", "first_event_index", "first_step", "last_step", "num_tensors", "num_bad")
    buckets = tuple(Bucket(**dict(zip(names, row, strict=True))) for row in rows)
    return Strip(
        run_id=run_id,
        num_buckets=num_buckets,
        buckets=buckets,
        first_bad_event_index=first_bad,
        first_bad_step=None if first_bad is None else first_bad_step,
    )
