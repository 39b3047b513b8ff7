"""Test that other programs read the rows of a logdir from its exports as Parquet, CSV, DuckDB and SQLite."""

from __future__ import annotations

import datetime
import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.errors import BrokenPartError, ExportError, LogdirError, MissingDependencyError, QueryError
from tfdbg_arrow.query import ExportedTable, export, open_logdir, public_views
from tfdbg_arrow.query.exports import LARGE_VIEWS
from tfdbg_arrow.query.exports.table_writer import Rows
from tfdbg_arrow.schema import TABLES

from .builder import CLEAN, INF, NAN, RunBuilder
from .manifests import resealed

TEXTS = (
    "=HYPERLINK(\"http://evil\",\"x\")", "+1+cmd|'/c calc'!A0", "-2+3", "@SUM(A1)", "\tx", "\rx", "\nx", "\uff1d1",
    "'=quoted", "", "NULL", "plain", 'a "quoted", b;c', "two\nlines\r\nand three", "Ünï ☃ 日本", "\u202ereversed",
    "-0.5", "+1e3", "1", "nul\0byte", "'",
)  # fmt: skip
INT64 = (-(2**63), 2**63 - 1, 0, -1)
DOUBLES = (-0.0, 0.0, 1e-320, 1.7976931348623157e308, 0.1, -1.5, None)
FORMATS = ("parquet", "csv", "duckdb", "sqlite")
KEPT_VIEWS = {view.name for view in public_views() if not view.is_computed}
RELATIONS = (*(table.name for table in TABLES), *(view.name for view in public_views()))


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a logdir with two runs that have awkward values. Some tables are empty."""
    run = RunBuilder("run-a", command_line='["python", "=1"]')
    stack = run.stack(("/home/=me/é.py", 3, "f", '=cmd|"x"', "user"))
    graph = run.graph("=graph\n").op("x", "Log", stack=stack).op("y", "Mul", inputs=["x"])
    for index, text in enumerate(TEXTS):
        run.add("mark", event_index=index, label=f"label {index}", value=text)
    for index, number in enumerate(INT64):
        run.add("execution_input", execution_index=99, input_index=index, tensor_id=number)
    for number in DOUBLES:
        health = {**CLEAN, "min_finite": number, "max_finite": number}
        run.tensor(graph, "x", health, execution=run.execution("f", graph=graph, stack=stack))
        run.tensor(graph, "y", {**NAN, "shape": [], "rank": 0})
    run.tensor(graph, "y", {**INF, "shape": None, "rank": None, "size": None})
    for index, value in enumerate((b"", b"\0\xff\x80=+", b"+1", bytes(range(256)))):
        run.add("tensor_value", event_index=index, dtype="uint8", shape=[len(value), 1], value=value)
    path = tmp_path_factory.mktemp("export") / "logdir"
    run.write(path, parts=2)
    other = RunBuilder("run-b", end_wall_time_ns=None, is_clean_end=False)
    other.eager_op("Log", INF, tensor_id=5)
    return other.write(path)


@pytest.fixture(scope="module")
def exports(logdir: Path) -> dict[str, Path]:
    """Exports the logdir in every format, and returns the path of each export by format."""
    targets = {name: logdir.parent / f"exported.{name}" for name in FORMATS}
    for name, target in targets.items():
        export(logdir, target, format=name, tables=["all"])
    return targets


def plain(value: Any) -> Any:
    """Returns a value of a logdir in the form that it has in a flat format."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, float):
        return ("float", repr(value))
    return value


def sorted_rows(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(plain, row)) for row in rows), key=repr)


