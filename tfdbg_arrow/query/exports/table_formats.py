"""Export as Delta or Iceberg tables, one for each table and view.

The rows are copied, so that merging or removing parts of the logdir does not break an export. Each table has one
Parquet file and one version. The file has no minimum and maximum for DOUBLE columns with a NaN. Such statistics ignore
NaN, so readers that filter by them would lose rows. For the same reason, the log of a Delta table and the manifests of
an Iceberg table have only the number of rows.

| column | in Delta | in Iceberg |
|---|---|---|
| BIGINT, INTEGER | long, integer | long, int |
| DOUBLE, VARCHAR, BOOLEAN | double, string, boolean | double, string, boolean |
| TIMESTAMP, without a time zone | timestamp_ntz | timestamp |
| BLOB | binary | binary |
| BIGINT[] | array of long | list of long |
| HUGEINT, the type of sums of integers | long | long |

An Iceberg table refers to its files by absolute paths. Therefore the files are written to a temporary directory, but
the table contains their final paths (`MovedFiles`).
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tfdbg_arrow.errors import ExportError, MissingDependencyError, install_command
from tfdbg_arrow.query.exports.flat_files import FLAT, parquet_options
from tfdbg_arrow.query.exports.table_writer import Relation, Rows, TableWriter, relation_names

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFile
    from pyiceberg.schema import Schema

DELTA_LOG = "_delta_log"
"""Every directory that contains a directory with this name is a Delta table."""
ICEBERG_CATALOG = "catalog.db"
"""The file in a warehouse that holds its catalog."""
ICEBERG_NAME = "tfdbg_arrow"
"""The name of the catalog and of its namespace."""
_DATA_FILE = "part-000000.parquet"
_CONVERSIONS = {"HUGEINT": FLAT["HUGEINT"]}
_FINAL, _TEMPORARY = "tfdbg_arrow.final", "tfdbg_arrow.temporary"
"""Properties for MovedFiles: the final location of the warehouse, and its temporary directory; not stored."""


class DeltaExport(TableWriter):
    """Writes a directory of Delta tables.

    Raises:
        MissingDependencyError: deltalake is not installed.
    """

    content = "Delta tables"

    def __init__(self, path: Path, *, final: Path) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(f"deltalake is not installed; run: {install_command('delta')}") from error
        self._path = path
        path.mkdir()

    @classmethod
    def holds(cls, entry: Path) -> bool:
        """Returns whether an entry of a directory belongs to an export."""
        return entry.name in relation_names() and (entry / DELTA_LOG).is_dir()

    def write(self, relation: Relation, rows: Rows) -> int:
        """Writes a Delta table; see TableWriter."""
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import AddAction, create_table_with_add_actions

        table = _empty_directory(self._path / relation.name)
        num_rows = rows.copy(
            rows.select(_CONVERSIONS), table / _DATA_FILE, f"COMPRESSION zstd, {parquet_options(rows)}"
        )
        state = (table / _DATA_FILE).stat()
        data_file = AddAction(
            path=_DATA_FILE,
            size=state.st_size,
            partition_values={},
            modification_time=state.st_mtime_ns // 1_000_000,
            data_change=True,
            stats=json.dumps({"numRecords": num_rows}),
        )
        try:
            create_table_with_add_actions(
                str(table),
                Schema.from_arrow(pq.read_schema(table / _DATA_FILE)),
                [data_file],
                name=relation.name,
                description=relation.description,
                # Files that are added later, for example by OPTIMIZE, have no minimum and maximum either.
                configuration={"delta.dataSkippingNumIndexedCols": "0"},
            )
        except DeltaError as error:
            raise OSError(f"its Delta log cannot be written: {error}") from error
        return num_rows


class IcebergExport(TableWriter):
    """Writes a warehouse of Iceberg tables, with its catalog in SQLite.

    Raises:
        MissingDependencyError: pyiceberg is not installed, or a package that its SQL catalog needs is not installed.
        ExportError: The final path has a character that pyiceberg cannot decode from a URL.
    """

    content = f"an Iceberg catalog {ICEBERG_CATALOG} and its tables"

    def __init__(self, path: Path, *, final: Path) -> None:
        try:
            from pyiceberg.catalog.sql import SqlCatalog
            from sqlalchemy import URL
        except ImportError as error:
            raise MissingDependencyError(
                f"pyiceberg with a SQL catalog is not installed; run: {install_command('iceberg')}"
            ) from error
        unsafe = next((character for character in "?#" if character in str(final)), None)
        if unsafe is not None:
            raise ExportError(f"{final} contains {unsafe!r}, which pyiceberg cannot read in a path; give another path.")
        self._path, self._location = path, f"file://{final}"
        path.mkdir()
        self._catalog = SqlCatalog(
            ICEBERG_NAME,
            **{
                "uri": URL.create("sqlite", database=str(path / ICEBERG_CATALOG)).render_as_string(),
                "warehouse": self._location,
                "py-io-impl": f"{MovedFiles.__module__}.{MovedFiles.__name__}",
                _FINAL: self._location,
                _TEMPORARY: str(path),
            },
        )
        self._catalog.create_namespace(ICEBERG_NAME)

    @classmethod
    def holds(cls, entry: Path) -> bool:
        """Returns whether an entry of a directory belongs to an export."""
        return entry.is_file() if entry.name == ICEBERG_CATALOG else entry.is_dir() and entry.name == ICEBERG_NAME

    def write(self, relation: Relation, rows: Rows) -> int:
        """Writes an Iceberg table; see TableWriter."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record
        from sqlalchemy.exc import SQLAlchemyError

        select = rows.select(_CONVERSIONS)
        directory, name = f"{ICEBERG_NAME}/{relation.name}", (ICEBERG_NAME, relation.name)
        _empty_directory(self._path / directory)
        path = self._path / directory / "data" / _DATA_FILE
        path.parent.mkdir()
        try:
            if self._catalog.table_exists(name):
                self._catalog.drop_table(name)
            table = self._catalog.create_table(
                name,
                rows.connection.sql(f"{select} LIMIT 0").to_arrow_table().schema,
                location=f"{self._location}/{directory}",
                # Files that are added later have no minimum and maximum in the manifests either.
                properties={"comment": relation.description, "write.metadata.metrics.default": "counts"},
            )
            # If pyiceberg wrote the file, it would add statistics for DOUBLE columns. add_files() refuses files with
            # field ids.
            ids = _field_ids(table.schema())
            num_rows = rows.copy(select, path, f"COMPRESSION zstd, FIELD_IDS {ids}, {parquet_options(rows)}")
            data_file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"{table.location()}/data/{_DATA_FILE}",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=num_rows,
                file_size_in_bytes=path.stat().st_size,
            )
            data_file.spec_id = table.spec().spec_id
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
                append.append_data_file(data_file)
        except SQLAlchemyError as error:
            raise sqlite3.Error(f"its entry in the catalog cannot be written: {error}") from error
        return num_rows

    def close(self) -> None:
        """Closes the catalog."""
        self._catalog.close()


