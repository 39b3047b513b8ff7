"""Test that the declaration follows the rules of the specification for names, types and references."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from tfdbg_arrow.schema import FORMAT_VERSION, TABLES, Column, Table, Type, table

DIGESTS = {
    "2.0": "cb4f50b35c5d558a9c631e1f96ad4668b3f23cda2de2c4e851acec4241acc856",
    "2.1": "16f1e298dc2ed1cdee3647d18bd57870b3ba44a876365a92b7625025c59e61be",
    "2.2": "f35dfa5a95fcdc003c11622668d99b4d6cbf592b4e484e9d0d7377c68c1f38d0",
    "2.3": "3e40b75a97fc8c47025a400152067ae98e96124b17d7e2431b6b61847a503c6d",
}
"""The digest of every released format version, and of the next one."""

COLUMNS = [
    pytest.param(table_, column, id=f"{table_.name}.{column.name}") for table_ in TABLES for column in table_.columns
]
BLOBS = {("tensor_value", "value"), ("input_value", "value"), ("step_input", "value")}
LISTS = {"shape", "static_shape", "histogram_negative", "histogram_positive"}
EVERY_TABLE = pytest.mark.parametrize("table_", TABLES, ids=lambda table_: table_.name)
EVERY_COLUMN = pytest.mark.parametrize(("table_", "column"), COLUMNS)


def declaration_digest() -> str:
    """Returns a SHA-256 of the format version and of every declared property that readers rely on.

    The digest covers names, keys, order, ids, types, nullability, units and references, but not the documentation.
    """
    tables = [
        [
            table.name,
            table.key,
            [
                [column.id, column.name, column.type.value, column.nullable, column.unit, column.references]
                for column in table.columns
            ],
        ]
        for table in TABLES
    ]
    return hashlib.sha256(json.dumps([FORMAT_VERSION, tables]).encode()).hexdigest()


def test_the_declaration_changes_only_with_the_format_version() -> None:
    assert declaration_digest() == DIGESTS.get(FORMAT_VERSION), (
        f"the declaration of format {FORMAT_VERSION} changed. If that version is released, raise FORMAT_VERSION in "
        "tfdbg_arrow/schema/version.py (MINOR for a new nullable column or a new table, MAJOR for anything else) and "
        "list the change in spec/compatibility.md. Then put the new digest into DIGESTS and run "
        f"`python -m tfdbg_arrow.schema.document`. The new digest: {declaration_digest()}"
    )


def test_tables_have_unique_names_and_are_found_by_them() -> None:
    assert [table(table_.name) for table_ in TABLES] == list(TABLES)


def test_the_error_for_an_unknown_table_lists_the_tables() -> None:
    with pytest.raises(KeyError, match=r"no table 'tensors'.*tensor_health"):
        table("tensors")


@EVERY_TABLE
def test_column_ids_and_names_are_unique_and_ids_positive(table_: Table) -> None:
    ids = [column.id for column in table_.columns]
    names = [column.name for column in table_.columns]
    assert len(set(ids)) == len(ids)
    assert len(set(names)) == len(names)
    assert min(ids) > 0


@EVERY_TABLE
def test_run_id_is_the_first_column_and_the_first_of_the_key(table_: Table) -> None:
    assert table_.columns[0].name == "run_id"
    assert table_.key[0] == "run_id"


@EVERY_TABLE
def test_key_columns_exist_and_are_never_null(table_: Table) -> None:
    assert not [name for name in table_.key if table_.column(name).nullable]


@EVERY_TABLE
def test_a_sentence_describes_a_row(table_: Table) -> None:
    assert re.fullmatch(r"[A-Z].*\.", table_.row)


@EVERY_TABLE
def test_table_names_fit_paths_and_sql(table_: Table) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", table_.name)


@EVERY_COLUMN
def test_column_names_are_snake_case_words(table_: Table, column: Column) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", column.name)


@EVERY_COLUMN
def test_every_column_is_documented_on_one_line(table_: Table, column: Column) -> None:
    assert re.fullmatch(r"[^\n]{3,}\.", column.doc)


@EVERY_COLUMN
def test_column_types_are_supported(table_: Table, column: Column) -> None:
    assert column.type in set(Type)
    assert (column.type is Type.BIGINT_LIST) == (column.name in LISTS)
    assert (column.type is Type.BLOB) == ((table_.name, column.name) in BLOBS)


@EVERY_COLUMN
def test_references_point_to_a_key_column_of_the_same_type(table_: Table, column: Column) -> None:
    if column.references is not None:
        target_table, target_column = column.references.split(".")
        target = table(target_table)
        assert target.column(target_column).type is column.type
        assert target_column in target.key
        assert (target.name, target_column) != (table_.name, column.name)


@EVERY_COLUMN
def test_id_columns_are_named_after_the_table_that_they_reference(table_: Table, column: Column) -> None:
    named = column.name.removesuffix("_id").removeprefix("callee_").removeprefix("outer_").removeprefix("forward_")
    if column.name.endswith("_id") and named in {other.name for other in TABLES} and column.name not in table_.key:
        assert column.references == f"{named}.{named}_id"


@EVERY_COLUMN
def test_column_names_contain_units(table_: Table, column: Column) -> None:
    assert column.name.endswith("_ns") == (column.unit == "ns")
    assert column.name.endswith("_bytes") == (column.unit == "bytes")
    assert (column.type is Type.TIMESTAMP) == (column.unit == "us")
    assert column.name.endswith("_s") == (column.unit == "s")
    assert column.unit in {None, "ns", "us", "s", "bytes", "elements", "slices", "events"}
    if column.unit == "s":
        assert column.type is Type.DOUBLE
    elif column.unit is not None and column.unit != "us":
        assert column.type is Type.BIGINT


@EVERY_COLUMN
def test_every_timestamp_column_has_a_nanosecond_column(table_: Table, column: Column) -> None:
    if column.type is Type.TIMESTAMP:
        nanoseconds = table_.column(f"{column.name}_ns")
        assert nanoseconds.nullable == column.nullable


@EVERY_COLUMN
def test_prefixes_and_suffixes_match_the_type(table_: Table, column: Column) -> None:
    assert column.name.startswith(("is_", "has_")) == (column.type is Type.BOOLEAN)
    if column.name.startswith("num_") or column.name.endswith(("_index", "_slot")):
        assert column.type in {Type.BIGINT, Type.INTEGER}


@EVERY_COLUMN
def test_the_documentation_of_a_nullable_column_mentions_null(table_: Table, column: Column) -> None:
    assert column.nullable == ("NULL" in column.doc)


def test_the_six_counts_are_adjacent_and_in_order() -> None:
    names = [column.name for column in table("tensor_health").columns]
    start = names.index("num_neg_inf")
    assert names[start : start + 6] == [
        "num_neg_inf",
        "num_pos_inf",
        "num_nan",
        "num_neg_finite",
        "num_zero",
        "num_pos_finite",
    ]
