"""export: writes a logdir in the formats of other tools: Parquet for BI tools, CSV, DuckDB, SQLite, Delta, Iceberg."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tfdbg_arrow.errors import ExportError, QueryError
from tfdbg_arrow.query.asked_runs import find_run
from tfdbg_arrow.query.exports.table_writer import Relation, TableWriter, relation_names, relations
from tfdbg_arrow.query.exports.targets import check_target, size_of
from tfdbg_arrow.query.logdir.open_logdir import OpenLogdir
from tfdbg_arrow.query.logdir.public_views import View
from tfdbg_arrow.storage.disk import written_whole

Progress = Callable[[str, int, int, int], None]
"""Called with the name of a table, the number of its rows written so far, the number of finished tables, and the number
of all tables."""
_BATCH_ROWS = 16_384
_BATCH_ROWS_WITH_BLOBS = 2048
"""The size of DuckDB's own vectors. With large values, only one vector is held in memory."""


class ExportFormat(StrEnum):
    """The format of an export."""

    PARQUET = "parquet"
    CSV = "csv"
    DUCKDB = "duckdb"
    SQLITE = "sqlite"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, kw_only=True)
class ExportedTable:
    """One table or view of an export.

    Attributes:
        name: Its name.
        kind: `table`, `view` (computed when you read it) or `rows of a view`.
        num_rows: How many rows were written; None for a view.
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
        tables: The tables and views in it.
        size_bytes: Its size.
    """

    format: ExportFormat
    path: Path
    tables: tuple[ExportedTable, ...]
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
    progress: Progress = lambda name, num_rows, num_done, num_all: None,
) -> Exported:
    """Writes tables and public views of a logdir in the format of other tools.

    Rows are written while they are read, so that memory stays bounded. The target gets its name when it is complete. An
    export that fails leaves nothing. One that is killed leaves only a hidden `.<name>.*.tmp` in the same directory.

    Args:
        logdir: A logdir, or its path or URL. A run in it may still be recording.
        target: The file (`duckdb`, `sqlite`) or directory (`parquet`, `csv`, `delta`, `iceberg`) to create.
        format: `parquet`, `csv`, `duckdb`, `sqlite`, `delta` or `iceberg`.
        tables: Names of tables and public views; None means all. If the format keeps views as views, the tables and
            views that they read are included.
        run_id: Only the rows of this run; None means all runs.
        overwrite: Whether to replace an existing export.
        storage_options: Options passed to fsspec for a URL.
        progress: Called for each batch of rows.

    Raises:
        LogdirError: The path is not a readable logdir.
        QueryError: The format, a table or the run is unknown.
        BrokenPartError: A part cannot be read.
        ExportError: The target cannot be written, or the format cannot represent a value.
        MissingDependencyError: The package that writes `delta` or `iceberg` is not installed.
    """
    try:
        chosen = ExportFormat(format)
    except ValueError:
        raise QueryError(f"the format is {format!r}, expected one of {', '.join(ExportFormat)}.") from None
    writer = _writer_of(chosen)
    relations = _choose_relations(tables, with_what_views_read=writer.keeps_views)
    path = check_target(target, content=writer.content, holds=writer.holds, overwrite=overwrite)
    own = (
        contextlib.nullcontext(logdir)
        if isinstance(logdir, OpenLogdir)
        else OpenLogdir(logdir, storage_options=storage_options)
    )
    with own as opened:
        return _export(opened, path, chosen, relations, writer=writer, run_id=run_id, progress=progress)


def _writer_of(format_: ExportFormat) -> type[TableWriter]:
    from tfdbg_arrow.query.exports.databases import DuckDBExport, SQLiteExport
    from tfdbg_arrow.query.exports.flat_files import CsvExport, ParquetExport
    from tfdbg_arrow.query.exports.table_formats import DeltaExport, IcebergExport

    return {
        ExportFormat.PARQUET: ParquetExport,
        ExportFormat.CSV: CsvExport,
        ExportFormat.DUCKDB: DuckDBExport,
        ExportFormat.SQLITE: SQLiteExport,
        ExportFormat.DELTA: DeltaExport,
        ExportFormat.ICEBERG: IcebergExport,
    }[format_]


