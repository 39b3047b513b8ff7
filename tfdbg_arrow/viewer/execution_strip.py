"""ExecutionStrip: all executions of a run from left to right, with the number of bad ones in each stretch."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir
from tfdbg_arrow.viewer.strip import NUM_BUCKETS

_BUCKET = "CAST(floor((execution_index - ?) * CAST(? AS DOUBLE) / ?) AS BIGINT)"


@dataclass(frozen=True, kw_only=True)
class ExecutionBucket:
    """One stretch of a run.

    Attributes:
        bucket: Its position, from 0.
        first_execution_index: Its first execution.
        last_execution_index: Its last execution.
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
        """The bad share of the stretch; if anything is bad, at least a visible minimum."""
        return max(12.0, 100 * self.num_bad / self.num_executions) if self.num_bad else 0.0


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


def read_execution_strip(logdir: Logdir, *, run_id: str, num_buckets: int = NUM_BUCKETS) -> ExecutionStrip | None:
    """Returns a run from its first to its last execution; None if it has no executions."""
    ((low, high),) = logdir.kept_rows(
        "SELECT min(execution_index), max(execution_index) FROM execution WHERE run_id = ?", [run_id]
    )
    if low is None:
        return None
    num_buckets = min(num_buckets, high - low + 1)
    cut = [low, num_buckets, high - low + 1]
    bad = dict(
        logdir.kept_rows(
            f"SELECT {_BUCKET} AS bucket, count(DISTINCT execution_index) FROM tensor_health "
            "WHERE run_id = ? AND has_inf_or_nan AND scope <> 'external' AND execution_index >= ? GROUP BY 1",
            [*cut, run_id, low],
        )
    )
    rows = logdir.kept_rows(
        f"SELECT {_BUCKET} AS bucket, min(execution_index), max(execution_index), min(step), max(step), count(*), "
        "count(graph_id) FROM execution WHERE run_id = ? GROUP BY 1 ORDER BY 1",
        [*cut, run_id],
    )
    buckets = tuple(
        ExecutionBucket(
            bucket=bucket,
            first_execution_index=first,
            last_execution_index=last,
            first_step=first_step,
            last_step=last_step,
            num_executions=num_executions,
            num_calls=num_calls,
            num_bad=min(bad.get(bucket, 0), num_executions),
        )
        for bucket, first, last, first_step, last_step, num_executions, num_calls in rows
    )
    return ExecutionStrip(
        num_buckets=num_buckets,
        buckets=buckets,
        num_executions=sum(bucket.num_executions for bucket in buckets),
        num_bad=sum(bucket.num_bad for bucket in buckets),
    )
