"""Parquet settings, made from the declaration.

Why they are as they are:

* Float columns have no statistics: DuckDB prunes row groups by minimum and maximum, which
  leave NaN out, and so loses rows for `isnan(x)` and `x > 100`.
* Dictionaries serve the repeated names only; integers are mostly counters, so their
  differences are small.
* Page checksums let `verify` find a changed byte.
* The Arrow schema is stored, since pyarrow drops the table's metadata without it.
"""

from __future__ import annotations

from typing import Any

from tfdbg_arrow.schema.declaration import Column, Type
from tfdbg_arrow.schema.tables import table

ROW_GROUP_ROWS = 122_880
"""Rows of a row group, DuckDB's own vector-aligned size; pass it as `row_group_size` when writing."""

_ELEMENT_BATCH = 16
"""Values after which a page of elements may end, where Arrow looks after 1,024: of 64 KiB each, a page had 64 MiB."""

_INTEGERS = frozenset({Type.BIGINT, Type.INTEGER, Type.TIMESTAMP, Type.BIGINT_LIST})
_WITHOUT_STATISTICS = frozenset({Type.DOUBLE, Type.BLOB})


def leaf_path(column: Column) -> str:
    """Returns the path of the column's values in a Parquet schema, as `shape.list.element`."""
    return f"{column.name}.list.element" if column.type is Type.BIGINT_LIST else column.name


def _encoding(type_: Type) -> str:
    return "DELTA_BINARY_PACKED" if type_ in _INTEGERS else "PLAIN"


def parquet_options(name: str) -> dict[str, Any]:
    """Returns how a table's parts are written.

    Args:
        name: Name of the table.

    Returns:
        Keyword arguments for `pyarrow.parquet.ParquetWriter` and `write_table`, a new dict at each
        call. Rows of a row group are not among them: `row_group_size=ROW_GROUP_ROWS` goes to
        the call that writes a table.

    Raises:
        KeyError: The format has no such table.
    """
    columns = table(name).columns
    holds_elements = any(column.type is Type.BLOB for column in columns)
    return {
        "compression": "zstd",
        "use_dictionary": [column.name for column in columns if column.type is Type.VARCHAR],
        "column_encoding": {
            leaf_path(column): _encoding(column.type) for column in columns if column.type is not Type.VARCHAR
        },
        "write_statistics": [leaf_path(column) for column in columns if column.type not in _WITHOUT_STATISTICS],
        "write_page_checksum": True,
        **({"write_batch_size": _ELEMENT_BATCH} if holds_elements else {}),
        "store_schema": True,
    }
