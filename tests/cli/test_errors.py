"""Test that every command refuses unusable input with one sentence and exit code 2."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdbg_arrow import errors
from tfdbg_arrow.cli.app import GROUPS
from tfdbg_arrow.safe_text import printable

from ..programs.running import run_to_end
from ..query.builder import RunBuilder
from ..writer.debugger_v2.building import small_dump, write_dump
from .commands import run_cli

READERS: dict[str, tuple[str, ...]] = {
    "first-nonfinite": ("first-nonfinite", "{logdir}"),
    "sql": ("sql", "{logdir}", "SELECT * FROM tensor_health"),
    "info": ("info", "{logdir}"),
}
RUN = ("run", "--logdir", "{logdir}", "program.py")
ALL = {"run": RUN, **READERS}


def refusal(here: Path, *command: str) -> str:
    """Runs a command that must refuse its input, and returns the sentence that it prints."""
    (here / "program.py").write_text("print('the program was started')\n")
    found = run_to_end("-m", "tfdbg_arrow", *command, cwd=here)
    assert (found.returncode, found.stdout) == (2, ""), found.stderr
    assert found.stderr.count("\n") == 1, found.stderr
    assert found.stderr.startswith("tfdbg-arrow: ")
    return found.stderr.removeprefix("tfdbg-arrow: ").rstrip("\n")


def at(logdir: Path | str, command: tuple[str, ...]) -> list[str]:
    return [word.format(logdir=logdir) for word in command]


def debugger_v2(path: Path) -> None:
    path.mkdir()
    for name in ("metadata", "execution", "graphs"):
        (path / f"tfdbg_events.1600000000.host.{name}").write_bytes(b"")


def newer_logdir(path: Path) -> None:
    RunBuilder("run-a").write(path)
    (path / "tfdbg_arrow.json").write_text('{"format": "tfdbg_arrow", "format_version": "3.0"}')


def other_directory(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


@pytest.mark.slow
@pytest.mark.parametrize("command", ALL.values(), ids=ALL)
def test_a_logdir_that_is_a_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    sentence = refusal(tmp_path, *at(path, command))
    assert f"{path} is a file; " in sentence
    assert path.read_text() == "mine"


@pytest.mark.parametrize("command", ALL.values(), ids=ALL)
def test_a_newer_major_version(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "logdir"
    newer_logdir(path)
    before = sorted(path.rglob("*"))
    sentence = refusal(tmp_path, *at(path, command))
    assert "3.0" in sentence
    assert "2.x" in sentence
    assert "a newer release" in sentence
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist"),
        (Path.mkdir, "is an empty directory"),
        (debugger_v2, "holds dumps of TensorFlow's Debugger V2"),
        (other_directory, "is not a logdir of tfdbg_arrow"),
    ],
    ids=["nothing", "empty", "debugger_v2", "other"],
)
def test_a_directory_that_is_not_a_logdir(
    tmp_path: Path, command: tuple[str, ...], make: Callable[[Path], None], why: str
) -> None:
    path = tmp_path / "log\x1bdir"
    make(path)
    assert f"{printable(str(path))} {why}" in refusal(tmp_path, *at(path, command))


@pytest.mark.parametrize("path", ["file/logdir", "file/a/b", "/proc/logdir", "/proc/self/fdinfo"])
def test_a_directory_where_even_root_cannot_create_files(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("mine")
    sentence = refusal(tmp_path, *at(path, RUN))
    assert f"the logdir {tmp_path / path} cannot be written: " in sentence
    assert sentence.endswith("; choose another path")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_write_permission(tmp_path: Path) -> None:
    path = tmp_path / "logdir"
    path.mkdir(mode=0o555)
    assert "Permission denied" in refusal(tmp_path, *at(path, RUN))


def test_a_wrong_mode(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, "run", "--mode", "FULL_HEALT", "program.py")
    assert sentence == (
        "tensor_debug_mode is 'FULL_HEALT'; expected one of CONCISE_HEALTH, CURT_HEALTH, FULL_HEALTH, FULL_NUMERICS, "
        "FULL_TENSOR, NO_TENSOR, SHAPE"
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--kinds", "zero"), "kind 'zero' is unknown, expected 'nan', 'inf' or both"),
        (("--kinds", ""), "expected 'nan', 'inf' or both"),
        (("--run", "no-such-run"), "run 'no-such-run' is not in "),
    ],
    ids=["kind", "no kind", "run"],
)
def test_a_wrong_kind_or_run(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    logdir = RunBuilder("run-a").write(tmp_path / "logdir")
    assert why in refusal(tmp_path, "first-nonfinite", str(logdir), *options)


@pytest.mark.slow
def test_a_logdir_damaged_by_a_truncated_part(tmp_path: Path) -> None:
    logdir = RunBuilder("run-a").write(tmp_path / "logdir")
    part = next(logdir.glob("tensor_health/*/part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    for command in READERS.values():
        assert str(part) in refusal(tmp_path, *at(logdir, command))


@pytest.mark.parametrize(
    "words",
    [
        ("first-nonfinite", "{logdir}"),
        ("why", "{logdir}"),
        ("repro", "{logdir}"),
        ("zoom", "{logdir}", "train.py"),
        ("show", "{logdir}", "x"),
        ("diff", "{logdir}"),
        ("alerts", "{logdir}"),
        ("check", "{logdir}"),
        ("sql", "{logdir}", "SELECT 1"),
        ("schema", "evil"),
        ("coverage", "{logdir}"),
        ("doctor", "{logdir}"),
        ("info", "{logdir}"),
        ("view", "{logdir}"),
        ("report", "{logdir}"),
        ("watch", __file__),  # it would wait for a directory that does not exist
        ("recover", "{logdir}"),
        ("verify", "{logdir}"),
        ("upload", "{logdir}", "s3://place"),
        ("export", "{logdir}", "target", "--csv"),
        ("import", "{logdir}", "target"),
    ],
    ids=lambda words: words[0],
)
def test_with_json_an_error_is_json_on_stdout(tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run_cli(*at(tmp_path / "nothing", words), "--json")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout).values()
    assert set(error) == {"type", "message"}
    assert issubclass(getattr(errors, error["type"]), errors.TfdbgArrowError)
    assert result.stderr == f"tfdbg-arrow: {error['message']}\n"


def test_every_command_with_json_is_tested() -> None:
    (tested,) = (mark.args[1] for mark in test_with_json_an_error_is_json_on_stdout.pytestmark)  # type: ignore[attr-defined]
    commands = (name for names in GROUPS.values() for name in names)
    assert {words[0] for words in tested} | {"run"} == set(commands)


def test_with_json_wrong_words_are_json_on_stdout() -> None:
    result = run_cli("alerts", "--json", "--no-such-option")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout).values()
    assert error["type"] == "UsageError"
    assert result.stderr.count(error["message"]) == 1
    assert run_cli("alerts", "--no-such-option").stdout == ""


def test_with_json_an_error_of_run_is_the_last_line_of_stderr(tmp_path: Path) -> None:
    found = run_to_end("-m", "tfdbg_arrow", "run", "--mode", "evil", "--json", "program.py", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    sentence, line = found.stderr.splitlines()
    assert json.loads(line)["error"] == {"type": "RecordingError", "message": sentence.removeprefix("tfdbg-arrow: ")}


def dump(path: Path) -> Path:
    return write_dump(path, small_dump())


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("mine"), "is a file; "),
        (Path.mkdir, "holds no dump of Debugger V2"),
        (other_directory, "holds no dump of Debugger V2"),
        (lambda path: RunBuilder("run-a").write(path), "is a logdir of tfdbg_arrow"),
    ],
    ids=["nothing", "file", "empty", "other", "logdir"],
)
def test_a_path_that_is_not_a_dump(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    path = tmp_path / "dump"
    make(path)
    sentence = refusal(tmp_path, "import", str(path), "logdir")
    assert f"{path} {why}" in sentence
    assert not (tmp_path / "logdir").exists()


def test_an_import_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "logdir").write_text("mine")
    assert "logdir is a file; " in refusal(tmp_path, "import", str(dump(tmp_path / "dump")), "logdir")


def test_an_import_into_a_newer_major_version(tmp_path: Path) -> None:
    newer_logdir(tmp_path / "logdir")
    before = sorted((tmp_path / "logdir").rglob("*"))
    assert "3.0" in refusal(tmp_path, "import", str(dump(tmp_path / "dump")), "logdir")
    assert sorted((tmp_path / "logdir").rglob("*")) == before


def test_an_import_where_even_root_cannot_create_files(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, "import", str(dump(tmp_path / "dump")), "/proc/logdir")
    assert "the logdir /proc/logdir cannot be written: " in sentence
