"""LiveViews: the tables and public views of a logdir on one DuckDB connection, each created when first needed.

Creating a view binds all its parts. A logdir with many runs has thousands of parts, but a query needs only a few views.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import duckdb

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.query.database import hide_progress_bar, open_database, temporary_files
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.logdir.public_views import COMPUTED, View, public_views
from tfdbg_arrow.schema import TABLES_BY_NAME, Column, Table

_ASKS_THE_CATALOG = re.compile(
    r"\b(show|describe|summarize|pragma|information_schema|duckdb_\w+|pg_\w+|sqlite_master|query|query_table|export)\b"
)
"""Matches words of statements that may read views without naming them."""
_WORD = re.compile(r"\w+")
_MAX_LOADED_ROWS = 500_000
"""A table of one run is read into memory only if it has at most this many rows."""
_PERCENT_OF_LIMIT = 75
"""DuckDB's share of the memory limit; the rest is for the rows that Python holds."""


class LiveViews:
    """Creates views over the live parts.

    Args:
        connection: The connection to create the views on, in its current schema.
        check: Called with the parts before they are opened.
        run_id: The run, if the parts belong to a single run; None otherwise. Small tables of a single run are read into
            memory when first needed. Reading a table takes as long as a few queries on the parts, and makes later
            queries faster.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, *, check: Callable[[Sequence[str]], None], run_id: str | None
    ) -> None:
        self._connection, self._check, self._run_id = connection, check, run_id
        self._computed: set[str] = set()
        self._loaded: set[str] = set()
        self._parts: Mapping[str, tuple[str, ...]] = {}
        self._num_rows: Mapping[str, int] = {}
        self._unfetched: frozenset[str] = frozenset()
        self._created: set[str] = set()
        self._united: set[str] = set()
        self._asked: dict[str, None] = {}
        self._cure = ""

    def reset(
        self,
        parts: Mapping[str, tuple[str, ...]],
        *,
        num_rows: Mapping[str, int],
        unfetched: Iterable[str] = (),
        cure: str = "restore them",
    ) -> None:
        """Sets the live parts.

        Args:
            parts: Paths by table.
            num_rows: Number of rows by path. The rows of other parts are counted.
            unfetched: Tables whose parts were not fetched. Reading the view of such a table is an error.
            cure: The advice in the error message about parts that lack a column.
        """
        lacking = frozenset(unfetched)
        changed = {
            name
            for name in self._created & TABLES_BY_NAME.keys()
            if parts.get(name) != self._parts.get(name) or (name in lacking) != (name in self._unfetched)
        }
        self._united -= changed
        self._forget(changed)
        self._forget_computed(changed)
        self._parts, self._num_rows, self._unfetched, self._cure = parts, num_rows, lacking, cure

    def need(self, query: str, *, fill: Callable[[str, str], None] = lambda view, table: None) -> None:
        """Creates the views that a statement may read.

        Args:
            query: The statement.
            fill: Called with the name of a computed view and the name of a table. `fill` must insert the rows into this
                table.

        Raises:
            duckdb.Error: A part cannot be opened.
            BrokenPartError: A part lacks a column that it must have.
        """
        tables, views = mentioned(query)
        computed = [view for view in computed_by(query) if view.name not in self._computed]
        for name in tables:
            self._asked.pop(name, None)
            self._asked[name] = None
            if name not in self._created:
                self._make_table(TABLES_BY_NAME[name])
                self._created.add(name)
        for view in views:
            if view.name not in self._created:
                select = _uncomputed(view) if view.is_computed else view.text
                self._connection.execute(f'CREATE OR REPLACE VIEW "{view.name}" AS {select}')
                self._created.add(view.name)
        for view in computed:
            self._compute(view, fill)

    def parts(self) -> list[str]:
        """Returns the paths of all live parts. Parts of the most recently used tables come first."""
        tables = dict.fromkeys([*reversed(self._asked), *self._parts])
        return [part for table in tables for part in self._parts.get(table, ())]

    def need_all(self) -> None:
        """Creates every view. Raises the same as `need`."""
        self.need("SHOW ALL TABLES")

    def unite(self, error: Exception) -> bool:
        """Makes tables match columns by name if their parts have different columns.

        Args:
            error: DuckDB's error from reading the tables.

        Returns:
            True if this changed a table, so that the caller should retry its query.
        """
        if "schema mismatch" not in str(error):
            return False
        text = str(error)
        mismatched = {
            name
            for name in self._parts.keys() & TABLES_BY_NAME.keys() - self._united
            if any(part in text for part in self._parts[name])
        }
        self._united |= mismatched
        self._forget(mismatched)
        return bool(mismatched)

    def release(self) -> None:
        """Frees the memory of tables that were read into memory. The tables are read again when needed."""
        self._forget(self._loaded)

    def replace(self, name: str, query: str, parameters: Sequence[object]) -> None:
        """Replaces the rows of a table by the result of a query over the views."""
        table = TABLES_BY_NAME[name]
        self._load(table, query, parameters, name=f"new_{name}")  # the query may read the rows that it replaces
        self._forget([name])
        self._connection.execute(f'ALTER TABLE "new_{name}" RENAME TO "{name}"')
        self._created.add(name)
        self._loaded.add(name)

    def _compute(self, view: View, fill: Callable[[str, str], None]) -> None:
        table = f"computed_{view.name}"
        self._connection.execute(f'CREATE OR REPLACE TABLE "{table}" AS {view.select}')
        ((schema,),) = self._connection.execute("SELECT current_schema()").fetchall()
        fill(view.name, f'"{schema}"."{table}"')
        self._connection.execute(f'CREATE OR REPLACE VIEW "{view.name}" AS SELECT * FROM "{table}"')
        self._computed.add(view.name)

    def _forget_computed(self, changed: Iterable[str]) -> None:
        """Removes the rows of computed views after tables changed. The rows are computed again when needed."""
        for name in list(self._computed):
            if not COMPUTED[name].isdisjoint(changed):
                self._computed.discard(name)
                self._created.discard(name)
                self._connection.execute(f'DROP TABLE "computed_{name}"')

    def _forget(self, names: Iterable[str]) -> None:
        for name in [name for name in names if name in self._created]:
            kind = "TABLE" if name in self._loaded else "VIEW"
            self._connection.execute(f'DROP {kind} "{name}"')
            self._loaded.discard(name)
            self._created.discard(name)

    def _load(self, table: Table, query: str, parameters: Sequence[object] = (), *, name: str) -> None:
        """Reads the rows of a query into a new table in memory, which is named `name`.

        Of a single run, `run_id` is a generated column: reading, comparing and joining by it costs nothing, while a
        text in every row would be the most expensive column. DuckDB plans statements over a view with such a constant
        two to three times as long.
        """
        columns = ", ".join(
            f'"run_id" VARCHAR GENERATED ALWAYS AS ({sql_literal(self._run_id)}) VIRTUAL'
            if column.name == "run_id" and self._run_id is not None
            else f'"{column.name}" {column.type.value}'
            for column in table.columns
        )
        stored = ", ".join(
            f'"{column.name}"' for column in table.columns if column.name != "run_id" or self._run_id is None
        )
        self._connection.execute(f'CREATE TABLE "{name}" ({columns})')
        try:
            self._connection.execute(f'INSERT INTO "{name}" ({stored}) SELECT {stored} FROM ({query})', parameters)
        except BaseException:
            with contextlib.suppress(duckdb.Error):  # after a fatal error, DuckDB refuses this statement too
                self._connection.execute(f'DROP TABLE "{name}"')
            raise

    def _make_table(self, table: Table) -> None:
        parts = self._parts.get(table.name, ())
        self._check(parts)
        if table.name in self._unfetched:
            self._connection.execute(_unfetched_view(table))
        elif not parts:
            self._connection.execute(_empty_view(table))
        elif table.name in self._united or not self._make_from_first(table, parts):
            self._make_united(table, parts)

    def _make_from_first(self, table: Table, parts: Sequence[str]) -> bool:
        """Creates a view with the columns of the first part. Returns False if that part lacks a column.

        If another part lacks a column, reading the parts fails, and `unite` fixes it.
        """
        try:
            self._make(table, _source(parts, unite=False), part_columns={column.name for column in table.columns})
        except duckdb.BinderException:
            return False
        return True

    def _make_united(self, table: Table, parts: Sequence[str]) -> None:
        """Creates a view over parts of several MINOR versions.

        Columns that a part lacks are NULL in the rows of the part.
        """
        source = _source(parts, unite=True)
        part_columns = set(self._connection.sql(f"SELECT * FROM {source} LIMIT 0").columns)
        for column in table.columns:
            if column.name not in part_columns and not column.nullable:
                raise BrokenPartError(
                    f"{Path(parts[0]).parent} holds parts without the column {column.name!r}, which every part of the "
                    f"table {table.name} must have; {self._cure}."
                )
        self._make(table, source, part_columns=part_columns)

    def _make(self, table: Table, source: str, *, part_columns: Container[str]) -> None:
        """Creates the view of a table over its parts.

        A small table of one run is read into memory instead. An empty table stays a view without rows.

        Args:
            table: The table.
            source: The FROM clause that reads the parts.
            part_columns: Names of the columns that this clause has. Other columns are NULL.
        """
        columns = (
            _typed(column, f'"{column.name}"' if column.name in part_columns else "NULL") for column in table.columns
        )
        select = f"SELECT {', '.join(columns)} FROM {source}"
        if self._run_id is not None:
            num_rows = self._count(table, source)
            if num_rows == 0:
                self._connection.execute(_empty_view(table))
                return
            if num_rows <= _MAX_LOADED_ROWS:
                self._load(table, select, name=table.name)
                self._loaded.add(table.name)
                return
        self._connection.execute(f'CREATE OR REPLACE VIEW "{table.name}" AS {select}')

    def _count(self, table: Table, source: str) -> int:
        """Returns the number of rows of the parts of a table, which `source` reads."""
        numbers = [self._num_rows.get(part, 0) for part in self._parts[table.name]]
        # Parts without rows are opened, because otherwise nothing would notice that such a part is damaged.
        if all(numbers):
            return sum(numbers)
        ((num_rows,),) = self._connection.execute(f"SELECT count(*) FROM {source}").fetchall()
        return int(num_rows)


@lru_cache(maxsize=1024)
def mentioned(query: str) -> tuple[tuple[str, ...], tuple[View, ...]]:
    """Returns the tables and public views that a statement may read, also through views, in order of creation."""
    text = query.lower()
    if _ASKS_THE_CATALOG.search(text) is not None:
        return tuple(TABLES_BY_NAME), public_views()
    words = set(_WORD.findall(text))
    views = set()
    for view in reversed(public_views()):  # public_views() has a view after the views that it reads
        if view.name in words:
            views.add(view.name)
            words |= _words_of(view)
    return (
        tuple(name for name in TABLES_BY_NAME if name in words),
        tuple(view for view in public_views() if view.name in views),
    )


@lru_cache(maxsize=128)
def _words_of(view: View) -> frozenset[str]:
    """Returns the words of a view's SELECT or, for a computed view, the tables that it is computed from."""
    return COMPUTED.get(view.name) or frozenset(_WORD.findall(view.select.lower()))