class MovedFiles:
    """The files of a warehouse that is still in its temporary directory, as a FileIO of pyiceberg.

    Args:
        properties: The properties of the catalog.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def new_input(self, location: str) -> PyArrowFile:
        """Returns a file to read from.

        Args:
            location: The location that the file will have.
        """
        return self._file(location)

    def new_output(self, location: str) -> PyArrowFile:
        """Returns a file to write to, whose directory exists.

        Args:
            location: The location that the file will have.
        """
        self._path(location).parent.mkdir(parents=True, exist_ok=True)
        return self._file(location)

    def delete(self, location: str | PyArrowFile) -> None:
        """Removes a file.

        Args:
            location: The final location of the file, or the file itself.

        Raises:
            OSError: There is no such file, or it cannot be removed.
        """
        self._path(location if isinstance(location, str) else location.location).unlink()

    def _file(self, location: str) -> PyArrowFile:
        from pyarrow.fs import LocalFileSystem
        from pyiceberg.io.pyarrow import PyArrowFile

        return PyArrowFile(location=location, path=str(self._path(location)), fs=LocalFileSystem())

    def _path(self, location: str) -> Path:
        inside = location.removeprefix(f"{self.properties[_FINAL]}/")
        assert inside != location, location
        return Path(self.properties[_TEMPORARY], inside)


def _empty_directory(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _field_ids(schema: Schema) -> str:
    """Returns the ids of the columns in the form that COPY expects."""
    from pyiceberg.types import ListType

    ids = []
    for column in schema.fields:
        inner = column.field_type
        element = f", element: {inner.element_id}" if isinstance(inner, ListType) else ""
        ids.append(f'"{column.name}": {{__duckdb_field_id: {column.field_id}{element}}}')
    return f"{{{', '.join(ids)}}}"
