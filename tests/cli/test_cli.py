"""The command line: exit codes, JSON, and text that a terminal can be shown."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner, Result

from tfdbg_arrow._version import __version__
from tfdbg_arrow.cli import app
from tfdbg_arrow.query import LogdirInfo, NonFinite, open_logdir

from ..query.builder import CLEAN, RunBuilder, counts

SOURCE = "def loss(probs):\n    clipped = probs\n\treturn tf.math.log(clipped)  # [bold]x\n\x1b[31mred\n"


def run_cli(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    run.tensor(run.graph("f").op("x", "Mul"), "x", CLEAN)
    return run.write(tmp_path / "healthy")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    run = RunBuilder("run-a")
    stack = run.stack(
        ("/site/tensorflow/ops.py", 1, "apply", None, "framework"),
        ("/home/me/[red]train\x1b[0m.py", 3, "loss", "return tf.math.log(clipped)", "user"),
        ("/site/tensorflow/call.py", 2, "call", None, "framework"),
        ("/usr/lib/python3/runpy.py", 2, "run", None, "library"),
    )
    run.add("source_file", source_file_id=0, file_path="/home/me/[red]train\x1b[0m.py", source_text=SOURCE)
    graph = run.graph("loss\x07").op("probs", "Softmax").op("Log", inputs=["probs"], stack=stack)
    run.tensor(graph, "probs", counts(zero=2, pos=4))
    run.tensor(graph, "Log", counts(neg_inf=2, neg=4))
    return run.write(tmp_path / "bad")


class TestFirstNonfinite:
    def test_healthy_is_exit_code_0(self, healthy: Path) -> None:
        result = run_cli("first-nonfinite", healthy)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == "Nothing is bad: no recorded tensor holds one of nan, inf.\n"

    def test_bad_is_exit_code_1_and_names_everything(self, bad: Path) -> None:
        result = run_cli("first-nonfinite", bad)
        assert (result.exit_code, result.stderr) == (1, "")
        assert result.stdout.splitlines() == [
            "-Inf in Log:0 (Log)",
            "  graph   loss\\x07",
            "  tensor  float32 [6]: 2 -Inf, 4 negative of 6 elements",
            "  device  /job:localhost/replica:0/task:0/device:CPU:0",
            "  event   1, 2023-11-14 22:13:20.000001 UTC, run run-a",
            "  origin  yes: no input holds what it holds",
            "",
            "inputs",
            "  0  probs:0 (Softmax) in loss\\x07",
            "     float32 [6]: 2 zero, 4 positive of 6 elements",
            "",
            "stack, innermost first",
            "  /home/me/[red]train\\x1b[0m.py:3 in loss",
            "      return tf.math.log(clipped)",
            "  and 2 framework and 1 library frames",
            "",
            "source /home/me/[red]train\\x1b[0m.py:3",
            "  1 | def loss(probs):",
            "  2 |     clipped = probs",
            "> 3 |     return tf.math.log(clipped)  # [bold]x",
            "  4 | \\x1b[31mred",
            "  5 |",
        ]

    def test_json_has_the_dataclass(self, bad: Path) -> None:
        result = run_cli("first-nonfinite", bad, "--json")
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert list(found) == ["logdir", "kinds", "nonfinite", "source_lines", "left_out", "unobserved"]
        assert list(found["nonfinite"]) == [field.name for field in dataclasses.fields(NonFinite)]
        assert found["nonfinite"]["shape"] == [6]
        assert found["nonfinite"]["source"]["lineno"] == 3
        assert found["nonfinite"]["inputs"] == [
            {
                "index": 0,
                "health": {
                    "event_index": 0,
                    "dtype": "float32",
                    "shape": [6],
                    "size": 6,
                    "has_inf_or_nan": False,
                    "num_neg_inf": 0,
                    "num_pos_inf": 0,
                    "num_nan": 0,
                    "num_neg_finite": 0,
                    "num_zero": 2,
                    "num_pos_finite": 4,
                    "num_subnormal": None,
                    "min_finite": None,
                    "max_finite": None,
                    "mean_finite": None,
                    "stddev_finite": None,
                    "max_abs_finite": None,
                },
                "producer": {
                    "op_type": "Softmax",
                    "op_name": "probs",
                    "graph_name": "loss\x07",
                    "output_slot": 0,
                    "event_index": 0,
                    "execution_index": None,
                    "how": "graph",
                },
            }
        ]

    def test_json_of_a_healthy_logdir(self, healthy: Path) -> None:
        result = run_cli("first-nonfinite", healthy, "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {
            "logdir": str(healthy),
            "kinds": ["nan", "inf"],
            "nonfinite": None,
            "source_lines": [],
            "left_out": {},
            "unobserved": None,
        }

    def test_kinds_and_run_are_options(self, bad: Path) -> None:
        assert run_cli("first-nonfinite", bad, "--kinds", "nan").exit_code == 0
        assert run_cli("first-nonfinite", bad, "--kinds", "inf", "--run-id", "run-a").exit_code == 1
        assert run_cli("first-nonfinite", bad, "--kinds", "zero").exit_code == 2
        assert run_cli("first-nonfinite", bad, "--run-id", "run-z").exit_code == 2

    def test_a_mode_that_measures_nothing_is_not_called_clean(self, tmp_path: Path) -> None:
        run = RunBuilder("run-a", tensor_debug_mode="NO_TENSOR")
        result = run_cli("first-nonfinite", run.write(tmp_path))
        assert (result.exit_code, result.stdout) == (2, "")
        assert "run-a (NO_TENSOR)" in result.stderr

    def test_one_such_run_among_others_is_a_warning(self, healthy: Path) -> None:
        RunBuilder("run-b", tensor_debug_mode="SHAPE").write(healthy)
        result = run_cli("first-nonfinite", healthy)
        assert result.exit_code == 0
        assert "warning" in result.stderr
        assert "run-b (SHAPE)" in result.stderr


class TestSql:
    QUERY = (
        "SELECT 'a,b' AS text, 'nan'::DOUBLE AS x, 1 AS n, NULL AS nothing, true AS yes, "
        r"'\x41\xC3\xBF'::BLOB AS b, [1] AS l"
    )

    def test_json(self, healthy: Path) -> None:
        for options in (("--json",), ("--format", "json")):
            result = run_cli("sql", healthy, self.QUERY, *options)
            assert result.exit_code == 0
            assert json.loads(result.stdout) == {
                "columns": ["text", "x", "n", "nothing", "yes", "b", "l"],
                "rows": [["a,b", "NaN", 1, None, True, "QcO/", [1]]],
            }

    def test_infinities_in_json_are_text(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT unnest(['inf'::DOUBLE, '-inf'::DOUBLE, 1.5])", "--json")
        assert json.loads(result.stdout)["rows"] == [["Infinity"], ["-Infinity"], [1.5]]

    def test_csv(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, self.QUERY, "--format", "csv")
        assert list(csv.reader(io.StringIO(result.stdout))) == [
            ["text", "x", "n", "nothing", "yes", "b", "l"],
            ["a,b", "NaN", "1", "", "true", "QcO/", "[1]"],
        ]

    def test_table(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT 'x\x1b]0;[b]' AS \"a\x07\", NULL AS n, 20 AS many")
        assert [line.split() for line in result.stdout.splitlines()] == [
            ["a\\x07", "n", "many"],
            ["x\\x1b]0;[b]", "NULL", "20"],
        ]

    def test_a_long_cell_is_not_cut(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT repeat('x', 500) AS x, repeat('y', 500) AS y")
        assert result.stdout.splitlines()[1].split() == ["x" * 500, "y" * 500]

    def test_a_result_without_rows(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT label FROM mark")
        assert (result.exit_code, result.stdout.split(), result.stderr) == (0, ["label"], "")

    def test_a_wrong_statement_is_exit_code_2(self, healthy: Path) -> None:
        result = run_cli("sql", healthy, "SELECT nothing FROM run")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("tfdbg-arrow: ")
        assert "Traceback" not in result.stderr


class TestInfo:
    def test_json(self, bad: Path) -> None:
        result = run_cli("info", bad, "--json")
        assert result.exit_code == 0
        found = json.loads(result.stdout)
        assert list(found) == [field.name for field in dataclasses.fields(LogdirInfo)]
        assert (found["num_tensors"], found["num_nonfinite"]) == (2, 1)
        assert found["runs"][0]["run_id"] == "run-a"

    def test_text(self, bad: Path) -> None:
        result = run_cli("info", bad)
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert lines[0] == str(bad)
        assert "2 tensors, 1 of them bad" in lines[1]
        rows = {line.split()[0]: line.split()[1:3] for line in lines if line.startswith(("tensor_health", "graph_op "))}
        assert rows == {"tensor_health": ["2", "1"], "graph_op": ["2", "1"]}


def directory_of_debugger_v2(path: Path) -> None:
    path.mkdir()
    (path / "tfdbg_events.1.host.metadata").write_bytes(b"")


def newer_logdir(path: Path) -> None:
    RunBuilder("run-a").write(path)
    (path / "tfdbg_arrow.json").write_text('{"format": "tfdbg_arrow", "format_version": "7.0"}')


@pytest.mark.parametrize("command", [("first-nonfinite",), ("info",), ("sql", "SELECT 1")])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: path.mkdir(), "is an empty directory"),
        (directory_of_debugger_v2, "Debugger V2"),
        (newer_logdir, "reads 1.x only"),
    ],
)
def test_what_is_no_logdir_is_one_sentence_and_exit_code_2(
    tmp_path: Path, command: tuple[str, ...], make: Any, why: str
) -> None:
    path = tmp_path / "log\x1bdir"
    make(path)
    result = run_cli(command[0], path, *command[1:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


class TestWhy:
    @pytest.fixture
    def chain(self, tmp_path: Path) -> Path:
        """Softmax with a zero -> Log -> thirty Negs -> Sum, all in one graph."""
        run = RunBuilder("run-a")
        stack = run.stack(("/home/me/train.py", 3, "loss", "return tf.math.log(probs)", "user"))
        graph = run.graph("loss").op("probs", "Softmax").op("Log", inputs=["probs"], stack=stack)
        run.tensor(graph, "probs", counts(zero=1, pos=2))
        run.tensor(graph, "Log", counts(neg_inf=1, neg=2))
        before = "Log"
        for index in range(30):
            graph.op(f"Neg_{index}", "Neg", inputs=[before])
            before = f"Neg_{index}"
            run.tensor(graph, before, counts(pos_inf=1, pos=2))
        graph.op("Sum", inputs=[before, "probs"])
        run.tensor(graph, "Sum", counts(pos_inf=1))
        return run.write(tmp_path / "chain")

    def test_the_first_bad_tensor_and_what_it_took(self, chain: Path) -> None:
        result = run_cli("why", chain)
        assert result.exit_code == 1
        assert result.stdout == (
            "Log of 0: 1 of 3 elements are 0, and its logarithm is -Inf.\n\n"
            "Log:0 (Log) in loss  <- here it went bad\n"
            "    float32 [3]: 1 -Inf, 2 negative of 3 elements\n"
            "    /home/me/train.py:3  return tf.math.log(probs)\n"
            "    probs:0 (Softmax) in loss  <- healthy\n"
            "        float32 [3]: 1 zero, 2 positive of 3 elements\n"
        )

    def test_a_long_way_is_folded_but_not_silently(self, chain: Path) -> None:
        folded = run_cli("why", chain, "Sum:0").stdout
        assert "... 23 more tensors on the way; --full shows them" in folded
        assert folded.index("Sum:0 (Sum)") < folded.index("Neg_29:0") < folded.index("Log:0") < folded.index("probs:0")
        full = run_cli("why", chain, "Sum", "--full").stdout
        assert sum(f"Neg_{index}:0 (Neg)" in full for index in range(30)) == 30
        assert "more tensors" not in full
        assert run_cli("why", chain, "Sum", "--tree").stdout.count("(Neg)") == 30

    def test_json_holds_every_hop(self, chain: Path) -> None:
        with open_logdir(chain) as opened:
            ((event_index,),) = opened.rows("SELECT max(event_index) FROM tensor_health")
        hops = json.loads(run_cli("why", chain, str(event_index), "--json").stdout)["provenance"]["hops"]
        assert [hop["op_name"] for hop in hops] == ["Sum", *(f"Neg_{i}" for i in reversed(range(30))), "Log", "probs"]
        assert [hop["role"] for hop in hops] == ["propagator"] * 31 + ["origin", "cause"]
        assert all(hop["is_on_path"] for hop in hops)

    def test_a_search_that_ends_early_says_so(self, chain: Path) -> None:
        result = run_cli("why", chain, "Sum", "--limit", "5")
        assert "The search ended after 5 tensors; --limit raises that." in result.stdout

    def test_healthy_is_exit_code_0(self, healthy: Path, chain: Path) -> None:
        assert run_cli("why", healthy).exit_code == 0
        result = run_cli("why", chain, "probs")
        assert (result.exit_code, result.stdout) == (0, "Nothing is bad in probs.\n")

    def test_an_unknown_tensor_is_exit_code_2(self, chain: Path) -> None:
        result = run_cli("why", chain, "Nosuch")
        assert result.exit_code == 2
        assert result.stderr.startswith("tfdbg-arrow: Nosuch names no recorded tensor of ")


class TestSchema:
    def test_names_every_table_and_view(self) -> None:
        text = run_cli("schema").stdout
        assert all(f"  {name} " in text for name in ("tensor_health", "capture_stat", "op_source", "nonfinite_tensor"))

    def test_a_table_and_a_view_by_name(self) -> None:
        assert "lineno" in run_cli("schema", "stack_frame").stdout
        assert run_cli("schema", "stack").stdout.startswith("-- One row is one frame of one distinct stack trace")

    def test_the_script_for_a_plain_client(self, bad: Path) -> None:
        result = run_cli("schema", "--sql", bad)
        assert result.exit_code == 0
        with duckdb.connect() as plain:
            plain.execute(result.stdout)
            assert plain.sql("SELECT op_name FROM nonfinite_tensor").fetchall() == [("Log",)]

    def test_json(self) -> None:
        content = json.loads(run_cli("schema", "--json").stdout)
        assert {"run", "tensor_health"} <= {table["name"] for table in content["tables"]}
        assert all(view["text"].startswith("-- One row is ") for view in content["views"])

    def test_errors_are_exit_code_2(self, tmp_path: Path) -> None:
        unknown = run_cli("schema", "nope")
        assert (unknown.exit_code, unknown.stderr.split(";")[0]) == (2, "tfdbg-arrow: 'nope' is no table or view")
        assert run_cli("schema", "--sql", tmp_path / "missing").exit_code == 2


class TestAlerts:
    def test_what_was_found_is_exit_code_1(self, bad: Path) -> None:
        result = run_cli("alerts", bad)
        assert result.exit_code == 1
        assert result.stdout.startswith(
            "error nonfinite_origin: Log:0 (Log) in loss\\x07\n    A bad value came up here"
        )
        assert "warning nonfinite: Log:0 (Log)" in result.stdout

    def test_a_healthy_logdir_is_exit_code_0(self, healthy: Path) -> None:
        result = run_cli("alerts", healthy)
        assert (result.exit_code, result.stdout) == (0, "No rule found anything.\n")

    def test_what_is_cut_is_said(self, bad: Path) -> None:
        result = run_cli("alerts", bad, "--limit", "0")
        assert result.exit_code == 1
        assert result.stdout == ("2 more are not shown (1 of nonfinite, 1 of nonfinite_origin); --limit raises that.\n")

    def test_json(self, bad: Path) -> None:
        content = json.loads(run_cli("alerts", bad, "--rule", "nonfinite", "--json").stdout)
        assert content["num_found"] == {"nonfinite": 1}
        assert [alert["op_name"] for alert in content["alerts"]] == ["Log"]

    def test_check_is_for_ci(self, bad: Path, healthy: Path) -> None:
        assert run_cli("check", bad).exit_code == 1
        clean = run_cli("check", healthy)
        assert (clean.exit_code, clean.stdout) == (0, "Nothing found by nonfinite_origin.\n")
        assert run_cli("check", bad, "--rule", "retracing").exit_code == 0
        assert run_cli("check", bad, "--rule", "retracing", "--set", "retracing.num_graphs=1").exit_code == 1

    def test_errors_are_exit_code_2(self, bad: Path) -> None:
        for arguments in (["--rule", "nope"], ["--set", "nope"], ["--set", "overflow_near.bits=x"]):
            result = run_cli("alerts", bad, *arguments)
            assert result.exit_code == 2
            assert result.stderr.startswith("tfdbg-arrow: ")


def test_version() -> None:
    result = run_cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"tfdbg-arrow {__version__}\n")


def test_a_wrong_option_is_exit_code_2() -> None:
    assert run_cli("info").exit_code == 2
    assert run_cli("no-such-command").exit_code == 2


def test_the_module_runs_as_the_command_does(bad: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tfdbg_arrow", "first-nonfinite", str(bad)],
        capture_output=True,
        text=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (found.returncode, found.stderr) == (1, "")
    assert found.stdout == run_cli("first-nonfinite", bad).stdout


def test_reading_a_logdir_loads_neither_tensorflow_nor_the_writer(bad: Path) -> None:
    code = (
        "import sys, tfdbg_arrow; assert 'duckdb' not in sys.modules\n"
        f"assert tfdbg_arrow.first_nonfinite({str(bad)!r}).op_name == 'Log'\n"
        "print([name for name in sys.modules if name.startswith(('tensorflow', 'tfdbg_arrow.writer'))])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert found.stdout == "[]\n"


def test_help_of_every_command_says_what_it_does() -> None:
    for command in ("first-nonfinite", "sql", "info"):
        result = run_cli(command, "--help")
        assert result.exit_code == 0
        assert "LOGDIR" in result.stdout


class TestDiff:
    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        run = RunBuilder("run-b", tensorflow_version="2.17.0")
        run.tensor(run.graph("f").op("x", "Mul"), "x", counts(nan=1, pos=1))
        return run.write(tmp_path / "other")

    def test_nothing_diverges_is_exit_code_0(self, healthy: Path) -> None:
        result = run_cli("diff", healthy, healthy)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "Nothing diverges: 1 pairs of tensors were compared, in 0 pairs of executions." in result.stdout

    def test_a_divergence_is_exit_code_1_and_shows_both_sides(self, healthy: Path, other: Path) -> None:
        result = run_cli("diff", healthy, other)
        assert result.exit_code == 1
        assert "The first divergence: x:0 (Mul) has other NaN or infinities.\n" in result.stdout
        assert "     float32 [2]: 1 NaN, 1 positive of 2 elements\n" in result.stdout
        assert "  tensorflow_version: 2.21.0  |  2.17.0\n" in result.stdout

    def test_json(self, healthy: Path, other: Path) -> None:
        result = run_cli("diff", healthy, other, "--json")
        found = json.loads(result.stdout)["diff"]
        assert result.exit_code == 1
        assert (found["run_a"], found["run_b"], found["divergence"]["kind"]) == ("run-a", "run-b", "nonfinite")
        assert found["divergence"]["b"]["num_nan"] == 1

    def test_an_unknown_run_is_exit_code_2(self, healthy: Path) -> None:
        result = run_cli("diff", healthy, healthy, "--run-a", "run-z")
        assert result.exit_code == 2
        assert "run-z" in result.stderr
