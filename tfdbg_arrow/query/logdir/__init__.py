"""Logdir: a logdir opened for reading, as DuckDB views over its live parts."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb
import pyarrow as pa

from tfdbg_arrow.errors import BrokenPartError, LogdirError, MissingDependencyError, QueryError
from tfdbg_arrow.query.alert_rules.digests import OpDigests
from tfdbg_arrow.query.engine import Answers, Engine
from tfdbg_arrow.query.logdir.bad_runs import BadRuns
from tfdbg_arrow.query.logdir.kept_rows import KeptRows
from tfdbg_arrow.query.logdir.live_views import LiveViews, literal, mentioned_tables
from tfdbg_arrow.query.logdir.notebook import Shown, glance, show
from tfdbg_arrow.query.logdir.opening import LinkCheck, list_parts, parts_by_run
from tfdbg_arrow.query.logdir.questions import Questions
from tfdbg_arrow.query.logdir.recovered_parts import RecoveredParts
from tfdbg_arrow.query.logdir.remote import RemoteSource
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.schema.location import RemoteLocation, parse_location
from tfdbg_arrow.schema.logdir_check import check_logdir

if TYPE_CHECKING:
    from tfdbg_arrow.query.diff import Diff

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
_MAX_SCOPES = 64
"""Runs whose own views are kept."""
_MAX_LOADED_SCOPES = 4
"""Runs whose small tables are kept in memory."""
_MAX_LOADED_ROWS = 500_000
"""Rows of a run's table that is small."""
_SCHEMA_NUMBERS = count()
_IS_QUESTION = re.compile(
    r"\s*(SELECT|WITH(?!.*\b(INSERT|UPDATE|DELETE|MERGE)\b))\b[^;]*;?\s*\Z", re.IGNORECASE | re.DOTALL
)
"""One statement that gives rows and does nothing else."""


_MAX_KEPT = 3
"""Readers with what they read that are kept: two of up to some 200 MB each, and the counts of windows."""


