"""The format of a logdir: tables, Arrow schemas, Parquet settings, version and layout.

The writer and the query layer import this package, but never each other.
"""

from __future__ import annotations

from tfdbg_arrow.schema.declaration import Column, Table, Type
from tfdbg_arrow.schema.parquet import ROW_GROUP_ROWS, arrow_schema, parquet_options
from tfdbg_arrow.schema.tables import TABLES, TABLES_BY_NAME, table
from tfdbg_arrow.schema.version import FORMAT_VERSION, check_format_version

__all__ = [
    "FORMAT_VERSION",
    "ROW_GROUP_ROWS",
    "TABLES",
    "TABLES_BY_NAME",
    "Column",
    "Table",
    "Type",
    "arrow_schema",
    "check_format_version",
    "parquet_options",
    "table",
]
