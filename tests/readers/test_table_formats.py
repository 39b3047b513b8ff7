"""Test exports as Delta and Iceberg tables: the rows, and what filters return, are those of the logdir."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import GreaterThan, IsNaN
from pyiceberg.table import Table as IcebergTable

from tfdbg_arrow.errors import ExportError
from tfdbg_arrow.query import export, verify
from tfdbg_arrow.query.logdir.public_views import public_views
from tfdbg_arrow.schema import TABLES, Table

from .comparing import CONDITIONS, Habits, assert_same_rows, num_rows, rows_of_logdir
from .logdirs import awkward, newest_golden

# Polars says that another package would plan scans of Iceberg tables faster.
pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning")

OF_ARROW = Habits(nan_is_greatest=False)
FORMATS = ("delta", "iceberg")
RELATIONS = (*(table.name for table in TABLES), *(view.name for view in public_views()))
POLARS_FILTERS = {
    "true": pl.lit(True),
    "num_nan > 0": pl.col("num_nan") > 0,
    "isnan(max_finite)": pl.col("max_finite").is_nan(),
    "min_finite > 100": pl.col("min_finite") > 100,
}
ICEBERG_FILTERS = {
    "true": "true",
    "num_nan > 0": "num_nan > 0",
    "isnan(max_finite)": IsNaN("max_finite"),
    "min_finite > 100": GreaterThan("min_finite", 100),
}


@dataclass(frozen=True)
class Case:
    """A logdir, its rows, and its export in each format."""

    logdir: Path
    rows: dict[str, pa.Table]
    exports: dict[str, Path]


@pytest.fixture(scope="module", params=["recorded", "awkward"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    here = tmp_path_factory.mktemp("table_formats")
    logdir = here / "logdir"
    if request.param == "recorded":
        shutil.copytree(newest_golden(), logdir)
    else:
        awkward(logdir)
    exports = {format_: export(logdir, here / format_, format=format_, tables=["all"]).path for format_ in FORMATS}
    return Case(logdir, rows_of_logdir(logdir), exports)


def iceberg_table(warehouse: Path, name: str) -> IcebergTable:
    catalog = SqlCatalog("tfdbg_arrow", uri=f"sqlite:///{warehouse}/catalog.db")
    try:
        return catalog.load_table(f"tfdbg_arrow.{name}")
    finally:
        catalog.close()


def select_from_files(files: list[str], condition: str) -> pa.Table:
    with duckdb.connect() as connection:
        query = f"SELECT * FROM read_parquet($1) WHERE {condition}"
        return connection.sql(query, params=[files]).to_arrow_table()


def delta_with_deltalake(path: Path, name: str, condition: str) -> pa.Table:
    rows = QueryBuilder().register(name, DeltaTable(path / name)).execute(f"SELECT * FROM {name} WHERE {condition}")
    return pa.table(rows.read_all())


def delta_with_pyarrow(path: Path, name: str, condition: str) -> pa.Table:
    filters = {
        "true": None,
        "num_nan > 0": pc.field("num_nan") > 0,
        "isnan(max_finite)": pc.is_nan(pc.field("max_finite")),
        "min_finite > 100": pc.field("min_finite") > 100,
    }
    return DeltaTable(path / name).to_pyarrow_dataset().to_table(filter=filters[condition])


def delta_with_polars(path: Path, name: str, condition: str) -> pa.Table:
    return pl.scan_delta(str(path / name)).filter(POLARS_FILTERS[condition]).collect().to_arrow()


def delta_with_duckdb(path: Path, name: str, condition: str) -> pa.Table:
    files = DeltaTable(path / name).file_uris()
    return select_from_files(files, condition)


def iceberg_with_pyiceberg(path: Path, name: str, condition: str) -> pa.Table:
    return iceberg_table(path, name).scan(row_filter=ICEBERG_FILTERS[condition]).to_arrow()


def iceberg_with_polars(path: Path, name: str, condition: str) -> pa.Table:
    return pl.scan_iceberg(iceberg_table(path, name)).filter(POLARS_FILTERS[condition]).collect().to_arrow()


def iceberg_with_duckdb(path: Path, name: str, condition: str) -> pa.Table:
    with iceberg_table(path, name).scan().to_duckdb(name) as connection:
        return connection.sql(f"SELECT * FROM {name} WHERE {condition}").to_arrow_table()


def iceberg_files_with_duckdb(path: Path, name: str, condition: str) -> pa.Table:
    table = iceberg_table(path, name)
    files = [task.file.file_path for task in table.scan().plan_files()]
    return select_from_files(files, condition) if files else table.schema().as_arrow().empty_table()


READERS: dict[str, tuple[str, Callable[[Path, str, str], pa.Table], Habits]] = {
    "deltalake": ("delta", delta_with_deltalake, Habits()),
    "deltalake, pyarrow": ("delta", delta_with_pyarrow, OF_ARROW),
    "delta, polars": ("delta", delta_with_polars, Habits()),
    "delta, duckdb": ("delta", delta_with_duckdb, Habits()),
    "pyiceberg": ("iceberg", iceberg_with_pyiceberg, OF_ARROW),
    "iceberg, polars": ("iceberg", iceberg_with_polars, Habits()),
    "pyiceberg, duckdb": ("iceberg", iceberg_with_duckdb, Habits()),
    "iceberg, duckdb": ("iceberg", iceberg_files_with_duckdb, Habits()),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_rows_of_a_table(table: Table, reader: str, case: Case) -> None:
    format_, read, habits = READERS[reader]
    found = read(case.exports[format_], table.name, "true")
    assert_same_rows(found, case.rows[table.name], table, habits)
    timestamps = [field.type for field in found.schema if pa.types.is_timestamp(field.type)]
    assert all(type_ == pa.timestamp("us") for type_ in timestamps)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_filters_return_the_same_rows(condition: str, reader: str, case: Case) -> None:
    format_, read, habits = READERS[reader]
    found = read(case.exports[format_], "tensor_health", condition)
    assert found.num_rows == num_rows(case.logdir, condition, habits)


@pytest.mark.parametrize("format_", FORMATS)
def test_views_are_tables(format_: str, case: Case) -> None:
    read = delta_with_deltalake if format_ == "delta" else iceberg_with_pyiceberg
    with duckdb.connect() as connection:
        for name in RELATIONS:
            found = read(case.exports[format_], name, "true")
            assert all(not pa.types.is_decimal(field.type) for field in found.schema), name
            connection.register("found", found)
            assert connection.sql("SELECT count(*) FROM found").fetchall() == [(found.num_rows,)]
    assert read(case.exports[format_], "op_health", "true").num_rows > 0


def test_no_file_has_statistics_that_leave_out_nan(case: Case) -> None:
    for file in (*case.exports["delta"].rglob("*.parquet"), *case.exports["iceberg"].rglob("*.parquet")):
        parquet = pq.ParquetFile(file)
        for group in range(parquet.num_row_groups):
            for column in parquet.metadata.row_group(group).to_dict()["columns"]:
                if column["physical_type"] == "DOUBLE" and column["statistics"]["has_min_max"]:
                    values = parquet.read_row_group(group, columns=[column["path_in_schema"]]).column(0)
                    assert not pc.any(pc.is_nan(values)).as_py(), (file, column["path_in_schema"])
    for log in case.exports["delta"].glob("*/_delta_log/*.json"):
        added = [json.loads(line)["add"] for line in log.read_text().splitlines() if "add" in json.loads(line)]
        assert [list(json.loads(action["stats"])) for action in added] == [["numRecords"]]
    for task in iceberg_table(case.exports["iceberg"], "tensor_health").scan().plan_files():
        assert not task.file.lower_bounds
        assert not task.file.upper_bounds


def test_the_logdir_is_not_changed(case: Case) -> None:
    assert verify(case.logdir).is_intact
    assert [path.name for path in case.logdir.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("format_", FORMATS)
def test_an_existing_export_is_only_replaced_on_request(format_: str, tmp_path: Path) -> None:
    logdir, target = newest_golden(), tmp_path / "out"
    export(logdir, target, format=format_, tables=["run", "mark"])
    with pytest.raises(ExportError, match="already exists"):
        export(logdir, target, format=format_, tables=["device"])
    exported = export(logdir, target, format=format_, tables=["run"], overwrite=True)
    assert exported.size_bytes == sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    tables = target if format_ == "delta" else target / "tfdbg_arrow"
    assert [path.name for path in tables.iterdir()] == ["run"]
    (target / "thesis.txt").write_text("x")
    with pytest.raises(ExportError, match="is not a directory with only the"):
        export(logdir, target, format=format_, overwrite=True)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_failed_export_leaves_no_files(format_: str, tmp_path: Path) -> None:
    def fail(table: str, num_done: int, num_all: int) -> None:
        if num_done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(newest_golden(), tmp_path / "out", format=format_, progress=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format_", FORMATS)
def test_the_command_writes_the_chosen_tables(format_: str, tmp_path: Path) -> None:
    command: list[Any] = [sys.executable, "-m", "tfdbg_arrow", "export", newest_golden(), tmp_path / "a b", "--json"]
    done = subprocess.run([*command, f"--{format_}", "--table", "run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["format"], [table["name"] for table in printed["tables"]]) == (format_, ["run"])


def test_a_path_that_pyiceberg_cannot_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="contains '#', which pyiceberg cannot read in a path; give another path"):
        export(newest_golden(), tmp_path / "a#b", format="iceberg")
    assert list(tmp_path.iterdir()) == []