@dataclass(frozen=True)
class Own:
    """A table or view that was read from the logdir."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def own(logdir: Path) -> dict[str, Own]:
    found = {}
    with open_logdir(logdir) as opened:
        for name in RELATIONS:
            relation = opened.sql(f'SELECT * FROM "{name}"')
            types = tuple(map(str, relation.types))
            found[name] = Own(tuple(relation.columns), types, sorted_rows(relation.fetchall()))
    return found


def with_duckdb(path: Path, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    names = ", ".join(f'"{column}"' for column in columns)
    with duckdb.connect() as connection:
        return connection.sql(f"SELECT {names} FROM read_parquet('{path}')").fetchall()


def with_polars(path: Path, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return pl.scan_parquet(path).select(columns).collect().rows()


def with_pyarrow(path: Path, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    table = pa.dataset.dataset(path).to_table(columns=list(columns))
    return [tuple(row.values()) for row in table.to_pylist()]


class TestParquet:
    @pytest.mark.slow
    @pytest.mark.parametrize("read", [with_duckdb, with_polars, with_pyarrow])
    def test_every_reader_returns_the_rows_of_the_logdir(
        self,
        read: Callable[[Path, tuple[str, ...]], list[tuple[Any, ...]]],
        own: dict[str, Own],
        exports: dict[str, Path],
    ) -> None:
        for name, expected in own.items():
            assert sorted_rows(read(exports["parquet"] / f"{name}.parquet", expected.columns)) == expected.rows, name

    def test_nesting_compression_and_encodings(self, exports: dict[str, Path]) -> None:
        assert sorted(path.name for path in exports["parquet"].iterdir()) == sorted(f"{n}.parquet" for n in RELATIONS)
        for path in exports["parquet"].iterdir():
            file = pq.ParquetFile(path)
            assert not [field for field in file.schema_arrow if pa.types.is_nested(field.type)]
            for group in range(file.metadata.num_row_groups):
                for index in range(file.metadata.num_columns):
                    column = file.metadata.row_group(group).column(index)
                    assert column.compression == "SNAPPY"
                    assert set(column.encodings) <= {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}

    def test_row_groups_with_nan_have_no_minimum_and_maximum(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        for index in range(3):
            run.add("tensor_health", event_index=index, min_finite=(1.0, math.nan, 2.0)[index], max_finite=1.0)
        export(run.write(tmp_path / "logdir"), tmp_path / "out", format="parquet", tables=["tensor_health"])
        columns = pq.read_metadata(tmp_path / "out" / "tensor_health.parquet").row_group(0).to_dict()["columns"]
        has_range = {column["path_in_schema"]: column["statistics"]["has_min_max"] for column in columns}
        assert (has_range["min_finite"], has_range["max_finite"], has_range["event_index"]) == (False, True, True)

    def test_nanosecond_columns_have_an_additional_timestamp_column(self, exports: dict[str, Path]) -> None:
        runs = pq.read_table(exports["parquet"] / "run.parquet").to_pylist()
        assert [run["end_wall_time"] for run in runs] == [datetime.datetime(2023, 11, 14, 22, 13, 21), None]
        assert "wall_time" in pq.read_schema(exports["parquet"] / "graph_tensor.parquet").names


def unquoted(text: str | None) -> str | None:
    """Returns a text from a CSV file without the apostrophe that protects against formulas."""
    return text[1:] if text is not None and text.startswith("'") else text


class TestCsv:
    def read(self, path: Path) -> list[dict[str, str | None]]:
        options = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(
                path.read_bytes().decode().split("\r\n")[0].replace('"', "").split(","), pa.string()
            ),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        )
        rows: list[dict[str, str | None]] = pa.csv.read_csv(
            path, parse_options=pa.csv.ParseOptions(newlines_in_values=True), convert_options=options
        ).to_pylist()
        return rows

    def test_the_cells_are_the_values_of_the_logdir(self, own: dict[str, Own], exports: dict[str, Path]) -> None:
        def value(type_: str, cell: str | None) -> Any:
            text = unquoted(cell)
            if text is None or type_ in ("VARCHAR", "BIGINT[]"):
                return text
            assert cell == text  # numbers, booleans, times and bytes never have an apostrophe
            if type_ == "BOOLEAN":
                return {"true": True, "false": False}[text]
            if type_ == "BLOB":
                return bytes.fromhex(text.removeprefix("\\x"))
            if type_ == "TIMESTAMP":
                return datetime.datetime.fromisoformat(text)
            return float(text) if type_ == "DOUBLE" else int(text)

        for name, expected in own.items():
            cells = self.read(exports["csv"] / f"{name}.csv")
            columns = list(zip(expected.columns, expected.types, strict=True))
            found = [[value(type_, row[column]) for column, type_ in columns] for row in cells]
            assert sorted_rows(found) == expected.rows, name

    def test_formulas_are_escaped_and_numbers_are_not(self, exports: dict[str, Path]) -> None:
        marks = {row["label"]: row["value"] for row in self.read(exports["csv"] / "mark.csv")}
        assert [marks[f"label {index}"] for index in range(len(TEXTS))] == [
            "'=HYPERLINK(\"http://evil\",\"x\")", "'+1+cmd|'/c calc'!A0", "'-2+3", "'@SUM(A1)", "'\tx", "'\rx", "'\nx",
            "'\uff1d1", "''=quoted", "", "NULL", "plain", 'a "quoted", b;c', "two\nlines\r\nand three", "Ünï ☃ 日本",
            "\u202ereversed", "-0.5", "+1e3", "1", "nul\0byte", "''",
        ]  # fmt: skip
        assert {row["tensor_id"] for row in self.read(exports["csv"] / "execution_input.csv")} == set(map(str, INT64))
        assert "'=graph\n" in {row["graph_name"] for row in self.read(exports["csv"] / "graph.csv")}

    def test_null_is_an_empty_cell_and_an_empty_text_is_quoted(self, exports: dict[str, Path]) -> None:
        header, row = (exports["csv"] / "device.csv").read_bytes().splitlines()[:2]
        assert (header, row.split(b",")[:2]) == (b'"run_id",device_id,"device_name"', [b'"run-a"', b"0"])
        assert b',"label 9",""\r\n' in (exports["csv"] / "mark.csv").read_bytes()
        assert b",,\r\n" in (exports["csv"] / "tensor_health.csv").read_bytes()

    def test_duckdb_and_polars_read_csv_exports(self, logdir: Path, exports: dict[str, Path]) -> None:
        with open_logdir(logdir) as opened:
            ((number, total),) = opened.rows("SELECT count(*), sum(num_nan)::BIGINT FROM tensor_health")
        path = exports["csv"] / "tensor_health.csv"
        with duckdb.connect() as connection:
            found = connection.sql(
                f"SELECT count(*), sum(num_nan)::BIGINT FROM read_csv('{path}', allow_quoted_nulls = false)"
            ).fetchall()
            marks = connection.sql(
                f"SELECT value FROM read_csv('{exports['csv'] / 'mark.csv'}', allow_quoted_nulls = false, "
                "all_varchar = true)"
            ).fetchall()
        assert found == [(number, total)]
        assert [unquoted(value) for (value,) in marks] == list(TEXTS)
        frame = pl.read_csv(path)
        assert (frame.height, frame["num_nan"].sum()) == (number, total)
        assert [
            unquoted(value) for value in pl.read_csv(exports["csv"] / "mark.csv", infer_schema=False)["value"]
        ] == list(TEXTS)


class TestDuckDB:
    def test_tables_and_views_give_the_rows_of_the_logdir(self, own: dict[str, Own], exports: dict[str, Path]) -> None:
        with duckdb.connect(str(exports["duckdb"]), read_only=True) as connection:
            for name, expected in own.items():
                relation = connection.sql(f'SELECT * FROM "{name}"')
                assert (tuple(relation.columns), sorted_rows(relation.fetchall())) == (expected.columns, expected.rows)

    def test_it_opens_without_this_package_and_has_comments_on_columns(self, exports: dict[str, Path]) -> None:
        code = (
            "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); "
            'print(c.sql("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchall()[0][0], '
            "c.sql(\"SELECT comment FROM duckdb_columns() WHERE table_name = 'mark' AND column_name = 'value'\")"
            ".fetchall()[0][0], 'tfdbg_arrow' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, exports["duckdb"]], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"{len(KEPT_VIEWS)} The label's value as text. False\n"


class TestSQLite:
    def test_tables_and_views_give_the_rows_of_the_logdir(self, own: dict[str, Own], exports: dict[str, Path]) -> None:
        def as_sqlite(value: Any) -> Any:
            if isinstance(value, datetime.datetime):
                return value.isoformat(sep=" ", timespec="microseconds")
            return ("float", "0.0") if value == ("float", "-0.0") else int(value) if isinstance(value, bool) else value

        with sqlite3.connect(exports["sqlite"]) as connection:
            for name, expected in own.items():
                cursor = connection.execute(f'SELECT * FROM "{name}"')
                found = sorted_rows(cursor.fetchall())
                assert tuple(column[0] for column in cursor.description) == expected.columns
                assert found == sorted([tuple(map(as_sqlite, row)) for row in expected.rows], key=repr), name

    def test_all_views_except_alert_and_those_that_are_computed_are_views(self, exports: dict[str, Path]) -> None:
        with sqlite3.connect(exports["sqlite"]) as connection:
            views = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
            assert connection.execute("SELECT count(*) FROM alert").fetchone()[0] > 0
            sizes = connection.execute("SELECT DISTINCT json_array_length(shape) FROM tensor_health").fetchall()
        # TensorFlow's libraries contain an SQLite without a square root. After these libraries are loaded, Python uses
        # this SQLite.
        assert views == KEPT_VIEWS - {"alert"} - (set() if has_square_root() else {"variable_update"})
        assert sorted(sizes, key=repr) == [(0,), (1,), (None,)]


def has_square_root() -> bool:
    with sqlite3.connect(":memory:") as connection:
        try:
            return bool(connection.execute("SELECT sqrt(1.0)").fetchone()[0])
        except sqlite3.OperationalError:
            return False


def test_nan_infinity_and_null_in_each_format(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for index, number in enumerate((math.nan, math.copysign(math.nan, -1), math.inf, -math.inf, -0.0)):
        run.add("tensor_health", event_index=index, scope="graph", min_finite=number)
    run.write(tmp_path / "logdir")
    for name in FORMATS:
        export(tmp_path / "logdir", tmp_path / name, format=name, tables=["tensor_health"])
    found = pq.read_table(tmp_path / "parquet" / "tensor_health.parquet")
    assert list(map(repr, found["min_finite"].to_pylist())) == ["nan", "nan", "inf", "-inf", "-0.0"]
    header, *lines = (tmp_path / "csv" / "tensor_health.csv").read_bytes().decode().split("\r\n")[:-1]
    place = header.split(",").index("min_finite")
    values = [line.split(",")[place : place + 2] for line in lines]
    assert values == [["nan", ""], ["nan", ""], ["inf", ""], ["-inf", ""], ["-0.0", ""]]
    query = "SELECT min_finite, max_finite FROM tensor_health ORDER BY event_index"
    with duckdb.connect(str(tmp_path / "duckdb")) as connection:
        values = connection.sql(query).fetchall()
    assert list(map(repr, values)) == [
        "(nan, None)", "(nan, None)", "(inf, None)", "(-inf, None)", "(-0.0, None)",
    ]  # fmt: skip
    with sqlite3.connect(tmp_path / "sqlite") as connection:
        assert connection.execute(query).fetchall() == [
            ("NaN", None), ("NaN", None), (math.inf, None), (-math.inf, None), (0.0, None),
        ]  # fmt: skip


class TestChoice:
    def test_tables_and_a_run_can_be_chosen(self, logdir: Path, tmp_path: Path) -> None:
        exported = export(logdir, tmp_path / "out", format="csv", tables=["mark", "nonfinite_tensor"], run_id="run-b")
        assert exported.tables == (
            ExportedTable(name="mark", kind="table", num_rows=0),
            ExportedTable(name="nonfinite_tensor", kind="rows of a view", num_rows=1),
        )
        assert sorted(path.name for path in exported.path.iterdir()) == ["mark.csv", "nonfinite_tensor.csv"]
        assert exported.size_bytes == sum(path.stat().st_size for path in exported.path.iterdir())

    @pytest.mark.parametrize("name", FORMATS)
    def test_large_views_are_left_out_where_they_would_be_rows(self, name: str, logdir: Path, tmp_path: Path) -> None:
        exported = export(logdir, tmp_path / "out", format=name)
        left_out = LARGE_VIEWS if name in ("parquet", "csv") else set()
        assert [table.name for table in exported.tables] == [name for name in RELATIONS if name not in left_out]
        assert exported.left_out == tuple(sorted(left_out))

    @pytest.mark.parametrize("name", FORMATS)
    def test_columns_can_be_chosen(self, name: str, logdir: Path, tmp_path: Path) -> None:
        tables = ["mark.value", "mark.label", "stack.func", "stack_frame.func", "stack_frame"]
        exported = export(logdir, tmp_path / "out", format=name, tables=tables)
        assert [(table.name, table.kind) for table in exported.tables] == [
            ("stack_frame", "table"), ("mark", "table"), ("stack", "rows of a view"),
        ]  # fmt: skip
        with (
            duckdb.connect() as connection,
            sqlite3.connect(tmp_path / "out" if name == "sqlite" else ":memory:") as db,
        ):
            if name == "duckdb":
                connection.execute(f"ATTACH '{tmp_path / 'out'}' AS exported (READ_ONLY)")
                connection.execute("USE exported")

            def columns(relation: str) -> list[str]:
                if name == "sqlite":
                    return [column for column, *_ in db.execute(f"SELECT * FROM {relation}").description]
                file = f"'{tmp_path / 'out' / relation}.{name}'"
                return connection.sql(f"FROM {relation if name == 'duckdb' else file}").columns

            assert (columns("mark"), columns("stack")) == (["label", "value"], ["func"])
            assert "file_path" in columns("stack_frame")

    @pytest.mark.parametrize("name", ["duckdb", "sqlite"])
    def test_an_exported_view_includes_the_tables_and_views_that_it_reads(
        self, name: str, logdir: Path, tmp_path: Path
    ) -> None:
        exported = export(logdir, tmp_path / "out", format=name, tables=["op_source"])
        assert [(table.name, table.kind) for table in exported.tables] == [
            ("stack_frame", "table"), ("stack_trace", "table"), ("graph", "table"), ("graph_op", "table"),
            ("executed_op", "table"), ("recorded_op", "view"), ("stack", "view"), ("user_frame", "view"),
            ("op_source", "view"),
        ]  # fmt: skip

    def test_errors_for_unknown_formats_tables_runs_and_logdirs(self, logdir: Path, tmp_path: Path) -> None:
        for arguments, message in (
            (
                {"format": "excel"},
                "the format is 'excel', expected one of parquet, csv, duckdb, sqlite, delta, iceberg.",
            ),
            ({"format": "csv", "tables": ["tensors"]}, "table 'tensors' is unknown; there are run, device, "),
            ({"format": "csv", "tables": []}, "no table is named"),
            ({"format": "sqlite", "tables": ["stack.x"]}, "stack has no column 'x'; it has run_id, "),
            ({"format": "csv", "tables": ["mark.x"]}, "mark has no column 'x'; it has run_id, event_index, "),
            ({"format": "csv", "run_id": "run-z"}, "run 'run-z' is not in"),
        ):
            with pytest.raises(QueryError, match=message):
                export(logdir, tmp_path / "out", **arguments)  # type: ignore[arg-type]
        with pytest.raises(LogdirError, match="does not exist"):
            export(tmp_path / "nowhere", tmp_path / "out", format="csv")
        assert list(tmp_path.iterdir()) == []


class TestTarget:
    @pytest.mark.parametrize("name", FORMATS)
    def test_an_existing_target_is_only_replaced_on_request(self, name: str, logdir: Path, tmp_path: Path) -> None:
        target = tmp_path / "out"
        export(logdir, target, format=name, tables=["mark", "run"])
        with pytest.raises(ExportError, match=r"out already exists; give another path, or --overwrite to replace it\."):
            export(logdir, target, format=name)
        exported = export(logdir, target, format=name, tables=["run"], overwrite=True)
        assert [table.name for table in exported.tables] == ["run"]
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert not (target / "mark.csv").exists()

    def test_overwrite_replaces_only_exports(self, logdir: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.csv").write_text("x")
        (tmp_path / "file").write_text("x")
        for target, name, message in (
            (tmp_path / "mine", "csv", "is not a directory with only the"),
            (tmp_path / "file", "csv", "is not a directory with only the"),
            (tmp_path / "mine", "sqlite", "is not a file"),
            (logdir, "csv", "is a logdir of tfdbg_arrow"),
            (logdir / "mark" / "out", "csv", "is inside .*, a logdir of tfdbg_arrow"),
        ):
            with pytest.raises(ExportError, match=message):
                export(logdir, target, format=name, overwrite=True)
        with pytest.raises(ExportError, match="s3://bucket/x is a URL; export to a local path"):
            export(logdir, "s3://bucket/x", format="csv")
        assert (tmp_path / "mine" / "thesis.csv").exists()

    def test_the_target_may_be_an_empty_directory_or_have_missing_parents(self, logdir: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for target in (tmp_path / "empty", tmp_path / "a" / "b"):
            assert export(logdir, target, format="csv", tables=["run"]).path == target

    @pytest.mark.parametrize("name", FORMATS)
    def test_a_failed_export_leaves_no_files(self, name: str, logdir: Path, tmp_path: Path) -> None:
        def fail(table: str, num_done: int, num_all: int) -> None:
            if num_done == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            export(logdir, tmp_path / "out", format=name, progress=fail)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["csv", "duckdb"])
    def test_a_killed_export_leaves_no_file_at_the_target_path(self, name: str, logdir: Path, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys\n"
            "from tfdbg_arrow.query import export\n"
            "def kill(table, num_done, num_all):\n"
            "    if num_done == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
            "export(sys.argv[1], sys.argv[2], format=sys.argv[3], progress=kill)\n"
        )
        command = [sys.executable, "-c", code, str(logdir), str(tmp_path / "out"), name]
        assert subprocess.run(command, check=False).returncode == -9
        assert [path.name[:5] for path in tmp_path.iterdir() if not path.name.endswith(".wal")] == [".out."]

    def test_the_error_for_a_target_that_cannot_be_written(self, logdir: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(ExportError, match="cannot be"):
            export(logdir, tmp_path / "file" / "out", format="csv")


def test_the_error_for_a_broken_part_names_it_in_every_format(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for index in range(2000):
        run.add("mark", event_index=index, label="label", value=f"{index * 7919 % 10007:x}" * 20)
    logdir = run.write(tmp_path / "logdir")
    (part,) = (logdir / "mark" / "run=run-a").iterdir()
    content = bytearray(part.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 400] = bytes(400)
    part.write_bytes(bytes(content))
    for name in FORMATS:
        with pytest.raises(BrokenPartError, match=r"part-000000\.parquet cannot be read as Parquet"):
            export(logdir, tmp_path / "out", format=name)
        assert [path.name for path in tmp_path.iterdir()] == ["logdir"]


@pytest.mark.parametrize("name", FORMATS)
def test_parts_merged_during_an_export_are_read_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording replaces parts after the export listed the parts. No row is lost or duplicated."""
    run = RunBuilder("run-a")
    for index in range(200):
        run.add("mark", event_index=index, label="label", value=str(index))
    logdir = run.write(tmp_path / "logdir", parts=4)
    old = sorted((logdir / "mark" / "run=run-a").iterdir())
    real = Rows.select
    merged: list[bool] = []

    def merge(rows: Rows, *arguments: Any, **options: Any) -> str:
        if not merged:
            merged.append(True)
            manifest = logdir / "manifest" / "run-a.jsonl"
            part = old[0].with_name("part-000009.parquet")
            pq.write_table(pa.concat_tables([pq.ParquetFile(path).read() for path in old]), part)
            entry = {
                "table": "mark", "path": str(part.relative_to(logdir)), "rows": 200, "bytes": part.stat().st_size,
                "sha256": "0" * 64, "min_event_index": 0, "max_event_index": 199,
            }  # fmt: skip
            removed = [str(path.relative_to(logdir)) for path in old]
            line = {"op": "replace", "removed": removed, "added": [entry]}
            manifest.write_text(resealed(manifest.read_text() + json.dumps(line)))
            for path in old:
                path.unlink()
        return real(rows, *arguments, **options)

    monkeypatch.setattr(Rows, "select", merge)
    exported = export(logdir, tmp_path / "out", format=name, tables=["mark"])
    assert (merged, exported.tables[0].num_rows) == ([True], 200)


