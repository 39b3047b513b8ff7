"""LiveViews: the tables and public views of a logdir on one DuckDB connection, each made when first needed.

A view costs a bind over all its parts, which a logdir of many runs has thousands of; a question needs a few views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import duckdb

from tfdbg_arrow.errors import BrokenPartError
from tfdbg_arrow.query.logdir.public_views import View, public_views
from tfdbg_arrow.schema import TABLES, Column, Table

_TABLES = {table.name: table for table in TABLES}
_ASKS_THE_CATALOG = re.compile(
    r"\b(show|describe|summarize|pragma|information_schema|duckdb_\w+|pg_\w+|sqlite_master|query|query_table|export)\b"
)
"""What a statement holds that may depend on views that it does not name."""


class LiveViews:
    """Makes views over the parts that hold.

    Args:
        connection: Where; their schema is the connection's own.
        check: Asked before parts are opened.
        run_id: The run, where the parts are those of one.
        max_loaded: Of one run, tables of at most so many rows are read into memory when first needed: that takes as
            long as some questions to the parts do, and makes the next ones faster.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        *,
        check: Callable[[Sequence[str]], None] = lambda parts: None,
        run_id: str | None = None,
        max_loaded: int = 0,
    ) -> None:
        self._connection = connection
        self._check = check
        self._run_id, self._max_loaded = run_id, max_loaded
        self._loaded: set[str] = set()
        self._parts: Mapping[str, tuple[str, ...]] = {}
        self._unfetched: frozenset[str] = frozenset()
        self._made: set[str] = set()
        self._united: set[str] = set()
        self._asked: dict[str, None] = {}
        self._cure = ""

    def reset(
        self, parts: Mapping[str, tuple[str, ...]], *, unfetched: Iterable[str] = (), cure: str = "restore them"
    ) -> None:
        """Says which parts hold from now on.

        Args:
            parts: Paths by table.
            unfetched: Tables whose parts are elsewhere: a view of one is an error for whoever reads it.
            cure: What to do about parts that lack a column, for the message.
        """
        lacking = frozenset(unfetched)
        changed = {
            name
            for name in self._made & _TABLES.keys()
            if parts.get(name) != self._parts.get(name) or (name in lacking) != (name in self._unfetched)
        }
        self._united -= changed
        self._forget(changed)
        self._parts, self._unfetched, self._cure = parts, lacking, cure

    def need(self, query: str) -> None:
        """Makes the views that a statement may read.

        Raises:
            duckdb.Error: A part cannot be opened.
            BrokenPartError: A part lacks a column that it must have.
        """
        tables, views = mentioned(query)
        for name in tables:
            self._asked.pop(name, None)
            self._asked[name] = None
            if name not in self._made:
                self._make_table(_TABLES[name])
                self._made.add(name)
                self._load(name)
        for view in views:
            if view.name not in self._made:
                self._connection.execute(f'CREATE OR REPLACE VIEW "{view.name}" AS {view.text}')
                self._made.add(view.name)

    def parts(self) -> list[str]:
        """Returns the paths of all parts that hold, those first that statements asked for last."""
        tables = dict.fromkeys([*reversed(self._asked), *self._parts])
        return [part for table in tables for part in self._parts.get(table, ())]

    def need_all(self) -> None:
        """Makes every view; raises what `need` does."""
        self.need("SHOW ALL TABLES")

    def unite(self, error: Exception) -> bool:
        """Has tables united by name whose parts turned out to differ in their columns.

        Args:
            error: What DuckDB said when it read them.

        Returns:
            Whether any table is united now that was not: then it is worth to ask again.
        """
        if "schema mismatch" not in str(error):
            return False
        text = str(error)
        found = {
            name
            for name in self._made & _TABLES.keys() - self._united
            if any(part in text for part in self._parts.get(name, ()))
        }
        self._united |= found
        self._forget(found)
        return bool(found)

    def release(self) -> None:
        """Gives back the memory of tables that were read into it; they are read again when needed."""
        self._forget(self._loaded)

    def replace(self, name: str, query: str, parameters: Sequence[object]) -> None:
        """Has a table hold what a query over the views gives."""
        columns = ", ".join(f'"{column.name}"' for column in _TABLES[name].columns)
        self._connection.execute(f'CREATE TABLE "loaded_{name}" AS SELECT {columns} FROM ({query})', parameters)
        self._connection.execute(f'CREATE OR REPLACE VIEW "{name}" AS SELECT {columns} FROM "loaded_{name}"')
        self._loaded.add(name)

    def _forget(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._made.discard(name)
            if name in self._loaded:
                self._loaded.discard(name)
                self._connection.execute(f'DROP TABLE "loaded_{name}"')

    def _load(self, name: str) -> None:
        if name in self._unfetched or self._run_id is None:
            return
        ((rows,),) = self._connection.execute(f'SELECT count(*) FROM "{name}"').fetchall()
        if rows > self._max_loaded:
            return
        columns = ", ".join(f'"{column.name}"' for column in _TABLES[name].columns)
        others = ", ".join(f'"{column.name}"' for column in _TABLES[name].columns if column.name != "run_id")
        self._connection.execute(f'CREATE TABLE "loaded_{name}" AS SELECT {others} FROM "{name}"')
        # A constant costs nothing to compare and to join by, where a text of every row costs most of all.
        run_id = f"CAST({literal(self._run_id)} AS VARCHAR) AS run_id"
        self._connection.execute(
            f'CREATE OR REPLACE VIEW "{name}" AS SELECT {columns} FROM (SELECT {run_id}, * FROM "loaded_{name}")'
        )
        self._loaded.add(name)

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
        """Makes the view of parts that all have all columns, as it seems by the first; False where that lacks one.

        Only that one is opened. Where another lacks a column, reading it is an error, and `unite` mends it.
        """
        columns = ", ".join(_typed(column, f'"{column.name}"') for column in table.columns)
        try:
            self._connection.execute(
                f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {columns} FROM {_source(parts, unite=False)}'
            )
        except duckdb.BinderException:
            return False
        return True

    def _make_united(self, table: Table, parts: Sequence[str]) -> None:
        """Makes the view of parts of several MINOR versions: a column that a part does not have is NULL in its rows."""
        source = _source(parts, unite=True)
        found = set(self._connection.sql(f"SELECT * FROM {source} LIMIT 0").columns)
        for column in table.columns:
            if column.name not in found and not column.nullable:
                raise BrokenPartError(
                    f"{Path(parts[0]).parent} holds parts without the column {column.name!r}, which every part of the "
                    f"table {table.name} has; {self._cure}."
                )
        columns = ", ".join(
            _typed(column, f'"{column.name}"' if column.name in found else "NULL") for column in table.columns
        )
        self._connection.execute(f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {columns} FROM {source}')


@lru_cache(maxsize=1024)
def mentioned(query: str) -> tuple[tuple[str, ...], tuple[View, ...]]:
    """Returns the tables and public views that a statement may read, itself or by a view, in the order to make them."""
    text = query.lower()
    if _ASKS_THE_CATALOG.search(text) is not None:
        return tuple(_TABLES), public_views()
    texts = [text]
    rest = list(public_views())
    while True:
        named = [view for view in rest if any(_names(text, view.name) for text in texts)]
        if not named:
            break
        rest = [view for view in rest if view not in named]
        texts += [view.select.lower() for view in named]
    views = tuple(view for view in public_views() if view not in rest)
    return tuple(name for name in _TABLES if any(_names(text, name) for text in texts)), views


def mentioned_tables(query: str) -> frozenset[str]:
    """Returns the tables whose rows a statement reads, itself or by a public view."""
    if _ASKS_THE_CATALOG.search(query.lower()) is not None:
        # The catalog is not in the rows; of those it says only what it names.
        query = _ASKS_THE_CATALOG.sub(" ", query.lower())
    return frozenset(mentioned(query)[0])


def literal(text: str) -> str:
    """Returns a text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def _names(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _source(parts: Sequence[str], *, unite: bool) -> str:
    files = ", ".join(literal(part) for part in parts)
    # can_have_nan: min/max statistics leave NaN out, and DuckDB prunes by them otherwise.
    return (
        f"read_parquet([{files}], union_by_name = {str(unite).lower()}, can_have_nan = true, "
        "hive_partitioning = true, hive_types = {'run_id': VARCHAR})"
    )


def _typed(column: Column, value: str) -> str:
    """Returns a column of a view: of a stranger's part, whatever its type is there, it has the declared one.

    A cast to the type that it has already is none: DuckDB leaves it out.
    """
    return f'CAST({value} AS {column.type.value}) AS "{column.name}"'


def _empty_view(table: Table) -> str:
    """Returns the statement that makes the view of a table without parts."""
    nothing = ", ".join(_typed(column, "NULL") for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {nothing} WHERE false'


def _unfetched_view(table: Table) -> str:
    """Returns the statement that makes the view of a table that was not fetched: any row of it is an error.

    No expression in it can be folded, so that no filter makes an empty answer of it.
    """
    message = literal(f"the table {table.name} was not fetched: ask by Logdir.sql(), or call Logdir.fetch() first")
    columns = ", ".join(f'CAST(error({message}) AS {column.type.value}) AS "{column.name}"' for column in table.columns)
    return f'CREATE OR REPLACE VIEW "{table.name}" AS SELECT {columns} FROM range(1) WHERE error({message}) IS NULL'
