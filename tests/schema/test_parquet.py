"""Test that parts are written according to the specification and that no reader loses rows with NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.schema import TABLES, Column, Table, Type, arrow_schema, parquet_options
from tfdbg_arrow.schema.document import EXAMPLES
from tfdbg_arrow.schema.parquet import leaf_path
from tfdbg_arrow.storage.layout import part_path

EVERY_TABLE = pytest.mark.parametrize("table_", TABLES, ids=lambda table_: table_.name)
RUN_IDS = ("20261120T163000.123456-trainer-4242", "20261120T163000.123456-05-30")
NAN, INF = float("nan"), float("inf")


def query(sql: str) -> duckdb.DuckDBPyRelation:
    relation = duckdb.sql(sql)
    assert relation is not None
    return relation


def write_part(
    logdir: Path, table_name: str, rows: list[dict[str, Any]], *, run_id: str, number: int, group: int
) -> Path:
    """Writes one part like the sink, with `group` rows per row group."""
    path = logdir / part_path(table_name, run_id=run_id, number=number)
    path.parent.mkdir(parents=True, exist_ok=True)
    table_ = pa.Table.from_pylist(rows, schema=arrow_schema(table_name))
    pq.write_table(table_, path, row_group_size=group, **parquet_options(table_name))
    return path


def health_row(event_index: int, max_finite: float | None, *, run_id: str) -> dict[str, Any]:
    return {**EXAMPLES["tensor_health"], "run_id": run_id, "event_index": event_index, "max_finite": max_finite}


@EVERY_TABLE
def test_column_chunks_have_the_declared_encoding_statistics_and_compression(table_: Table, tmp_path: Path) -> None:
    path = write_part(tmp_path, table_.name, [EXAMPLES[table_.name]], run_id=RUN_IDS[0], number=0, group=10)
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert list(chunks) == [leaf_path(column) for column in table_.columns]
    assert [describe(chunks[leaf_path(column)]) for column in table_.columns] == [
        expected(column) for column in table_.columns
    ]


def describe(chunk: Any) -> tuple[str, str, bool]:
    return chunk.compression, data_encoding(chunk), chunk.is_stats_set


def data_encoding(chunk: Any) -> str:
    """Returns the encoding of the values in the data pages. RLE is ignored, because it is that of the levels."""
    if chunk.has_dictionary_page:
        return "RLE_DICTIONARY"
    (encoding,) = set(chunk.encodings) - {"RLE"}
    return str(encoding)


def expected(column: Column) -> tuple[str, str, bool]:
    if column.name == "source_text":
        return "ZSTD", "PLAIN", True
    encodings = {Type.VARCHAR: "RLE_DICTIONARY", Type.BOOLEAN: "PLAIN", Type.DOUBLE: "PLAIN", Type.BLOB: "PLAIN"}
    return "ZSTD", encodings.get(column.type, "DELTA_BINARY_PACKED"), column.type not in {Type.DOUBLE, Type.BLOB}


@EVERY_TABLE
def test_the_parquet_schema_has_field_ids(table_: Table, tmp_path: Path) -> None:
    path = write_part(tmp_path, table_.name, [], run_id=RUN_IDS[0], number=0, group=10)
    fields = [str(pq.ParquetFile(path).schema_arrow.field(column.name).metadata) for column in table_.columns]
    assert fields == [str({b"PARQUET:field_id": str(column.id).encode()}) for column in table_.columns]
    # Other readers see the file without the Arrow schema that pyarrow also stores.
    text = str(pq.ParquetFile(path).schema)
    assert [f"field_id={column.id} {column.name}" in text for column in table_.columns] == [True] * len(table_.columns)


def is_readable(path: Path) -> bool:
    """Returns whether the checksum of every page of the file is correct."""
    try:
        pq.ParquetFile(path, page_checksum_verification=True).read()
    except OSError as error:
        return "CRC checksum verification failed" not in str(error)
    return True


def test_a_flipped_bit_is_found_in_every_column(tmp_path: Path) -> None:
    rows = [health_row(index, 1.5 * index, run_id=RUN_IDS[0]) for index in range(300)]
    path = write_part(tmp_path, "tensor_health", rows, run_id=RUN_IDS[0], number=0, group=100)
    assert is_readable(path)
    content = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(1)
    unnoticed = []
    for index in range(group.num_columns):
        chunk = group.column(index)
        start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        position = start + chunk.total_compressed_size - 1  # the last byte of the last page's data
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        path.write_bytes(bytes(damaged))
        if is_readable(path):
            unnoticed.append(chunk.path_in_schema)
    assert unnoticed == []


@EVERY_TABLE
def test_duckdb_polars_and_pyarrow_read_the_same_rows(table_: Table, tmp_path: Path) -> None:
    for run_id in RUN_IDS:
        row = {**EXAMPLES[table_.name], "run_id": run_id}
        write_part(tmp_path, table_.name, [], run_id=run_id, number=0, group=2)
        write_part(tmp_path, table_.name, [row] * 3, run_id=run_id, number=1, group=2)
    directory = tmp_path / table_.name
    own_rows = [{**EXAMPLES[table_.name], "run_id": run_id} for run_id in sorted(RUN_IDS) for _ in range(3)]
    rows = [{**row, "run": row["run_id"]} for row in own_rows]
    names = [*(column.name for column in table_.columns), "run"]
    # The rows of fetchall have no names, so compare the names and their order too.
    relation = query(f"SELECT * FROM '{directory}/**/*.parquet' ORDER BY run_id")
    assert relation.columns == names
    assert [dict(zip(names, row, strict=True)) for row in relation.fetchall()] == rows
    assert pl.scan_parquet(directory).sort("run_id").collect().to_dicts() == rows
    assert pq.read_table(directory).sort_by("run_id").to_pylist() == rows
    assert ds.dataset(directory).to_table().sort_by("run_id").to_pylist() == own_rows
    assert pd.read_parquet(directory).columns.to_list() == names


@pytest.mark.parametrize("run_id", RUN_IDS)
def test_every_reader_reads_the_run_id_as_text_even_with_a_single_run(run_id: str, tmp_path: Path) -> None:
    write_part(tmp_path, "mark", [{**EXAMPLES["mark"], "run_id": run_id}], run_id=run_id, number=0, group=2)
    directory = tmp_path / "mark"
    relation = query(f"SELECT run_id, run FROM '{directory}/**/*.parquet'")
    assert (list(map(str, relation.types)), relation.fetchall()) == (["VARCHAR", "VARCHAR"], [(run_id, run_id)])
    assert pl.scan_parquet(directory).collect().schema["run_id"] == pl.String
    assert ds.dataset(directory).schema.field("run_id").type == pa.string()
    assert ds.dataset(directory, partitioning="hive").schema.field("run_id").type == pa.string()
    assert pq.read_table(directory).column("run_id").to_pylist() == [run_id]


@pytest.fixture
def health_directory(tmp_path: Path) -> Path:
    """Writes tensor_health of two runs in groups of two rows. Some groups have NaN and finite values, some only NaN."""
    values = [1.0, NAN, NAN, NAN, 500.0, 2.0, None, NAN, -INF, 3.0, None, None, INF, 4.0]
    for run_id in RUN_IDS:
        rows = [health_row(index, value, run_id=run_id) for index, value in enumerate(values)]
        path = write_part(tmp_path, "tensor_health", rows, run_id=run_id, number=0, group=2)
        assert pq.ParquetFile(path).num_row_groups == 7
    return tmp_path / "tensor_health"


IS_NAN = [1, 2, 3, 7]
ABOVE_100 = [4, 12]
BELOW_3 = [0, 5, 8]


@pytest.mark.parametrize("can_have_nan", ["", ", can_have_nan = true"])
@pytest.mark.parametrize(
    ("condition", "events"),
    [
        ("isnan(max_finite)", IS_NAN),
        # In SQL and in Polars, NaN is greater than every number.
        ("max_finite > 100", sorted(IS_NAN + ABOVE_100)),
        ("max_finite > 100 AND NOT isnan(max_finite)", ABOVE_100),
        ("max_finite < 3", BELOW_3),
        ("max_finite IS NULL", [6, 10, 11]),
        ("max_finite = 'nan'::DOUBLE", IS_NAN),
    ],
)
def test_duckdb_finds_nan_rows(condition: str, events: list[int], can_have_nan: str, health_directory: Path) -> None:
    relation = query(
        f"SELECT event_index FROM read_parquet('{health_directory}/**/*.parquet'{can_have_nan}) "
        f"WHERE {condition} ORDER BY event_index"
    )
    assert [row[0] for row in relation.fetchall()] == sorted(events * 2)


@pytest.mark.parametrize(
    ("condition", "events"),
    [
        (pl.col("max_finite").is_nan(), IS_NAN),
        (pl.col("max_finite") > 100, sorted(IS_NAN + ABOVE_100)),
        ((pl.col("max_finite") > 100) & pl.col("max_finite").is_not_nan(), ABOVE_100),
        (pl.col("max_finite") < 3, BELOW_3),
        (pl.col("max_finite").is_null(), [6, 10, 11]),
    ],
    ids=["is_nan", "above", "above and not nan", "below", "null"],
)
def test_polars_finds_nan_rows(condition: pl.Expr, events: list[int], health_directory: Path) -> None:
    frame = pl.scan_parquet(health_directory).filter(condition).select("event_index").collect()
    assert sorted(frame["event_index"].to_list()) == sorted(events * 2)


@pytest.mark.parametrize(
    ("condition", "events"),
    [
        (pc.is_nan(ds.field("max_finite")), IS_NAN),
        # In pyarrow, as in IEEE 754, every comparison with NaN is false.
        (ds.field("max_finite") > 100, ABOVE_100),
        (ds.field("max_finite") < 3, BELOW_3),
        (ds.field("max_finite").is_null(), [6, 10, 11]),
    ],
    ids=["is_nan", "above", "below", "null"],
)
def test_pyarrow_finds_nan_rows(condition: ds.Expression, events: list[int], health_directory: Path) -> None:
    found = ds.dataset(health_directory).to_table(columns=["event_index"], filter=condition)
    assert sorted(found["event_index"].to_pylist()) == sorted(events * 2)


def test_with_statistics_duckdb_would_lose_nan_rows(health_directory: Path, tmp_path: Path) -> None:
    """This is why float columns have no statistics. Once this test fails, simplify spec/README.md."""
    options = {**parquet_options("tensor_health"), "write_statistics": True}
    path = tmp_path / "with_statistics.parquet"
    pq.write_table(ds.dataset(health_directory).to_table(), path, row_group_size=2, **options)
    relation = query(f"SELECT count(*) FROM read_parquet('{path}') WHERE isnan(max_finite)")
    assert relation.fetchall() < [(len(IS_NAN) * 2,)]
