"""Logdir: a logdir opened for reading, as DuckDB views over its live parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import duckdb

from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError
from tfdbg_arrow.query.engine import Answers, Engine
from tfdbg_arrow.query.opening import list_parts
from tfdbg_arrow.query.public_views import public_views
from tfdbg_arrow.query.remote import RemoteSource, mentioned_tables
from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.schema.location import RemoteLocation, parse_location
from tfdbg_arrow.schema.logdir_check import check_logdir

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


_MAX_ATTEMPTS = 20
"""Listings of the parts, each made because a part of the one before was gone."""


class Logdir(Answers):
    """A logdir opened for reading.

    Each table of the format is a view of the same name over exactly the parts that the manifests
    call live. A logdir may be written to meanwhile: `refresh` shows what came since.

    Attributes:
        path: The logdir: a path, or for a URL its location.
        connection: The in-memory DuckDB that holds the views. Results of relations taken from it
            directly are DuckDB's, and so are the errors. Of a logdir at a URL, such relations find only the
            tables that were fetched before: those named in SQL given to the methods, or to `fetch`.
    """

    def __init__(self, path: Path | RemoteLocation, *, storage_options: Mapping[str, Any] | None = None) -> None:
        self._remote: RemoteSource | None = None
        if isinstance(path, RemoteLocation):
            self._remote = RemoteSource(path, storage_options)
        else:
            check_logdir(path)
        self.path: Path | RemoteLocation = path
        self.connection = duckdb.connect(
            ":memory:",
            config={"autoinstall_known_extensions": False, "autoload_known_extensions": False},
        )
        self.connection.execute("SET enable_progress_bar = false")
        self.connection.execute("SET parquet_metadata_cache = true")
        self.connection.execute("CREATE MACRO blob_prefix(value, n) AS value[1:n]")
        self._parts: dict[str, tuple[str, ...]] = {}
        self._has_public_views = False
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
        for attempt in range(_MAX_ATTEMPTS):
            self._parts = self._list()
            try:
                self._register_views()
            except (duckdb.Error, UnicodeDecodeError) as error:
                # Compaction, of any run, may take a part away between the listing and the opening.
                if attempt == _MAX_ATTEMPTS - 1 or not self._missing_parts():
                    raise self._broken_part(error) from error
            else:
                return

    def fetch(self, *table_names: str) -> None:
        """Fetches tables of a logdir at a URL; does nothing for a local one.

        Args:
            *table_names: Which ones; none: all.

        Raises:
            LogdirError: The URL cannot be read.
            BrokenPartError: A part cannot be opened, or is not what the manifest says.
        """
        wanted = set(table_names or (table.name for table in TABLES))
        if self._remote is None or wanted <= self._remote.wanted:
            return
        self._parts = self._remote.want(wanted)
        try:
            self._register_views()
        except (duckdb.Error, UnicodeDecodeError) as error:
            raise self._broken_part(error) from error

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

    def rows(self, query: str, parameters: Sequence[object] | dict[str, object] | None = ()) -> list[tuple[Any, ...]]:
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
        """Returns the live parts of a table; of a logdir at a URL, their copies here."""
        self.fetch(table_name)
        return tuple(Path(part) for part in self._parts.get(table_name, ()))

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns how much a table is: rows, parts and their bytes. What the manifests tell of a URL is not fetched."""
        known = [(part.rows, part.bytes) for part in self._remote.extent(table_name)] if self._remote else []
        rows, sizes = [rows for rows, _ in known if rows is not None], [size for _, size in known if size is not None]
        if self._remote is not None and len(rows) == len(sizes) == len(known):
            return sum(rows), len(known), sum(sizes)
        parts = self.parts(table_name)
        (num_rows,) = self.rows(f'SELECT count(*) FROM "{table_name}"')[0]
        return num_rows, len(parts), sum(part.stat().st_size for part in parts if part.exists())

    def _relation(self, query: str, parameters: Sequence[object] | dict[str, object] | None) -> Any:
        if self._remote is not None:
            self.fetch(*mentioned_tables(query) or {"run"})
        return self.connection.sql(query, params=parameters)

    def _list(self) -> dict[str, tuple[str, ...]]:
        if self._remote is not None:
            return self._remote.refresh()
        assert isinstance(self.path, Path)
        return list_parts(self.path)

    def _run(self, action: Callable[[], _Result]) -> _Result:
        for attempt in range(_MAX_ATTEMPTS):
            try:
                return action()
            except (duckdb.Error, UnicodeDecodeError) as error:
                if isinstance(error, _USER_ERRORS):
                    raise QueryError(_message(error)) from error
                if attempt < _MAX_ATTEMPTS - 1 and self._missing_parts():
                    self.refresh()
                    continue
                raise self._broken_part(error) from error
            except RuntimeError as error:  # DuckDB's own for a statement or parameters it cannot bind
                raise QueryError(_message(error)) from error
        raise AssertionError("unreachable")

    def _register_views(self) -> None:
        for table in TABLES:
            parts = self._parts.get(table.name, ())
            if self._remote is not None and table.name not in self._remote.wanted:
                self.connection.execute(_unfetched_view(table))
            elif parts:
                self._register_table(table, parts)
            else:
                self.connection.execute(_empty_view(table))
        if not self._has_public_views:  # they name their tables, and so follow them
            for view in public_views():
                self.connection.execute(f'CREATE OR REPLACE VIEW "{view.name}" AS {view.text}')
            self._has_public_views = True

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
                    f"table {table.name} has; {self._cure('them', 'their lines')}."
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
                    f"{part} cannot be read as Parquet ({reason}); {self._cure('that file', 'its line')}."
                )
        return QueryError(text)

    def _cure(self, what: str, its_line: str) -> str:
        """Returns what to do about parts that cannot be read."""
        if self._remote is not None:
            return f"remove {what} here to fetch what {self.path} holds again"
        other = "it" if what == "that file" else what
        return f"restore {what}, or remove {other} and {its_line} in {self.path}/manifest to read the rest"


