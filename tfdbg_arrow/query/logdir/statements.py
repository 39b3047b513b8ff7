"""Statements: runs SQL over the views of a logdir, limits memory and time, and translates DuckDB's errors.

`Questions` records the SQL, so that it can be run again.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from tfdbg_arrow.errors import MemoryLimitError, MissingDependencyError, QueryError, TfdbgArrowError, TimeLimitError
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.integrity.broken_parts import error_text
from tfdbg_arrow.query.logdir.lazy_relation import LazyRelation
from tfdbg_arrow.query.logdir.live_views import mentioned
from tfdbg_arrow.schema import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

_Result = TypeVar("_Result")
_IS_QUESTION = re.compile(
    r"\s*(SELECT|WITH(?!.*\b(INSERT|UPDATE|DELETE|MERGE)\b))\b[^;]*;?\s*\Z", re.IGNORECASE | re.DOTALL
)
"""Matches a single statement that only returns rows."""
_CHANGED = re.compile(
    r"\b(?:DELETE\s+FROM|UPDATE|INTO|TRUNCATE(?:\s+TABLE)?|(?:DROP|ALTER)\s+(?:TABLE|VIEW)(?:\s+IF\s+EXISTS)?)\s+"
    r'(?:"?\w+"?\.)*"?(\w+)"?',
    re.IGNORECASE,
)
"""Matches the name of the table that a statement changes."""
_TABLE_NAMES = frozenset(table.name for table in TABLES)
_USER_ERRORS = (
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.TypeMismatchException,
    duckdb.OutOfRangeException,
    duckdb.NotImplementedException,
    duckdb.ConstraintException,
    duckdb.PermissionException,
    duckdb.InterruptException,
    duckdb.TransactionException,
)
"""DuckDB's errors that no file can cause. Every other error may come from a broken file."""
_NO_TEXT = "nanobind::str()"
"""Part of the message of the RuntimeError that DuckDB raises if a broken file has a name that is not UTF-8.

Every other RuntimeError comes from a statement or parameters that cannot be bound.
"""
_PARAMETER = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|\?")
_OUR_OWN = re.compile(r"\bderived\b|\A\s*(CREATE|INSERT|DELETE|DROP|SET)\b", re.IGNORECASE)
"""Matches statements about tables that exist only while this process has the logdir open."""
DEFAULT_MEMORY_LIMIT = 2 << 30
"""The default memory limit, in bytes."""
MEMORY_LIMIT_VARIABLE = "TFDBG_ARROW_MEMORY_LIMIT"
_LEAST_MEMORY_LIMIT = 32_000_000
"""The smallest memory limit, in bytes. A smaller number is probably a size without its unit, such as 500 for 500MB."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB|TB|KIB|MIB|GIB|TIB)?", re.IGNORECASE)
_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_INTERRUPT_EVERY_S = 0.05


class Statements(ABC):
    """Runs SQL.

    Attributes:
        questions: Records the SQL of the queries while a `noted` block is active.
    """

    questions: Questions
    _connection: duckdb.DuckDBPyConnection

    def sql(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Runs SQL over the views.

        Args:
            query: A statement in DuckDB's SQL.
            parameters: Values for `?` or `$1` (a sequence) or for `$name` (a dict).

        Returns:
            A relation with the methods of a `duckdb.DuckDBPyRelation`; None for a statement that returns no rows. The
            query runs when you read the relation (`.fetchall()`, `.pl()`, `.arrow()` …). The methods raise the
            exceptions below. The attribute `relation` is DuckDB's own object.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            MemoryLimitError: The query needs more memory than the limit.
            BrokenPartError: A part cannot be opened or read.
        """
        relation = LazyRelation(self, lambda: self._relation(query, parameters))
        return None if relation.relation is None else relation

    def rows(self, query: str, parameters: Sequence[object] | dict[str, object] | None = ()) -> list[tuple[Any, ...]]:
        """Runs SQL over the views and returns every row. Errors during reading become this package's exceptions.

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
        import pyarrow as pa  # imported here, because rows need no Arrow

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
        """Runs SQL over the views and passes on rows while DuckDB computes the result, so that memory stays bounded.

        Args:
            query: A statement that returns rows.
            consume: Reads the rows as Arrow batches. If a recording replaces parts in the meantime, `consume` is called
                again with all rows from the start.
            parameters: As for `sql`.
            batch_rows: Maximum number of rows per batch.

        Returns:
            The result of `consume`.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        import pyarrow as pa

        def run() -> _Result:
            source = self._relation(query, parameters).to_arrow_reader(batch_rows)
            failures: list[Exception] = []

            def batches() -> Iterator[pa.RecordBatch]:
                try:
                    yield from source
                except (OSError, pa.ArrowException) as error:  # the types in which Arrow raises DuckDB's errors
                    failures.append(error)
                    raise

            try:
                return consume(pa.RecordBatchReader.from_batches(source.schema, batches()))
            except Exception as error:
                if failures:
                    raise duckdb_error(failures[0]) from failures[0]
                raise error
            finally:
                source.close()  # while a result is open, DuckDB refuses the connection's next statement

        return self._run(run)

    def read_with(self, query: str, read: Callable[[duckdb.DuckDBPyConnection], _Result]) -> _Result:
        """Calls a function that reads rows of the views with its own statements.

        Args:
            query: A SELECT that names the views.
            read: Runs the statements on the given connection, and leaves no result open. If a recording replaces parts
                in the meantime, `read` is called again.

        Returns:
            The result of `read`.

        Raises:
            QueryError: DuckDB refuses a statement.
            BrokenPartError: A part cannot be read.
        """

        def run() -> _Result:
            self._need(query)
            return read(self._connection)

        return self._run(run)

    def _relation(self, query: str, parameters: Sequence[object] | dict[str, object] | None) -> Any:
        if not _IS_QUESTION.match(query):
            _refuse_changes(query)
        self._need(query)
        return self._connection.sql(query, params=parameters)

    @abstractmethod
    def _need(self, query: str) -> None:
        """Creates the views that a statement reads."""

    @abstractmethod
    def _run(self, action: Callable[[], _Result]) -> _Result:
        """Returns the result of an action. Raises DuckDB's errors as this package's exceptions."""

    @abstractmethod
    def _told(self, error: Exception) -> Exception:
        """Returns this package's exception for a DuckDB error. Other errors are returned unchanged."""


