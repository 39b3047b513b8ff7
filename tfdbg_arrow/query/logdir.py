"""Logdir: a logdir opened for reading, as DuckDB views over its live parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError
from tfdbg_arrow.query.opening import list_parts
from tfdbg_arrow.query.public_views import public_views
from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.schema.logdir_check import check_logdir

if TYPE_CHECKING:
    from tfdbg_arrow.query.chain import Provenance
    from tfdbg_arrow.query.info import LogdirInfo, Run
    from tfdbg_arrow.query.nonfinite import NonFinite

_Result = TypeVar("_Result")

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
    duckdb.OutOfMemoryException,
    duckdb.TransactionException,
)
"""DuckDB's errors that a file cannot cause; every other may come from a broken one."""


class Logdir:
    """A logdir opened for reading.

    Each table of the format is a view of the same name over exactly the parts that the manifests
    call live. A logdir may be written to meanwhile: `refresh` shows what came since.

    Attributes:
        path: The logdir.
        connection: The in-memory DuckDB that holds the views. Results of relations taken from it
            directly are DuckDB's, and so are the errors.
    """

    def __init__(self, path: Path) -> None:
        check_logdir(path)
        self.path = path
        self.connection = duckdb.connect(
            ":memory:",
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False},
        )
        self.connection.execute("SET enable_progress_bar = false")
        self.connection.execute("SET parquet_metadata_cache = true")
        self._parts: dict[str, tuple[str, ...]] = {}
        try:
            self.refresh()
        except BaseException:
            self.connection.close()
            raise

    def __enter__(self) -> Logdir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Logdir({str(self.path)!r})"

    def close(self) -> None:
        """Closes the connection; relations taken from it cannot be read any more."""
        self.connection.close()

    def refresh(self) -> None:
        """Reads the manifests again, so that the views show the parts that are live now.

        Raises:
            LogdirError: The path is no longer a logdir, or a manifest is damaged.
            BrokenPartError: A part cannot be opened.
        """
        for attempt in (1, 2):
            self._parts = list_parts(self.path)
            try:
                self._register_views()
            except (duckdb.Error, UnicodeDecodeError) as error:
                # Compaction may take a part away between the listing and the opening.
                if attempt == 2 or not self._missing_parts():
                    raise self._broken_part(error) from error
            else:
                return

    def sql(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Runs SQL over the views.

        Args:
            query: A statement in DuckDB's SQL.
            parameters: Values for `?` or `$1` (a sequence) or for `$name` (a dict).

        Returns:
            A `duckdb.DuckDBPyRelation`, which computes when it is read (`.fetchall()`, `.pl()`,
            `.arrow()` …), or None for a statement that gives none.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be opened.
        """
        return self._run(lambda: self._relation(query, parameters))

    def rows(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> list[tuple[Any, ...]]:
        """Runs SQL over the views and returns every row, as `sql` but with errors of reading covered.

        Raises:
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        return self.table(query, parameters)[1]

    def table(
        self, query: str, parameters: Sequence[object] | dict[str, object] | None = None
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Runs SQL over the views, as `rows`, and returns (names of the columns, rows)."""

        def run() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
            relation = self._relation(query, parameters)
            if relation is None:
                return (), []
            return tuple(relation.columns), relation.fetchall()

        return self._run(run)

    def parts(self, table_name: str) -> tuple[Path, ...]:
        """Returns the live parts of a table."""
        return tuple(Path(part) for part in self._parts.get(table_name, ()))

    def runs(self) -> tuple[Run, ...]:
        """Returns the runs in the logdir, oldest first."""
        from tfdbg_arrow.query.info import read_runs

        return read_runs(self)

    def info(self) -> LogdirInfo:
        """Returns what the logdir holds: runs, rows and bytes of each table, the range of time, the bad tensors."""
        from tfdbg_arrow.query.info import read_info

        return read_info(self)

    def nonfinite(
        self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None, limit: int | None = 1000
    ) -> list[NonFinite]:
        """Returns the bad tensors by arrival; see `tfdbg_arrow.nonfinite`."""
        from tfdbg_arrow.query.nonfinite import nonfinite

        return nonfinite(self, kinds=kinds, run_id=run_id, limit=limit)

    def first_nonfinite(self, *, kinds: Iterable[str] = ("nan", "inf"), run_id: str | None = None) -> NonFinite | None:
        """Returns the earliest origin of a bad value; see `tfdbg_arrow.first_nonfinite`."""
        from tfdbg_arrow.query.nonfinite import first_nonfinite

        return first_nonfinite(self, kinds=kinds, run_id=run_id)

    def provenance(self, event_index: int, *, run_id: str | None = None, limit: int = 10_000) -> Provenance:
        """Returns how a bad tensor came about; see `tfdbg_arrow.query.provenance`."""
        from tfdbg_arrow.query.chain import provenance

        return provenance(self, event_index, run_id=run_id, limit=limit)

    def _relation(self, query: str, parameters: Sequence[object] | dict[str, object] | None) -> Any:
        return self.connection.sql(query, params=parameters)

    def _run(self, action: Callable[[], _Result]) -> _Result:
        for attempt in (1, 2):
            try:
                return action()
            except (duckdb.Error, UnicodeDecodeError) as error:
                if isinstance(error, _USER_ERRORS):
                    raise QueryError(_message(error)) from error
                if attempt == 1 and self._missing_parts():
                    self.refresh()
                    continue
                raise self._broken_part(error) from error
            except RuntimeError as error:  # DuckDB's own for a statement or parameters it cannot bind
                raise QueryError(_message(error)) from error
        raise AssertionError("unreachable")

    def _register_views(self) -> None:
        for table in TABLES:
            parts = self._parts.get(table.name, ())
            if parts:
                self._register_table(table, parts)
            else:
                self.connection.execute(_empty_view(table))
        for view in public_views():
            self.connection.execute(f'CREATE OR REPLACE VIEW "{view.name}" AS {view.text}')

    def _register_table(self, table: Table, parts: Sequence[str]) -> None:
        """Makes the view of a table.

        Parts of several MINOR versions are united by name: a column that a part does not have is NULL in its rows.
        """
        files = ", ".join(_literal(part) for part in parts)
        # can_have_nan: min/max statistics leave NaN out, and DuckDB prunes by them otherwise.
        source = (
            f"read_parquet([{files}], union_by_name = true, can_have_nan = true, hive_partitioning = true, "
            "hive_types = {'run_id': VARCHAR})"
        )
        found = set(self.connection.sql(f"SELECT * FROM {source} LIMIT 0").columns)
        missing = [column for column in table.columns if column.name not in found]
        for column in missing:
            if not column.nullable:
                raise BrokenPartError(
                    f"{Path(parts[0]).parent} holds parts without the column {column.name!r}, which every part of the "
                    f"table {table.name} has; restore them, or remove them and their lines in "
                    f"{self.path / 'manifest'} to read the rest."
                )
        extra = "".join(f', CAST(NULL AS {column.type.value}) AS "{column.name}"' for column in missing)
        self.connection.execute(f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT *{extra} FROM {source}')

    def _all_parts(self) -> list[str]:
        return [part for parts in self._parts.values() for part in parts]

    def _missing_parts(self) -> list[str]:
        return [part for part in self._all_parts() if not Path(part).exists()]

    def _broken_part(self, error: Exception) -> BrokenPartError | QueryError:
        """Returns the error to raise: it names the part that cannot be read, where one is found."""
        text = _message(error)
        suspects = [part for part in self._all_parts() if part in text]
        for part in suspects or self._all_parts():
            reason = _why_unreadable(part)
            if reason is not None:
                return BrokenPartError(
                    f"{part} cannot be read as Parquet ({reason}); restore that file, or remove it and its line in "
                    f"{self.path / 'manifest'} to read the rest."
                )
        return QueryError(text)


def open_logdir(path: str | Path) -> Logdir:
    """Opens a logdir for reading.

    Args:
        path: The directory that a recording wrote.

    Raises:
        LogdirError: The path does not exist, is a file, is empty, or is not a logdir.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
        BrokenPartError: A part cannot be opened; the message names it.
    """
    return Logdir(Path(path))


@contextlib.contextmanager
def opened(logdir: Logdir | str | Path) -> Iterator[Logdir]:
    """Yields a Logdir: the one given, or one opened for the while from a path."""
    if isinstance(logdir, Logdir):
        yield logdir
    elif isinstance(logdir, (str, Path)):
        with open_logdir(logdir) as own:
            yield own
    else:
        raise LogdirError(f"logdir is {logdir!r}, expected a path or what open_logdir() returned.")


def _empty_view(table: Table) -> str:
    """Returns the statement that makes the view of a table without parts."""
    nothing = ", ".join(f'CAST(NULL AS {column.type.value}) AS "{column.name}"' for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {nothing} WHERE false'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _why_unreadable(part: str) -> str | None:
    """Returns why a part cannot be read to its end, or None if it can."""
    if not Path(part).exists():
        return "it does not exist"
    with duckdb.connect(":memory:") as connection:
        try:
            columns = connection.sql(f"SELECT * FROM read_parquet([{_literal(part)}])").columns
            checks = ", ".join(f'count("{column}")' for column in columns)
            # A hash makes DuckDB decode every value; a count alone may be answered by statistics.
            connection.sql(f"SELECT {checks}, bit_xor(hash(p)) FROM read_parquet([{_literal(part)}]) AS p").fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            return _message(error).splitlines()[0].removeprefix("Invalid Input Error: ").rstrip(".")
    return None
