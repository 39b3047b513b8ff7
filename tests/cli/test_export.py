"""Test `tfdbg-arrow export`: its output and its errors."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow

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
            (
                "no format was given; give one of --parquet, --csv, --duckdb, --sqlite, --delta, --iceberg, "
                "--debugger-v2, --tensorboard."
            ),
        ),
        (
            ("--csv", "--sqlite"),
            (
                "several formats were given; give one of --parquet, --csv, --duckdb, --sqlite, --delta, --iceberg, "
                "--debugger-v2, --tensorboard."
            ),
        ),
        (("--csv", "--follow"), "--follow was given with --csv; it works only with --tensorboard."),
        (("--debugger-v2", "--follow"), "--follow was given with --debugger-v2; it works only with --tensorboard."),
        (
            ("--tensorboard", "--table", "run"),
            "--table was given with --tensorboard; event files hold curves, and no tables.",
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
        (("--tensorboard", "--run", "run-z"), "run 'run-z' is not in {logdir}; it holds run-a."),
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


def test_event_files_are_listed_with_what_is_missing(tmp_path: Path) -> None:
    run = RunBuilder("run-a", run_name="my [run]\x1b")
    run.tensor(run.graph("f").op("x", "Mul"), "x", {**CLEAN, "step": 3})
    run.add("mark", event_index=1, step=3, label="loss", value="0.5")
    logdir, target = run.write(tmp_path / "logdir"), tmp_path / "out"
    result = run_cli("export", "--tensorboard", logdir, target)
    assert (result.exit_code, result.stderr) == (0, "")
    (file,) = (target / "run-a").iterdir()
    assert result.stdout == (
        f"{target}: event files of TensorBoard, {file.stat().st_size:,} bytes\n"
        "  run run-a, my [run]\\x1b: 1 step, 8 scalars, 0 histograms\n"
        "    Largest magnitudes, means, norms and update ratios need the mode FULL_NUMERICS; the mode of this run is "
        "FULL_HEALTH.\n"
        "    It was not recorded how the elements are distributed. To see it, record with enable(…, histograms=True), "
        "or with tfdbg-arrow run --histograms.\n"
    )
    assert run_cli("export", "--tensorboard", logdir, target).exit_code == 2
    found = json.loads(run_cli("export", "--tensorboard", "--overwrite", "--follow", "--json", logdir, target).stdout)
    assert (found["format"], found["path"], found["size_bytes"]) == ("tensorboard", str(target), file.stat().st_size)
    (told,) = found["runs"]
    assert (told["run_id"], told["axis"], told["num_scalars"], len(told["notes"])) == ("run-a", "step", 8, 2)


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_recording_is_followed_until_its_end_or_until_ctrl_c(is_stopped: bool, tmp_path: Path) -> None:
    """Another process exports the steps of a recording while they are recorded, from before its start on."""
    logdir, target = tmp_path / "logdir", tmp_path / "out"
    command = [sys.executable, "-m", "tfdbg_arrow", "export", "--tensorboard", "--follow", str(logdir), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        assert following.stderr is not None
        assert following.stderr.readline() == f"Waiting for a recording in {logdir} …\n"
        with tfdbg_arrow.capture(logdir):
            for step in itertools.count():
                tfdbg_arrow.mark(step=step, loss=1 / (1 + step))
                tf.square(tf.constant(2.0))
                if any(file.stat().st_size > 1000 for file in target.glob("*/*")):
                    break
                time.sleep(0.1)
            if is_stopped:
                following.send_signal(signal.SIGINT)
                following.wait(60)
        out, err = following.communicate(timeout=60)
    assert (following.returncode, err.strip()) == (0, "")
    num_steps = int(out.splitlines()[1].split(": ")[1].split()[0].replace(",", ""))
    assert (num_steps == step + 1) != is_stopped
    assert num_steps > 1


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


def test_large_views_that_were_left_out_are_named(logdir: Path, tmp_path: Path) -> None:
    result = run_cli("export", "--parquet", logdir, tmp_path / "out")
    assert result.exit_code == 0
    assert result.stdout.endswith(
        "\n  left out: the large views gradient_tensor, graph_tensor, nonfinite_tensor, stack, tensor_input; "
        "--table all includes them\n"
    )
    result = run_cli("export", "--parquet", "--overwrite", "--table", "all", logdir, tmp_path / "out")
    assert (result.exit_code, "left out" in result.stdout) == (0, False)
    assert (tmp_path / "out" / "graph_tensor.parquet").exists()
