"""Test that Arrow schemas match the declaration of the tables."""

from __future__ import annotations

import pytest

from tfdbg_arrow.schema import FORMAT_VERSION, TABLES, Table, arrow_schema

EVERY_TABLE = pytest.mark.parametrize("table_", TABLES, ids=lambda table_: table_.name)

ARROW_NAMES = {
    "BIGINT": "int64",
    "INTEGER": "int32",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "BOOLEAN": "bool",
    "TIMESTAMP": "timestamp[us]",
    "BLOB": "binary",
    "BIGINT[]": "list<element: int64 not null>",
}


@EVERY_TABLE
def test_fields_have_the_declared_name_type_nullability_and_id(table_: Table) -> None:
    assert [(field.name, str(field.type), field.nullable, field.metadata) for field in arrow_schema(table_.name)] == [
        (column.name, ARROW_NAMES[column.type.value], column.nullable, {b"PARQUET:field_id": str(column.id).encode()})
        for column in table_.columns
    ]


@EVERY_TABLE
def test_the_schema_names_its_table_and_format(table_: Table) -> None:
    assert arrow_schema(table_.name).metadata == {
        b"tfdbg_arrow.table": table_.name.encode(),
        b"tfdbg_arrow.format_version": FORMAT_VERSION.encode(),
    }
