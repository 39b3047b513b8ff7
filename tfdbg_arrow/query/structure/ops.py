"""Windows of the ops of a graph, in order of creation."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.structure.output_health import bad_ops

_MAX_BAD = 2_000
_MAX_TYPES = 500


@dataclass(frozen=True, kw_only=True)
class OpFilter:
    """A filter for the ops of a graph. None means any.

    Attributes:
        name: Text that the op name or op type contains, ignoring case.
        op_type: Type of the op.
        is_bad: Only ops with a bad output.
    """

    name: str | None = None
    op_type: str | None = None
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """One op of a graph: its position in order of creation, its name and type, and its number of bad tensors."""

    op_index: int
    op_name: str
    op_type: str
    num_bad: int


@dataclass(frozen=True, kw_only=True)
class OpWindow:
    """A window of the ops that match a filter.

    Attributes:
        rows: The ops, by op_index.
        num_matching: Total number of matching ops.
        num_before: How many of them come before the first of `rows`.
        op_types: The op types of the graph, to choose from.
    """

    rows: tuple[OpRow, ...]
    num_matching: int
    num_before: int
    op_types: tuple[str, ...]


def op_window(
    logdir: Engine,
    filter_: OpFilter,
    *,
    run_id: str,
    graph_id: int,
    first: int = 0,
    before: int | None = None,
    limit: int = 100,
) -> OpWindow:
    """Returns a window of a graph's ops.

    Args:
        logdir: The logdir.
        filter_: Selects the ops. With `is_bad`, it selects only from the first 2,000 ops with a bad output.
        run_id: The run.
        graph_id: The graph.
        first: The window starts at the first op with at least this op_index.
        before: The window ends just before this op_index instead; None makes it start at `first`.
        limit: Maximum number of ops.
    """
    bad = {op.op_name: op.num_bad for op in bad_ops(logdir, run_id=run_id, graph_id=graph_id, limit=_MAX_BAD)}
    conditions, parameters = ["run_id = ?", "graph_id = ?"], [run_id, graph_id]
    if filter_.op_type:
        conditions.append("op_type = ?")
        parameters.append(filter_.op_type)
    if filter_.name:
        conditions.append("(contains(lower(op_name), ?) OR contains(lower(op_type), ?))")
        parameters += [filter_.name.lower()] * 2
    if filter_.is_bad:
        conditions.append(f"op_name IN ({', '.join('?' * len(bad))})" if bad else "1 = 0")
        parameters += list(bad)
    condition = " AND ".join(conditions)
    bound, order, at = (">=", "", first) if before is None else ("<", " DESC", before)
    rows = logdir.rows(
        f"SELECT op_index, op_name, op_type FROM graph_op WHERE {condition} AND op_index {bound} ? "
        f"ORDER BY op_index{order} LIMIT {int(limit)}",
        [*parameters, at],
    )
    rows = sorted(rows)
    ((num_matching, num_before),) = logdir.rows(
        f"SELECT count(*), count(CASE WHEN op_index < ? THEN 1 END) FROM graph_op WHERE {condition}",
        [rows[0][0] if rows else at, *parameters],
    )
    types = logdir.rows(
        f"SELECT DISTINCT op_type FROM graph_op WHERE run_id = ? AND graph_id = ? ORDER BY op_type LIMIT {_MAX_TYPES}",
        [run_id, graph_id],
    )
    return OpWindow(
        rows=tuple(
            OpRow(op_index=index, op_name=name, op_type=op_type, num_bad=bad.get(name, 0))
            for index, name, op_type in rows
        ),
        num_matching=num_matching,
        num_before=num_before,
        op_types=tuple(op_type for (op_type,) in types),
    )