@lru_cache(maxsize=1024)
def computed_by(query: str) -> tuple[View, ...]:
    """Returns the computed views whose rows a statement reads, directly or through another view."""
    return tuple(view for view in _read_by(query)[1] if view.is_computed)


def mentioned_tables(query: str) -> frozenset[str]:
    """Returns the tables whose rows a statement reads, directly or through a public view."""
    return frozenset(_read_by(query)[0])


def _read_by(query: str) -> tuple[tuple[str, ...], tuple[View, ...]]:
    """Returns the tables and views whose rows a statement reads. Reading the catalog reads no rows."""
    return mentioned(_ASKS_THE_CATALOG.sub(" ", query.lower()))


def _source(parts: Sequence[str], *, unite: bool) -> str:
    files = ", ".join(sql_literal(part) for part in parts)
    # can_have_nan: min/max statistics ignore NaN. Without this option, DuckDB would skip rows by these statistics.
    return (
        f"read_parquet([{files}], union_by_name = {str(unite).lower()}, can_have_nan = true, hive_partitioning = false)"
    )


def _uncomputed(view: View) -> str:
    """Returns the SELECT of a computed view whose rows are not yet computed. Reading the view is an error."""
    message = sql_literal(f"the view {view.name} was not computed: use the methods of Logdir, such as sql()")
    return (
        f"SELECT computed.* FROM range(1) LEFT JOIN ({view.select}) AS computed ON true WHERE error({message}) IS NULL"
    )


