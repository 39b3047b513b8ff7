"""The demo: with its bug it names the op, its input and the line; mended, it finds nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tfdbg_arrow

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo.py"

pytestmark = pytest.mark.slow


def run_demo(logdir: Path, *options: str) -> str:
    """Runs the demo as a user does and returns what it prints."""
    command = [sys.executable, str(DEMO), "--logdir", str(logdir), *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def log_line() -> tuple[int, str]:
    """Returns the number and the text of the demo's only line that takes a logarithm."""
    lines = DEMO.read_text(encoding="utf-8").splitlines()
    ((number, text),) = ((n, line.strip()) for n, line in enumerate(lines, start=1) if "tf.math.log(" in line)
    return number, text


def final_accuracy(output: str) -> float:
    """Returns the accuracy that the demo ends with, in percent."""
    match = re.search(r"Accuracy at the end: ([0-9.]+)%", output)
    assert match is not None, output
    return float(match[1])


def report(logdir: Path) -> str:
    """Returns the page that the demo wrote beside its logdir."""
    return logdir.with_name(f"{logdir.name}.html").read_text(encoding="utf-8")


def words(text: str) -> str:
    """Returns the text with all white space as single spaces, however wide the terminal was."""
    return " ".join(text.split())


def test_the_bug_is_named(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    output = run_demo(logdir)
    number, text = log_line()

    assert 5 <= final_accuracy(output) <= 15
    answer = output.partition("$ tfdbg-arrow first-nonfinite")[2]
    assert re.search(r"\bLog\b", answer)
    assert re.search(r"-inf", answer, re.IGNORECASE)
    assert "Softmax" in answer
    assert words(text) in words(answer)
    assert re.search(rf"demo\.py\D{{1,20}}{number}\b", words(answer)), answer
    page = report(logdir)
    assert "-Inf first came up in Log:0, in the function loss." in page
    assert len(page.encode()) < 1_000_000

    first = tfdbg_arrow.first_nonfinite(logdir)
    assert first is not None
    assert (first.op_type, first.graph_name, first.is_origin) == ("Log", "loss", True)
    assert first.num_neg_inf is not None
    assert first.num_neg_inf > 0
    assert (first.num_nan, first.num_pos_inf) == (0, 0)
    (probs,) = first.inputs
    assert probs.health is not None
    assert probs.health.num_zero == first.num_neg_inf
    assert (probs.health.num_nan, probs.health.num_neg_inf, probs.health.num_pos_inf) == (0, 0, 0)
    assert probs.producer is not None
    assert (probs.producer.op_type, probs.producer.graph_name, probs.producer.how) == ("Softmax", "model", "argument")
    assert first.source is not None
    assert (Path(first.source.file_path).name, first.source.lineno, first.source.func) == ("demo.py", number, "loss")
    assert first.source.code == text


def test_the_mended_model_learns_and_has_nothing_to_find(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    output = run_demo(logdir, "--fix")

    assert final_accuracy(output) > 90
    assert tfdbg_arrow.first_nonfinite(logdir) is None
    assert "Nothing is bad: none of " in report(logdir)
    health = tfdbg_arrow.open_logdir(logdir).sql(
        "SELECT count(*), count(*) FILTER (num_neg_inf + num_pos_inf + num_nan > 0), max(step) FROM tensor_health"
    )
    ((num_rows, num_bad, last_step),) = health.fetchall()
    assert num_rows > 10_000
    assert num_bad == 0
    assert last_step == 199
