"""OpDigests: what every op output held over its whole run, in one row; read once for the parts that hold.

Alert rules look at all tensors of an output in the order of time, which is expensive for many runs, and find something
in few. Extremes are cheap, and rule most outputs out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir import Logdir

_DIGEST = """\
SELECT
    run_id, graph_id, op_name, op_type, output_slot,
    count(*) AS num_tensors,
    sum(CASE WHEN has_inf_or_nan THEN 1 ELSE 0 END) AS num_bad,
    max(CASE WHEN size > 1 THEN size - num_zero END) AS most_nonzero,
    max(CASE WHEN size > 0 THEN CAST(num_zero AS DOUBLE) / size END) AS most_zero_share,
    max(num_subnormal) AS most_subnormal,
    max(max_abs_finite) AS max_magnitude,
    min(CASE WHEN max_abs_finite > 0 THEN max_abs_finite END) AS min_magnitude,
    max(mean_finite * mean_finite + stddev_finite * stddev_finite) AS max_square,
    min(mean_finite * mean_finite + stddev_finite * stddev_finite) AS min_square,
    max(stddev_finite) AS max_stddev,
    min(stddev_finite) AS min_stddev,
    max(size) AS max_size,
    min(size) AS min_size,
    max(hash(shape)) AS max_shape,
    min(hash(shape)) AS min_shape
FROM tensor_health
GROUP BY run_id, graph_id, op_name, op_type, output_slot"""
_BATCH = 100
"""Runs that are digested at a time: it bounds the memory, which grows with outputs, and what an interrupt loses."""


class OpDigests:
    """The table `derived.op_digest`. A part never changes, so the rows of a run hold as long as its parts do.

    Args:
        logdir: The logdir.
    """

    def __init__(self, logdir: Logdir) -> None:
        self._logdir = logdir
        self._known: dict[str, tuple[str, ...]] = {}

    def update(self) -> None:
        """Makes the table hold what the parts that hold now do."""
        logdir = self._logdir
        logdir.fetch("tensor_health")
        parts = logdir.parts_by_run("tensor_health")
        if not self._known:
            logdir.rows("CREATE SCHEMA IF NOT EXISTS derived")
            logdir.rows(f"CREATE OR REPLACE TABLE derived.op_digest AS {_DIGEST} LIMIT 0")
        outdated = [run_id for run_id, known in self._known.items() if parts.get(run_id) != known]
        for run_id in outdated:
            del self._known[run_id]
        if outdated:
            logdir.rows("DELETE FROM derived.op_digest WHERE run_id IN (SELECT unnest(?))", [outdated])
        unknown = sorted(run_id for run_id in parts if run_id not in self._known)
        for start in range(0, len(unknown), _BATCH):
            batch = unknown[start : start + _BATCH]
            with logdir.of_runs(batch) as runs:
                runs.rows(f"INSERT INTO derived.op_digest {_DIGEST}")
            self._known.update({run_id: parts[run_id] for run_id in batch})
