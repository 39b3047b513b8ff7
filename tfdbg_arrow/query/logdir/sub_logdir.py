"""SubLogdir: a logdir restricted to some of its runs."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import TypeVar

import duckdb

from tfdbg_arrow.query.logdir import Logdir
from tfdbg_arrow.query.logdir.live_views import prepared

_Result = TypeVar("_Result")

_SCHEMA_NUMBERS = count()


class SubLogdir(Logdir):
    """A logdir restricted to some runs. Its views are in a separate schema and read only the parts of these runs.

    Args:
        whole: The logdir.
        run_ids: The runs.
        loads: Whether to read small tables into memory; only for a single run.
        only: The parts to show, by table. All parts are shown for tables that are not in it.
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
        self.memory_limit, self._time_limit = whole.memory_limit, whole._time_limit
        self._remote, self._check, self._broken = whole._remote, whole._check, whole._broken
        self._only = {table: frozenset(parts) for table, parts in (only or {}).items()}
        self._lock = whole._lock
        self._loads, self._has_replaced = loads, False
        self._schema = f"runs_{next(_SCHEMA_NUMBERS)}"  # not the run ID, because names in SQL ignore case
        self._connect()
        self._scopes = OrderedDict()
        self._derived = []
        whole._derived[:] = [*(other for other in whole._derived if other() is not None), weakref.ref(self)]
        self._kept = OrderedDict()
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
        with contextlib.suppress(duckdb.FatalException):  # after a fatal error, DuckDB refuses this too
            self._connection.execute("SET schema = 'main'")
            self._connection.execute(f"DROP SCHEMA {self._schema} CASCADE")
        self._connection.close()

    def refresh(self) -> None:
        """Reads the manifests of all runs of the whole logdir again."""
        self._whole.refresh()
        self._take_from_whole()

    def fetch(self, *table_names: str) -> None:
        """Fetches tables of a logdir at a URL, for all runs of the whole logdir."""
        self._whole.fetch(*table_names)
        self._take_from_whole()

    def of_run(self, run_id: str) -> Logdir:
        """Returns the logdir restricted to one run."""
        return self if self._run_ids == (run_id,) else self._whole.of_run(run_id)

    def kept(self, key: Hashable, make: Callable[[], _Result]) -> _Result:
        """Returns a cached value computed from the rows. All restrictions of a logdir share one cache."""
        return self._whole.kept((self._run_ids, key), make)

    def forget(self) -> None:
        """Clears everything that was computed from the parts, for a caller that replaces rows."""
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
