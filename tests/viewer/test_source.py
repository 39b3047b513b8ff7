"""Test the source page: a file as the run recorded it, with the ops and executions of its lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.stacks import LineUse
from tfdbg_arrow.viewer.page import NoSuchPageError
from tfdbg_arrow.viewer.pages.source import read_source

from ..query.builder import CLEAN, NAN, RunBuilder
from . import logdirs
from .serving import serving


def use(lineno: int, *, ops: int = 0, executions: int = 0, bad: int = 0, first: int | None = None, op: str) -> LineUse:
    return LineUse(
        lineno=lineno, num_ops=ops, num_executions=executions, num_bad=bad, first_bad_event_index=first, first_op=op
    )


def test_lines_have_their_ops_and_executions(tmp_path: Path) -> None:
    with open_logdir(logdirs.log_of_zero(tmp_path)) as logdir:
        page = read_source(logdir, run_id="run-a")
    assert (page.file_path, page.has_text, page.num_lines) == (logdirs.TRAIN, True, 10)
    assert [line.text for line in page.lines] == logdirs.TEXT.split("\n")
    assert [line.use for line in page.lines if line.use] == [
        use(3, ops=1, op="images"),
        use(4, ops=1, op="probs"),
        use(6, ops=1, op="offset"),
        use(7, ops=1, bad=1, first=3, op="Log"),
        use(8, ops=1, bad=1, first=5, op="Sqrt"),
        use(9, ops=1, executions=1, bad=1, first=6, op="Neg"),
    ]


def test_the_innermost_line_of_a_stack_in_the_file_counts(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path="/a.py", source_text="one\ntwo\n")
    stack = run.stack(("/b.py", 5, "g", None, "user"), ("/a.py", 1, "f", None, "user"), ("/a.py", 2, "m", None, "user"))
    run.eager(run.execution("Log", outputs={0: "float32"}, stack=stack), NAN, tensor_id=0)
    with open_logdir(run.write(tmp_path)) as logdir:
        page = read_source(logdir, run_id="run-a", file_path="/a.py")
    assert [line.use for line in page.lines if line.use] == [use(1, executions=1, bad=1, first=1, op="Log")]


def test_files_with_bad_tensors_come_first(tmp_path: Path) -> None:
    with open_logdir(logdirs.log_of_zero(tmp_path)) as logdir:
        files = read_source(logdir, run_id="run-a").files
    assert [(file.file_path, file.owner, file.has_text, file.num_ops, file.num_bad) for file in files] == [
        (logdirs.TRAIN, "user", True, 6, 3),
        (logdirs.FRAMEWORK[0], "framework", False, 0, 0),
    ]


def test_a_file_without_text_has_line_numbers(tmp_path: Path) -> None:
    with open_logdir(logdirs.log_of_zero(tmp_path)) as logdir:
        page = read_source(logdir, run_id="run-a", file_path=logdirs.FRAMEWORK[0])
    assert (page.has_text, [(line.lineno, line.text) for line in page.lines]) == (False, [(10, "")])


def test_files_of_this_machine_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path=str(secret), source_text=None)
    run.tensor(run.graph("f").op("x", "Mul"), "x", CLEAN)
    with open_logdir(run.write(tmp_path / "logdir")) as logdir:
        page = read_source(logdir, run_id="run-a", file_path=str(secret))
        assert (page.has_text, page.lines) == (False, ())
        with pytest.raises(NoSuchPageError, match="has no file '/etc/passwd'"):
            read_source(logdir, run_id="run-a", file_path="/etc/passwd")


def test_a_long_file_is_shown_around_the_chosen_line(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    run.add("source_file", source_file_id=0, file_path="/a.py", source_text="x\n" * 50_000)
    with open_logdir(run.write(tmp_path)) as logdir:
        page = read_source(logdir, run_id="run-a", lineno=40_000)
    assert page.num_lines == 50_001
    assert (page.lines[0].lineno, page.lines[-1].lineno) == (30_001, 50_000)


def test_the_page_of_a_run_without_source(tmp_path: Path) -> None:
    with open_logdir(logdirs.healthy(tmp_path)) as logdir:
        page = read_source(logdir, run_id="run-a")
    assert (page.file_path, page.lines, page.files) == (None, (), ())


def test_it_began_where_the_first_bad_value_did_harm(tmp_path: Path) -> None:
    path = logdirs.log_of_zero(tmp_path)
    with open_logdir(path) as logdir:
        found = logdir.first_nonfinite()
        page = read_source(logdir, run_id="run-a")
        assert found is not None
        assert found.source is not None
        origin = page.origin
    assert origin is not None
    assert (origin.file_path, origin.lineno, origin.event_index) == (
        found.source.file_path,
        found.source.lineno,
        found.event_index,
    )
    assert (origin.op_type, origin.is_origin) == ("Log", True)
    with serving(path) as served:
        text = served.ask("/source").text
    (row,) = re.findall(r'<span id="L7"[^>]*>.*', text)
    assert 'class="row bad origin"' in row
    assert "It began here: Log, step 1" in row
    assert text.count("began-here") == 1


def test_the_file_where_it_began_comes_first(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    for number, name in enumerate(("/a.py", "/b.py")):
        run.add("source_file", source_file_id=number, file_path=name, source_text="x\n")
    graph = run.graph("f").op("Log", "Log", stack=run.stack(("/b.py", 1, "f", None, "user")))
    graph.op("Neg", "Neg", ["Log"], stack=run.stack(("/a.py", 1, "f", None, "user")))
    run.tensor(graph, "Log", NAN)
    run.tensor(graph, "Neg", NAN)
    with open_logdir(run.write(tmp_path)) as logdir:
        page = read_source(logdir, run_id="run-a")
    assert ([file.file_path for file in page.files], page.file_path) == (["/b.py", "/a.py"], "/b.py")


def test_nothing_is_marked_in_a_healthy_run(tmp_path: Path) -> None:
    with open_logdir(logdirs.healthy(tmp_path)) as logdir:
        assert read_source(logdir, run_id="run-a").origin is None
