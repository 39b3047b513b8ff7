"""coverage: finds what a recording did not examine, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.query.asked_runs import asking
from tfdbg_arrow.query.capture_stats import CaptureStat, gap_sentences, losses_text, read_capture_stats
from tfdbg_arrow.query.displayed import Displayed
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.graphs import NEVER_BAD

_NEVER_BAD = tuple(sorted(NEVER_BAD | {"resource", "variant"}))
_RECORDED_ELSEWHERE = ("reference", "control_flow")
"""The reasons for outputs whose values are recorded at another op.

The other op writes to the memory of the output, or gives a loop the constant that the output passes on.
"""
_FAILED = """
SELECT run_id, op_type, error_type, count(*),
    graph_id IS NOT NULL AND error_type NOT IN ('OutOfRangeError', 'StopIteration') AS is_lossy
FROM execution_error JOIN execution USING (run_id, execution_index)
WHERE {}
GROUP BY run_id, op_type, error_type, is_lossy
ORDER BY run_id, min(execution_error.event_index)
"""
_CHANGED = """
SELECT run_id, graph_id, any_value(graph_name), count(*), count(*) FILTER (WHERE fate = 'replaced'),
    count(*) FILTER (WHERE fate = 'folded'), count(*) FILTER (WHERE fate = 'absorbed')
FROM op_fate
WHERE {}
GROUP BY run_id, graph_id
HAVING count(*) FILTER (WHERE fate <> 'ran') > 0
ORDER BY run_id, graph_id
"""


@dataclass(frozen=True)
class UnobservedOp:
    """One op with unrecorded outputs: its name, its type, and the number of its unrecorded outputs."""

    op_name: str
    op_type: str | None
    num_outputs: int


@dataclass(frozen=True)
class UnobservedOps:
    """The ops of one graph whose outputs were not recorded for the same reason.

    Attributes:
        run_id: The run.
        graph_id: The graph.
        graph_name: The name of the graph; None if unknown.
        reason: The reason, from the column `graph_op_output.not_recorded_reason`.
        num_outputs: Number of these outputs.
        num_could_be_bad: Number of these outputs that may hold an infinity or a NaN. Outputs whose dtype has neither,
            and outputs whose values are recorded at another op, do not count. For example, the values of a reference to
            a variable's memory are recorded at the ops that write to this memory.
        ops: The ops, by name.
    """

    run_id: str
    graph_id: int
    graph_name: str | None
    reason: str
    num_outputs: int
    num_could_be_bad: int
    ops: tuple[UnobservedOp, ...]


@dataclass(frozen=True)
class FailedExecutions:
    """The executions of one op type or function that raised an error of one class.

    Attributes:
        run_id: The run.
        op_type: Op type, or the function's runtime name.
        error_type: Name of the error's class.
        num_executions: Number of these executions.
        is_lossy: Whether tensors that these executions computed may be missing. A call ends with the first op that
            fails, while other ops run in parallel, so the results of these ops may be missing. The end of a data set
            (OutOfRangeError, StopIteration) loses nothing, because it comes before the call computes anything.
    """

    run_id: str
    op_type: str
    error_type: str
    num_executions: int
    is_lossy: bool


@dataclass(frozen=True)
class ChangedOps:
    """The ops of one graph that TensorFlow's optimizer changed or absorbed before the graph ran.

    Nothing is lost: other recorded ops compute the values of these ops, or no op needs these values.

    Attributes:
        run_id: The run.
        graph_id: The graph.
        graph_name: The name of the graph; None if unknown.
        num_ops: Number of ops in the program's graph.
        num_replaced: Number of these ops whose results are computed by an op of a different type.
        num_folded: Number of these ops that TensorFlow computed in advance and replaced by a constant.
        num_absorbed: Number of these ops that were removed, because other ops compute their results or because no op
            needs their results.
    """

    run_id: str
    graph_id: int
    graph_name: str | None
    num_ops: int
    num_replaced: int
    num_folded: int
    num_absorbed: int


@dataclass(frozen=True, repr=False)
class Coverage(Displayed):
    """What a recording did not examine.

    Attributes:
        path: The logdir.
        unobserved: The ops that were not recorded, grouped by run, graph and reason.
        stats: The rows of capture_stat, sorted by run and then by time.
        failed: The executions that raised an error, grouped by run, op type and error.
        changed: The ops that TensorFlow's optimizer changed, grouped by run and graph. Only recordings with
            `graphs='executed'` have such ops.
    """

    path: str
    unobserved: tuple[UnobservedOps, ...]
    stats: tuple[CaptureStat, ...]
    failed: tuple[FailedExecutions, ...] = ()
    changed: tuple[ChangedOps, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every tensor that can hold an infinity or a NaN was examined, as far as the recording shows."""
        return self.summary is None

    @property
    def summary(self) -> str | None:
        """The tensors that can be bad and were not examined, in one line; None if there are no such tensors."""
        return self._summary(with_gaps=True)

    @property
    def summary_beside_gaps(self) -> str | None:
        """Like `summary`, but without the tensors that `gaps` mentions."""
        return self._summary(with_gaps=False)

    @property
    def gaps(self) -> dict[str, tuple[str, ...]]:
        """One sentence for each gap in the recording, by run ID."""
        return gap_sentences(self.stats)

    def _summary(self, *, with_gaps: bool) -> str | None:
        outputs: Counter[str] = Counter()
        for group in self.unobserved:
            outputs[group.reason] += group.num_could_be_bad
        said = [f"{number:,} op outputs ({reason})" for reason, number in sorted((+outputs).items())]
        lost = losses_text(self.stats, with_gaps=with_gaps)
        num_lossy = sum(group.num_executions for group in self.failed if group.is_lossy)
        failed = f"some tensors of {num_lossy:,} calls that raised an error" if num_lossy else None
        return ", ".join([*said, *filter(None, (lost, failed))]) or None


