"""coverage: what a recording did not look at, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.capture_stats import CaptureStat, gap_sentences, losses_text, read_capture_stats
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.flow.graphs import NEVER_BAD
from tfdbg_arrow.query.info import read_runs
from tfdbg_arrow.query.logdir import opened

_HANDLES = frozenset({"resource", "variant"})


@dataclass(frozen=True)
class UnobservedOp:
    """One op with outputs that were not recorded: its name, its type, and how many outputs."""

    op_name: str
    op_type: str | None
    num_outputs: int


@dataclass(frozen=True)
class UnobservedOps:
    """The ops of one graph that were not recorded, or not all of their outputs, for one reason.

    Attributes:
        run_id: The run.
        graph_id: The graph.
        graph_name: Its name, None where unknown.
        reason: `not_recorded_reason` of graph_op_output.
        num_outputs: How many output tensors.
        num_could_be_bad: Those of them that can hold an infinity or a NaN, by their dtype.
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
        num_executions: How many.
        is_lossy: Whether tensors that they computed may be missing: a call ends with its first op that fails, while
            others run beside it. The end of a data set (OutOfRangeError, StopIteration) comes before anything is
            computed.
    """

    run_id: str
    op_type: str
    error_type: str
    num_executions: int
    is_lossy: bool


@dataclass(frozen=True)
class ChangedOps:
    """The ops of one graph that TensorFlow's optimizer changed or absorbed before the graph ran.

    Their values are inside other ops that were recorded, or were not needed: nothing is lost.

    Attributes:
        run_id: The run.
        graph_id: The graph.
        graph_name: Its name, None where unknown.
        num_ops: How many ops the program's graph has.
        num_replaced: How many of them an op of another type computes.
        num_folded: How many of them were computed in advance, as a constant.
        num_absorbed: How many of them have no op of their own: others compute them, or nothing needs them.
    """

    run_id: str
    graph_id: int
    graph_name: str | None
    num_ops: int
    num_replaced: int
    num_folded: int
    num_absorbed: int


@dataclass(frozen=True)
class Coverage:
    """What a recording did not look at.

    Attributes:
        path: The logdir.
        unobserved: What of the graphs was not recorded, by run, graph and reason.
        stats: What capture_stat says, by run, in order of time.
        failed: The executions that raised an error, by run, op type and error.
        changed: What TensorFlow's optimizer changed, by run and graph; only of recordings with `graphs='executed'`.
    """

    path: str
    unobserved: tuple[UnobservedOps, ...]
    stats: tuple[CaptureStat, ...]
    failed: tuple[FailedExecutions, ...] = ()
    changed: tuple[ChangedOps, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every tensor that can hold an infinity or a NaN was looked at, as far as the recording knows."""
        return self.summary is None

    @property
    def summary(self) -> str | None:
        """What was not looked at although it can be bad, as one line; None where there is nothing."""
        return self._summary(with_gaps=True)

    @property
    def summary_beside_gaps(self) -> str | None:
        """As `summary`, without what `gaps` tells."""
        return self._summary(with_gaps=False)

    @property
    def gaps(self) -> dict[str, tuple[str, ...]]:
        """By run, what ran unrecorded between what was recorded, as sentences."""
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
    """Returns what a recording did not look at: nothing is known to be good of what this lists.

    Args:
        logdir: A logdir, opened or its path.
        run_id: Only this run; None: all.

    Raises:
        LogdirError: The path is not a logdir that can be read.
        QueryError: The run is unknown.
        BrokenPartError: A part cannot be read.
    """
    with opened(logdir) as open_:
        check_run(open_, run_id)
        open_ = open_ if run_id is None else open_.of_run(run_id)
        rows = open_.rows(
            "SELECT run_id, graph_id, any_value(graph_name), reason, op_name, any_value(op_type), count(*), "
            f"count(*) FILTER (WHERE dtype NOT IN ({', '.join('?' * len(_NEVER_BAD))})) FROM unobserved_output "
            "WHERE (run_id = ? OR ? IS NULL) GROUP BY run_id, graph_id, reason, op_name "
            "ORDER BY run_id, graph_id, reason NULLS LAST, op_name",
            [*_NEVER_BAD, run_id, run_id],
        )
        stats = read_capture_stats(open_, run_id=run_id)
        failed = open_.rows(_FAILED, [run_id, run_id])
        changed = open_.rows(_CHANGED, [run_id, run_id])
        return Coverage(
            str(open_.path),
            _grouped(rows),
            stats,
            tuple(FailedExecutions(*row) for row in failed),
            tuple(ChangedOps(*row) for row in changed),
        )


_FAILED = """
SELECT run_id, op_type, error_type, count(*),
    graph_id IS NOT NULL AND error_type NOT IN ('OutOfRangeError', 'StopIteration') AS is_lossy
FROM execution_error JOIN execution USING (run_id, execution_index)
WHERE (run_id = ? OR ? IS NULL)
GROUP BY run_id, op_type, error_type, is_lossy
ORDER BY run_id, min(execution_error.event_index)
"""

_CHANGED = """
SELECT run_id, graph_id, any_value(graph_name), count(*), count(*) FILTER (WHERE fate = 'replaced'),
    count(*) FILTER (WHERE fate = 'folded'), count(*) FILTER (WHERE fate = 'absorbed')
FROM op_fate
WHERE (run_id = ? OR ? IS NULL)
GROUP BY run_id, graph_id
HAVING count(*) FILTER (WHERE fate <> 'ran') > 0
ORDER BY run_id, graph_id
"""

_NEVER_BAD = tuple(sorted(NEVER_BAD | _HANDLES))


def check_run(logdir: Engine, run_id: str | None) -> None:
    """Makes sure that a logdir holds a run.

    Raises:
        QueryError: It does not.
    """
    if run_id is not None and not logdir.of_run(run_id).rows("SELECT 1 FROM run WHERE run_id = ? LIMIT 1", [run_id]):
        known = ", ".join(run.run_id for run in read_runs(logdir))
        raise QueryError(f"run {run_id!r} is not in {logdir.path}; it holds {known or 'no run'}.")


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
