"""Test that every command and code block in docs/guide.md runs and has the results that the guide describes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import tfdbg_arrow
from tfdbg_arrow.query.sql_sandbox import Sandbox

from .programs.running import run_to_end
from .viewer.browser import chromium, watched_page
from .viewer.serving import TOKEN, Served, serving

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
DEMO = ROOT / "examples" / "demo.py"
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"# exit code (\d)")

pytestmark = pytest.mark.slow


def blocks(language: str) -> list[str]:
    """Returns the code blocks of one language in the guide, in order."""
    return [text for found, text in FENCES.findall(GUIDE) if found == language]


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines()]


@dataclass(frozen=True)
class Journey:
    """A directory in which all commands of the guide ran, and the output of each command."""

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
        if words[0] == "python":
            done = run_to_end(*words[1:], cwd=directory, environment=environment)
        else:
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
    """Returns the final accuracy of the demo, in percent."""
    match = re.search(r"Accuracy at the end: ([0-9.]+)%", output)
    assert match is not None, output
    return float(match[1])


def words(text: str) -> str:
    """Returns the text with single spaces, so that it does not depend on the width of the terminal."""
    return " ".join(text.split())


def test_the_answers_name_the_bug(journey: Journey) -> None:
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
    headline, reason, *_ = journey.output("tfdbg-arrow why").splitlines()
    assert "made -Inf in step " in headline
    assert reason.startswith("Log of 0: ")
    assert "http://127.0.0.1:" in journey.output("tfdbg-arrow view")
    page = (journey.directory / "bug.html").read_text(encoding="utf-8")
    assert "made -Inf" in page
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


@pytest.fixture(scope="module")
def served(journey: Journey) -> Iterator[Served]:
    logdir = journey.directory / "logs" / "bug"
    with serving(logdir, sandbox=Sandbox(logdir)) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    with watched_page(browser, viewport={"width": 1280, "height": 800}) as opened:
        opened.goto(f"{served.url}/?token={TOKEN}")
        yield opened


def test_keyboard_navigation_from_the_first_page_to_the_source_line(page: Page) -> None:
    _, text = log_line()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("made -Inf"))
    for answer in (".why", ".verdict .pill.neg-inf", ".chain .origin .pill.neg-inf", ".excerpt .row.lit"):
        expect(page.locator(answer).first).to_be_in_viewport(ratio=1)
    expect(page.locator(".excerpt .row.lit")).to_contain_text(text)

    page.keyboard.press("g")
    page.keyboard.press("a")
    page.wait_for_url("**/alerts**")
    expect(page.locator("[data-pending]")).to_have_count(0, timeout=60_000)  # the rules finish one after the other
    page.keyboard.press("n")
    expect(page.locator(":focus")).to_have_text("Log:0")
    page.keyboard.press("n")
    alert = page.locator("[data-alert]:has(:focus)")
    line = alert.locator("[data-source]").inner_text()
    page.keyboard.press("s")
    page.wait_for_url("**/source?**")
    expect(page.locator(".row.lit")).to_be_in_viewport()
    assert line.startswith(f"demo.py:{page.locator('.row.lit .no').inner_text()}")


def test_filters_of_tensors_and_the_chosen_theme(page: Page) -> None:
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/tensors**")
    page.keyboard.press("/")
    page.keyboard.type("softmax")
    page.keyboard.press("Enter")
    page.wait_for_url("**name=softmax**")
    page.get_by_label("only bad").check()
    page.wait_for_url("**name=softmax&bad=1**")
    expect(page.locator("tr[data-at]").first).to_have_class("bad")
    expect(page.locator("tr[data-at] .name").first).to_contain_text(re.compile("softmax", re.IGNORECASE))
    page.keyboard.press("d")
    theme = page.locator("html").get_attribute("data-theme")
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.wait_for_url("**/executions**")
    expect(page.locator("html")).to_have_attribute("data-theme", theme or "")


def test_every_page_on_wide_and_narrow_screens(journey: Journey, served: Served, page: Page) -> None:
    first = tfdbg_arrow.first_nonfinite(journey.directory / "logs" / "bug")
    assert first is not None
    number, text = log_line()
    of_first = f"run={first.run_id}&event={first.event_index}"
    shown = {
        "/": "Log of 0",
        "/alerts": "nonfinite_origin",
        "/tensors?bad=1": "Log:0",
        "/executions?bad=1": "inside bad",
        f"/graph?{of_first}": "Consumers",
        f"/history?{of_first}": "200 tensors",
        f"/provenance?{of_first}": "it went bad here",
        f"/tensor?{of_first}": text,
        f"/source?run={first.run_id}&line={number}": text,
        "/runs": "The run is bad from step",
        "/diff": "",
        "/sql?query=SELECT+max(step)+FROM+mark": "199",
    }
    for target, held in shown.items():
        page.goto(served.url + target)
        expect(page.locator("main")).to_contain_text(held)
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_function("width => document.documentElement.scrollWidth === width", arg=width)


def test_the_fixed_model_learns_and_is_healthy(journey: Journey) -> None:
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


def test_the_python_code_runs(journey: Journey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(journey.directory)
    (code,) = (block for block in blocks("python") if "open_logdir" in block)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "guide.md", "exec"), {})
    assert printed.getvalue().startswith("Log ")


def test_the_symptom_in_the_guide_matches_the_output_of_the_demo(journey: Journey) -> None:
    """Accuracies depend on the kernels of the machine, but the step at which the loss goes bad does not."""
    (symptom,) = (block for block in blocks("") if block.startswith("step "))
    losses = dict(
        re.findall(r"^step +(\d+) +loss +(\S+)", journey.output("python examples/demo.py --logdir"), re.MULTILINE)
    )
    said = re.findall(r"^step +(\d+) +loss +(\S+)", symptom, re.MULTILINE)
    assert [loss in ("inf", "nan") for _, loss in said] == [dict(losses)[step] in ("inf", "nan") for step, _ in said]


def test_linked_files_and_pictures_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)|(?:src|srcset)=\"([^\"]+)\"", GUIDE):
        assert (ROOT / "docs" / "".join(target)).exists(), target
