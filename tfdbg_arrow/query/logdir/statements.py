"""Statements: runs SQL over the views of a logdir and returns rows in several forms."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from tfdbg_arrow.query.logdir.questions import Questions
from tfdbg_arrow.query.logdir.reading_errors import error_text

_Result = TypeVar("_Result")

_IS_QUESTION = re.compile(
    r"\s*(SELECT|WITH(?!.*\b(INSERT|UPDATE|DELETE|MERGE)\b))\b[^;]*;?\s*\Z", re.IGNORECASE | re.DOTALL
)
"""Matches one statement that only returns rows."""


class Statements(ABC):
    """Runs SQL.

    Attributes:
        questions: Records the SQL that is asked, while a `noted` block is active.
    """

    questions: Questions
    _connection: duckdb.DuckDBPyConnection

    def sql(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Runs SQL over the views.

        Args:
            query: A statement in DuckDB's SQL.
            parameters: Values for `?` or `$1` (a sequence) or for `$name` (a dict).

        Returns:
            A `duckdb.DuckDBPyRelation`, which runs when you read it (`.fetchall()`, `.pl()`, `.arrow()` …), or None
            for a statement that returns no rows.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be opened.
        """
        return self._run(lambda: self._relation(query, parameters))

    def rows(self, query: str, parameters: Sequence[object] | dict[str, object] | None = ()) -> list[tuple[Any, ...]]:
        """Runs SQL over the views and returns every row. Errors while rows are read raise this package's exceptions.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        return self.table(query, parameters)[1]

    def table(
        self, query: str, parameters: Sequence[object] | dict[str, object] | None = None
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Runs SQL over the views like `rows`, and returns (column names, rows)."""
        self.questions.note(query, parameters)

        def run() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
            if _IS_QUESTION.match(query):  # execute() binds the query once; a relation would bind it twice
                self._need(query)
                result = self._connection.execute(query, parameters)
                try:
                    return tuple(column[0] for column in result.description), result.fetchall()
                except BaseException:
                    result.abort()  # otherwise the connection accepts no other statement
                    raise
            relation = self._relation(query, parameters)
            if relation is None:
                return (), []
            return tuple(relation.columns), relation.fetchall()

        return self._run(run)

    def arrow(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> pa.Table:
        """Runs SQL over the views and returns every row as a `pyarrow.Table`. NULL and NaN stay distinct.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        self.questions.note(query, parameters)

        def run() -> pa.Table:
            relation = self._relation(query, parameters)
            return pa.table({}) if relation is None else relation.to_arrow_table()

        return self._run(run)

    def polars(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Runs SQL like `arrow` and returns a `polars.DataFrame`.

        Raises:
            MissingDependencyError: Polars is not installed.
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        from tfdbg_arrow.query.results import as_polars

        return as_polars(self.arrow(query, parameters))

    def pandas(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Runs SQL like `arrow` and returns a `pandas.DataFrame` with Arrow types, in which NULL is not NaN.

        Raises:
            MissingDependencyError: pandas is not installed.
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        from tfdbg_arrow.query.results import as_pandas

        return as_pandas(self.arrow(query, parameters))

    def stream(
        self,
        query: str,
        consume: Callable[[pa.RecordBatchReader], _Result],
        *,
        parameters: Sequence[object] | dict[str, object] | None = None,
        batch_rows: int = 16_384,
    ) -> _Result:
        """Runs SQL over the views and passes the rows on while DuckDB computes them, so that memory stays bounded.

        Args:
            query: A statement that returns rows.
            consume: Reads the rows as Arrow batches. If a recording replaces parts in the meantime, it is called again
                with all rows from the start.
            parameters: As for `sql`.
            batch_rows: Maximum number of rows per batch.

        Returns:
            The result of `consume`.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """

        def run() -> _Result:
            source = self._relation(query, parameters).to_arrow_reader(batch_rows)
            failures: list[Exception] = []

            def batches() -> Iterator[pa.RecordBatch]:
                try:
                    yield from source
                except (OSError, pa.ArrowException) as error:  # Arrow raises DuckDB's errors as these
                    failures.append(error)
                    raise

            try:
                return consume(pa.RecordBatchReader.from_batches(source.schema, batches()))
            except Exception as error:
                if failures:
                    raise _duckdb_error(failures[0]) from failures[0]
                raise error

        return self._run(run)

    def _relation(self, query: str, parameters: Sequence[object] | dict[str, object] | None) -> Any:
        self._need(query)
        return self._connection.sql(query, params=parameters)

    @abstractmethod
    def _need(self, query: str) -> None:
        """Creates the views that a statement reads."""

    @abstractmethod
    def _run(self, action: Callable[[], _Result]) -> _Result:
        """Returns the result of an action. Raises DuckDB's errors as this package's exceptions."""


def _duckdb_error(error: Exception) -> duckdb.Error:
    """Returns the DuckDB error for an error that Arrow raised while rows were streamed; Arrow keeps only its text."""
    text = error_text(error)
    if "Out of Memory Error" in text:
        return duckdb.OutOfMemoryException(text)
    if "INTERRUPT Error" in text:
        return duckdb.InterruptException(text)
    return duckdb.IOException(text)