def _export(
    logdir: OpenLogdir,
    path: Path,
    format_: ExportFormat,
    relations: tuple[Relation, ...],
    *,
    writer: type[TableWriter],
    run_id: str | None,
    progress: Progress,
) -> Exported:
    run_id = None if run_id is None else find_run(logdir, run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as temporary:
            open_ = writer(temporary, final=path)
            written = []
            try:
                for number, relation in enumerate(relations):
                    told = _Told(progress, name=relation.name, num_done=number, num_all=len(relations))
                    written.append(_write(logdir, open_, relation, run_id=run_id, told=told))
            finally:
                open_.close()
            size_bytes = size_of(temporary)
    except (OSError, sqlite3.Error, duckdb.Error) as error:
        raise ExportError(f"{path} cannot be written ({error}); nothing was left there.") from error
    return Exported(format=format_, path=path, tables=tuple(written), size_bytes=size_bytes)


class _Told:
    """Reports the progress of one table."""

    def __init__(self, progress: Progress, *, name: str, num_done: int, num_all: int) -> None:
        self._progress = progress
        self._name, self._num_done, self._num_all = name, num_done, num_all
        self.num_rows = 0

    def begin(self) -> None:
        self.num_rows = 0
        self.advance(0)

    def advance(self, num_rows: int) -> None:
        self.num_rows += num_rows
        self._progress(self._name, self.num_rows, self._num_done, self._num_all)


def _write(
    logdir: OpenLogdir, writer: TableWriter, relation: Relation, *, run_id: str | None, told: _Told
) -> ExportedTable:
    told.begin()
    is_view = relation.view is not None and not relation.view.is_computed
    if is_view and writer.keeps_views and writer.add_view(relation):
        return ExportedTable(name=relation.name, kind="view", num_rows=None)

    def consume(rows: pa.RecordBatchReader) -> None:
        told.begin()
        try:
            writer.write(relation, rows, advance=told.advance)
        except pa.ArrowException as error:
            raise ExportError(
                f"the format cannot represent a value of {relation.name} ({error}); leave that table out: name the "
                "others with --table."
            ) from error
        except (OSError, sqlite3.Error, duckdb.Error) as error:
            raise ExportError(f"{relation.name} cannot be written ({error}); nothing was left there.") from error

    has_blobs = relation.table is not None and any(column.type.value == "BLOB" for column in relation.table.columns)
    with logdir.joining_as_written():
        logdir.stream(
            f'SELECT * FROM "{relation.name}" WHERE run_id = $run_id OR $run_id IS NULL',
            consume,
            parameters={"run_id": run_id},
            batch_rows=_BATCH_ROWS_WITH_BLOBS if has_blobs else _BATCH_ROWS,
        )
    kind = "table" if relation.view is None else "rows of a view"
    return ExportedTable(name=relation.name, kind=kind, num_rows=told.num_rows)


def _choose_relations(names: Iterable[str] | None, *, with_what_views_read: bool) -> tuple[Relation, ...]:
    """Returns the tables and views of an export, each view after the relations that it reads.

    Args:
        names: Names of tables and public views; None means all.
        with_what_views_read: Whether to include the relations that a chosen view reads. Formats that keep views as
            views need them.

    Raises:
        QueryError: A name is unknown, or `names` is empty.
    """
    relation_of = {relation.name: relation for relation in relations()}
    if names is None:
        return tuple(relation_of.values())
    chosen = set(names)
    unknown = sorted(chosen - set(relation_of))
    if unknown or not chosen:
        what = f"table {unknown[0]!r} is unknown" if unknown else "no table is named"
        raise QueryError(f"{what}; there are {', '.join(relation_of)}.")
    if with_what_views_read:
        for relation in reversed(relation_of.values()):  # a view after the views that read it
            if relation.name in chosen and relation.view is not None:
                chosen.update(_read_by(relation.view))
    return tuple(relation for relation in relation_of.values() if relation.name in chosen)


def _read_by(view: View) -> list[str]:
    return [name for name in relation_names() if name != view.name and re.search(rf"\b{name}\b", view.select)]