def coverage(logdir: Engine | str | Path, *, run_id: str | None = None) -> Coverage:
    """Returns what a recording did not examine. The tensors that were not examined may be good or bad.

    Args:
        logdir: An open logdir or its path.
        run_id: The run, or "all". None means the newest run and the runs of the other processes of its program.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: The run is unknown.
        BrokenPartError: A part cannot be read.
    """
    with asking(logdir, run_id) as (open_, asked):
        condition, run_ids = asked.condition()
        rows = open_.rows(
            "SELECT run_id, graph_id, any_value(graph_name), reason, op_name, any_value(op_type), count(*), "
            f"count(*) FILTER (WHERE dtype NOT IN ({', '.join('?' * len(_NEVER_BAD))}) "
            f"AND coalesce(reason, '') NOT IN ({', '.join('?' * len(_RECORDED_ELSEWHERE))})) FROM unobserved_output "
            f"WHERE {condition} GROUP BY run_id, graph_id, reason, op_name "
            "ORDER BY run_id, graph_id, reason NULLS LAST, op_name",
            [*_NEVER_BAD, *_RECORDED_ELSEWHERE, *run_ids],
        )
        return Coverage(
            path=str(open_.path),
            unobserved=_grouped(rows),
            stats=tuple(stat for stat in read_capture_stats(open_) if asked.is_all or stat.run_id in asked.run_ids),
            failed=tuple(FailedExecutions(*row) for row in open_.rows(_FAILED.format(condition), run_ids)),
            changed=tuple(ChangedOps(*row) for row in open_.rows(_CHANGED.format(condition), run_ids)),
        )


def _grouped(rows: list[tuple[str, int, str | None, str, str, str | None, int, int]]) -> tuple[UnobservedOps, ...]:
    groups: dict[tuple[str, int, str | None, str], list[tuple[UnobservedOp, int]]] = {}
    for run, graph_id, graph_name, reason, op_name, op_type, num_outputs, num_could_be_bad in rows:
        op = UnobservedOp(op_name, op_type, num_outputs)
        groups.setdefault((run, graph_id, graph_name, reason), []).append((op, num_could_be_bad))
    return tuple(
        UnobservedOps(
            run_id=run,
            graph_id=graph_id,
            graph_name=graph_name,
            reason=reason,
            num_outputs=sum(op.num_outputs for op, _ in ops),
            num_could_be_bad=sum(number for _, number in ops),
            ops=tuple(op for op, _ in ops),
        )
        for (run, graph_id, graph_name, reason), ops in groups.items()
    )
