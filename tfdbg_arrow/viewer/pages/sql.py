"""The SQL box: a SELECT over the tables and views, answered in a process of its own.

The page is there only where the server was started with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query.logdir.public_views import public_views
from tfdbg_arrow.query.sandbox import Sandbox, SandboxAnswer
from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.viewer.page import PageKind
from tfdbg_arrow.viewer.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table or view to select from: its name, and what its rows and columns are."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Example:
    """A question that many have: what it answers, and the SELECT."""

    title: str
    query: str


EXAMPLES = (
    Example(
        title="The first bad tensors",
        query="SELECT event_index, step, op_name, op_type, num_nan, num_pos_inf, num_neg_inf\n"
        "FROM tensor_health\nWHERE has_inf_or_nan\nORDER BY run_id, event_index\nLIMIT 20",
    ),
    Example(
        title="Op types by the share of bad tensors",
        query="SELECT op_type, count(*) AS tensors, avg(CAST(has_inf_or_nan AS DOUBLE)) AS bad_share\n"
        "FROM tensor_health\nGROUP BY op_type\nORDER BY bad_share DESC, tensors DESC\nLIMIT 20",
    ),
    Example(
        title="The lines that made the bad tensors",
        query="SELECT s.file_path, s.lineno, s.code, count(*) AS tensors, min(h.event_index) AS first_event\n"
        "FROM tensor_health AS h\n"
        "JOIN op_source AS s ON s.run_id = h.run_id AND s.graph_id = h.graph_id AND s.op_name = h.op_name\n"
        "WHERE h.has_inf_or_nan\nGROUP BY s.file_path, s.lineno, s.code\nORDER BY first_event\nLIMIT 20",
    ),
)


@dataclass(frozen=True, kw_only=True)
class SqlPage:
    """A question and its answer.

    Attributes:
        query: The SELECT; None where none was asked.
        answer: What it gave; None where it gave nothing.
        error: Why it gave nothing.
        sources: What can be asked.
        examples: Questions to begin with.
    """

    query: str | None
    answer: SandboxAnswer | None
    error: str | None
    sources: tuple[Source, ...]
    examples: tuple[Example, ...]

    def tensor_at(self, row: tuple[Any, ...]) -> tuple[str, int] | None:
        """Returns the (run_id, event_index) that a row names, where it does."""
        names = [column.name for column in self.answer.columns] if self.answer else []
        if "run_id" not in names or "event_index" not in names:
            return None
        run_id, event_index = row[names.index("run_id")], row[names.index("event_index")]
        return (run_id, event_index) if isinstance(run_id, str) and isinstance(event_index, int) else None


def read_sql(sandbox: Sandbox, query: str | None) -> SqlPage:
    """Returns a question with its answer.

    Args:
        sandbox: Answers it.
        query: One SELECT; None: none yet.

    Raises:
        SandboxBusyError: Another one is being answered.
    """
    answer = error = None
    if query is not None:
        try:
            answer = sandbox.ask(query)
        except QueryError as refused:
            error = str(refused)
    return SqlPage(query=query, answer=answer, error=error, sources=_sources(), examples=EXAMPLES)


def sql_page(sandbox: Sandbox) -> PageKind:
    """Returns the kind of page that asks a sandbox."""
    return PageKind(
        name="sql",
        title="SQL",
        key="q",
        read=lambda _, parameters: read_sql(sandbox, parameters.text("query")),
        assets=("sql.js", "sql.css"),
    )


def read_csv(sandbox: Sandbox, parameters: Parameters) -> str:
    """Returns the answer to the question of a URL as CSV.

    Raises:
        QueryError: There is none, or it is refused.
        SandboxBusyError: Another one is being answered.
    """
    return sandbox.csv(parameters.needed("query"))


def _sources() -> tuple[Source, ...]:
    views = [Source(name=view.name, text=view.comment) for view in public_views()]
    return (*views, *(Source(name=table.name, text=_described(table)) for table in TABLES))


def _described(table: Table) -> str:
    width = max(len(column.name) for column in table.columns)
    lines = [f"One row is {table.row}.", *(f"  {column.name:{width}}  {column.doc}" for column in table.columns)]
    return "\n".join(lines)
