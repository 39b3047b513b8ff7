"""Arrow schemas and Parquet settings of parts, derived from the declaration.

Reasons for the Parquet settings:

* Float columns have no statistics. The minimum and maximum of a row group ignore NaN. DuckDB would use them to skip row
  groups, and would lose rows for `isnan(x)` and `x > 100`.
* Only texts use dictionaries, because most texts repeat.
* Integers use delta encoding, because most of them are counters with small differences. Without this encoding, parts
  are 11 to 25 % larger. fastparquet crashes on some of these parts. All other readers that are tested can decode them.
* With page checksums, `verify` finds every changed byte.
* The Arrow schema is stored. Without it, pyarrow drops the metadata of the table.

pyarrow is imported inside the functions, because most commands import this module but need no Arrow schema.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tfdbg_arrow.schema.declaration import Column, Type
from tfdbg_arrow.schema.tables import table
from tfdbg_arrow.schema.version import FORMAT_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

FIELD_ID_KEY = b"PARQUET:field_id"
"""The key of the Parquet field ID in the metadata of a field. The ID is a decimal number."""
TABLE_KEY = b"tfdbg_arrow.table"
"""The key of the table's name in the metadata of a schema and a file."""
FORMAT_VERSION_KEY = b"tfdbg_arrow.format_version"
"""The key of the format version (MAJOR.MINOR) in the metadata of a schema and a file."""

ROW_GROUP_ROWS = 122_880
"""Number of rows of a row group, which is DuckDB's default. Pass it as `row_group_size` to write a part."""

_BATCH_OF_LONG_VALUES = 16
"""Arrow checks the size of a page after each batch of this many long values.

With Arrow's default of 1,024, a page of values of 64 KiB each would have 64 MiB.
"""

LONG_TEXTS = frozenset({"source_text"})
"""Columns of long texts that differ in each row. A dictionary would only be a second copy of these texts in memory."""

_INTEGERS = frozenset({Type.BIGINT, Type.INTEGER, Type.TIMESTAMP, Type.BIGINT_LIST})
_WITHOUT_STATISTICS = frozenset({Type.DOUBLE, Type.BLOB})


def arrow_type(type_: Type) -> pa.DataType:
    """Returns the Arrow type in which a column type is stored."""
    return _arrow_types()[type_]


@cache
def _arrow_types() -> dict[Type, pa.DataType]:
    import pyarrow as pa

    return {
        Type.BIGINT: pa.int64(),
        Type.INTEGER: pa.int32(),
        Type.DOUBLE: pa.float64(),
        Type.VARCHAR: pa.string(),
        Type.BOOLEAN: pa.bool_(),
        # The times are always UTC. Times are stored without a time zone, because DuckDB needs pytz to convert
        # TIMESTAMPTZ to Python.
        Type.TIMESTAMP: pa.timestamp("us"),
        Type.BLOB: pa.binary(),
        Type.BIGINT_LIST: pa.list_(pa.field("element", pa.int64(), nullable=False)),
    }


@cache
def arrow_schema(name: str) -> pa.Schema:
    """Returns the Arrow schema of a table's parts.

    Args:
        name: Name of the table.

    Returns:
        The schema. The columns are in the order of the declaration, with their field IDs. The metadata has the name of
        the table and the format version.

    Raises:
        KeyError: The format has no such table.
    """
    import pyarrow as pa

    return pa.schema(
        [_arrow_field(column) for column in table(name).columns],
        metadata={TABLE_KEY: name.encode(), FORMAT_VERSION_KEY: FORMAT_VERSION.encode()},
    )


def _arrow_field(column: Column) -> pa.Field:
    import pyarrow as pa

    return pa.field(
        column.name, arrow_type(column.type), nullable=column.nullable, metadata={FIELD_ID_KEY: str(column.id).encode()}
    )


def leaf_path(column: Column) -> str:
    """Returns the path of a column's values in a Parquet schema, such as `shape.list.element`."""
    return f"{column.name}.list.element" if column.type is Type.BIGINT_LIST else column.name


@cache
def parquet_options(name: str) -> dict[str, Any]:
    """Returns the options for writing a table's parts.

    Args:
        name: Name of the table.

    Returns:
        Keyword arguments for `pyarrow.parquet.ParquetWriter` and `write_table`. The dict is cached, so do not change
        it. The dict does not contain the size of row groups: pass `row_group_size=ROW_GROUP_ROWS` to the call that
        writes a table.

    Raises:
        KeyError: The format has no such table.
    """
    columns = table(name).columns
    has_long_values = any(column.type is Type.BLOB or column.name in LONG_TEXTS for column in columns)
    return {
        "compression": "zstd",
        "use_dictionary": [column.name for column in columns if _has_dictionary(column)],
        "column_encoding": {
            leaf_path(column): _encoding(column.type) for column in columns if not _has_dictionary(column)
        },
        "write_statistics": [leaf_path(column) for column in columns if column.type not in _WITHOUT_STATISTICS],
        "write_page_checksum": True,
        **({"write_batch_size": _BATCH_OF_LONG_VALUES} if has_long_values else {}),
        "store_schema": True,
    }


def _has_dictionary(column: Column) -> bool:
    return column.type is Type.VARCHAR and column.name not in LONG_TEXTS


def _encoding(type_: Type) -> str:
    return "DELTA_BINARY_PACKED" if type_ in _INTEGERS else "PLAIN"
