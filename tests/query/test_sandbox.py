"""Test that the sandbox answers one SELECT over the logdir, and that no query can read other data."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tfdbg_arrow.errors import QueryError, TfdbgArrowError
from tfdbg_arrow.query.sql_sandbox import Sandbox, SandboxBusyError

from .builder import CLEAN, NAN, RunBuilder


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul").op("y", "Log")
    run.tensors(graph, {"x": CLEAN, "y": NAN})
    return run.write(tmp_path_factory.mktemp("logs") / "it's a logdir")


@pytest.fixture(scope="module")
def sandbox(logdir: Path) -> Sandbox:
    return Sandbox(logdir, timeout_s=20)


def test_a_select_returns_rows_and_types(sandbox: Sandbox) -> None:
    answer = sandbox.ask(
        "SELECT op_name, num_nan, CAST('nan' AS DOUBLE) AS n, NULL AS nothing, [1, 2] AS l FROM graph_tensor "
        "ORDER BY event_index"
    )
    assert [(column.name, column.type) for column in answer.columns][:3] == [
        ("op_name", "string"),
        ("num_nan", "int64"),
        ("n", "double"),
    ]
    assert answer.rows == (("x", 0, "NaN", None, [1, 2]), ("y", 1, "NaN", None, [1, 2]))
    assert not answer.is_cut


@pytest.mark.slow
def test_broken_parts_are_skipped_on_request(logdir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(logdir, tmp_path / "logs")
    (copy / "tensor_health/run=run-a/part-000000.parquet").write_bytes(b"PAR1")
    query = "SELECT count(*) FROM tensor_health"
    with pytest.raises(TfdbgArrowError, match="cannot be read as Parquet"):
        Sandbox(copy).ask(query)
    assert Sandbox(copy, skip_broken=True).ask(query).rows == ((0,),)


@pytest.mark.slow
def test_an_answer_with_too_many_rows_is_cut_and_marked(logdir: Path) -> None:
    answer = Sandbox(logdir, max_rows=700).ask("SELECT range AS n FROM range(701)")
    assert [row[0] for row in answer.rows] == list(range(700))
    assert answer.is_cut
    assert not Sandbox(logdir, max_rows=701).ask("SELECT range AS n FROM range(701)").is_cut


def test_csv_output_escapes_formulas(sandbox: Sandbox) -> None:
    query = 'SELECT \'=1+1\' AS "a""b", -1 AS n, NULL AS nothing, \'x"y\' AS t, true AS b, [1] AS l'
    assert sandbox.csv(query) == ('"a""b","n","nothing","t","b","l"\r\n' + '"\'=1+1",-1,,"x""y",true,"[1]"\r\n')


@pytest.mark.parametrize(
    "query",
    [
        "",
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO '{path}/written.csv'",
        "CREATE TABLE t AS SELECT 1",
        "SET memory_limit = '100GB'",
        "ATTACH '{path}/other.db'",
        "INSTALL httpfs",
        "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
        "PRAGMA enable_external_access = true",
    ],
)
def test_statements_other_than_one_select_are_refused(sandbox: Sandbox, tmp_path: Path, query: str) -> None:
    with pytest.raises(QueryError, match="expected one SELECT"):
        sandbox.ask(query.format(path=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_blob('{logdir}/../secret.txt')",
        "SELECT * FROM '{logdir}/../secret.parquet'",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM read_text('http://127.0.0.1:9/x')",
        "SELECT * FROM logdir",  # a Python variable of the process
        "SELECT * FROM read_text('{logdir}/linked.txt')",
    ],
)
def test_no_files_except_parts_are_opened(sandbox: Sandbox, logdir: Path, query: str) -> None:
    secret = logdir.parent / "secret.txt"
    secret.write_text("secret")
    link = logdir / "linked.txt"
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    with pytest.raises(QueryError) as refused:
        sandbox.ask(query.format(logdir=str(logdir).replace("'", "''")))
    assert "root:" not in str(refused.value)
    assert "Permission Error" in str(refused.value) or "Catalog Error" in str(refused.value)


@pytest.mark.slow
def test_queries_that_need_too_much_time_or_memory_are_stopped(logdir: Path) -> None:
    with pytest.raises(QueryError, match=r"longer than 0\.5 seconds"):
        Sandbox(logdir, timeout_s=0.5).ask("SELECT count(*) FROM range(100000000) AS a, range(100000) AS b")
    small = Sandbox(logdir, memory_limit=64 << 20)
    with pytest.raises(QueryError, match=r"(?i)memory"):
        small.ask("SELECT list(range) FROM range(100000000)")
    with pytest.raises(QueryError, match=r"bytes, expected at most"):
        small.ask("SELECT repeat('x', 100000) FROM range(200)")
    assert small.ask("SELECT 1").rows == ((1,),)


@pytest.mark.slow
def test_a_second_query_is_refused_while_one_runs(logdir: Path) -> None:
    sandbox = Sandbox(logdir, timeout_s=3)
    failures: list[Exception] = []

    def ask_long() -> None:
        try:
            sandbox.ask("SELECT count(*) FROM range(100000000) AS a, range(100000) AS b")
        except QueryError as error:
            failures.append(error)

    thread = threading.Thread(target=ask_long)
    thread.start()
    try:
        while not sandbox.is_busy:
            pass
        with pytest.raises(SandboxBusyError):
            sandbox.ask("SELECT 1")
    finally:
        thread.join()
    assert "longer than 3 seconds" in str(failures[0])
    assert sandbox.ask("SELECT 1").rows == ((1,),)
