"""The graphs of a run, nested as they were traced, with their sizes and numbers of bad tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.stacks import Frame, StackReader

_MAX_DEPTH = 64


@dataclass(frozen=True, kw_only=True)
class GraphRow:
    """One graph.

    Attributes:
        graph_id: Its id.
        graph_name: Its name.
        outer_graph_id: The graph in which it was traced; None if it was traced in eager code.
        level: The number of nested graphs in which it was traced.
        num_ops: Number of its ops.
        num_tensors: Number of its recorded tensors.
        num_bad: How many of these hold an infinity or a NaN.
        source: The line of the user's code that created it, or None.
    """

    graph_id: int
    graph_name: str
    outer_graph_id: int | None
    level: int
    num_ops: int
    num_tensors: int
    num_bad: int
    source: Frame | None


@dataclass(frozen=True, kw_only=True)
class GraphTree:
    """The graphs of a run.

    Attributes:
        rows: The graphs, each after the graph in which it was traced, by graph_id.
        num_graphs: Total number of graphs. It is larger than the number of `rows` if a limit cut them.
    """

    rows: tuple[GraphRow, ...]
    num_graphs: int


@dataclass(frozen=True, kw_only=True)
class GraphName:
    """A graph's id and name."""

    graph_id: int
    graph_name: str


def graph_tree(logdir: Engine, *, run_id: str, name: str | None = None, limit: int = 1000) -> GraphTree:
    """Returns the graphs of a run.

    Args:
        logdir: The logdir.
        run_id: The run.
        name: Only graphs whose name contains this text, ignoring case; None means all.
        limit: Maximum number of graphs; the first ones by ID are returned.
    """
    where, parameters = ("", []) if name is None else (" AND contains(lower(graph_name), ?)", [name.lower()])
    ((num_graphs,),) = logdir.rows(f"SELECT count(*) FROM graph WHERE run_id = ?{where}", [run_id, *parameters])
    rows = logdir.rows(
        "SELECT g.graph_id, g.graph_name, g.outer_graph_id, g.stack_trace_id, coalesce(o.num_ops, 0), "
        f"coalesce(h.num_tensors, 0), coalesce(h.num_bad, 0) FROM (SELECT * FROM graph WHERE run_id = ?{where} "
        f"ORDER BY graph_id LIMIT {int(limit)}) AS g "
        "LEFT JOIN (SELECT graph_id, count(*) AS num_ops FROM graph_op WHERE run_id = ? GROUP BY graph_id) AS o "
        "ON o.graph_id = g.graph_id "
        "LEFT JOIN (SELECT graph_id, count(*) AS num_tensors, count(CASE WHEN has_inf_or_nan THEN 1 END) AS num_bad "
        "FROM tensor_health WHERE run_id = ? AND graph_id IS NOT NULL GROUP BY graph_id) AS h "
        "ON h.graph_id = g.graph_id ORDER BY g.graph_id",
        [run_id, *parameters, run_id, run_id],
    )
    sources = StackReader(logdir, run_id=run_id).user_sources(row[3] for row in rows if row[3] is not None)
    by_id = {row[0]: row for row in rows}
    return GraphTree(
        rows=tuple(
            GraphRow(
                graph_id=graph_id,
                graph_name=by_id[graph_id][1],
                outer_graph_id=by_id[graph_id][2],
                level=level,
                num_ops=by_id[graph_id][4],
                num_tensors=by_id[graph_id][5],
                num_bad=by_id[graph_id][6],
                source=sources.get(by_id[graph_id][3]),
            )
            for graph_id, level in _nested((row[0], row[2]) for row in rows)
        ),
        num_graphs=num_graphs,
    )


def graph_path(logdir: Engine, graph_id: int, *, run_id: str) -> tuple[GraphName, ...]:
    """Returns the graphs in which a graph was traced, outermost first, and the graph itself. Empty if it is unknown."""
    path: dict[int, GraphName] = {}
    at: int | None = graph_id
    while at is not None and at not in path and len(path) < _MAX_DEPTH:
        rows = logdir.rows(
            "SELECT graph_name, outer_graph_id FROM graph WHERE run_id = ? AND graph_id = ? LIMIT 1", [run_id, at]
        )
        if not rows:
            break
        path[at] = GraphName(graph_id=at, graph_name=rows[0][0])
        at = rows[0][1]
    return tuple(reversed(path.values()))


def _nested(graphs: Iterable[tuple[int, int | None]]) -> list[tuple[int, int]]:
    """Returns (graph_id, level) pairs, each after its outer graph. It also works for cycles in a damaged recording."""
    outer = dict(graphs)
    inner: dict[int | None, list[int]] = {}
    for graph_id, outer_id in outer.items():
        inner.setdefault(outer_id if outer_id in outer else None, []).append(graph_id)
    found: dict[int, int] = {}
    for root in (*inner.get(None, ()), *outer):  # graphs in a cycle have no root
        waiting = [(root, 0)]
        while waiting:
            graph_id, level = waiting.pop()
            if graph_id not in found:
                found[graph_id] = level
                waiting += [(child, level + 1) for child in reversed(inner.get(graph_id, []))]
    return list(found.items())
