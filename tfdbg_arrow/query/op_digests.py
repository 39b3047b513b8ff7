"""OpDigests: what every op output held over its whole run, in one row; read once for the parts that hold.

Alert rules look at all tensors of an output in the order of time, which is expensive for many runs, and find something
in few. Extremes are cheap, and rule most outputs out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir import Logdir

_EXTREMES = """\
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
    min(hash(shape)) AS min_shape,
    stddev_pop(CASE WHEN max_abs_finite > 0 THEN ln(max_abs_finite) END) AS stddev_log
FROM tensor_health
GROUP BY run_id, graph_id, op_name, op_type, output_slot"""
_DIGEST = f"""\
SELECT d.*, g.op_name IS NOT NULL AS is_gradient
FROM (
{_EXTREMES}
) AS d
LEFT JOIN gradient_op AS g ON g.run_id = d.run_id AND g.graph_id = d.graph_id AND g.op_name = d.op_name"""
_UPDATES = """\
SELECT DISTINCT
    w.run_id, w.graph_id,
    w_value.source_op_name AS u_name, w_value.source_output_slot AS u_slot,
    r.op_name AS v_name
FROM graph_op AS w
JOIN graph_op_input AS w_resource
    ON w_resource.run_id = w.run_id AND w_resource.graph_id = w.graph_id AND w_resource.op_name = w.op_name
    AND w_resource.input_index = 0 AND NOT w_resource.is_control
JOIN graph_op_input AS w_value
    ON w_value.run_id = w.run_id AND w_value.graph_id = w.graph_id AND w_value.op_name = w.op_name
    AND w_value.input_index = 1 AND NOT w_value.is_control
JOIN graph_op_input AS r_resource
    ON r_resource.run_id = w.run_id AND r_resource.graph_id = w.graph_id
    AND r_resource.source_op_name = w_resource.source_op_name AND NOT r_resource.is_control
JOIN graph_op AS r
    ON r.run_id = w.run_id AND r.graph_id = w.graph_id AND r.op_name = r_resource.op_name
    AND r.op_type = 'ReadVariableOp'
WHERE w.op_type IN ('AssignAddVariableOp', 'AssignSubVariableOp')"""
"""One row is a value that is added to a variable in a graph (u), and a read of that variable there (v)."""
_DERIVED = {"op_digest": _DIGEST, "weight_update": _UPDATES}
_BATCH = 100
_BATCH_BYTES = 64_000_000
"""Runs that are digested at a time, and about the bytes of their parts: it bounds the memory, which grows with outputs,
and what an interrupt loses."""


class OpDigests:
    """The tables `derived.op_digest` and `derived.weight_update`.

    A part never changes, so what was read of a run holds as long as its parts of tensor_health do.

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
            for name, select in _DERIVED.items():
                logdir.rows(f"CREATE OR REPLACE TABLE derived.{name} AS {select} LIMIT 0")
        outdated = [run_id for run_id, known in self._known.items() if parts.get(run_id) != known]
        for run_id in outdated:
            del self._known[run_id]
        if outdated:
            for name in _DERIVED:
                logdir.rows(f"DELETE FROM derived.{name} WHERE run_id IN (SELECT unnest(?))", [outdated])
        unknown = sorted(run_id for run_id in parts if run_id not in self._known)
        for batch in _batches({run_id: parts[run_id] for run_id in unknown}):
            with logdir.of_runs(batch) as runs:
                for name, select in _DERIVED.items():
                    runs.rows(f"INSERT INTO derived.{name} {select}")
            self._known.update({run_id: parts[run_id] for run_id in batch})


def _batches(parts: dict[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Yields the runs, some at a time."""
    batch: list[str] = []
    filled = 0
    for run_id, paths in parts.items():
        size = sum(Path(path).stat().st_size for path in paths if Path(path).exists())
        if batch and (len(batch) >= _BATCH or filled + size > _BATCH_BYTES):
            yield batch
            batch, filled = [], 0
        batch.append(run_id)
        filled += size
    if batch:
        yield batch
