"""Logdir: a logdir opened for reading, as DuckDB views over its live parts."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb

from tfdbg_arrow.errors import LogdirError, MissingDependencyError, TfdbgArrowError, install_command
from tfdbg_arrow.query.engine import Answers, Engine, strange_rows_told
from tfdbg_arrow.query.integrity.broken_parts import BrokenPart, BrokenParts, broken_part_error
from tfdbg_arrow.query.logdir.live_views import connect, mentioned_tables, prepared
from tfdbg_arrow.query.logdir.local_parts import LocalSource, no_check, parts_by_run
from tfdbg_arrow.query.logdir.statements import (
    Questions,
    Statements,
    TimeLimit,
    duckdb_error,
    memory_limit_bytes,
    refused,
)
from tfdbg_arrow.query.recorded import BadRuns
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import OwnFiles
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.storage.marker import check_logdir

if TYPE_CHECKING:
    from tfdbg_arrow.query.alert_rules.scan import OpDigests
    from tfdbg_arrow.query.integrity.verification import Verification
    from tfdbg_arrow.query.logdir.remote import RemoteSource
    from tfdbg_arrow.query.logdir.sub_logdir import SubLogdir
    from tfdbg_arrow.query.run_diff import Diff


_Result = TypeVar("_Result")

_ENGINE_ERRORS = (duckdb.Error, UnicodeDecodeError, RuntimeError)
"""What DuckDB raises."""
_MAX_ATTEMPTS = 20
"""How often to list the parts again because a listed part was gone."""
_MAX_SCOPES = 64
"""Number of runs whose own views are kept."""
_MAX_LOADED_SCOPES = 4
"""Number of runs whose small tables are kept in memory."""
_MAX_KEPT_ROWS = 64
"""Number of query results that `kept_rows` keeps."""
_MAX_KEPT = 4
"""Number of readers that are kept with their data: two of up to about 200 MB each, the counts of windows, the runs."""


class Logdir(Statements, Answers):
    """A logdir opened for reading.

    Each table of the format is a view of the same name. It shows exactly the parts that the manifests call live, and
    the rows that dead processes left in the spool. Reading these rows does not change the logdir. A recording may
    write to the logdir while it is open: `refresh` shows what was added.

    Attributes:
        path: The path of the logdir, or its location if it is at a URL.
        storage_options: The options passed to fsspec for a URL.
        memory_limit: How many bytes the queries may use, counting both DuckDB and the rows that Python holds.
        questions: Records the SQL that is asked, while a `noted` block is active.
    """

    def __init__(
        self,
        path: Path | RemoteLocation,
        *,
        storage_options: Mapping[str, Any] | None = None,
        skip_broken: bool = False,
        memory_limit: int | str | None = None,
    ) -> None:
        self.memory_limit = memory_limit_bytes(memory_limit)
        self._time_limit = TimeLimit()
        self._broken = BrokenParts(path if isinstance(path, Path) else None) if skip_broken else None
        self._remote: RemoteSource | None = None
        if isinstance(path, RemoteLocation):
            from tfdbg_arrow.query.logdir.remote import RemoteSource

            self._remote = RemoteSource(path, storage_options, broken=self._broken)
            self._check = no_check
        else:
            check_logdir(path)
            self._local = LocalSource(path, broken=self._broken)
            self._check = OwnFiles(path).check
        self.path: Path | RemoteLocation = path
        self.storage_options = storage_options
        # For the temporary files of large queries. By default, DuckDB would write them to the working directory.
        self._spill = tempfile.mkdtemp(prefix="tfdbg_arrow-")
        self._remove_spill = weakref.finalize(self, shutil.rmtree, self._spill, ignore_errors=True)
        self._connection = connect(self._spill, memory_limit=self.memory_limit)
        self._lock = threading.RLock()
        self._views = prepared(self._connection, check=self._check)
        self._parts: Mapping[str, tuple[str, ...]] = {}
        self._by_run: dict[str, dict[str, tuple[str, ...]]] = {}
        self._scopes: OrderedDict[str, SubLogdir] = OrderedDict()
        self._derived: list[weakref.ref[Logdir]] = []
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.questions = Questions()
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The in-memory DuckDB that holds the views.

        If you use it directly, you get DuckDB's own results and errors. For a logdir at a URL, it shows only the tables
        that were fetched before, by SQL given to the methods or by `fetch`.
        """
        self._run(self._views.need_all)
        return self._connection

    @cached_property
    def bad_runs(self) -> BadRuns:
        """The runs that recorded a bad tensor."""
        return BadRuns(self)

    @cached_property
    def op_digests(self) -> OpDigests:
        """The extremes of each op output over its run."""
        from tfdbg_arrow.query.alert_rules.scan import OpDigests

        return OpDigests(self)

    @property
    def broken_parts(self) -> tuple[BrokenPart, ...]:
        """The broken files that are left out if the logdir was opened with `skip_broken`; reading may find more."""
        return () if self._broken is None else self._broken.found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Logdir({str(self.path)!r})"

    def _repr_html_(self) -> str | None:
        try:
            return str(_viewer().glance(self))
        except MissingDependencyError:
            return None  # a notebook then shows the text

    def show(self, *, run_id: str | None = None, height: int = 720) -> Shown:
        """Returns the report for display in a notebook: the first bad tensor, its cause and line, alerts and sources.

        Args:
            run_id: The run, or "all". None means the newest run, with the other processes of its program.
            height: Height of the frame in pixels.

        Raises:
            MissingDependencyError: The viewer's packages are not installed.
            QueryError: The run is unknown.
        """
        return Shown(html=str(_viewer().frame(self, run_id=run_id, height=height)), logdir=str(self.path))

    def close(self) -> None:
        """Closes the connection. Relations that were taken from it cannot be read any more."""
        self._connection.close()
        self._remove_spill()

    def interrupt(self) -> None:
        """Stops the query that another thread runs; that thread gets a QueryError. Does nothing if no query runs."""
        # Does not take the lock, because the running query holds it.
        with contextlib.suppress(duckdb.Error):
            self._connection.interrupt()
        for derived in list(self._derived):
            one = derived()
            if one is not None:
                one.interrupt()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Sets a time limit for the queries in the block, on this logdir and on its runs.

        Raises:
            TimeLimitError: The queries took longer; the query that was stopped raises it.
        """
        with self._time_limit.within(seconds, interrupt=self.interrupt):
            yield

    @contextlib.contextmanager
    def joining_as_written(self) -> Iterator[None]:
        """Makes DuckDB join tables in the order in which the queries in the block name them.

        Use it to read whole views over all tensors. Otherwise DuckDB may join all tensors of a call with each other
        before it joins the edges between them, which takes quadratic time.
        """
        self.rows("SET disabled_optimizers = 'join_order'")
        try:
            yield
        finally:
            self.rows("RESET disabled_optimizers")

    def check_time(self) -> None:
        """Raises TimeLimitError if the time limit of `within` has passed."""
        self._time_limit.check()

    def refresh(self) -> None:
        """Reads the manifests again, so that the views show the current live parts.

        Raises:
            LogdirError: The path is no longer a logdir, or a manifest is damaged.
        """
        parts = self._list()
        with self._lock:
            self._take(parts)

    def fetch(self, *table_names: str) -> None:
        """Fetches tables of a logdir at a URL; does nothing for a local one.

        Args:
            *table_names: The tables; without any, all tables are fetched.

        Raises:
            LogdirError: The URL cannot be read.
            BrokenPartError: A part does not match the manifest.
        """
        wanted = set(table_names or (table.name for table in TABLES))
        if self._remote is None or wanted <= self._remote.wanted:
            return
        self._take(self._without_refused(self._remote.want(wanted)))

    def run_ids(self) -> tuple[str, ...]:
        """Returns the runs that have parts, oldest first."""
        return tuple(sorted(self._runs_parts()))

    def of_run(self, run_id: str) -> Logdir:
        """Returns the logdir restricted to one run, so that queries do not read the other runs.

        The result lives as long as this logdir and follows its `refresh`. If there is no such run, its tables are
        empty.
        """
        from tfdbg_arrow.query.logdir.sub_logdir import SubLogdir

        with self._lock:
            scope = self._scopes.get(run_id)
            if scope is None:
                scope = self._scopes[run_id] = SubLogdir(self, [run_id], loads=True)
                if len(self._scopes) > _MAX_SCOPES:
                    self._scopes.popitem(last=False)  # existing references to it stay usable
            self._scopes.move_to_end(run_id)
            for other in list(self._scopes.values())[:-_MAX_LOADED_SCOPES]:
                other._views.release()
            return scope

    def of_runs(self, run_ids: Sequence[str], *, only: Mapping[str, Iterable[str]] | None = None) -> SubLogdir:
        """Returns the logdir restricted to some runs; close it when done.

        Args:
            run_ids: The runs.
            only: The parts to show, by table. All parts are shown for tables that are not in it.
        """
        from tfdbg_arrow.query.logdir.sub_logdir import SubLogdir

        return SubLogdir(self, run_ids, only=only)

    def kept(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns a cached value computed from the rows; `make` computes it again after the parts changed."""
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        while len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        found: _Result = self._kept[key]
        return found

    def kept_rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the result of `rows`, cached until the parts change. Use it for at most a few thousand rows."""
        kept: OrderedDict[Hashable, list[tuple[Any, ...]]] = self.kept("rows", OrderedDict)
        key = query, tuple(parameters)
        rows = kept.pop(key, None)
        if rows is None:
            rows = self.rows(query, parameters)
        else:
            self.questions.note(query, parameters)
        kept[key] = rows
        while len(kept) > _MAX_KEPT_ROWS:
            kept.popitem(last=False)
        return rows

    def forget(self) -> None:
        """Clears everything that was computed from the parts, for a caller that replaces rows."""
        self._kept.clear()
        for name in ("bad_runs", "op_digests"):
            self.__dict__.pop(name, None)

    def parts(self, table_name: str) -> tuple[Path, ...]:
        """Returns the live parts of a table, or their local copies if the logdir is at a URL."""
        self.fetch(table_name)
        self._check(self._parts.get(table_name, ()))
        return tuple(Path(part) for part in self._parts.get(table_name, ()))

    def parts_by_run(self, table_name: str) -> dict[str, tuple[str, ...]]:
        """Returns the live parts of a table that are on this machine, by run."""
        return {run: tables[table_name] for run, tables in self._runs_parts().items() if table_name in tables}

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns the number of rows, of parts and of bytes of a table. If the manifests tell, nothing is fetched."""
        known = [(part.rows, part.bytes) for part in self._remote.extent(table_name)] if self._remote else []
        rows, sizes = [rows for rows, _ in known if rows is not None], [size for _, size in known if size is not None]
        if self._remote is not None and len(rows) == len(sizes) == len(known):
            return sum(rows), len(known), sum(sizes)
        parts = self.parts(table_name)
        (num_rows,) = self.rows(f'SELECT count(*) FROM "{table_name}"')[0]
        return num_rows, len(parts), sum(part.stat().st_size for part in parts if part.exists())

    def verify(self) -> Verification:
        """Checks that every byte of data is as it was written; see `tfdbg_arrow.verify`."""
        from tfdbg_arrow.query.integrity.verification import verify

        return verify(str(self.path))

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
        """Compares a run of this logdir with a run of this or another logdir; see `tfdbg_arrow.diff`."""
        from tfdbg_arrow.query.run_diff import diff

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

    def prepare(self, query: str) -> None:
        """Creates the views that a statement reads, and computes those that are computed."""
        self._run(lambda: self._need(query))

    def _need(self, query: str) -> None:
        """Fetches the tables that a statement reads, and creates its views."""
        if query.startswith(("SET ", "RESET ")):
            return
        if self._remote is not None:
            self.fetch(*mentioned_tables(query) or {"run"})
        self._views.need(query, fill=self._fill)

    def _fill(self, view: str, table: str) -> None:
        """Inserts the rows of a computed view into a table."""
        from tfdbg_arrow.query.logdir.linked import fill_tensor_input

        fill_tensor_input(self, table)

    def _list(self) -> Mapping[str, tuple[str, ...]]:
        return self._without_refused((self._remote or self._local).refresh())

    def _without_refused(self, parts: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        return parts if self._broken is None else self._broken.without_refused(parts)

    def _take(self, parts: Mapping[str, tuple[str, ...]]) -> None:
        """Makes the views show these parts from now on."""
        if parts != self._parts:
            self._kept.clear()
        self._parts = parts
        self._by_run = {}
        self._show()
        for scope in self._scopes.values():
            scope._take_from_whole()

    def _show(self) -> None:
        unfetched = [] if self._remote is None else [t.name for t in TABLES if t.name not in self._remote.wanted]
        self._views.reset(self._parts, unfetched=unfetched, cure=self._cure("them"))

    def _runs_parts(self) -> dict[str, dict[str, tuple[str, ...]]]:
        if not self._by_run:
            self._by_run = parts_by_run(self._parts)
        return self._by_run

    def _run(self, action: Callable[[], _Result]) -> _Result:
        self.check_time()
        with self._lock:  # until a result is read, no other thread may use its connection or change its views
            return self._attempted(action)

    def _attempted(self, action: Callable[[], _Result]) -> _Result:
        for attempt in range(_MAX_ATTEMPTS):
            try:
                return action()
            except RecursionError:  # it is a RuntimeError, but comes from the program's stack and not from DuckDB
                raise
            except _ENGINE_ERRORS as error:
                if self._views.unite(error):
                    continue
                if isinstance(error, duckdb.FatalException) and attempt < _MAX_ATTEMPTS - 1 and self._reopen():
                    continue
                refusal = self._refused(error)
                if refusal is not None:
                    raise refusal from error
                # Compaction of any run may remove a part after it was listed and before it is opened.
                if attempt < _MAX_ATTEMPTS - 1 and self._missing_parts():
                    self.refresh()
                    continue
                parts = self._views.parts()
                if self._broken is not None and self._broken.refuse_unreadable(error, parts, check=self._check):
                    self.refresh()
                    continue
                raise self._broken_part_error(error) from error
        raise AssertionError("unreachable")

    def _told(self, error: Exception) -> Exception:
        error = duckdb_error(error)
        if not isinstance(error, _ENGINE_ERRORS) or isinstance(error, RecursionError):
            return error
        with self._lock:
            return self._refused(error) or self._broken_part_error(error)

    def _refused(self, error: Exception) -> TfdbgArrowError | None:
        """Returns the exception for an error that no file can have caused; None for any other error.

        Raises:
            TimeLimitError: The error is that of a query that was stopped because its time was over.
        """
        if isinstance(error, duckdb.InterruptException):
            self.check_time()
        return refused(error, memory_limit=self.memory_limit)

    def _broken_part_error(self, error: Exception) -> TfdbgArrowError:
        return broken_part_error(error, self._views.parts(), check=self._check, cure=self._cure("that file"))

    def _reopen(self) -> bool:
        """Opens a new database after a fatal error, for example from a broken part: DuckDB then refuses all queries.

        Returns True if it could open one.
        """
        self._connection = connect(
            self._spill, memory_limit=self.memory_limit
        )  # DuckDB closes the old database when its last cursor is gone
        self._views = prepared(self._connection, check=self._check)
        self._show()
        return True

    def _missing_parts(self) -> list[str]:
        return [part for part in self._views.parts() if not Path(part).exists()]

    def _cure(self, what: str) -> str:
        """Returns what to do about parts that cannot be read."""
        if self._remote is not None:
            return f"remove {what} from the local cache to download a new copy from {self.path}"
        return f"restore {what}, or read the rest with skip_broken=True (--skip-broken)"


def open_logdir(
    path: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    skip_broken: bool = False,
    memory_limit: int | str | None = None,
) -> Logdir:
    """Opens a logdir for reading.

    Args:
        path: The directory that a recording wrote, or its URL, such as `s3://bucket/path`. If the logdir is at a URL,
            the tables that queries need are fetched into a cache directory: TFDBG_ARROW_CACHE_DIR, or `tfdbg_arrow` in
            the user's cache directory.
        storage_options: Options passed to fsspec for a URL. None leaves them to the configuration of fsspec and of the
            store's client.
        skip_broken: Whether to leave out parts that do not match their manifest, and runs whose manifest is damaged.
            `Logdir.broken_parts` lists them. Opening then reads every part once.
        memory_limit: How much memory the queries may use: a number of bytes, or a size such as `500MB`. None takes the
            environment variable TFDBG_ARROW_MEMORY_LIMIT, or 2 GiB if it is not set. Queries that need more use
            temporary files, and raise MemoryLimitError if that is not enough.

    Raises:
        LogdirError: The path does not exist, is a file, is empty, or is not a logdir, or the URL cannot be read.
        FormatVersionError: The logdir has a MAJOR format version that this package does not read.
        BrokenPartError: A part cannot be opened; the message names it.
        MissingDependencyError: A package that is needed to open the URL is not installed.
        QueryError: The memory limit is not a size, or less than 32 MB.
    """
    return Logdir(
        parse_location(path), storage_options=storage_options, skip_broken=skip_broken, memory_limit=memory_limit
    )


@contextlib.contextmanager
def opened(logdir: Engine | str | Path) -> Iterator[Engine]:
    """Yields the given engine, or opens the given path as a Logdir for the duration of the block."""
    if isinstance(logdir, (str, Path)):
        with open_logdir(logdir) as own, strange_rows_told(own.path):
            yield own
    elif isinstance(logdir, Engine):
        with strange_rows_told(logdir.path):
            yield logdir
    else:
        raise LogdirError(f"logdir is {logdir!r}, expected a path or the result of open_logdir().")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A report to display in a notebook.

    Attributes:
        html: The HTML element with the report.
        logdir: The logdir's path or URL.
    """

    html: str
    logdir: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<report of {self.logdir}; display it in a notebook, or run `tfdbg-arrow report`>"


def _viewer() -> Any:
    try:
        return importlib.import_module("tfdbg_arrow.viewer.report")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"showing a logdir needs the package {error.name}; run: {install_command('viewer')}"
        ) from error