def open_logdir(path: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Logdir:
    """Opens a logdir for reading.

    Args:
        path: The directory that a recording wrote, or the URL, as `s3://bucket/path`. What is asked of a logdir at a
            URL is fetched into a cache directory: `tfdbg_arrow` in the user's own, or TFDBG_ARROW_CACHE_DIR.
        storage_options: fsspec's arguments for a URL; None: what its configuration and the store's client find.

    Raises:
        LogdirError: The path does not exist, is a file, is empty, or is not a logdir, or the URL cannot be read.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
        BrokenPartError: A part cannot be opened; the message names it.
        MissingDependencyError: What opens the URL is not installed.
    """
    return Logdir(parse_location(path), storage_options=storage_options)


@contextlib.contextmanager
def opened(logdir: Engine | str | Path) -> Iterator[Engine]:
    """Yields the engine given, or a Logdir opened for the while from a path."""
    if isinstance(logdir, (str, Path)):
        with open_logdir(logdir) as own:
            yield own
    elif isinstance(logdir, Engine):
        yield logdir
    else:
        raise LogdirError(f"logdir is {logdir!r}, expected a path or what open_logdir() returned.")


def _empty_view(table: Table) -> str:
    """Returns the statement that makes the view of a table without parts."""
    nothing = ", ".join(f'CAST(NULL AS {column.type.value}) AS "{column.name}"' for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {nothing} WHERE false'


def _unfetched_view(table: Table) -> str:
    """Returns the statement that makes the view of a table that was not fetched: any row of it is an error.

    No expression in it can be folded, so that no filter makes an empty answer of it.
    """
    message = _literal(f"the table {table.name} was not fetched: ask by Logdir.sql(), or call Logdir.fetch() first")
    columns = ", ".join(f'CAST(error({message}) AS {column.type.value}) AS "{column.name}"' for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {columns} FROM range(1) WHERE error({message}) IS NULL'


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
