"""export: writes a logdir in the formats of other tools: Parquet for BI tools, CSV, DuckDB, SQLite, Delta, Iceberg."""

from __future__ import annotations

import contextlib
import importlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from tfdbg_arrow.errors import ExportError, QueryError
from tfdbg_arrow.query.asked_runs import find_run
from tfdbg_arrow.query.export_formats import WRITTEN, ExportFormat
from tfdbg_arrow.query.exports.table_writer import Relation, Rows, TableWriter, relation_names, relations
from tfdbg_arrow.query.exports.targets import check_target, size_of
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.logdir.public_views import View
from tfdbg_arrow.storage.disk import written_whole

Progress = Callable[[str, int, int], None]
"""Called before a table is written, with the name of the table, the number of finished tables and the number of all."""
ALL = "all"
"""Stands for all tables and views."""
LARGE_VIEWS = frozenset({"gradient_tensor", "graph_tensor", "nonfinite_tensor", "stack", "tensor_input"})
"""Views that repeat the rows of large tables, or have several rows for each tensor.

If these views are written as rows, a CSV export becomes two to five times as large; docs/exports.md has the figures.
"""
_REASON = re.compile(r'": ([^"{}]+)')
"""Matches the reason in an error of DuckDB, after the path of the file."""


@dataclass(frozen=True, kw_only=True)
class ExportedTable:
    """One table or view of an export.

    Attributes:
        name: Its name.
        kind: `table`, `view` (computed when you read it) or `rows of a view`.
        num_rows: Number of rows that were written; None for a view.
    """

    name: str
    kind: str
    num_rows: int | None


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export.

    Attributes:
        format: The format.
        path: The file or directory.
        tables: The tables and views of the export.
        left_out: The large views that the export lacks because no table was named.
        size_bytes: The size of the export in bytes.
    """

    format: ExportFormat
    path: Path
    tables: tuple[ExportedTable, ...]
    left_out: tuple[str, ...]
    size_bytes: int


def export(
    logdir: OpenLogdir | str | Path,
    target: str | Path,
    *,
    format: ExportFormat | str,
    tables: Iterable[str] | None = None,
    run_id: str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = lambda name, num_done, num_all: None,
) -> Exported:
    """Writes tables and public views of a logdir in the format of other tools.

    DuckDB writes rows while it reads them, so that memory stays bounded. The target gets its name when it is complete.
    An export that fails leaves no files. An export that is killed leaves only a hidden `.<name>.*.tmp` in the same
    directory.

    Args:
        logdir: A logdir, or its path or URL. A run in it may still be recording.
        target: The file (`duckdb`, `sqlite`) or directory (`parquet`, `csv`, `delta`, `iceberg`) to create.
        format: `parquet`, `csv`, `duckdb`, `sqlite`, `delta` or `iceberg`.
        tables: Names of tables and public views, `NAME.COLUMN` for single columns, or `all`. None means all, except the
            views in `LARGE_VIEWS` if the format has only tables. If the format can keep views as views, the tables and
            views that they read are included with all columns. A view with chosen columns is written as rows.
        run_id: Only the rows of this run; None means all runs.
        overwrite: Whether to replace an existing export.
        storage_options: Options passed to fsspec for a URL.
        progress: Called before each table.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: The format, a table, a column or the run is unknown.
        MemoryLimitError: A view needs more memory than the limit of the logdir.
        BrokenPartError: A part cannot be read.
        ExportError: The target cannot be written, or the format cannot represent a value.
        MissingDependencyError: The package that writes `delta` or `iceberg` is not installed.
    """
    try:
        chosen = ExportFormat(format)
    except ValueError:
        raise QueryError(f"the format is {format!r}, expected one of {', '.join(ExportFormat)}.") from None
    writer = _writer_of(chosen)
    left_out = LARGE_VIEWS if tables is None and not writer.keeps_views else frozenset[str]()
    relations = _choose_relations(tables, without=left_out, with_what_views_read=writer.keeps_views)
    path = check_target(target, content=writer.content, holds=writer.holds, overwrite=overwrite)
    with contextlib.ExitStack() as stack:
        if not isinstance(logdir, OpenLogdir):
            logdir = stack.enter_context(OpenLogdir(logdir, storage_options=storage_options))
        if run_id is not None:
            logdir = stack.enter_context(contextlib.closing(logdir.of_runs([find_run(logdir, run_id)])))
        written, size_bytes = _write_all(logdir, path, relations, writer=writer, progress=progress)
    return Exported(format=chosen, path=path, tables=written, left_out=tuple(sorted(left_out)), size_bytes=size_bytes)


def _writer_of(format_: ExportFormat) -> type[TableWriter]:
    written = WRITTEN[format_]
    writer: type[TableWriter] = getattr(importlib.import_module(f"{__name__}.{written.module}"), written.writer)
    return writer


def _write_all(
    logdir: OpenLogdir,
    path: Path,
    relations: tuple[Relation, ...],
    *,
    writer: type[TableWriter],
    progress: Progress,
) -> tuple[tuple[ExportedTable, ...], int]:
    """Writes an export. Returns the written tables and views, and the size in bytes."""
    written = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary:
            with contextlib.closing(writer(temporary, final=path)) as open_, logdir.joining_as_written():
                for number, relation in enumerate(relations):
                    progress(relation.name, number, len(relations))
                    written.append(_write(logdir, open_, relation, temporary=temporary))
                open_.complete()
            return tuple(written), size_of(temporary)
    except (OSError, sqlite3.Error, duckdb.Error) as error:
        raise ExportError(f"{path} cannot be written ({error}); nothing was left there.") from error


def _write(logdir: OpenLogdir, writer: TableWriter, relation: Relation, *, temporary: Path) -> ExportedTable:
    name = relation.name
    is_view = relation.view is not None and not relation.view.is_computed and not relation.columns
    if is_view and writer.keeps_views and writer.add_view(relation):
        return ExportedTable(name=name, kind="view", num_rows=None)
    query = f'SELECT * FROM "{name}" LIMIT 0'

    def write(connection: duckdb.DuckDBPyConnection) -> int:
        every = connection.sql(query)
        types = dict(zip(every.columns, map(str, every.types), strict=True))
        unknown = sorted(relation.columns - types.keys())
        if unknown:
            raise QueryError(f"{name} has no column {unknown[0]!r}; it has {', '.join(types)}.")
        chosen = {column: type_ for column, type_ in types.items() if column in (relation.columns or types)}
        try:
            return writer.write(relation, Rows(connection=connection, source=name, types=chosen))
        except duckdb.ConversionException as error:
            raise ExportError(
                f"the format cannot represent a value of {name} ({error}); leave that table out: name the others with "
                "--table."
            ) from error
        except (OSError, sqlite3.Error, duckdb.Error) as error:
            text = str(error)
            # The random part of the path distinguishes an error in writing from an error in reading a part.
            if isinstance(error, duckdb.Error) and "".join(temporary.suffixes[-2:]) not in text:
                raise
            reason = _REASON.search(text)
            why = text if reason is None else reason[1]
            raise ExportError(f"{name} cannot be written ({why}); nothing was left there.") from error

    num_rows = logdir.read_with(query, write)
    return ExportedTable(name=name, kind="table" if relation.view is None else "rows of a view", num_rows=num_rows)


def _choose_relations(
    names: Iterable[str] | None, *, without: frozenset[str], with_what_views_read: bool
) -> tuple[Relation, ...]:
    """Returns the tables and views of an export, each view after the relations that it reads.

    Args:
        names: Names of tables and public views, or `NAME.COLUMN`. None and `all` mean all.
        without: The views to leave out.
        with_what_views_read: Whether to include the relations that a chosen view reads. Formats that keep views as
            views need them.

    Raises:
        QueryError: A name is unknown, or `names` is empty.
    """
    relation_of = {relation.name: relation for relation in relations() if relation.name not in without}
    asked = [ALL] if names is None else list(names)
    if ALL in asked:
        return tuple(relation_of.values())
    columns_of: dict[str, set[str]] = {}
    complete = {name for name in asked if "." not in name}
    for name, _, column in (name.partition(".") for name in asked):
        columns_of.setdefault(name, set()).add(column)
    unknown = sorted(columns_of.keys() - relation_of.keys())
    if unknown or not columns_of:
        what = f"table {unknown[0]!r} is unknown" if unknown else "no table is named"
        raise QueryError(f"{what}; there are {', '.join(relation_of)}.")
    if with_what_views_read:
        for relation in reversed(relation_of.values()):  # in reverse, a view comes after the views that read it
            if relation.view is not None and relation.name in complete:
                complete.update(_read_by(relation.view))
    return tuple(
        relation if name in complete else replace(relation, columns=frozenset(columns_of[name]))
        for name, relation in relation_of.items()
        if name in columns_of or name in complete
    )


def _read_by(view: View) -> list[str]:
    return [name for name in relation_names() if name != view.name and re.search(rf"\b{name}\b", view.select)]
