"""Test views that are created on first use. The views show the parts of all runs or of one run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError
from tfdbg_arrow.query import first_nonfinite, open_logdir
from tfdbg_arrow.schema import TABLES

from .builder import CLEAN, NAN, RunBuilder


def program(run_id: str, *, tensors: int = 3, bad: int | None = None, start: int = 0) -> RunBuilder:
    run = RunBuilder(run_id, wall_time_ns=1_700_000_000_000_000_000 + start * 10**9)
    graph = run.graph("f").op("x", "Log")
    for index in range(tensors):
        run.tensor(graph, "x", NAN if index == bad else CLEAN, step=index)
    return run


def part_of(logdir: Path, run_id: str, number: int = 0, table: str = "tensor_health") -> Path:
    return logdir / table / f"run={run_id}" / f"part-{number:06}.parquet"


def without(part: Path, column: str) -> None:
    """Removes a column from a part. The part then looks like a part of an older MINOR version."""
    data = pq.ParquetFile(part).read()
    pq.write_table(data.drop_columns([column]), part)


class TestOneRun:
    def test_it_shows_the_rows_of_that_run(self, tmp_path: Path) -> None:
        program("run-a").write(tmp_path)
        program("run-b", tensors=5).write(tmp_path, parts=2)
        with open_logdir(tmp_path) as logdir:
            for run_id, number in (("run-a", 3), ("run-b", 5), ("run-a", 3), ("run-c", 0)):
                found = logdir.of_run(run_id).rows("SELECT run_id, count(*) FROM tensor_health GROUP BY run_id")
                assert found == ([(run_id, number)] if number else [])
            assert logdir.rows("SELECT count(*) FROM tensor_health") == [(8,)]

    @pytest.mark.parametrize("max_rows", [0, 1_000])
    def test_tables_and_views_of_one_run_are_those_of_the_logdir(
        self, max_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tfdbg_arrow.query.logdir.live_views._MAX_LOADED_ROWS", max_rows)
        run = program("run-a", bad=1)
        run.stack(("f.py", 3, "g", "x", "user"))
        with open_logdir(run.write(tmp_path)) as logdir:
            for name in [*(table.name for table in TABLES), "nonfinite_tensor", "user_frame", "alert"]:
                query = f'SELECT * FROM "{name}" ORDER BY ALL'
                assert logdir.of_run("run-a").table(query) == logdir.table(query), name

    def test_it_follows_a_refresh(self, tmp_path: Path) -> None:
        program("run-a").write(tmp_path)
        with open_logdir(tmp_path) as logdir:
            run = logdir.of_run("run-a")
            assert run.rows("SELECT count(*) FROM tensor_health") == [(3,)]
            program("run-a", tensors=7).write(tmp_path, parts=2)
            assert run.rows("SELECT count(*) FROM tensor_health") == [(3,)]
            logdir.refresh()
            assert run.rows("SELECT count(*) FROM tensor_health") == [(7,)]

    def test_a_run_is_still_correct_after_queries_of_many_other_runs(self, tmp_path: Path) -> None:
        for number in range(8):
            program(f"run-{number}", tensors=number + 1).write(tmp_path)
        with open_logdir(tmp_path) as logdir:
            scopes = [logdir.of_run(f"run-{number}") for number in range(8)]
            for _ in range(2):
                assert [scope.rows("SELECT count(*) FROM tensor_health") for scope in scopes] == [
                    [(number + 1,)] for number in range(8)
                ]

    def test_run_ids_that_differ_only_in_case(self, tmp_path: Path) -> None:
        program("run-a").write(tmp_path)
        with open_logdir(program("RUN-A", tensors=4).write(tmp_path)) as logdir:
            assert logdir.of_run("run-a").rows("SELECT count(*) FROM tensor_health") == [(3,)]
            assert logdir.of_run("RUN-A").rows("SELECT count(*) FROM tensor_health") == [(4,)]

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM tensor_health",
            'delete from "tensor_health" where event_index = 1',
            "UPDATE tensor_health SET step = 1",
            "INSERT INTO tensor_health SELECT * FROM tensor_health",
            "WITH one AS (SELECT 1) DELETE FROM tensor_health",
            "TRUNCATE tensor_health",
            "DROP TABLE IF EXISTS tensor_health",
            "ALTER TABLE tensor_health DROP COLUMN step",
            "SELECT 1; DELETE FROM tensor_health",
        ],
    )
    def test_a_statement_cannot_change_the_rows(self, statement: str, tmp_path: Path) -> None:
        with open_logdir(program("run-a").write(tmp_path)) as logdir:
            run = logdir.of_run("run-a")
            for ask in (run.sql, run.rows):
                with pytest.raises(QueryError, match="tensor_health cannot be changed"):
                    ask(statement)
            assert run.rows("SELECT count(*) FROM tensor_health") == [(3,)]
            run.sql("CREATE TABLE mine AS SELECT event_index FROM tensor_health")
            run.sql("INSERT INTO mine SELECT event_index + 10 FROM tensor_health")
            run.sql("DELETE FROM mine WHERE event_index IN (SELECT event_index FROM tensor_health)")
            assert run.rows("SELECT count(*) FROM mine") == [(3,)]


class TestSeveralVersions:
    @pytest.mark.parametrize("lacking", [0, 1, 2])
    def test_a_column_missing_from_a_part_is_null_in_its_rows(self, lacking: int, tmp_path: Path) -> None:
        program("run-a", tensors=6).write(tmp_path, parts=3)
        without(part_of(tmp_path, "run-a", lacking), "step")
        without(part_of(tmp_path, "run-a", lacking), "op_type")
        with open_logdir(tmp_path) as logdir:
            for view in (logdir, logdir.of_run("run-a")):
                rows = view.rows("SELECT event_index, op_type FROM tensor_health ORDER BY event_index")
                assert rows == [(index, None if index // 2 == lacking else "Log") for index in range(6)]

    def test_a_column_missing_from_all_parts(self, tmp_path: Path) -> None:
        program("run-a").write(tmp_path)
        without(part_of(tmp_path, "run-a"), "op_type")
        with open_logdir(tmp_path) as logdir:
            assert logdir.rows("SELECT DISTINCT op_type FROM tensor_health") == [(None,)]

    def test_the_error_for_a_missing_required_column(self, tmp_path: Path) -> None:
        program("run-a").write(tmp_path)
        without(part_of(tmp_path, "run-a"), "scope")
        with open_logdir(tmp_path) as logdir, pytest.raises(BrokenPartError, match="parts without the column 'scope'"):
            logdir.rows("SELECT count(*) FROM tensor_health")


class TestViewsOnDemand:
    def test_catalog_queries_list_every_view(self, tmp_path: Path) -> None:
        with open_logdir(program("run-a").write(tmp_path)) as logdir:
            names = {row[0] for row in logdir.rows("SHOW TABLES")}
            assert {"tensor_health", "capture_stat", "alert", "op_source"} <= names
            assert logdir.connection.sql("SELECT count(*) FROM tensor_health").fetchall() == [(3,)]

    def test_a_broken_part_that_a_query_does_not_need_is_ignored(self, tmp_path: Path) -> None:
        program("run-a", bad=0).write(tmp_path)
        part_of(tmp_path, "run-a", table="mark").write_bytes(b"x")
        assert first_nonfinite(tmp_path) is not None
        with open_logdir(tmp_path) as logdir, pytest.raises(BrokenPartError, match="mark"):
            logdir.rows("SELECT * FROM mark")

    @pytest.mark.parametrize("what", ["part", "run", "table"])
    def test_symbolic_links_out_of_the_logdir_are_refused(self, what: str, tmp_path: Path) -> None:
        logdir = program("run-a").write(tmp_path / "logdir")
        part = part_of(logdir, "run-a")
        linked = {"part": part, "run": part.parent, "table": part.parent.parent}[what]
        linked.rename(tmp_path / "elsewhere")
        linked.symlink_to(tmp_path / "elsewhere")
        with open_logdir(logdir) as opened:
            for view in (opened, opened.of_run("run-a")):
                with pytest.raises(LogdirError, match="leads through a symbolic link to"):
                    view.rows("SELECT * FROM tensor_health")
                with pytest.raises(LogdirError, match="leads through a symbolic link to"):
                    opened.parts("tensor_health")


def test_cached_runs_with_bad_tensors_are_read_again_after_a_change(tmp_path: Path) -> None:
    program("run-a", start=100).write(tmp_path)
    program("run-b", bad=2, start=200).write(tmp_path)
    with open_logdir(tmp_path) as logdir:
        assert [first.run_id for first in (logdir.first_nonfinite(), logdir.first_nonfinite()) if first] == [
            "run-b"
        ] * 2
        program("run-a", tensors=4, bad=3, start=100).write(tmp_path, parts=2)
        program("run-c", bad=0, start=0).write(tmp_path)
        logdir.refresh()
        assert [each.run_id for each in logdir.nonfinite(run_id="all")] == ["run-c", "run-a", "run-b"]
        assert logdir.nonfinite(kinds=["inf"], run_id="all") == []


@pytest.mark.slow
def test_threads_get_their_own_rows(tmp_path: Path) -> None:
    for number in range(6):
        program(f"run-{number}", tensors=number + 1).write(tmp_path)

    def ask(number: int) -> list[object]:
        query = "SELECT run_id, count(*) FROM tensor_health WHERE run_id = ? GROUP BY run_id"
        own = f"run-{number % 6}"
        return [logdir.of_run(own).rows(query, [own]), logdir.rows(query, [own])]

    with open_logdir(tmp_path) as logdir, ThreadPoolExecutor(4) as pool:
        for number, found in enumerate(pool.map(ask, range(60))):
            assert found == [[(f"run-{number % 6}", number % 6 + 1)]] * 2
