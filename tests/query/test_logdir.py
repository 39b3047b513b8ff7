"""Test opening a logdir: errors, views, and files that change while the logdir is open."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stack import at_end_of_stack
from tfdbg_arrow.errors import BrokenPartError, FormatVersionError, LogdirError, QueryError
from tfdbg_arrow.query import first_nonfinite, open_logdir
from tfdbg_arrow.schema import TABLES

from .builder import CLEAN, NAN, RunBuilder
from .manifests import resealed

LAZY_READS: dict[str, Callable[[Any], Any]] = {
    "fetchall": lambda relation: relation.fetchall(),
    "df": lambda relation: relation.df(),
    "pl": lambda relation: relation.pl(),
    "arrow": lambda relation: relation.to_arrow_table(),
    "reader": lambda relation: relation.to_arrow_reader().read_all(),
    "numpy": lambda relation: relation.fetchnumpy(),
    "rows": lambda relation: list(relation.iter_rows()),
    "derived": lambda relation: relation.filter("1 = 1").distinct().fetchall(),
    "repr": repr,
    "file": lambda relation: relation.write_parquet(os.devnull),
}


def health_run(run_id: str = "run-a", *, rows: int = 4, bad: int = 2) -> RunBuilder:
    run = RunBuilder(run_id)
    graph = run.graph("f").op("x", "Log")
    for index in range(rows):
        run.tensor(graph, "x", NAN if index == bad else CLEAN, step=index)
    return run


class TestRefused:
    def message(self, path: Path) -> str:
        with pytest.raises(LogdirError) as caught:
            open_logdir(path)
        text = str(caught.value)
        assert "\n" not in text
        return text

    def test_a_missing_path(self, tmp_path: Path) -> None:
        path = tmp_path / "none"
        assert self.message(path) == f"{path} does not exist; give the directory that a recording wrote."

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("x")
        assert self.message(path) == f"{path} is a file; give the directory that a recording wrote."

    def test_an_empty_directory(self, tmp_path: Path) -> None:
        assert self.message(tmp_path) == f"{tmp_path} is an empty directory; give the directory that a recording wrote."

    def test_a_directory_of_debugger_v2(self, tmp_path: Path) -> None:
        (tmp_path / "tfdbg_events.1700000000.host.metadata").write_bytes(b"")
        assert self.message(tmp_path) == (
            f"{tmp_path} holds dumps of TensorFlow's Debugger V2 (tfdbg_events.* files), which are not a logdir of "
            f"tfdbg_arrow; convert them with `tfdbg-arrow import {tmp_path} LOGDIR`."
        )

    def test_another_directory(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        assert self.message(tmp_path) == (
            f"{tmp_path} is not a logdir of tfdbg_arrow: it has no tfdbg_arrow.json; "
            "give the directory that a recording wrote."
        )

    def test_a_newer_major_version(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)
        (logdir / "tfdbg_arrow.json").write_text('{"format": "tfdbg_arrow", "format_version": "3.0"}')
        with pytest.raises(FormatVersionError, match=r"3\.0.*reads only 2\.x.*install"):
            open_logdir(logdir)

    def test_a_value_that_is_not_a_path(self) -> None:
        with pytest.raises(LogdirError, match="logdir is 3, expected a path"):
            first_nonfinite(3)  # type: ignore[arg-type]


class TestViews:
    def test_every_table_is_a_view_with_its_columns(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path)) as logdir:
            for table in TABLES:
                names, _ = logdir.table(f'SELECT * FROM "{table.name}" LIMIT 0')
                assert names == tuple(column.name for column in table.columns)

    def test_a_table_without_a_part_is_empty(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)
        shutil.rmtree(logdir / "mark")
        manifest = logdir / "manifest" / "run-a.jsonl"
        kept = [line for line in manifest.read_text().splitlines(True) if json.loads(line)["table"] != "mark"]
        manifest.write_text(resealed("".join(kept)))
        with open_logdir(logdir) as opened:
            names, rows = opened.table("SELECT * FROM mark")
        assert (names[:2], rows) == (("run_id", "event_index"), [])

    def test_only_live_parts_are_shown(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path, parts=2)
        stray = logdir / "tensor_health" / "run=run-a" / "part-000009.parquet"
        shutil.copy(stray.with_name("part-000000.parquet"), stray)
        with open_logdir(logdir) as opened:
            assert opened.rows("SELECT count(*) FROM tensor_health") == [(4,)]

    def test_a_logdir_without_manifests_is_an_error(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)
        (manifest,) = (logdir / "manifest").iterdir()
        manifest.unlink()
        for skip_broken in (False, True):
            with pytest.raises(LogdirError, match="has parts, but no manifests"):
                open_logdir(logdir, skip_broken=skip_broken)
        shutil.rmtree(logdir / "manifest")
        with pytest.raises(LogdirError, match="Copy the directory manifest from the original logdir"):
            open_logdir(logdir)

    def test_a_run_id_that_looks_like_a_number_stays_text(self, tmp_path: Path) -> None:
        with open_logdir(health_run("1e5").write(tmp_path)) as opened:
            assert opened.rows("SELECT DISTINCT run_id FROM tensor_health") == [("1e5",)]

    def test_a_path_with_glob_characters_is_taken_literally(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path / "a[1]*'?{b}")) as opened:
            assert opened.rows("SELECT count(*) FROM tensor_health") == [(4,)]

    def test_derived_views_have_the_names_of_ops_graphs_and_files(self, tmp_path: Path) -> None:
        run = health_run()
        run.stack(("f.py", 3, "g", "x", "user"))
        with open_logdir(run.write(tmp_path)) as opened:
            assert opened.rows("SELECT event_index, op_name, graph_name FROM nonfinite_tensor") == [(2, "x", "f")]
            assert opened.rows("SELECT file_path, lineno, func, owner FROM stack") == [("f.py", 3, "g", "user")]

    def test_nan_in_a_float_column_is_found(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a")
        graph = run.graph("f").op("x", "Log")
        for value in (1.0, float("nan"), 2.0):
            run.tensor(graph, "x", {**CLEAN, "mean_finite": value})
        with open_logdir(run.write(tmp_path)) as opened:
            assert opened.rows("SELECT event_index FROM tensor_health WHERE isnan(mean_finite)") == [(1,)]
            assert opened.rows("SELECT event_index FROM tensor_health WHERE mean_finite > 100") == [(1,)]

    def test_duckdb_does_not_download_extensions(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened:
            settings = opened.rows(
                "SELECT value FROM duckdb_settings() "
                "WHERE name IN ('autoinstall_known_extensions', 'autoload_known_extensions')"
            )
        assert settings == [("false",), ("false",)]


class TestSql:
    def test_a_relation_with_parameters(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened:
            query = "SELECT count(*) FROM tensor_health WHERE event_index > "
            assert opened.sql(query + "?", [1]).fetchall() == [(2,)]
            assert opened.sql(query + "$least", {"least": 2}).fetchall() == [(1,)]

    def test_a_relation_has_the_methods_of_duckdb_and_is_joined_with_others(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened:
            health = opened.sql("SELECT event_index, event_index AS step FROM tensor_health")
            assert (health.columns, len(health), health.shape) == (["event_index", "step"], 4, (4, 2))
            assert "step" in health
            assert health.filter("step > 1").order("step DESC").fetchall() == [(3, 3), (2, 2)]
            other = opened.sql("SELECT 2 AS step")
            assert health.join(other, "step").fetchall() == [(2, 2)]
            assert health.union(health.limit(1)).aggregate("count(*)").fetchall() == [(5,)]
            assert pa.table(health).num_rows == pa.RecordBatchReader.from_stream(health).read_all().num_rows == 4
            assert list(health.to_arrow_reader().read_all().to_pydict()) == ["event_index", "step"]
            assert duckdb.DuckDBPyRelation.fetchall(health.limit(1).relation) == [(0, 0)]
            assert "event_index" in repr(health)
            assert len(health.df()) == 4

    @pytest.mark.parametrize("read", LAZY_READS.values(), ids=LAZY_READS)
    def test_a_part_that_breaks_before_a_relation_is_read(self, tmp_path: Path, read: Callable[[Any], Any]) -> None:
        logdir = health_run().write(tmp_path, parts=2)
        with open_logdir(logdir) as opened, open_logdir(logdir, skip_broken=True) as skipping:
            relation, skipped = (each.sql("SELECT * FROM tensor_health") for each in (opened, skipping))
            part = logdir / "tensor_health" / "run=run-a" / "part-000001.parquet"
            part.write_bytes(b"PAR1" + b"\x00" * 400 + b"PAR1")
            with pytest.raises(BrokenPartError, match=r"part-000001\.parquet cannot be read as Parquet"):
                read(relation)
            assert skipped.aggregate("count(*)").fetchall() == [(2,)]

    @pytest.mark.parametrize("read", LAZY_READS.values(), ids=LAZY_READS)
    def test_a_relation_that_cannot_be_computed(self, tmp_path: Path, read: Callable[[Any], Any]) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened:
            relation = opened.sql("SELECT CAST(op_type AS BIGINT) AS x FROM tensor_health")
            with pytest.raises(QueryError, match="Could not convert"):
                read(relation)
            assert opened.rows("SELECT count(*) FROM tensor_health") == [(4,)]

    def test_an_error_in_a_stream_that_another_library_reads(self, tmp_path: Path) -> None:
        """If a library reads a C stream, it gets only the text of an error."""
        logdir = health_run().write(tmp_path, parts=2)
        with open_logdir(logdir) as opened:
            relation = opened.sql("SELECT * FROM tensor_health")
            (logdir / "tensor_health" / "run=run-a" / "part-000001.parquet").write_bytes(b"PAR1" + b"\x00" * 400)
            with pytest.raises(
                (BrokenPartError, pa.ArrowInvalid), match=r"part-000001\.parquet cannot be read as Parquet"
            ):
                pa.table(relation)

    def test_an_error_in_the_middle_of_a_stream(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened:
            query = "SELECT CASE WHEN range < 1000000 THEN range ELSE error('no') END FROM range(1000001)"
            items = opened.sql(query).iter_rows()
            with pytest.raises(QueryError, match="no"):
                list(items)
            reader = opened.sql(query).to_arrow_reader()
            with pytest.raises(QueryError, match="no"):
                reader.read_all()

    def test_creating_a_table(self, tmp_path: Path) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened:
            opened.sql("CREATE TABLE mine AS SELECT 1 AS x")
            assert opened.rows("SELECT x FROM mine") == [(1,)]

    @pytest.mark.parametrize(
        ("query", "parameters", "why"),
        [
            ("SELEC 1", None, "syntax error"),
            ("SELECT nothing FROM run", None, "nothing"),
            ("SELECT * FROM nowhere", None, "nowhere"),
            ("SELECT CAST('x' AS INTEGER)", None, "x"),
            ("SELECT ?", None, "arameter"),
            ("SELECT error('no')", None, "no"),
        ],
    )
    def test_an_invalid_statement_is_a_query_error(
        self, tmp_path: Path, query: str, parameters: list[object] | None, why: str
    ) -> None:
        with open_logdir(health_run().write(tmp_path)) as opened, pytest.raises(QueryError, match=why):
            opened.rows(query, parameters)


class TestLive:
    def test_refresh_shows_new_parts(self, tmp_path: Path) -> None:
        with open_logdir(health_run(rows=2).write(tmp_path)) as opened:
            health_run(rows=5).write(tmp_path, parts=2)
            health_run("run-b").write(tmp_path)
            opened.refresh()
            assert opened.rows("SELECT run_id, count(*) FROM tensor_health GROUP BY 1 ORDER BY 1") == [
                ("run-a", 5),
                ("run-b", 4),
            ]
            assert [run.run_id for run in opened.runs()] == ["run-a", "run-b"]

    def test_queries_use_the_new_part_after_a_compaction(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path, parts=2)
        with open_logdir(logdir) as opened:
            compacted = health_run().write(tmp_path / "other")
            shutil.rmtree(logdir / "tensor_health")
            renamed = logdir / "tensor_health" / "run=run-a" / "part-000007.parquet"
            renamed.parent.mkdir(parents=True)
            shutil.copy(compacted / "tensor_health" / "run=run-a" / "part-000000.parquet", renamed)
            manifest = logdir / "manifest" / "run-a.jsonl"
            lines = [line for line in manifest.read_text().splitlines() if '"tensor_health"' not in line]
            entry = json.loads(
                next(
                    line
                    for line in (compacted / "manifest" / "run-a.jsonl").read_text().splitlines()
                    if '"tensor_health"' in line
                )
            )
            entry["path"] = "tensor_health/run=run-a/part-000007.parquet"
            manifest.write_text(resealed("\n".join([*lines, json.dumps(entry)])))
            assert opened.rows("SELECT count(*), max(event_index) FROM tensor_health") == [(4, 3)]

    @pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "cut"])
    def test_the_error_for_a_broken_part_names_it(self, tmp_path: Path, damage: str) -> None:
        logdir = health_run().write(tmp_path, parts=2)
        part = logdir / "tensor_health" / "run=run-a" / "part-000001.parquet"
        content = part.read_bytes()
        part.unlink()
        if damage != "missing":
            part.write_bytes({"empty": b"", "garbage": b"x" * 1000, "cut": content[: len(content) // 2]}[damage])
        with pytest.raises(BrokenPartError) as caught:
            first_nonfinite(logdir)
        assert str(part) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_column_of_another_type_is_converted_or_refused(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)
        part = logdir / "tensor_health" / "run=run-a" / "part-000000.parquet"
        table = pq.read_table(part, partitioning=None)
        for name, type_ in (("event_index", pa.string()), ("op_type", pa.int64())):
            at = table.schema.names.index(name)
            values = [str(i) if type_ == pa.string() else i for i in range(table.num_rows)]
            table = table.set_column(at, name, pa.array(values, type_))
        pq.write_table(table, part)
        with open_logdir(logdir) as opened:
            assert opened.rows("SELECT event_index, op_type FROM tensor_health ORDER BY event_index")[1] == (1, "1")
        bad = table.set_column(table.schema.names.index("rank"), "rank", pa.array(["x"] * table.num_rows))
        pq.write_table(bad, part)
        with open_logdir(logdir) as opened, pytest.raises(QueryError, match="'x'"):
            opened.rows("SELECT rank FROM tensor_health")

    def test_the_error_for_a_part_that_breaks_after_opening_names_it(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path, parts=2)
        with open_logdir(logdir) as opened:
            part = logdir / "tensor_health" / "run=run-a" / "part-000001.parquet"
            part.write_bytes(b"PAR1" + b"\x00" * 400 + b"PAR1")
            with pytest.raises(BrokenPartError) as caught:
                opened.rows("SELECT * FROM tensor_health")
        assert str(part) in str(caught.value)

    @pytest.mark.slow
    def test_changed_bytes_cause_no_error_but_broken_part_error(self, tmp_path: Path) -> None:
        logdir = health_run(rows=200).write(tmp_path)
        part = logdir / "tensor_health" / "run=run-a" / "part-000000.parquet"
        content = part.read_bytes()
        errors = []
        for position in range(0, len(content), 397):
            part.write_bytes(content[:position] + bytes([content[position] ^ 0x5A]) + content[position + 1 :])
            try:
                with open_logdir(logdir) as opened:
                    opened.rows("SELECT * FROM tensor_health")
            except BrokenPartError as error:
                errors.append(str(error))
        assert errors
        assert all("tensor_health" in error for error in errors)


class TestEndOfStack:
    """A RecursionError that the program causes is not reported as a damaged file or a refused statement."""

    def test_opening_and_asking(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)

        def ask() -> tuple[object, ...]:
            with open_logdir(logdir) as opened:
                return opened.rows("SELECT count(*) FROM tensor_health"), opened.runs()[0].run_id

        at_end_of_stack(ask, expected=ask())

    @pytest.mark.slow
    def test_answers(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)
        expected = first_nonfinite(logdir)
        at_end_of_stack(lambda: first_nonfinite(logdir), expected=expected)

    def test_a_manifest_that_is_nested_too_deeply_is_damaged(self, tmp_path: Path) -> None:
        logdir = health_run().write(tmp_path)
        manifest = logdir / "manifest" / "run-a.jsonl"
        manifest.write_text("[" * 200_000 + "]" * 200_000 + "\n")
        with pytest.raises(LogdirError, match="nested too deeply"):
            open_logdir(logdir)


def test_info_counts_rows_bytes_and_bad_tensors(tmp_path: Path) -> None:
    logdir = health_run().write(tmp_path, parts=2)
    with open_logdir(logdir) as opened:
        info = opened.info()
    tables = {table.name: table for table in info.tables}
    files = list((logdir / "tensor_health").rglob("*.parquet"))
    assert (tables["tensor_health"].rows, tables["tensor_health"].parts) == (4, 2)
    assert tables["tensor_health"].bytes == sum(file.stat().st_size for file in files)
    assert info.bytes == sum(file.stat().st_size for file in logdir.rglob("*.parquet"))
    assert (info.num_tensors, info.num_nonfinite) == (4, 1)
    assert info.first_wall_time_ns is not None
    assert info.last_wall_time_ns == info.first_wall_time_ns + 3000
    assert [run.run_id for run in info.runs] == ["run-a"]