def _typed(column: Column, value: str) -> str:
    """Returns the SQL for a column of a view, cast to its declared type. Foreign parts may have other types.

    DuckDB removes the cast if the column already has that type.
    """
    return f'CAST({value} AS {column.type.value}) AS "{column.name}"'


def _empty_view(table: Table) -> str:
    """Returns the statement that creates the view of a table without parts."""
    nothing = ", ".join(_typed(column, "NULL") for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {nothing} WHERE false'


def _unfetched_view(table: Table) -> str:
    """Returns the statement that creates the view of a table that was not fetched. Reading the view is an error.

    DuckDB cannot evaluate the expressions of this view in advance, so no filter can turn the error into an empty
    result.
    """
    message = sql_literal(f"the table {table.name} was not fetched: use Logdir.sql(), or call Logdir.fetch() first")
    columns = ", ".join(f'CAST(error({message}) AS {column.type.value}) AS "{column.name}"' for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {columns} FROM range(1) WHERE error({message}) IS NULL'


def connect(spill: str, *, memory_limit: int) -> duckdb.DuckDBPyConnection:
    """Opens a database in memory.

    Args:
        spill: The directory for temporary files of large queries. DuckDB's default is the working directory.
        memory_limit: Number of bytes that the queries may use in total.
    """
    return open_database(
        memory_limit=f"{duckdb_share(memory_limit)}B", **temporary_files(spill, memory_limit=memory_limit)
    )


def duckdb_share(memory_limit: int) -> int:
    """Returns DuckDB's share of a memory limit, in bytes."""
    return memory_limit * _PERCENT_OF_LIMIT // 100


def prepared(
    connection: duckdb.DuckDBPyConnection, *, check: Callable[[Iterable[str]], None], run_id: str | None = None
) -> LiveViews:
    """Applies the settings of one connection and returns its views."""
    hide_progress_bar(connection)
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("CREATE MACRO IF NOT EXISTS blob_prefix(value, n) AS value[1:n]")
    connection.execute("CREATE MACRO IF NOT EXISTS list_places(list) AS range(len(list))")
    connection.execute("CREATE MACRO IF NOT EXISTS list_at(list, place) AS list[place + 1]")
    connection.execute("CREATE MACRO IF NOT EXISTS explode(list) AS unnest(list)")
    return LiveViews(connection, check=check, run_id=run_id)
