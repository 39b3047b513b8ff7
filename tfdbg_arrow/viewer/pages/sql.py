"""The SQL page: runs a SELECT over the tables and views in a separate process, and keeps queries of the user.

The page exists only if the server was started with --sql.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.query import Logdir
from tfdbg_arrow.query.logdir.public_views import public_views
from tfdbg_arrow.query.sql_sandbox import Sandbox, SandboxAnswer
from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.viewer.page import PageKind, Parameters
from tfdbg_arrow.viewer.saved_queries import NAME_PATTERN, SavedQueries, SavedQuery

SAVE, DELETE = "sql.save", "sql.delete"
"""The addresses that the buttons of the page send the form to."""
_EDITOR = ("codemirror.css", "show-hint.css", "codemirror.js", "sql.js", "show-hint.js", "sql-hint.js")
"""The files of CodeMirror in loading order."""
_COLUMNS = """
SELECT table_name, list(column_name ORDER BY column_index) FROM (
    SELECT table_name, column_name, min(column_index) AS column_index FROM duckdb_columns()
    WHERE NOT internal GROUP BY table_name, column_name
) GROUP BY table_name ORDER BY table_name"""


@dataclass(frozen=True, kw_only=True)
class SqlBox:
    """The parts behind the SQL page of a logdir: a sandbox that runs queries, and the queries that the user saved."""

    sandbox: Sandbox
    saved: SavedQueries


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table or view to select from: its name, and a description of its rows and columns."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example query: a title, and the SELECT."""

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
    """A query and its answer.

    Attributes:
        query: The SELECT; None if none was given.
        answer: The result; None if there is none.
        error: Why the query failed; None if it did not fail.
        sources: The tables and views that can be queried.
        columns: The columns of each table or view. The editor completes their names.
        examples: Example queries.
        name: The name of the saved query, or the name to save the query under; None if it has none.
        saved: The queries that the user saved.
        directory: The directory of the saved queries.
    """

    query: str | None
    answer: SandboxAnswer | None
    error: str | None
    sources: tuple[Source, ...]
    columns: Mapping[str, Sequence[str]]
    examples: tuple[Example, ...]
    name: str | None
    saved: tuple[SavedQuery, ...]
    directory: str

    @property
    def name_pattern(self) -> str:
        """The pattern of valid names. The browser checks names, so that the query is not lost if a name is invalid."""
        return NAME_PATTERN

    @property
    def is_saved(self) -> bool:
        """Whether there is a saved query with this name."""
        return any(saved.name == self.name for saved in self.saved)

    def tensor_at(self, row: tuple[Any, ...]) -> tuple[str, int] | None:
        """Returns the (run_id, event_index) that a row names; None if the row has no such columns."""
        names = [column.name for column in self.answer.columns] if self.answer else []
        if "run_id" not in names or "event_index" not in names:
            return None
        run_id, event_index = row[names.index("run_id")], row[names.index("event_index")]
        return (run_id, event_index) if isinstance(run_id, str) and isinstance(event_index, int) else None


def read_sql(logdir: Logdir, sql_box: SqlBox, query: str | None, *, name: str | None = None) -> SqlPage:
    """Runs a query and returns it with its answer.

    Args:
        logdir: The logdir with the tables and views.
        sql_box: Runs the query.
        query: One SELECT; None if none was given.
        name: The name of the query; None if it has none.

    Raises:
        SandboxBusyError: Another query is still running.
    """
    answer = error = None
    if query is not None:
        try:
            answer = sql_box.sandbox.ask(query)
        except QueryError as refused:
            error = str(refused)
    sources = _sources()
    names = {source.name for source in sources}
    columns = {name: columns for name, columns in logdir.rows(_COLUMNS) if name in names}
    return SqlPage(
        query=query,
        answer=answer,
        error=error,
        sources=sources,
        columns=columns,
        examples=EXAMPLES,
        name=name,
        saved=sql_box.saved.read(),
        directory=str(sql_box.saved.directory),
    )


def sql_page(sql_box: SqlBox) -> PageKind:
    """Returns the SQL page, which runs its queries in a sandbox."""
    return PageKind(
        name="sql",
        title="SQL",
        key="q",
        read=lambda logdir, parameters: read_sql(
            logdir, sql_box, parameters.text("query"), name=parameters.text("name")
        ),
        assets=(*(f"vendor/codemirror/{name}" for name in _EDITOR), "sql.js", "sql.css"),
        version=sql_box.saved.state,
    )


def change_saved(saved: SavedQueries, action: str, parameters: Parameters) -> dict[str, str | None]:
    """Saves or deletes a query, as the fields of the page's form say.

    Args:
        saved: The saved queries.
        action: SAVE or DELETE.
        parameters: The fields.

    Returns:
        The parameters of the page that shows the query. After a deletion, they contain the query, but no name.

    Raises:
        QueryError: The query has no name, or cannot be saved or deleted.
    """
    name, query = (parameters.text("name") or "").strip(), parameters.text("query")
    if not name or query is None:
        raise QueryError(
            f"the form has no {'name' if query else 'query'}; go back, enter one, and save the query again."
        )
    if action == SAVE:
        saved.save(name, query)
    else:
        saved.delete(name)
    return {"query": query, "name": name if action == SAVE else None, "run": parameters.text("run")}


def read_csv(sql_box: SqlBox, parameters: Parameters) -> str:
    """Returns the result of a URL's query as CSV.

    Raises:
        QueryError: The URL has no query, or the query is refused.
        SandboxBusyError: Another query is still running.
    """
    return sql_box.sandbox.csv(parameters.needed("query"))


def _sources() -> tuple[Source, ...]:
    views = [Source(name=view.name, text=view.comment) for view in public_views()]
    return (*views, *(Source(name=table.name, text=_described(table)) for table in TABLES))


def _described(table: Table) -> str:
    width = max(len(column.name) for column in table.columns)
    lines = [table.row, *(f"  {column.name:{width}}  {column.doc}" for column in table.columns)]
    return "\n".join(lines)
