"""Strip: a whole run from left to right, and how much of it is bad where."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir

NUM_BUCKETS = 120


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One stretch of a run.

    Attributes:
        bucket: Its place, from 0.
        first_event_index: Its first tensor.
        first_step: Least training step in it, as marked.
        last_step: Greatest one.
        num_tensors: Recorded tensors.
        num_bad: Those with an infinity or a NaN.
    """

    bucket: int
    first_event_index: int
    first_step: int | None
    last_step: int | None
    num_tensors: int
    num_bad: int

    @property
    def bad_percent(self) -> float:
        """How much of the stretch is bad; never so little that it could not be seen."""
        return max(12.0, 100 * self.num_bad / self.num_tensors) if self.num_bad else 0.0


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A whole run.

    Attributes:
        run_id: The run.
        num_buckets: Into how many stretches of equally many events it is cut.
        buckets: Those that hold tensors, in order.
        first_bad_event_index: The first bad tensor by arrival; None where none is bad.
        first_bad_step: Its training step, as marked.
    """

    run_id: str
    num_buckets: int
    buckets: tuple[Bucket, ...]
    first_bad_event_index: int | None
    first_bad_step: int | None


def read_strip(logdir: Logdir, *, run_id: str, num_buckets: int = NUM_BUCKETS) -> Strip | None:
    """Returns a run from its first recorded tensor to its last, None where it has none."""
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
