"""Test the pytest plugin: which tests fail, and the messages of their failures."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .programs.running import run_to_end

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import pytest, tensorflow as tf, tfdbg_arrow

@tf.function
def logarithm(x):
    return tf.math.log(x)  # the line

@tf.function
def quotient(x):
    return tf.math.log(x) / tf.math.log(x)

def test_healthy(tfdbg_recording):
    assert tfdbg_arrow.is_recording()
    logarithm(tf.constant([1.0, 2.0]))

def test_bad(tfdbg_recording):
    logarithm(tf.constant([0.0, 1.0, 2.0]))

def test_not_recorded():
    assert not tfdbg_arrow.is_recording()
    logarithm(tf.constant([0.0]))

@pytest.mark.tfdbg
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_each(value):
    logarithm(tf.constant([value]))

def test_fails_by_itself(tfdbg_recording):
    assert bool(tf.reduce_all(tf.math.is_finite(logarithm(tf.constant([0.0]))))), "my own failure"

def test_fails_by_name(tfdbg_recording):
    logarithm(tf.constant([0.0]))
    pytest.fail("my own words")

def test_skips(tfdbg_recording):
    logarithm(tf.constant([0.0]))
    pytest.skip("not today")

@pytest.mark.xfail(reason="known", strict=True)
@pytest.mark.tfdbg
def test_known():
    logarithm(tf.constant([0.0]))

@pytest.mark.tfdbg(allow="Log")
def test_allowed():
    logarithm(tf.constant([0.0]))

@pytest.mark.tfdbg(allow="Log")
def test_only_the_log_is_allowed():
    quotient(tf.constant([0.0]))

@pytest.mark.tfdbg(kinds="nan")
def test_only_nan_is_bad():
    logarithm(tf.constant([0.0]))

@pytest.mark.tfdbg("FULL_NUMERICS", rules={"overflow_near": {"bits": 120}})
def test_rule():
    tf.exp(tf.constant([8.0]))

@pytest.mark.tfdbg("FULL_NUMERICS", rules=["overflow_near"], op_regex="Log")
def test_rule_that_finds_nothing():
    tf.exp(tf.constant([8.0]))

def test_ends_by_itself(tfdbg_recording):
    tf.math.log(tf.constant([0.0]))
    tfdbg_arrow.disable()
    tf.math.log(tf.constant([-1.0]))

def test_records_another_run_after_its_own(tfdbg_recording, tmp_path):
    logarithm(tf.constant([0.0]))
    tfdbg_arrow.disable()
    with tfdbg_arrow.capture(tmp_path / "other"):
        logarithm(tf.constant([1.0]))

@pytest.mark.tfdbg(modus="SHAPE")
def test_unknown_argument():
    pass

@pytest.mark.tfdbg("EVERYTHING")
def test_unknown_mode():
    pass

@pytest.mark.tfdbg(kinds=["nan", "zero"])
def test_unknown_kind():
    pass

@pytest.mark.tfdbg(allow="(")
def test_broken_pattern():
    pass

class TestInAClass:
    @pytest.mark.tfdbg
    def test_after_all(self, tmp_path):
        assert (tmp_path / "tfdbg_arrow" / "tfdbg_arrow.json").exists()
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a test (`passed`, `failure`, `error` or `skipped`), its message and its output."""

    how: str
    text: str
    output: str


def run(directory: Path, program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(textwrap.dedent(program))
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables}
    environment.pop("PYTEST_ADDOPTS", None)
    plugin = ("-p", "tfdbg_arrow.pytest_plugin", "-p", "no:cacheprovider", "-q", "--strict-markers")
    words = ("-m", "pytest", *plugin, f"--basetemp={directory / 'tmp'}", *arguments)
    return run_to_end(*words, cwd=directory, environment=environment)


def outcomes(directory: Path, program: str, *arguments: str, **variables: str) -> dict[str, Outcome]:
    done = run(directory, program, "--junitxml=out.xml", "-o", "junit_logging=all", *arguments, **variables)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(directory / "out.xml").iter("testcase"):
        result = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        output = "\n".join(child.text or "" for child in case if child.tag.startswith("system-"))
        how, text = ("passed", "") if result is None else (result.tag, f"{result.text}\n{result.get('message')}")
        found[str(case.get("name"))] = Outcome(how, text, output + done.stdout)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return outcomes(tmp_path_factory.mktemp("plugin"), PROGRAM)


def test_the_result_of_each_test(results: dict[str, Outcome]) -> None:
    assert {name: outcome.how for name, outcome in results.items()} == {
        "test_healthy": "passed",
        "test_bad": "failure",
        "test_not_recorded": "passed",
        "test_each[0.0]": "failure",
        "test_each[1.0]": "passed",
        "test_fails_by_itself": "failure",
        "test_fails_by_name": "failure",
        "test_skips": "skipped",
        "test_known": "skipped",
        "test_allowed": "passed",
        "test_only_the_log_is_allowed": "failure",
        "test_only_nan_is_bad": "passed",
        "test_rule": "failure",
        "test_rule_that_finds_nothing": "passed",
        "test_ends_by_itself": "failure",
        "test_records_another_run_after_its_own": "failure",
        "test_unknown_argument": "error",
        "test_unknown_mode": "error",
        "test_unknown_kind": "error",
        "test_broken_pattern": "error",
        "test_after_all": "passed",
    }