@pytest.mark.parametrize(("name", "module"), [("delta", "deltalake"), ("iceberg", "pyiceberg.catalog.sql")])
def test_the_error_without_an_optional_package_gives_the_command(
    name: str, module: str, logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    package = module.partition(".")[0]
    with pytest.raises(MissingDependencyError, match=rf"{package} .*is not installed; run: pip install .*{package}"):
        export(logdir, tmp_path / "out", format=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", FORMATS)
def test_the_error_for_a_full_disk_names_the_table(name: str, tmp_path: Path) -> None:
    """A limit on the size of files makes the same write fail as a full disk."""
    run = RunBuilder("run-a")
    for index in range(2000):
        run.add("mark", event_index=index, label="label", value=f"{index * 7919 % 10007:x}" * 200)
    run.write(tmp_path / "logdir")
    code = (
        "import resource, sys\n"
        "from tfdbg_arrow.errors import ExportError\n"
        "from tfdbg_arrow.query import export, open_logdir\n"
        "with open_logdir(sys.argv[1]) as logdir:\n"
        "    logdir.rows('SELECT * FROM mark')\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "    try:\n"
        "        export(logdir, sys.argv[2], format=sys.argv[3], tables=['mark'])\n"
        "    except ExportError as error:\n"
        "        print(error)\n"
        "    print(logdir.rows('SELECT count(*) FROM mark'))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "logdir"), str(tmp_path / 'o"ut.ö'), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reason = "disk I/O error" if name == "sqlite" else "File too large"
    assert done.stdout == f"mark cannot be written ({reason}); nothing was left there.\n[(2000,)]\n"
    assert [path.name for path in tmp_path.iterdir()] == ["logdir"]
