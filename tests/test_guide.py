"""docs/guide.md: every command and every piece of code in it runs, and gives what the guide says of the demo."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tfdbg_arrow

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
DEMO = ROOT / "examples" / "demo.py"
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"# exit code (\d)")

pytestmark = pytest.mark.slow


def blocks(language: str) -> list[str]:
    """Returns what stands in the guide's fences of one language, in order."""
    return [text for found, text in FENCES.findall(GUIDE) if found == language]


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


@dataclass(frozen=True)
class Journey:
    """A directory in which every command of the guide was run, and what each printed."""

    directory: Path
    outputs: dict[str, str]

    def output(self, start: str) -> str:
        (found,) = (text for command, text in self.outputs.items() if command.startswith(start))
        return found


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> Journey:
    directory = tmp_path_factory.mktemp("guide")
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "logs").mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "BROWSER": "true", "NO_COLOR": "1", "COLUMNS": "120"}
    run = run_in(directory, environment)
    return Journey(directory, {command: run(command) for command in commands()})


def run_in(directory: Path, environment: dict[str, str]) -> Callable[[str], str]:
    def run(command: str) -> str:
        words = shlex.split(command, comments=True)
        if words[:2] == ["tfdbg-arrow", "view"]:
            return first_line_served(words)
        done = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        expected = EXIT_CODE.search(command)
        assert done.returncode == (int(expected[1]) if expected else 0), f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def first_line_served(words: list[str]) -> str:
        with subprocess.Popen(words, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            text = "".join(server.stdout.readline() for _ in range(3))
            server.send_signal(signal.SIGINT)
        assert server.returncode == 0
        return text

    return run


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


def words(text: str) -> str:
    """Returns the text with all white space as single spaces, however wide the terminal was."""
    return " ".join(text.split())


def test_the_bug_is_named(journey: Journey) -> None:
    logdir = journey.directory / "logs" / "bug"
    output = journey.output("python examples/demo.py --logdir")
    number, text = log_line()

    assert 5 <= final_accuracy(output) <= 15
    answer = output.partition("$ tfdbg-arrow first-nonfinite")[2]
    assert re.search(r"\bLog\b", answer)
    assert re.search(r"-inf", answer, re.IGNORECASE)
    assert "Softmax" in answer
    assert words(text) in words(answer)
    assert re.search(rf"demo\.py\D{{1,20}}{number}\b", words(answer)), answer
    assert journey.output("tfdbg-arrow why").startswith("Log of 0: ")
    assert "http://127.0.0.1:" in journey.output("tfdbg-arrow view")
    page = (journey.directory / "bug.html").read_text(encoding="utf-8")
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


def test_the_mended_model_learns_and_has_nothing_to_find(journey: Journey) -> None:
    logdir = journey.directory / "logs" / "fixed"
    output = journey.output("python examples/demo.py --fix")

    assert final_accuracy(output) > 90
    assert tfdbg_arrow.first_nonfinite(logdir) is None
    assert "Nothing is bad: none of " in Path(f"{logdir}.html").read_text(encoding="utf-8")
    health = tfdbg_arrow.open_logdir(logdir).sql(
        "SELECT count(*), count(*) FILTER (num_neg_inf + num_pos_inf + num_nan > 0), max(step) FROM tensor_health"
    )
    ((num_rows, num_bad, last_step),) = health.fetchall()
    assert num_rows > 10_000
    assert num_bad == 0
    assert last_step == 199


def test_the_code_runs(journey: Journey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(journey.directory)
    (code,) = (block for block in blocks("python") if "open_logdir" in block)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "guide.md", "exec"), {})
    assert printed.getvalue().startswith("Log ")


def test_the_symptom_is_what_the_demo_prints(journey: Journey) -> None:
    """The accuracies are those of this machine's kernels; when the loss is lost is not."""
    (symptom,) = (block for block in blocks("") if block.startswith("step "))
    losses = dict(
        re.findall(r"^step +(\d+) +loss +(\S+)", journey.output("python examples/demo.py --logdir"), re.MULTILINE)
    )
    said = re.findall(r"^step +(\d+) +loss +(\S+)", symptom, re.MULTILINE)
    assert [loss in ("inf", "nan") for _, loss in said] == [dict(losses)[step] in ("inf", "nan") for step, _ in said]


def test_what_it_shows_and_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", GUIDE):
        assert (ROOT / "docs" / "".join(target)).exists(), target