def test_a_failure_has_the_op_its_counts_its_inputs_the_source_line_and_the_logdir(results: dict[str, Outcome]) -> None:
    lines = [line.strip() for line in results["test_bad"].text.splitlines()]
    code = "`tf.math.log(x)`"
    assert lines[0] == f"{code} at test_it.py:6 made -Inf in call 1 of logarithm: from element 0 of the argument `x`."
    assert lines[1] == "Log of 0: 1 of 3 elements is 0, and the logarithm of 0 is -Inf."
    assert lines[2].startswith("To fix it: ")
    facts = {line[:9].rstrip(): line[9:] for line in lines[3:]}
    assert list(facts)[:15] == [
        "op", "graph", "call", "role", "effect", "tensor", "where", "data", "device", "event", "origin", "input 0",
        "source", "called", "logdir",
    ]  # fmt: skip
    assert (facts["op"], facts["graph"], facts["effect"]) == (
        "Log:0 (Log)",
        "logarithm",
        "reached a result of the program",
    )
    assert facts["tensor"].startswith("float32 [3]: 1 -Inf, 1 zero, 1 positive of 3 elements, the first -Inf at [")
    assert "float32 [3]: 1 zero, 2 positive of 3 elements" in facts["input 0"]
    assert facts["source"].endswith("test_it.py:6 in logarithm: return tf.math.log(x)  # the line")
    assert re.fullmatch(r".*test_it\.py:\d+ in test_bad: logarithm\(.*", facts["called"])
    assert (Path(facts["logdir"]) / "tfdbg_arrow.json").exists()


def test_a_failing_test_keeps_its_failure_and_reports_the_bad_tensor(results: dict[str, Outcome]) -> None:
    failed = results["test_fails_by_itself"]
    assert "my own failure" in failed.text
    assert "Log:0 (Log)" not in failed.text
    assert "made -Inf" in failed.output
    assert "my own words" in results["test_fails_by_name"].text


def test_an_allowed_origin_does_not_hide_another_one(results: dict[str, Outcome]) -> None:
    assert results["test_only_the_log_is_allowed"].text.splitlines()[0].endswith("made NaN in call 1 of quotient.")


def test_the_failure_of_a_rule_has_its_message_and_the_source_line(results: dict[str, Outcome]) -> None:
    text = results["test_rule"].text
    assert "overflow_near: Exp" in text
    assert "test_it.py:" in text


def test_errors_for_invalid_arguments(results: dict[str, Outcome]) -> None:
    assert "has the unknown argument 'modus'" in results["test_unknown_argument"].text
    assert "EVERYTHING" in results["test_unknown_mode"].text
    assert "has the unknown kind 'zero'" in results["test_unknown_kind"].text
    assert "has allow='('" in results["test_broken_pattern"].text


def test_ops_after_the_end_of_the_recording_do_not_count(results: dict[str, Outcome]) -> None:
    assert results["test_ends_by_itself"].text.startswith("`tf.math.log(tf.constant([0.0]))` at ")


def test_options_apply_unless_the_marker_overrides_them_also_with_xdist(tmp_path: Path) -> None:
    program = """
    import pytest, tensorflow as tf
    def test_rule(tfdbg_recording):
        assert tfdbg_recording.options.mode == "FULL_NUMERICS"
        tf.exp(tf.constant([88.0]))
    @pytest.mark.tfdbg(mode="CURT_HEALTH", rules=[])
    def test_own(tfdbg_recording):
        assert (tfdbg_recording.options.mode, tfdbg_recording.options.rules) == ("CURT_HEALTH", {})
        tf.exp(tf.constant([88.0]))
    """
    options = ("--tfdbg-mode=FULL_NUMERICS", "--tfdbg-rule=overflow_near", "-p", "xdist", "-n", "1")
    found = outcomes(tmp_path, program, *options)
    assert {name: outcome.how for name, outcome in found.items()} == {"test_rule": "failure", "test_own": "passed"}
    assert "overflow_near: Exp" in found["test_rule"].text


def test_without_the_fixture_the_plugin_does_not_import_tensorflow(tmp_path: Path) -> None:
    program = """
    import sys
    def test_it(tmp_path):
        assert not {"tensorflow", "duckdb", "numpy"} & set(sys.modules)
        assert "tfdbg_arrow.pytest_plugin" in sys.modules
        assert list(tmp_path.iterdir()) == []
    """
    assert {name: each.how for name, each in outcomes(tmp_path, program).items()} == {"test_it": "passed"}


def test_tests_without_bad_values_need_no_queries(tmp_path: Path) -> None:
    program = """
    import sys, tensorflow as tf, tfdbg_arrow
    def test_healthy(tfdbg_recording):
        tf.math.log(tf.constant([1.0]))
    def test_ends_by_itself(tfdbg_recording):
        tf.math.log(tf.constant([1.0]))
        tfdbg_arrow.disable()
    def test_query():
        assert "tfdbg_arrow.query" not in sys.modules
    """
    expected = {"test_healthy": "passed", "test_ends_by_itself": "passed", "test_query": "passed"}
    assert {name: outcome.how for name, outcome in outcomes(tmp_path, program).items()} == expected


def test_the_marker_is_documented_and_the_entry_point_is_declared(tmp_path: Path) -> None:
    assert "@pytest.mark.tfdbg(mode, *, kinds, allow" in run(tmp_path, "", "--markers").stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tfdbg_arrow.pytest_plugin": "tfdbg_arrow.pytest_plugin"}
