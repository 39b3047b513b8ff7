"""Arrow schemas, built from the declaration."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from tfdbg_arrow.schema.declaration import Column, Type
from tfdbg_arrow.schema.tables import FORMAT_VERSION, table

FIELD_ID_KEY = b"PARQUET:field_id"
"""Metadata key of a field for its Parquet field id, in decimal."""
TABLE_KEY = b"tfdbg_arrow.table"
"""Metadata key of the schema and the file for the name of the table."""
FORMAT_VERSION_KEY = b"tfdbg_arrow.format_version"
"""Metadata key of the schema and the file for the format version, MAJOR.MINOR."""

_ARROW_TYPES: dict[Type, pa.DataType] = {
    Type.BIGINT: pa.int64(),
    Type.INTEGER: pa.int32(),
    Type.DOUBLE: pa.float64(),
    Type.VARCHAR: pa.string(),
    Type.BOOLEAN: pa.bool_(),
    # Always UTC, but stored without a time zone, because DuckDB needs pytz to convert TIMESTAMPTZ to Python.
    Type.TIMESTAMP: pa.timestamp("us"),
    Type.BLOB: pa.binary(),
    Type.BIGINT_LIST: pa.list_(pa.field("element", pa.int64(), nullable=False)),
}


def arrow_type(type_: Type) -> pa.DataType:
    """Returns the Arrow type in which a column type is stored."""
    return _ARROW_TYPES[type_]


def _arrow_field(column: Column) -> pa.Field:
    return pa.field(
        column.name,
        arrow_type(column.type),
        nullable=column.nullable,
        metadata={FIELD_ID_KEY: str(column.id).encode()},
    )


@cache
def arrow_schema(name: str) -> pa.Schema:
    """Returns the Arrow schema of a table's parts.

    Args:
        name: Name of the table.

    Returns:
        The columns in the order of the declaration, with their field ids, and the table's name
        and the format version as metadata.

    Raises:
        KeyError: The format has no such table.
    """
    return pa.schema(
        [_arrow_field(column) for column in table(name).columns],
        metadata={TABLE_KEY: name.encode(), FORMAT_VERSION_KEY: FORMAT_VERSION.encode()},
    )
