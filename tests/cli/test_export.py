"""Test `tfdbg-arrow export`: its output and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..query.builder import CLEAN, RunBuilder
from .commands import run_cli


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    graph = run.graph("f").op("x", "Mul")
    run.tensor(graph, "x", CLEAN, execution=run.execution("f", graph=graph, inputs=[7]))
    run.external(7, CLEAN, execution=0)
    return run.write(tmp_path / "logdir")


def test_it_prints_what_was_written_and_what_was_left_out(logdir: Path, tmp_path: Path) -> None:
    result = run_cli("export", "--debugger-v2", logdir, tmp_path / "dump")
    assert (result.exit_code, result.stderr) == (0, "")
    size = sum(path.stat().st_size for path in (tmp_path / "dump").iterdir())
    assert result.stdout == (
        "run run-a, FULL_HEALTH\n"
        f"  {tmp_path / 'dump'}: {size:,} bytes\n"
        "  records: 1 metadata, 1 source file, 1 stack frame, 3 graphs, 1 execution, 1 graph execution trace\n"
        "  left out: 1 row of tensor_health. "
        "Debugger V2 does not support tensors that come from outside all recorded ops.\n"
    )


def test_json_holds_the_same(logdir: Path, tmp_path: Path) -> None:
    result = run_cli("export", "--debugger-v2", "--json", logdir, tmp_path / "dump")
    found = json.loads(result.stdout)
    (run,) = found["runs"]
    assert (found["format"], run["run_id"], run["dump"]) == ("debugger_v2", "run-a", str(tmp_path / "dump"))
    assert (run["tensor_debug_mode"], run["notes"]) == ("FULL_HEALTH", [])
    assert run["num_records"]["graph_execution_traces"] == 1
    assert [item["num_rows"] for item in run["left_out"]] == [1]


def test_the_mode_and_the_run_can_be_chosen(logdir: Path, tmp_path: Path) -> None:
    RunBuilder("run-b").write(logdir)
    chosen = ("--run", "run-a", "--tensor-debug-mode", "SHAPE", "--json")
    result = run_cli("export", "--debugger-v2", logdir, tmp_path / "dump", *chosen)
    assert [(run["run_id"], run["tensor_debug_mode"]) for run in json.loads(result.stdout)["runs"]] == [
        ("run-a", "SHAPE")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "no format was given; give one of --parquet, --csv, --duckdb, --sqlite, --delta, --iceberg, --debugger-v2.",
        ),
        (
            ("--csv", "--sqlite"),
            (
                "several formats were given; give one of --parquet, --csv, --duckdb, --sqlite, --delta, --iceberg, "
                "--debugger-v2."
            ),
        ),
        (
            ("--csv", "--tensor-debug-mode", "SHAPE"),
            "--tensor-debug-mode was given with --csv; it works only with --debugger-v2.",
        ),
        (
            ("--debugger-v2", "--overwrite"),
            "--overwrite was given with --debugger-v2; its dumps are always complete and are never replaced.",
        ),
        (
            ("--debugger-v2", "--table", "run"),
            "--table was given with --debugger-v2; its dumps are always complete and are never replaced.",
        ),
        (("--csv", "--run", "run-z"), "run 'run-z' is not in {logdir}; it holds run-a."),
        (("--debugger-v2", "--run", "run-z"), "run 'run-z' is not in {logdir}; it holds run-a."),
        (
            ("--debugger-v2", "--tensor-debug-mode", "FULL_TENSOR"),
            (
                "the run run-a was recorded in FULL_HEALTH, which cannot be exported in FULL_TENSOR, only in "
                "NO_TENSOR, CURT_HEALTH, CONCISE_HEALTH, FULL_HEALTH, SHAPE."
            ),
        ),
    ],
)
def test_a_wrong_option_gives_one_sentence(
    arguments: tuple[str, ...], message: str, logdir: Path, tmp_path: Path
) -> None:
    result = run_cli("export", logdir, tmp_path / "dump", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"tfdbg-arrow: {message.format(logdir=logdir)}\n"
    assert not (tmp_path / "dump").exists()


def test_a_wrong_source_or_target_gives_one_sentence(logdir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    assert run_cli("export", "--debugger-v2", logdir, tmp_path / "dump").exit_code == 0
    for source, target, words in (
        (tmp_path / "nowhere", tmp_path / "new", "does not exist"),
        (tmp_path / "empty", tmp_path / "new", "is an empty directory"),
        (tmp_path / "dump", tmp_path / "new", "tfdbg-arrow import"),
        (logdir, tmp_path / "file", "is a file; give a directory"),
        (logdir, tmp_path / "file" / "below", "cannot be"),
        (logdir, tmp_path / "dump", "already holds a dump"),
        (logdir, logdir, "is a logdir of tfdbg_arrow"),
    ):
        result = run_cli("export", "--debugger-v2", source, target)
        assert (result.exit_code, result.stdout) == (2, "")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "new").exists()


def test_tables_are_exported_in_the_given_format(logdir: Path, tmp_path: Path) -> None:
    RunBuilder("run-b").write(logdir)
    chosen = ("--table", "run", "--table", "op_source", "--run", "run-a")
    result = run_cli("export", "--csv", logdir, tmp_path / "out", *chosen)
    assert (result.exit_code, result.stderr) == (0, "")
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert result.stdout == (f"{tmp_path / 'out'}: csv, {size:,} bytes\n  run: 1 row\n  op_source: 1 row of a view\n")
    result = run_cli("export", "--duckdb", logdir, tmp_path / "db", *chosen, "--json")
    found = json.loads(result.stdout)
    assert (found["format"], found["path"]) == ("duckdb", str(tmp_path / "db"))
    assert found["tables"][0] == {"name": "run", "kind": "table", "num_rows": 1}
    assert found["tables"][-1] == {"name": "op_source", "kind": "view", "num_rows": None}
    again = run_cli("export", "--duckdb", logdir, tmp_path / "db", *chosen)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)
    assert run_cli("export", "--duckdb", logdir, tmp_path / "db", *chosen, "--overwrite").exit_code == 0
