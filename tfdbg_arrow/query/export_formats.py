"""The formats in which tables can be exported.

The help text of a command imports this module, so the module imports nothing that is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ExportFormat(StrEnum):
    """The format of an export."""

    PARQUET = "parquet"
    CSV = "csv"
    DUCKDB = "duckdb"
    SQLITE = "sqlite"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True)
class Written:
    """How a format is written.

    Attributes:
        module: The module in `exports` that writes the format.
        writer: The subclass of TableWriter in this module.
        help: A sentence that says what is written.
    """

    module: str
    writer: str
    help: str


WRITTEN = {
    ExportFormat.PARQUET: Written(
        "flat_files", "ParquetExport", "Write flat Parquet files for BI tools, one per table and view."
    ),
    ExportFormat.CSV: Written("flat_files", "CsvExport", "Write CSV files, one per table and view."),
    ExportFormat.DUCKDB: Written("databases", "DuckDBExport", "Write a DuckDB database."),
    ExportFormat.SQLITE: Written("databases", "SQLiteExport", "Write a SQLite database."),
    ExportFormat.DELTA: Written("table_formats", "DeltaExport", "Write Delta tables, one per table and view."),
    ExportFormat.ICEBERG: Written(
        "table_formats", "IcebergExport", "Write Iceberg tables, one per table and view, with a SQLite catalog."
    ),
}
"""How each format is written."""
