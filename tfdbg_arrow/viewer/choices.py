"""Choices that the filters of a page offer."""

from __future__ import annotations

from dataclasses import dataclass

from tfdbg_arrow.query import Logdir

MAX_CHOICES = 500


@dataclass(frozen=True, kw_only=True)
class GraphChoice:
    """A graph to choose from."""

    graph_id: int
    graph_name: str


def read_graph_choices(logdir: Logdir, run_id: str | None) -> tuple[GraphChoice, ...]:
    """Returns the graphs of a run, at most MAX_CHOICES."""
    rows = logdir.kept_rows(
        f"SELECT graph_id, graph_name FROM graph WHERE run_id = ? ORDER BY graph_id LIMIT {MAX_CHOICES}",
        [run_id],
    )
    return tuple(GraphChoice(graph_id=graph_id, graph_name=name) for graph_id, name in rows)


def read_texts(logdir: Logdir, query: str, run_id: str | None) -> tuple[str, ...]:
    """Returns the texts that a query finds, at most MAX_CHOICES.

    Args:
        logdir: The logdir.
        query: A query with one column. Each of its parameters is the run ID.
        run_id: The run.
    """
    rows = logdir.kept_rows(f"SELECT * FROM ({query}) AS c ORDER BY 1 LIMIT {MAX_CHOICES}", [run_id] * query.count("?"))
    return tuple(str(row[0]) for row in rows if row[0] is not None)
