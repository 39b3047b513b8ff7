"""OpenLogdir: a logdir opened for reading, as DuckDB views over its live parts. SubLogdir: some runs of a logdir.

Both classes run SQL. `tfdbg_arrow.query.answers.Logdir` adds the questions of the query layer.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb

from tfdbg_arrow.errors import TfdbgArrowError
from tfdbg_arrow.query.engine import Engine
from tfdbg_arrow.query.integrity.broken_parts import BrokenPart, BrokenParts, broken_part_error
from tfdbg_arrow.query.logdir.live_views import connect, duckdb_share, mentioned_tables, prepared
from tfdbg_arrow.query.logdir.local_parts import LocalSource, no_check, parts_by_run
from tfdbg_arrow.query.logdir.statements import (
    Questions,
    Statements,
    TimeLimit,
    duckdb_error,
    memory_limit_bytes,
    refused,
)
from tfdbg_arrow.schema import TABLES
from tfdbg_arrow.storage.layout import OwnFiles
from tfdbg_arrow.storage.location import RemoteLocation, parse_location
from tfdbg_arrow.storage.marker import check_logdir

if TYPE_CHECKING:
    from tfdbg_arrow.query.logdir.remote import RemoteSource

_Result = TypeVar("_Result")

_ENGINE_ERRORS = (duckdb.Error, UnicodeDecodeError, RuntimeError)
"""The exceptions that DuckDB raises."""
_MAX_ATTEMPTS = 20
"""Maximum number of times that the parts are listed again because a listed part was gone."""
_MAX_SCOPES = 64
"""Maximum number of runs whose views are kept."""
_MAX_LOADED_SCOPES = 4
"""Maximum number of runs whose small tables are kept in memory."""
_MAX_KEPT_ROWS = 64
"""Maximum number of query results that `kept_rows` keeps."""
_MAX_SMALL_ROWS = 500_000
"""Maximum number of rows of a small logdir. Its queries take a few milliseconds, and most of that is planning. More
threads would wait for work, which takes a quarter more processor time, and DuckDB would compress the rows before it
sorts them, which takes a tenth more."""
_SCHEMA_NUMBERS = count()
_MAX_KEPT = 2
"""Maximum number of values that `kept` keeps for each client. They suffice to compare two runs.