class Logdir(Answers):
    """A logdir opened for reading.

    Each table of the format is a view of the same name over exactly the parts that the manifests
    call live, and over what processes that died had not made parts of, for which the logdir is not
    changed. A logdir may be written to meanwhile: `refresh` shows what came since.

    Attributes:
        path: The logdir: a path, or for a URL its location.
        storage_options: fsspec's arguments for a URL.
        bad_runs: Which runs recorded a bad tensor.
        op_digests: The extremes of each op output over its run.
        questions: Notes what is asked, where someone wants to know.
    """

    def __init__(self, path: Path | RemoteLocation, *, storage_options: Mapping[str, Any] | None = None) -> None:
        self._remote: RemoteSource | None = None
        if isinstance(path, RemoteLocation):
            self._remote = RemoteSource(path, storage_options)
        else:
            check_logdir(path)
        self.path: Path | RemoteLocation = path
        self.storage_options = storage_options
        self._check = LinkCheck(path).check if isinstance(path, Path) else _no_check
        self._recovered = RecoveredParts(path) if isinstance(path, Path) else None
        # What a large query spills goes there: DuckDB would write into the working directory.
        spill = tempfile.mkdtemp(prefix="tfdbg_arrow-")
        self._remove_spill = weakref.finalize(self, shutil.rmtree, spill, ignore_errors=True)
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": spill,
            },
        )
        self._lock = threading.RLock()
        self._views = _prepared(self._connection, check=self._check)
        self._parts: Mapping[str, tuple[str, ...]] = {}
        self._by_run: dict[str, dict[str, tuple[str, ...]]] = {}
        self._scopes: OrderedDict[str, _SubLogdir] = OrderedDict()
        self._derived: list[weakref.ref[Logdir]] = []
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.questions = Questions()
        self.bad_runs = BadRuns(self)
        self.op_digests = OpDigests(self)
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The in-memory DuckDB that holds the views.

        Results of relations taken from it directly are DuckDB's, and so are the errors. Of a logdir at a URL, such
        relations find only the tables that were fetched before: those named in SQL given to the methods, or to `fetch`.
        """
        self._run(self._views.need_all)
        return self._connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Logdir({str(self.path)!r})"

    def _repr_html_(self) -> str | None:
        return glance(self)

    def show(self, *, run_id: str | None = None, height: int = 720) -> Shown:
        """Returns the report, for a notebook to display: the first bad tensor, its cause and line, alerts and sources.

        Args:
            run_id: Only this run; None: all.
            height: Height of the frame in pixels.

        Raises:
            MissingDependencyError: The viewer's packages are not installed.
            QueryError: The run is unknown.
        """
        return show(self, run_id=run_id, height=height)

    def close(self) -> None:
        """Closes the connection; relations taken from it cannot be read any more."""
        self._connection.close()
        self._remove_spill()

    def interrupt(self) -> None:
        """Ends the query that runs now in another thread, there with a QueryError; does nothing where none runs."""
        # Without the lock, which the query holds.
        with contextlib.suppress(duckdb.Error):
            self._connection.interrupt()
        for derived in list(self._derived):
            one = derived()
            if one is not None:
                one.interrupt()

    def refresh(self) -> None:
        """Reads the manifests again, so that the views show the parts that are live now.

        Raises:
            LogdirError: The path is no longer a logdir, or a manifest is damaged.
        """
        parts = self._list()
        with self._lock:
            self._take(parts)

    def fetch(self, *table_names: str) -> None:
        """Fetches tables of a logdir at a URL; does nothing for a local one.

        Args:
            *table_names: Which ones; none: all.

        Raises:
            LogdirError: The URL cannot be read.
            BrokenPartError: A part is not what the manifest says.
        """
        wanted = set(table_names or (table.name for table in TABLES))
        if self._remote is None or wanted <= self._remote.wanted:
            return
        self._take(self._remote.want(wanted))

    def run_ids(self) -> tuple[str, ...]:
        """Returns the runs that have parts, oldest first."""
        return tuple(sorted(self._runs_parts()))

    def of_run(self, run_id: str) -> Logdir:
        """Returns the logdir as if it held one run only: what is asked of it costs nothing for the other runs.

        It lives as long as this one, and follows its `refresh`. Of a run that is not there it shows empty tables.
        """
        with self._lock:
            scope = self._scopes.get(run_id)
            if scope is None:
                scope = self._scopes[run_id] = _SubLogdir(self, [run_id], loads=True)
                if len(self._scopes) > _MAX_SCOPES:
                    self._scopes.popitem(last=False)  # whoever still has it may use it on
            self._scopes.move_to_end(run_id)
            for other in list(self._scopes.values())[:-_MAX_LOADED_SCOPES]:
                other._views.release()
            return scope

    def of_runs(self, run_ids: Sequence[str], *, only: Mapping[str, Iterable[str]] | None = None) -> _SubLogdir:
        """Returns the logdir as if it held some runs only; close it when done.

        Args:
            run_ids: The runs.
            only: By table, the parts of it that it is to show; tables that are not here are whole.
        """
        return _SubLogdir(self, run_ids, only=only)

    def kept(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what a reader made of the rows, made anew where the parts changed or others were used since.

        Args:
            key: What it is.
            make: Makes it.
        """
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        found: _Result = self._kept[key]
        return found

    def kept_rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns what `rows` does, read once as long as the parts are the same; for answers of some thousand rows."""
        return self.kept(KeptRows, KeptRows).rows(self, query, tuple(parameters))

    def forget(self) -> None:
        """Forgets what was read of the parts, for one that puts other rows in their place."""
        self._kept.clear()
        self.bad_runs = BadRuns(self)
        self.op_digests = OpDigests(self)

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
        self.questions.note(query, parameters)

        def run() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
            if _IS_QUESTION.match(query):  # bound once, where a relation is bound twice
                self._need(query)
                result = self._connection.execute(query, parameters)
                try:
                    return tuple(column[0] for column in result.description), result.fetchall()
                except BaseException:
                    result.abort()  # else the connection takes no other statement
                    raise
            relation = self._relation(query, parameters)
            if relation is None:
                return (), []
            return tuple(relation.columns), relation.fetchall()

        return self._run(run)

    def arrow(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> pa.Table:
        """Runs SQL over the views and returns every row as a `pyarrow.Table`; NULL and NaN stay what they are.

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
        """Runs SQL as `arrow` and returns a `polars.DataFrame`.

        Raises:
            MissingDependencyError: Polars is not installed.
            QueryError: DuckDB refuses the statement or a parameter.
            BrokenPartError: A part cannot be read.
        """
        from tfdbg_arrow.query.results import as_polars

        return as_polars(self.arrow(query, parameters))

    def pandas(self, query: str, parameters: Sequence[object] | dict[str, object] | None = None) -> Any:
        """Runs SQL as `arrow` and returns a `pandas.DataFrame` with Arrow's types, in which NULL is not NaN.

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
        """Runs SQL over the views and hands the rows on while DuckDB computes them, so that memory stays bounded.

        Args:
            query: A statement that gives rows.
            consume: Takes the rows as Arrow batches. It is called anew, with all rows from the first on, where parts
                were replaced meanwhile: a recording is still in force.
            parameters: As for `sql`.
            batch_rows: At most so many rows a batch.

        Returns:
            What `consume` returns.

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
                except (OSError, pa.ArrowException) as error:  # as which Arrow hands DuckDB's errors on
                    failures.append(error)
                    raise

            try:
                return consume(pa.RecordBatchReader.from_batches(source.schema, batches()))
            except Exception as error:
                if failures:
                    raise duckdb.IOException(_message(failures[0])) from failures[0]
                raise error

        return self._run(run)

    def parts(self, table_name: str) -> tuple[Path, ...]:
        """Returns the live parts of a table; of a logdir at a URL, their copies here."""
        self.fetch(table_name)
        self._check(self._parts.get(table_name, ()))
        return tuple(Path(part) for part in self._parts.get(table_name, ()))

    def parts_by_run(self, table_name: str) -> dict[str, tuple[str, ...]]:
        """Returns the live parts of a table that are here, by run."""
        return {run: tables[table_name] for run, tables in self._runs_parts().items() if table_name in tables}

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns how much a table is: rows, parts and their bytes. What the manifests tell of a URL is not fetched."""
        known = [(part.rows, part.bytes) for part in self._remote.extent(table_name)] if self._remote else []
        rows, sizes = [rows for rows, _ in known if rows is not None], [size for _, size in known if size is not None]
        if self._remote is not None and len(rows) == len(sizes) == len(known):
            return sum(rows), len(known), sum(sizes)
        parts = self.parts(table_name)
        (num_rows,) = self.rows(f'SELECT count(*) FROM "{table_name}"')[0]
        return num_rows, len(parts), sum(part.stat().st_size for part in parts if part.exists())

    def diff(
        self,
        other: Logdir | str | Path | None = None,
        *,
        run_a: str | None = None,
        run_b: str | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        growth: float = 10.0,
        known: str | None = None,
        last_step: int | None = None,
        limit: int = 20,
    ) -> Diff:
        """Returns how a run here compares with one of another logdir, or of this one; see `tfdbg_arrow.diff`."""
        from tfdbg_arrow.query.diff import diff

        return diff(
            self,
            other,
            run_a=run_a,
            run_b=run_b,
            rtol=rtol,
            atol=atol,
            growth=growth,
            known=known,
            last_step=last_step,
            limit=limit,
        )

    def _relation(self, query: str, parameters: Sequence[object] | dict[str, object] | None) -> Any:
        self._need(query)
        return self._connection.sql(query, params=parameters)

    def _need(self, query: str) -> None:
        """Fetches the tables that a statement reads, and makes its views."""
        if self._remote is not None:
            self.fetch(*mentioned_tables(query) or {"run"})
        self._views.need(query)

    def _list(self) -> Mapping[str, tuple[str, ...]]:
        if self._remote is not None:
            return self._remote.refresh()
        assert isinstance(self.path, Path)
        assert self._recovered is not None
        for _ in range(_MAX_ATTEMPTS):
            self._recovered.refresh()
            parts = list_parts(self.path, is_checked=False)
            recovered = self._recovered.parts()
            if recovered is not None:
                return {table: (*parts.get(table, ()), *recovered.get(table, ())) for table in {*parts, *recovered}}
        raise LogdirError(f"{self.path} is being recovered over and over; open it again when that has ended.")

    def _take(self, parts: Mapping[str, tuple[str, ...]]) -> None:
        """Shows these parts from now on."""
        if parts != self._parts:
            self._kept.clear()
        self._parts = parts
        self._by_run = {}
        unfetched = [] if self._remote is None else [t.name for t in TABLES if t.name not in self._remote.wanted]
        self._views.reset(parts, unfetched=unfetched, cure=self._cure("them", "their lines"))
        for scope in self._scopes.values():
            scope._take_from_whole()

    def _runs_parts(self) -> dict[str, dict[str, tuple[str, ...]]]:
        if not self._by_run:
            self._by_run = parts_by_run(self._parts)
        return self._by_run

    def _run(self, action: Callable[[], _Result]) -> _Result:
        with self._lock:  # a result belongs to its connection until it is read, and views to whoever reads them
            return self._attempted(action)

    def _attempted(self, action: Callable[[], _Result]) -> _Result:
        for attempt in range(_MAX_ATTEMPTS):
            try:
                return action()
            except (duckdb.Error, UnicodeDecodeError) as error:
                if self._views.unite(error):
                    continue
                if "module 'pytz'" in _message(error):
                    raise MissingDependencyError(
                        "a TIMESTAMP WITH TIME ZONE needs pytz in Python, which is not installed; run: pip install "
                        "pytz, or ask for the column as a TIMESTAMP."
                    ) from error
                if isinstance(error, _USER_ERRORS):
                    raise QueryError(_message(error)) from error
                # Compaction, of any run, may take a part away between the listing and the opening.
                if attempt < _MAX_ATTEMPTS - 1 and self._missing_parts():
                    self.refresh()
                    continue
                raise self._broken_part(error) from error
            except RuntimeError as error:  # DuckDB's own for a statement or parameters it cannot bind
                raise QueryError(_message(error)) from error
        raise AssertionError("unreachable")

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


class _SubLogdir(Logdir):
    """Some runs of a logdir: views over their parts alone, in a schema of their own.

    Args:
        whole: The logdir.
        run_ids: The runs.
        loads: Whether to read small tables into memory, of one run.
        only: By table, the parts of it to show; tables that are not here are whole.
    """

    def __init__(
        self,
        whole: Logdir,
        run_ids: Sequence[str],
        *,
        loads: bool = False,
        only: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self._whole, self._run_ids = whole, tuple(run_ids)
        self.questions = whole.questions
        self.path, self.storage_options = whole.path, whole.storage_options
        self._remote, self._check = whole._remote, whole._check
        self._only = {table: frozenset(parts) for table, parts in (only or {}).items()}
        self._lock = whole._lock
        self._connection = whole._connection.cursor()
        self._schema = f"runs_{next(_SCHEMA_NUMBERS)}"  # not the run's id: names in SQL differ by more than case
        self._connection.execute(f"CREATE SCHEMA {self._schema}")
        self._connection.execute(f"SET schema = '{self._schema}'")
        run_id = self._run_ids[0] if loads else None
        self._views = _prepared(self._connection, check=whole._check, run_id=run_id)
        self._scopes = OrderedDict()
        self._derived = []
        whole._derived[:] = [*(other for other in whole._derived if other() is not None), weakref.ref(self)]
        self._kept = OrderedDict()
        self.bad_runs = BadRuns(self)
        self.op_digests = OpDigests(self)
        self._parts = {}
        self._take_from_whole()

    def close(self) -> None:
        """Drops the views."""
        self._connection.execute("SET schema = 'main'")
        self._connection.execute(f"DROP SCHEMA {self._schema} CASCADE")
        self._connection.close()

    def refresh(self) -> None:
        """Reads the manifests again, of all runs."""
        self._whole.refresh()
        self._take_from_whole()

    def fetch(self, *table_names: str) -> None:
        """Fetches tables of a logdir at a URL, of all runs."""
        self._whole.fetch(*table_names)
        self._take_from_whole()

    def of_run(self, run_id: str) -> Logdir:
        """Returns one of the runs."""
        return self if self._run_ids == (run_id,) else self._whole.of_run(run_id)

    def kept(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns what a reader made of the rows; all of a logdir share what memory there is for it."""
        return self._whole.kept((self._run_ids, key), make)

    def forget(self) -> None:
        """Forgets what was read of the parts, for one that puts other rows in their place."""
        super().forget()
        self._whole.forget()

    def replace(self, table_name: str, query: str, parameters: Sequence[object] = ()) -> None:
        """Has a table hold what a query over the views gives, until the parts change."""
        self._run(lambda: self._replace(table_name, query, parameters))

    def _replace(self, table_name: str, query: str, parameters: Sequence[object]) -> None:
        self._need(query)
        self._views.replace(table_name, query, parameters)

    def _take_from_whole(self) -> None:
        by_run = self._whole._runs_parts()
        found: dict[str, list[str]] = {}
        for run_id in self._run_ids:
            for table, parts in by_run.get(run_id, {}).items():
                found.setdefault(table, []).extend(parts)
        tables = {
            table: tuple(part for part in parts if table not in self._only or part in self._only[table])
            for table, parts in found.items()
        }
        if tables != self._parts or self._remote is not None:
            self._take(tables)


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


