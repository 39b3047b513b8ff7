"""export: writes a logdir in the formats of other tools: Parquet for BI tools, CSV, DuckDB, SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

import duckdb
import pyarrow as pa

from tfdbg_arrow.errors import ExportError, QueryError
from tfdbg_arrow.query.coverage import check_run
from tfdbg_arrow.query.exports.files import check_target, size_of, written_whole
from tfdbg_arrow.query.exports.relations import Relation, choose_relations
from tfdbg_arrow.query.logdir import Logdir, open_logdir

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


class _Writer(Protocol):
    """Writes tables one by one in one format, to the path that it is created with."""

    suffix: ClassVar[str | None]
    keeps_views: ClassVar[bool]

    def __init__(self, path: Path) -> None: ...

    def write(self, relation: Relation, rows: pa.RecordBatchReader, *, advance: Callable[[int], None]) -> None: ...

    def add_view(self, relation: Relation) -> bool: ...

    def close(self) -> None: ...


def export(
    logdir: Logdir | str | Path,
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
        target: The file (`duckdb`, `sqlite`) or directory (`parquet`, `csv`) to create.
        format: `parquet`, `csv`, `duckdb` or `sqlite`.
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
    """
    try:
        chosen = ExportFormat(format)
    except ValueError:
        raise QueryError(f"the format is {format!r}, expected one of {', '.join(ExportFormat)}.") from None
    writer = _writer_of(chosen)
    relations = choose_relations(tables, with_what_views_read=writer.keeps_views)
    path = check_target(target, suffix=writer.suffix, overwrite=overwrite)
    if isinstance(logdir, Logdir):
        return _export(logdir, path, chosen, relations, writer=writer, run_id=run_id, progress=progress)
    with open_logdir(logdir, storage_options=storage_options) as own:
        return _export(own, path, chosen, relations, writer=writer, run_id=run_id, progress=progress)


def _writer_of(format_: ExportFormat) -> type[_Writer]:
    # Imported when needed: nothing else in the query layer needs the packages that these modules import.
    if format_ is ExportFormat.PARQUET:
        from tfdbg_arrow.query.exports.parquet_files import ParquetExport

        return ParquetExport
    if format_ is ExportFormat.CSV:
        from tfdbg_arrow.query.exports.csv_files import CsvExport

        return CsvExport
    if format_ is ExportFormat.DUCKDB:
        from tfdbg_arrow.query.exports.duckdb_file import DuckDBExport

        return DuckDBExport
    from tfdbg_arrow.query.exports.sqlite_file import SQLiteExport

    return SQLiteExport


def _export(
    logdir: Logdir,
    path: Path,
    format_: ExportFormat,
    relations: tuple[Relation, ...],
    *,
    writer: type[_Writer],
    run_id: str | None,
    progress: Progress,
) -> Exported:
    check_run(logdir, run_id)
    try:
        with written_whole(path) as temporary:
            open_ = writer(temporary)
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


def _write(logdir: Logdir, writer: _Writer, relation: Relation, *, run_id: str | None, told: _Told) -> ExportedTable:
    told.begin()
    if relation.view is not None and writer.keeps_views and writer.add_view(relation):
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
