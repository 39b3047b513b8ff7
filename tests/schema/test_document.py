"""Test that the generated files of spec/ are up to date and that their examples are valid rows."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.schema import TABLES, Column, Table, Type, arrow_schema, parquet_options
from tfdbg_arrow.schema.document import EXAMPLES, SPEC_DIRECTORY, main, schema_json, stale_files

EVERY_TABLE = pytest.mark.parametrize("table_", TABLES, ids=lambda table_: table_.name)


def test_the_generated_files_are_up_to_date() -> None:
    assert stale_files(SPEC_DIRECTORY) == (), "run python -m tfdbg_arrow.schema.document"


def test_check_fails_until_the_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--directory", str(tmp_path / "spec")]
    assert main([*arguments, "--check"]) == 1
    assert "tables.md, schema.json" in capsys.readouterr().err
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    (tmp_path / "spec" / "tables.md").write_text("old")
    assert main([*arguments, "--check"]) == 1


def test_schema_json_contains_the_whole_declaration() -> None:
    tables = tuple(
        Table(
            name=table["name"],
            row=table["row"],
            key=tuple(table["key"]),
            columns=tuple(
                Column(
                    id=column["id"],
                    name=column["name"],
                    type=Type(column["type"]),
                    doc=column["doc"],
                    nullable=column["nullable"],
                    unit=column["unit"],
                    references=column["references"],
                )
                for column in table["columns"]
            ),
        )
        for table in json.loads(schema_json())["tables"]
    )
    assert tables == TABLES


@EVERY_TABLE
def test_an_example_is_a_valid_row(table_: Table, tmp_path: Path) -> None:
    example = EXAMPLES[table_.name]
    rows = pa.Table.from_pylist([example], schema=arrow_schema(table_.name))
    rows.validate(full=True)
    pq.write_table(rows, tmp_path / "part-000000.parquet", **parquet_options(table_.name))
    read = pq.read_table(tmp_path / "part-000000.parquet")
    assert read.to_pylist() == [example]
    assert read.schema.equals(arrow_schema(table_.name), check_metadata=True)


@EVERY_TABLE
def test_an_example_has_null_only_in_nullable_columns(table_: Table) -> None:
    assert not [
        column.name for column in table_.columns if EXAMPLES[table_.name][column.name] is None and not column.nullable
    ]


@EVERY_TABLE
def test_the_timestamp_and_the_nanoseconds_of_an_example_agree(table_: Table) -> None:
    example = EXAMPLES[table_.name]
    if "wall_time" in example:
        nanoseconds = example["wall_time_ns"]
        assert isinstance(nanoseconds, int)
        assert example["wall_time"] == datetime(1970, 1, 1) + timedelta(microseconds=nanoseconds // 1000)


def test_the_counts_of_the_example_sum_to_its_size() -> None:
    row = EXAMPLES["tensor_health"]
    counts = [row[f"num_{kind}"] for kind in ("neg_inf", "pos_inf", "nan", "neg_finite", "zero", "pos_finite")]
    assert sum(count for count in counts if isinstance(count, int)) == row["size"]


@pytest.mark.parametrize("name", ["README.md", "compatibility.md"])
def test_the_prose_names_only_tables_and_columns_that_exist(name: str) -> None:
    known = {table_.name: {column.name for column in table_.columns} for table_ in TABLES}
    text = (SPEC_DIRECTORY / name).read_text(encoding="utf-8")
    qualified = re.findall(r"`([a-z]+(?:_[a-z]+)*)\.([a-z]+(?:_[a-z]+)*)`", text)
    others = {"tfdbg_arrow", "pyarrow"}
    assert len(qualified) > 3
    assert [pair for pair in qualified if pair[0] not in others and pair[1] not in known.get(pair[0], ())] == []
