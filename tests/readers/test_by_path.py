"""Test that other programs read every table of a logdir by its path alone, with default arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chdb
import datafusion
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.schema import TABLES, Table
from tfdbg_arrow.storage.layout import PART_GLOB

from .comparing import CONDITIONS, Habits, assert_same_rows, num_rows, rows_of_logdir
from .logdirs import awkward, newest_golden, recorded

AS_DUCKDB = Habits()


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How a program reads a table.

    Attributes:
        read: Returns the rows of a table's directory.
        select: Returns the rows that meet one of CONDITIONS.
        habits: What it does to values.
    """

    read: Callable[[Path], Any]
    select: Callable[[Path, str], Any]
    habits: Habits = AS_DUCKDB


def select_from_frame(frame: pd.DataFrame, condition: str) -> pd.DataFrame:
    return {
        "num_nan > 0": lambda: frame[frame.num_nan > 0],
        "isnan(max_finite)": lambda: frame[frame.max_finite.isna()],
        "min_finite > 100": lambda: frame[frame.min_finite > 100],
    }[condition]()


def select_with_pyarrow(directory: Path, condition: str) -> pa.Table:
    filters = {
        "num_nan > 0": pc.field("num_nan") > 0,
        "isnan(max_finite)": pc.is_nan(pc.field("max_finite")),
        "min_finite > 100": pc.field("min_finite") > 100,
    }
    return pq.read_table(directory, filters=filters[condition])


def select_with_polars(directory: Path, condition: str) -> pa.Table:
    filters = {
        "num_nan > 0": pl.col("num_nan") > 0,
        "isnan(max_finite)": pl.col("max_finite").is_nan(),
        "min_finite > 100": pl.col("min_finite") > 100,
    }
    return pl.scan_parquet(directory).filter(filters[condition]).collect().to_arrow()


def read_with_duckdb(directory: Path, condition: str = "true") -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(f"SELECT * FROM '{directory}/*/*.parquet' WHERE {condition}").to_arrow_table()


def read_with_datafusion(directory: Path, condition: str = "true") -> pa.Table:
    context = datafusion.SessionContext()
    context.register_parquet("rows", str(directory))
    return context.sql(f"SELECT * FROM rows WHERE {condition}").to_arrow_table()


def read_partitions_with_datafusion(directory: Path, condition: str = "true") -> pa.Table:
    context = datafusion.SessionContext()
    context.register_parquet("rows", str(directory), table_partition_cols=[("run", pa.string())])
    return context.sql(f"SELECT * FROM rows WHERE {condition}").to_arrow_table()


def read_with_chdb(directory: Path, condition: str = "true") -> pa.Table:
    condition = condition.replace("isnan", "isNaN")
    rows = chdb.query(f"SELECT * FROM file('{directory}/*/*.parquet') WHERE {condition}", "ArrowTable")
    # It has no type for bytes.
    has_bytes = directory.name in ("tensor_value", "input_value")
    types = [pa.binary() if has_bytes and field.name == "value" else field.type for field in rows.schema]
    return rows.cast(pa.schema(list(zip(rows.schema.names, types, strict=True))))


OF_PANDAS = Habits(null_is_nan=True, nan_is_greatest=False)
READERS = {
    "pandas": Reader(
        read=pd.read_parquet,
        select=lambda path, condition: select_from_frame(pd.read_parquet(path), condition),
        habits=OF_PANDAS,
    ),
    "pyarrow": Reader(read=pq.read_table, select=select_with_pyarrow, habits=Habits(nan_is_greatest=False)),
    "duckdb": Reader(read=read_with_duckdb, select=read_with_duckdb),
    "polars": Reader(read=lambda path: pl.read_parquet(path).to_arrow(), select=select_with_polars),
    "datafusion": Reader(read=read_with_datafusion, select=read_with_datafusion),
    "datafusion, partitions": Reader(read=read_partitions_with_datafusion, select=read_partitions_with_datafusion),
    "chdb": Reader(
        read=read_with_chdb, select=read_with_chdb, habits=Habits(null_list_is_empty=True, nan_is_greatest=False)
    ),
}


@dataclass(frozen=True)
class Case:
    """A logdir: where it is read by path, where the query layer reads it, and its rows."""

    path: Path
    original: Path
    rows: dict[str, pa.Table]


@pytest.fixture(scope="module", params=["recorded", "awkward"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("by_path") / "logdir"
    if request.param == "recorded":
        return Case(recorded(path), newest_golden(), rows_of_logdir(newest_golden()))
    return Case(awkward(path), path, rows_of_logdir(path))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_rows_of_a_table(table: Table, name: str, case: Case) -> None:
    if not list((case.path / table.name).glob(PART_GLOB)):
        assert case.rows[table.name].num_rows == 0
        return
    reader = READERS[name]
    found = reader.read(case.path / table.name)
    assert_same_rows(found, case.rows[table.name], table, reader.habits)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_that_concern_nan(condition: str, name: str, case: Case) -> None:
    reader = READERS[name]
    assert len(reader.select(case.path / "tensor_health", condition)) == num_rows(
        case.original, condition, reader.habits
    )


@pytest.mark.parametrize("name", sorted(set(READERS) - {"datafusion"}))
def test_the_run_is_a_column_too(name: str, case: Case) -> None:
    found = READERS[name].read(case.path / "tensor_health")
    frame = found if isinstance(found, pd.DataFrame) else found.to_pandas()
    assert (frame["run"].astype(str) == frame["run_id"].astype(str)).all()


def test_the_logdirs_have_what_readers_confuse(tmp_path: Path) -> None:
    logdir = awkward(tmp_path / "logdir")
    counts = [num_rows(logdir, condition, Habits()) for condition in CONDITIONS]
    assert counts == [40, 24, 60]
    num_empty = sum(rows.num_rows == 0 for rows in rows_of_logdir(newest_golden()).values())
    assert num_empty <= 4