def _refuse_changes(query: str) -> None:
    """Raises QueryError for a statement that changes a table of the logdir.

    For the rows of one run, the table may be a copy in memory, which DuckDB would change.
    """
    for changed in _CHANGED.finditer(query):
        if changed[1].lower() in _TABLE_NAMES:
            raise QueryError(f"{changed[1]} cannot be changed: the tables of a logdir are read-only.")


class TimeLimit:
    """The time limit for the queries of a logdir. Only one thread at a time may set the limit."""

    def __init__(self) -> None:
        self._end: float | None = None
        self._seconds = 0.0

    @property
    def is_over(self) -> bool:
        """Whether there is a limit and its time is over."""
        return self._end is not None and time.monotonic() >= self._end

    def check(self) -> None:
        """Raises TimeLimitError if the time is over."""
        if self.is_over:
            raise TimeLimitError(f"the queries took longer than {self._seconds:g} seconds and were stopped.")

    @contextlib.contextmanager
    def within(self, seconds: float, *, interrupt: Callable[[], None]) -> Iterator[None]:
        """Limits the time of the block. An inner limit cannot extend an outer limit.

        Args:
            seconds: The maximum time.
            interrupt: Ends the running query.
        """
        outer_end, outer_seconds = self._end, self._seconds
        end = time.monotonic() + seconds
        if outer_end is None or end < outer_end:
            self._end, self._seconds = end, seconds
        is_done = threading.Event()

        def watch() -> None:
            # Interrupt repeatedly, because an interrupt ends only the running query, and other queries may follow.
            wait_s = seconds
            while not is_done.wait(wait_s):
                interrupt()
                wait_s = _INTERRUPT_EVERY_S

        # A daemon thread does not keep the process alive.
        watcher = threading.Thread(target=watch, daemon=True, name="tfdbg_arrow-time-limit")
        watcher.start()
        try:
            yield
        finally:
            is_done.set()
            watcher.join()
            self._end, self._seconds = outer_end, outer_seconds


