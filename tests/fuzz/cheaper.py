"""Makes inputs cheaper: one database for many inputs, and imports that write no Parquet."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from unittest import mock

import duckdb
import pyarrow as pa

from tfdbg_arrow.debugger_v2 import importer
from tfdbg_arrow.query.logdir.live_views import connect
from tfdbg_arrow.query.logdir.statements import DEFAULT_MEMORY_LIMIT
from tfdbg_arrow.schema import arrow_schema

_INPUTS_A_DATABASE = 200
"""The database is replaced after this many inputs, because it caches the footers of all parts that it has read."""


class SharedDatabase:
    """A database for many logdirs.

    Opening a database costs more processor time than most questions about a small logdir. So code that opens a database
    gets its own schema in the shared database instead.
    """

    def __init__(self) -> None:
        self._spill = tempfile.mkdtemp()
        self._numbers = itertools.count()
        self._database: duckdb.DuckDBPyConnection | None = None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Makes all code that opens a database within the block use this database."""
        number = next(self._numbers)
        if number % _INPUTS_A_DATABASE == 0:
            self._database = None
        schemas: list[str] = []

        def connected(*arguments: object, **settings: object) -> duckdb.DuckDBPyConnection:
            schemas.append(f"input_{number}_{len(schemas)}")
            connection = self._sound(open_database).cursor()
            connection.execute(f"CREATE SCHEMA {schemas[-1]}")
            connection.execute(f"SET schema = '{schemas[-1]}'")
            return connection

        open_database = duckdb.connect
        with mock.patch.object(duckdb, "connect", connected):
            yield
        if schemas:
            database = self._sound(open_database)
            for schema in schemas:
                database.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")

    def _sound(self, open_database: Callable[..., duckdb.DuckDBPyConnection]) -> duckdb.DuckDBPyConnection:
        """Returns the database. After an internal error, a database answers no queries, so a new database is opened."""
        if self._database is not None:
            try:
                self._database.execute("SELECT 1").fetchall()
            except duckdb.Error:
                self._database = None
        if self._database is None:
            with mock.patch.object(duckdb, "connect", open_database):
                self._database = connect(self._spill, memory_limit=DEFAULT_MEMORY_LIMIT)
        return self._database


@contextlib.contextmanager
def no_parts_written() -> Iterator[None]:
    """Makes imports build all tables without writing them. Writing takes most of the time for a small dump."""
    with mock.patch.object(importer, "PartWriter", _NoParts):
        yield


class _NoParts:
    def __init__(self, logdir: Path, run_id: str) -> None:
        pass

    def start(self) -> None:
        pass

    def write(self, table: str, data: pa.Table) -> None:
        assert data.schema.equals(arrow_schema(table)), (table, data.schema)
        data.validate(full=True)

    def merge_small(self, table: str) -> None:
        pass

    def parts(self, table: str) -> tuple[()]:
        return ()

    def replace(self, removed: Iterable[str], tables: Mapping[str, Iterable[pa.Table] | None]) -> None:
        for table, pieces in tables.items():
            for piece in pieces or ():
                self.write(table, piece)