def _prepared(
    connection: duckdb.DuckDBPyConnection, *, check: Callable[[Iterable[str]], None], run_id: str | None = None
) -> LiveViews:
    """Sets what holds for one connection alone; returns its views."""
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("CREATE MACRO IF NOT EXISTS blob_prefix(value, n) AS value[1:n]")
    return LiveViews(connection, check=check, run_id=run_id, max_loaded=_MAX_LOADED_ROWS)


def _no_check(parts: Iterable[str]) -> None:
    """Does nothing: of a URL, the parts are copies in a directory of our own."""


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _why_unreadable(part: str) -> str | None:
    """Returns why a part cannot be read to its end, or None if it can."""
    if not Path(part).exists():
        return "it does not exist"
    with duckdb.connect(":memory:") as connection:
        try:
            columns = connection.sql(f"SELECT * FROM read_parquet([{literal(part)}])").columns
            checks = ", ".join(f'count("{column}")' for column in columns)
            # A hash makes DuckDB decode every value; a count alone may be answered by statistics.
            connection.sql(f"SELECT {checks}, bit_xor(hash(p)) FROM read_parquet([{literal(part)}]) AS p").fetchall()
        except (duckdb.Error, UnicodeDecodeError) as error:
            return _message(error).splitlines()[0].removeprefix("Invalid Input Error: ").rstrip(".")
    return None