def memory_limit_bytes(given: int | str | None) -> int:
    """Returns a memory limit in bytes.

    Args:
        given: Bytes, or a size such as `500MB` or `2GiB`. None means the environment variable TFDBG_ARROW_MEMORY_LIMIT,
            or DEFAULT_MEMORY_LIMIT if the variable is not set.

    Raises:
        QueryError: The value is not a size, or is less than 32 MB.
    """
    source = "memory_limit"
    if given is None:
        given = os.environ.get(MEMORY_LIMIT_VARIABLE, "") or DEFAULT_MEMORY_LIMIT
        source = MEMORY_LIMIT_VARIABLE
    match = _SIZE.fullmatch(str(given).strip())
    size = 0 if match is None else int(float(match[1]) * _UNITS[(match[2] or "B").lower()])
    if size < _LEAST_MEMORY_LIMIT:
        raise QueryError(f"{source} is {given!r}; expected a size of at least 32MB, such as 500MB or 2GiB.")
    return size


@dataclass(frozen=True, kw_only=True)
class Question:
    """One SQL text that was run as a query.

    Attributes:
        query: The SELECT, with the parameter values of its first use filled in.
        number: Number of times that the query was run, with any parameter values.
    """

    query: str
    number: int


class Questions:
    """Records questions while a `noted` block is active."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[Sequence[object], int]] | None = None

    def note(self, query: str, parameters: object) -> None:
        """Records a question. Questions with named parameters are skipped."""
        if self._noted is None or isinstance(parameters, dict) or _OUR_OWN.search(query) or not any(mentioned(query)):
            return
        values, number = self._noted.get(query, (parameters if isinstance(parameters, Sequence) else (), 0))
        self._noted[query] = (values, number + 1)

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[Question]]:
        """Yields a list that is filled when the block ends: each SQL text run in the block, in order of first use."""
        questions: list[Question] = []
        self._noted = {}
        try:
            yield questions
        finally:
            for query, (values, number) in self._noted.items():
                questions.append(Question(query=with_values(query, values), number=number))
            self._noted = None


def with_values(query: str, parameters: Sequence[object]) -> str:
    """Returns the SQL with each `?` replaced by a literal, except in string literals and comments.

    Raises:
        ValueError: There are fewer parameters than `?` placeholders.
    """
    values = iter(parameters)

    def replaced(match: re.Match[str]) -> str:
        if match.group() != "?":
            return match.group()
        try:
            return sql_literal(next(values))
        except StopIteration:
            raise ValueError(f"too few parameters ({len(parameters)}) for: {query}") from None

    return _PARAMETER.sub(replaced, query)


def refused(error: Exception, *, memory_limit: int) -> TfdbgArrowError | None:
    """Returns the exception to raise for an error that no file can have caused; None for any other error.

    Args:
        error: DuckDB's error.
        memory_limit: The memory limit in bytes.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return MemoryLimitError(
            f"the query needs more memory than the limit of {memory_limit >> 20:,} MiB, even with temporary files. "
            "Raise the limit with memory_limit=, --memory-limit or TFDBG_ARROW_MEMORY_LIMIT, or ask for less, such as "
            f"one run. DuckDB says: {error_text(error).partition('Possible solutions')[0].strip()}"
        )
    if "module 'pytz'" in error_text(error):
        return MissingDependencyError(
            "a TIMESTAMP WITH TIME ZONE needs pytz in Python, which is not installed; run: pip install pytz, or ask "
            "for the column as a TIMESTAMP."
        )
    is_unbound = isinstance(error, RuntimeError)
    if isinstance(error, _USER_ERRORS) or (is_unbound and _NO_TEXT not in error_text(error)):
        return QueryError(error_text(error))
    return None


def duckdb_error(error: Exception) -> Exception:
    """Returns the DuckDB error for an error that Arrow raised while streaming rows. Arrow keeps only the error's text.

    Any other error is returned unchanged.
    """
    import pyarrow as pa

    text = error_text(error)
    if not isinstance(error, (OSError, pa.ArrowException)):
        return error
    if "Out of Memory Error" in text:
        return duckdb.OutOfMemoryException(text)
    if "INTERRUPT Error" in text:
        return duckdb.InterruptException(text)
    return duckdb.IOException(text)