The reader of the data flow is the largest value, with up to about 200 MB for a run.
"""


class OpenLogdir(Statements, Engine):
    """A logdir opened for reading. `Logdir` describes the attributes, and `open_logdir` describes the arguments."""

    def __init__(
        self,
        path: str | Path,
        *,
        storage_options: Mapping[str, Any] | None = None,
        skip_broken: bool = False,
        memory_limit: int | str | None = None,
    ) -> None:
        location = parse_location(path)
        self.memory_limit = memory_limit_bytes(memory_limit)
        self._time_limit = TimeLimit()
        self._broken = BrokenParts(location if isinstance(location, Path) else None) if skip_broken else None
        self._remote: RemoteSource | None = None
        if isinstance(location, RemoteLocation):
            from tfdbg_arrow.query.logdir.remote import RemoteSource

            self._remote = RemoteSource(location, storage_options, broken=self._broken)
            self._check = no_check
        else:
            check_logdir(location)
            self._local = LocalSource(location, broken=self._broken)
            self._check = OwnFiles(location).check
        self.path: Path | RemoteLocation = location
        self.storage_options = storage_options
        # The directory for temporary files of large queries. By default, DuckDB would use the working directory.
        self._spill = tempfile.mkdtemp(prefix="tfdbg_arrow-")
        self._remove_spill = weakref.finalize(self, shutil.rmtree, self._spill, ignore_errors=True)
        self._usual_memory = duckdb_share(self.memory_limit)
        self._has_all_memory = True
        self._connection = connect(self._spill, memory_limit=self.memory_limit)
        self._lock = threading.RLock()
        self._views = prepared(self._connection, check=self._check)
        self._parts: Mapping[str, tuple[str, ...]] = {}
        self._by_run: dict[str, dict[str, tuple[str, ...]]] = {}
        self._scopes: OrderedDict[str, SubLogdir] = OrderedDict()
        self._derived: list[weakref.ref[OpenLogdir]] = []
        self._results: dict[str, OrderedDict[Hashable, Any]] = {}
        self._lasting: dict[Callable[[OpenLogdir], Any], Any] = {}
        self.questions = Questions()
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The in-memory DuckDB that holds the views.

        If you use the connection directly, you get DuckDB's own results and errors. For a logdir at a URL, it shows
        only the tables that earlier SQL or `fetch` has already fetched.
        """
        self._run(self._views.need_all)
        return self._connection

    @property
    def broken_parts(self) -> tuple[BrokenPart, ...]:
        """The broken files that a logdir opened with `skip_broken` leaves out. Reading may find more such files."""
        return () if self._broken is None else self._broken.parts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Logdir({str(self.path)!r})"

    def close(self) -> None:
        """Closes the connection. Relations from this connection can no longer be read."""
        self._connection.close()
        self._remove_spill()

    def interrupt(self) -> None:
        """Stops a query in another thread, which then gets a QueryError. Does nothing if no query runs."""
        # interrupt() does not take the lock, because the running query holds the lock.
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
        """Makes DuckDB join tables in the order in which the queries of the block list the tables.

        Use it to read whole views over all tensors. Otherwise DuckDB may first join all pairs of tensors of a call, and
        only then join the edges between them. That takes quadratic time.
        """
        self.rows("SET disabled_optimizers = 'join_order'")
        try:
            yield
        finally:
            self.rows(f"SET disabled_optimizers = '{self._disabled_optimizers()}'")

    def save_memory(self, usual_memory: int) -> None:
        """Makes DuckDB use temporary files instead of more than `usual_memory` bytes of memory.

        A query that needs more memory, even with temporary files, runs again with the whole memory limit.
        """
        self._usual_memory = min(usual_memory, duckdb_share(self.memory_limit))
        self._return_memory()

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
        """Fetches tables of a logdir at a URL; does nothing for a local logdir.

        Args:
            *table_names: The tables. Without names, all tables are fetched.

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

    def of_run(self, run_id: str) -> OpenLogdir:
        """Returns the logdir restricted to one run, so that queries do not read the other runs.

        The result lives as long as this logdir and follows its `refresh`. If there is no such run, its tables are
        empty.
        """
        with self._lock:
            scope = self._scopes.get(run_id)
            if scope is None:
                scope = self._scopes[run_id] = self._restricted([run_id], loads=True)
                if len(self._scopes) > _MAX_SCOPES:
                    self._scopes.popitem(last=False)  # existing references to the scope stay usable
            self._scopes.move_to_end(run_id)
            for other in list(self._scopes.values())[:-_MAX_LOADED_SCOPES]:
                other._views.release()
            return scope

    def of_runs(self, run_ids: Sequence[str]) -> SubLogdir:
        """Returns the logdir restricted to some runs. The caller must close the result."""
        return self._restricted(run_ids)

    def _restricted(self, run_ids: Sequence[str], *, loads: bool = False) -> SubLogdir:
        return SubLogdir(self, run_ids, loads=loads)

    def kept(self, client: str, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns a cached value computed from the rows; `make` computes it again after the parts changed."""
        values: OrderedDict[Hashable, _Result] = self._results.setdefault(client, OrderedDict())
        # Several threads may ask for the same value. Each step is one C call, so none of them finds half a change.
        value = values.pop(key, None)
        if value is None:
            value = make()
        values[key] = value
        while len(values) > _MAX_KEPT:
            values.popitem(last=False)
        return value

    def kept_rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the result of `rows`, cached until the parts change. Use it for at most a few thousand rows."""
        results: OrderedDict[Hashable, list[tuple[Any, ...]]] = self.kept("rows", None, OrderedDict)
        key = query, tuple(parameters)
        rows = results.pop(key, None)
        if rows is None:
            rows = self.rows(query, parameters)
        else:
            self.questions.note(query, parameters)
        results[key] = rows
        while len(results) > _MAX_KEPT_ROWS:
            results.popitem(last=False)
        return rows

    def lasting(self, make: Callable[[OpenLogdir], _Result]) -> _Result:
        """Returns a reader that `make` created at the first call. A logdir and its SubLogdirs share one reader.

        The reader reads the whole logdir. The reader itself must follow changes of the parts.
        """
        if make not in self._lasting:
            self._lasting[make] = make(self)
        reader: _Result = self._lasting[make]
        return reader

    def forget(self) -> None:
        """Clears all values that were computed from the parts, for a caller that replaces rows."""
        self._results.clear()
        self._lasting.clear()

    def parts(self, table_name: str) -> tuple[Path, ...]:
        """Returns the live parts of a table, or their local copies if the logdir is at a URL."""
        self.fetch(table_name)
        self._check(self._parts.get(table_name, ()))
        return tuple(Path(part) for part in self._parts.get(table_name, ()))

    def parts_by_run(self, table_name: str) -> dict[str, tuple[str, ...]]:
        """Returns the live parts of a table that are on this machine, by run."""
        return {run: tables[table_name] for run, tables in self._runs_parts().items() if table_name in tables}

    def extent(self, table_name: str) -> tuple[int, int, int]:
        """Returns the numbers of rows, parts and bytes of a table. Nothing is fetched."""
        if self._remote is not None:
            listed = self._remote.extent(table_name)
            return sum(part.rows for part in listed), len(listed), sum(part.bytes for part in listed)
        parts = self.parts(table_name)
        (num_rows,) = self.rows(f'SELECT count(*) FROM "{table_name}"')[0]
        return num_rows, len(parts), sum(part.stat().st_size for part in parts if part.exists())

    def prepare(self, query: str) -> None:
        """Creates the views that a statement reads, and computes the rows of computed views."""
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
        from tfdbg_arrow.query.logdir.linked import fill_tensor_input  # imported here, because it needs NumPy, Arrow

        fill_tensor_input(((run_id, self.of_run(run_id)) for run_id in self.run_ids()), table)

    def _list(self) -> Mapping[str, tuple[str, ...]]:
        return self._without_refused((self._remote or self._local).refresh())

    def _without_refused(self, parts: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        return parts if self._broken is None else self._broken.without_refused(parts)

    def _take(self, parts: Mapping[str, tuple[str, ...]]) -> None:
        """Makes the views show the given parts."""
        if parts != self._parts:
            self._results.clear()
        self._parts = parts
        self._by_run = {}
        self._show()
        for scope in self._scopes.values():
            scope._take_from_whole()

    def _choose_settings(self) -> None:
        """Makes DuckDB use one thread and fewer optimizers for a small logdir, and all of them for a larger one."""
        num_rows = self._num_rows()
        is_counted = all(path in num_rows for paths in self._parts.values() for path in paths)
        self._is_small = is_counted and sum(num_rows.values()) <= _MAX_SMALL_ROWS
        with contextlib.suppress(duckdb.FatalException):  # the next query opens a new database
            self._connection.execute("SET threads = 1" if self._is_small else "RESET threads")
            self._connection.execute(f"SET disabled_optimizers = '{self._disabled_optimizers()}'")

    def _disabled_optimizers(self) -> str:
        return "compressed_materialization" if self._is_small else ""

    def _show(self) -> None:
        self._choose_settings()
        unfetched = [] if self._remote is None else [t.name for t in TABLES if t.name not in self._remote.wanted]
        self._views.reset(self._parts, num_rows=self._num_rows(), unfetched=unfetched, cure=self._cure("them"))

    def _num_rows(self) -> Mapping[str, int]:
        """Returns the number of rows of the parts that a manifest names, by path."""
        return (self._remote or self._local).num_rows

    def _runs_parts(self) -> dict[str, dict[str, tuple[str, ...]]]:
        if not self._by_run:
            self._by_run = parts_by_run(self._parts)
        return self._by_run

    def _run(self, action: Callable[[], _Result]) -> _Result:
        self.check_time()
        with self._lock:  # until a result is read, no other thread may use its connection or change its views
            try:
                return self._attempted(action)
            finally:
                self._return_memory()

    def _attempted(self, action: Callable[[], _Result]) -> _Result:
        for attempt in range(_MAX_ATTEMPTS):
            try:
                return action()
            except RecursionError:  # a RuntimeError that comes from the program's stack, not from DuckDB
                raise
            except _ENGINE_ERRORS as error:
                if self._views.unite(error):
                    continue
                if isinstance(error, duckdb.OutOfMemoryException) and self._take_all_memory():
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

    def _take_all_memory(self) -> bool:
        """Lets the current query use the whole memory limit. Returns False if it already could."""
        if self._has_all_memory:
            return False
        self._set_memory(duckdb_share(self.memory_limit))
        self._has_all_memory = True
        return True

    def _return_memory(self) -> None:
        """Gives DuckDB the usual memory again, after a query that used the whole limit."""
        if self._has_all_memory and self._usual_memory < duckdb_share(self.memory_limit):
            with contextlib.suppress(duckdb.OutOfMemoryException):  # DuckDB still uses more; try again later
                self._set_memory(self._usual_memory)
                self._has_all_memory = False

    def _set_memory(self, limit: int) -> None:
        # A new cursor, because a statement ends the open result of its connection.
        self._connection.cursor().execute(f"SET memory_limit = '{limit}B'")

    def _told(self, error: Exception) -> Exception:
        error = duckdb_error(error)
        if not isinstance(error, _ENGINE_ERRORS) or isinstance(error, RecursionError):
            return error
        with self._lock:
            return self._refused(error) or self._broken_part_error(error)

    def _refused(self, error: Exception) -> TfdbgArrowError | None:
        """Returns the exception for an error that no file can have caused; None for any other error.

        Raises:
            TimeLimitError: The error comes from a query that was stopped at its time limit.
        """
        if isinstance(error, duckdb.InterruptException):
            self.check_time()
        return refused(error, memory_limit=self.memory_limit)

    def _broken_part_error(self, error: Exception) -> TfdbgArrowError:
        return broken_part_error(error, self._views.parts(), check=self._check, cure=self._cure("that file"))

    def _reopen(self) -> bool:
        """Opens a new database after a fatal error, for example from a broken part.

        After such an error, DuckDB refuses all queries.

        Returns True if it could open a database.
        """
        # DuckDB closes the old database when its last cursor is gone.
        self._connection = connect(self._spill, memory_limit=self.memory_limit)
        self._has_all_memory = True
        self._views = prepared(self._connection, check=self._check)
        self._lasting.clear()  # the old database held the tables of these readers
        self._show()
        return True

    def _missing_parts(self) -> list[str]:
        return [part for part in self._views.parts() if not Path(part).exists()]

    def _cure(self, what: str) -> str:
        """Returns the advice about parts that cannot be read."""
        if self._remote is not None:
            return f"remove {what} from the local cache to download a new copy from {self.path}"
        return f"restore {what}, or read the rest with skip_broken=True (--skip-broken)"


class SubLogdir(OpenLogdir):
    """A logdir restricted to some runs.

    The views of a SubLogdir are in a separate schema, and read only the parts of these runs.

    Args:
        whole: The logdir.
        run_ids: The runs.
        loads: Whether to read small tables into memory; only for a single run.
    """

    def __init__(self, whole: OpenLogdir, run_ids: Sequence[str], *, loads: bool = False) -> None:
        self._whole, self._run_ids = whole, tuple(run_ids)
        self.questions = whole.questions
        self.path, self.storage_options = whole.path, whole.storage_options
        self.memory_limit, self._time_limit = whole.memory_limit, whole._time_limit
        self._remote, self._check, self._broken = whole._remote, whole._check, whole._broken
        self._lock = whole._lock
        self._loads, self._has_replaced = loads, False
        self._schema = f"runs_{next(_SCHEMA_NUMBERS)}"  # not the run ID, because names in SQL ignore case
        self._connect()
        self._scopes = OrderedDict()
        self._derived = []
        whole._derived[:] = [*(other for other in whole._derived if other() is not None), weakref.ref(self)]
        self._results, self._lasting = {}, {}
        self._parts = {}
        self._take_from_whole()

    def _connect(self) -> None:
        self._database = self._whole._connection
        self._connection = self._database.cursor()
        self._connection.execute(f"CREATE SCHEMA {self._schema}")
        self._connection.execute(f"SET schema = '{self._schema}'")
        run_id = self._run_ids[0] if self._loads else None
        self._views = prepared(self._connection, check=self._whole._check, run_id=run_id)

    def close(self) -> None:
        """Drops the views."""
        with contextlib.suppress(duckdb.FatalException):  # after a fatal error, DuckDB refuses these statements, too
            self._execute_to_end("SET schema = 'main'")
            self._execute_to_end(f"DROP SCHEMA {self._schema} CASCADE")
        self._connection.close()

    def _execute_to_end(self, statement: str) -> None:
        """Executes a statement that a time limit must not stop."""
        is_done = False
        while not is_done:
            with contextlib.suppress(duckdb.InterruptException):
                self._connection.execute(statement)
                is_done = True

    def refresh(self) -> None:
        """Reads the manifests of all runs of the whole logdir again."""
        self._whole.refresh()
        self._take_from_whole()

    def fetch(self, *table_names: str) -> None:
        """Fetches tables of a logdir at a URL, for all runs of the whole logdir."""
        self._whole.fetch(*table_names)
        self._take_from_whole()

    def of_run(self, run_id: str) -> OpenLogdir:
        """Returns the logdir restricted to one run."""
        return self if self._run_ids == (run_id,) else self._whole.of_run(run_id)

    def kept(self, client: str, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns a cached value computed from the rows. A logdir and its SubLogdirs share one cache."""
        return self._whole.kept(client, (self._run_ids, key), make)

    def lasting(self, make: Callable[[OpenLogdir], _Result]) -> _Result:
        """Returns a reader of the whole logdir. A logdir and its SubLogdirs share one reader."""
        return self._whole.lasting(make)

    def forget(self) -> None:
        """Clears all values that were computed from the parts, for a caller that replaces rows."""
        super().forget()
        self._whole.forget()

    def replace(self, table_name: str, query: str, parameters: Sequence[object] = ()) -> None:
        """Replaces the rows of a table by the result of a query over the views, until the parts change."""
        self._run(lambda: self._replace(table_name, query, parameters))

    def _replace(self, table_name: str, query: str, parameters: Sequence[object]) -> None:
        self._need(query)
        self._views.replace(table_name, query, parameters)
        self._has_replaced = True

    def _reopen(self) -> bool:
        if self._has_replaced:  # a new database would not have the replaced rows
            return False
        if self._database is self._whole._connection and not self._whole._reopen():
            return False
        self._connect()
        self._show()
        return True

    def _take_all_memory(self) -> bool:
        return self._whole._take_all_memory()

    def _return_memory(self) -> None:
        self._whole._return_memory()

    def _num_rows(self) -> Mapping[str, int]:
        return self._whole._num_rows()

    def _choose_settings(self) -> None:
        """Does nothing, because the settings belong to the database, and the whole logdir chooses them."""

    def _disabled_optimizers(self) -> str:
        return self._whole._disabled_optimizers()

    def _take_from_whole(self) -> None:
        by_run = self._whole._runs_parts()
        parts_of_table: dict[str, list[str]] = {}
        for run_id in self._run_ids:
            for table, parts in by_run.get(run_id, {}).items():
                parts_of_table.setdefault(table, []).extend(parts)
        tables = {table: tuple(parts) for table, parts in parts_of_table.items()}
        if tables != self._parts or self._remote is not None:
            self._take(tables)
