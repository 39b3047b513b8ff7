"""Redacted texts are nowhere in the logdir: neither during the recording, nor after a kill, nor at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.programs.running import Program, start_python
from tfdbg_arrow import open_logdir, recover
from tfdbg_arrow.cli.app import app
from tfdbg_arrow.errors import SettingError
from tfdbg_arrow.viewer.pages.source import read_source
from tfdbg_arrow.viewer.source_text import read_excerpt
from tfdbg_arrow.writer.rows import Redaction, parse_redact
from tfdbg_arrow.writer.settings import Request

HELPER = """
import tensorflow as tf

def logarithm(x):
    return tf.math.log(x)  # hush-comment in the helper
"""
PROGRAM = """
import os, socket, sys, warnings
socket.gethostname = lambda: "hush-host"
logdir, elsewhere, redact, how = sys.argv[1:5]
sys.path.insert(0, elsewhere)
import tensorflow as tf, tfdbg_arrow
from helper import logarithm

tfdbg_arrow.enable(logdir, redact=redact)
table = tf.lookup.TextFileInitializer(elsewhere + "/vocabulary.txt", tf.string, 0, tf.int64, 1, delimiter=" ")
lookup = tf.lookup.StaticHashTable(table, -1)

@tf.function
def train(x):
    tf.print(lookup.lookup(tf.constant("a")), output_stream=sys.stderr)
    return logarithm(x) + 1.0  # hush-comment in the program

train(tf.constant([0.0, 1.0]))
stats = tfdbg_arrow.writer.active_recording._active()._stats
stats.note_failure("a hook", FileNotFoundError(2, "No such file", elsewhere))
train(tf.constant([2.0, 1.0]))
if how == "wait":
    print("ready", flush=True)
    sys.stdin.read()
tfdbg_arrow.disable()
"""
SOURCE_NEEDLES = ("hush-comment",)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Returns the working directory, a directory elsewhere, and the logdir."""
    working, elsewhere = tmp_path / "hush-project", tmp_path / "hush-elsewhere"
    working.mkdir()
    elsewhere.mkdir()
    (working / "train.py").write_text(textwrap.dedent(PROGRAM))
    (elsewhere / "helper.py").write_text(HELPER)
    (elsewhere / "vocabulary.txt").write_text("a 1\n")
    return working, elsewhere, tmp_path / "logdir"


def start(places: tuple[Path, Path, Path], *, redact: str, how: str) -> Program:
    working, elsewhere, logdir = places
    words = ("train.py", logdir, elsewhere, redact, how, "--token=hush-argument")
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    return start_python(*words, cwd=working, stdin=pipe, stdout=pipe, stderr=nothing)


def contents(logdir: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the name and bytes of each file. Parts are compressed, so this function also yields the rows of parts."""
    for path in sorted(logdir.rglob("*")):
        yield f"name of {path}", str(path.relative_to(logdir)).encode()
        if path.is_file():
            yield str(path), path.read_bytes()
            if path.suffix == ".parquet":
                yield f"rows of {path}", repr(pq.read_table(path).to_pylist()).encode()


def assert_nowhere(logdir: Path, needles: Iterable[str]) -> None:
    found = [(needle, where) for where, content in contents(logdir) for needle in needles if needle.encode() in content]
    assert found == []


def copy_unless_gone(source: str, target: str) -> str:
    """Copies a file, unless it is a temporary file that was renamed in the meantime."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(source, target)
    return target


@pytest.mark.slow
def test_no_file_ever_contains_redacted_texts(places: tuple[Path, Path, Path]) -> None:
    working, _, logdir = places
    needles = ("hush-", str(working.parent), str(Path.home()) + "/")
    with start(places, redact="paths,source", how="wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        copy = shutil.copytree(logdir, working / "copy", copy_function=copy_unless_gone)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert_nowhere(copy, needles)
    assert_nowhere(logdir, needles)
    assert list((logdir / "spool").glob("*.journal")) != []
    with open_logdir(logdir) as opened:
        found = opened.first_nonfinite()
        assert found is not None
        assert found.source is not None
        directory, _, name = found.source.file_path.rpartition("/")
        assert (name, found.source.lineno, found.source.func, found.source.code) == ("helper.py", 5, "logarithm", None)
        assert len(directory) == 12
        assert {path for (path,) in opened.rows("SELECT file_path FROM source_file")} >= {"train.py"}
        excerpt = read_excerpt(opened, found.source, run_id=found.run_id)
        assert excerpt is not None
        assert (excerpt.lines, excerpt.is_withheld) == ((), True)
        assert read_source(opened, run_id=found.run_id).is_withheld
        ((reason,),) = opened.rows("SELECT reason FROM capture_stat WHERE subject = 'a hook'")
        assert reason.startswith("FileNotFoundError: [Errno 2] No such file: '")
        assert [owner for (owner,) in opened.rows("SELECT owner FROM stack_frame WHERE file_path = 'train.py'")] != []
    (run,) = recover(logdir)
    assert run.state == "recovered"
    assert_nowhere(logdir, needles)


@pytest.mark.slow
def test_redacting_only_the_source_keeps_paths(places: tuple[Path, Path, Path]) -> None:
    _, elsewhere, logdir = places
    with start(places, redact="source", how="end") as process:
        assert process.wait() == 0
    assert_nowhere(logdir, SOURCE_NEEDLES)
    with open_logdir(logdir) as opened:
        found = opened.first_nonfinite()
        assert found is not None
        assert found.source is not None
        assert (found.source.file_path, found.source.lineno) == (str(elsewhere / "helper.py"), 5)
        (run,) = opened.runs()
        assert run.host_name == "hush-host"
        assert "hush-argument" in str(run.command_line)


def test_the_command_has_the_option(places: tuple[Path, Path, Path]) -> None:
    working, _, logdir = places
    program = str(working / "train.py")
    result = CliRunner().invoke(app, ["run", "--redact", "everything", "--logdir", str(logdir), program])
    assert result.exit_code == 2
    assert "redact is 'everything'; expected 'paths' or 'source', or a list of these" in result.stderr


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, set()),
        ((), set()),
        ("paths", {"paths"}),
        ("paths, source", {"paths", "source"}),
        (["source"], {"source"}),
        ({"source", "paths"}, {"source", "paths"}),
    ],
)
def test_redact_is_a_string_or_a_list(tmp_path: Path, value: object, expected: set[str]) -> None:
    assert Request(logdir=tmp_path, redact=value).check().redact == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["", "host", 3, ["paths", None], True])
def test_other_values_raise_an_error(value: object) -> None:
    with pytest.raises(SettingError, match=r"redact is .*; expected 'paths' or 'source'"):
        parse_redact(value)  # type: ignore[arg-type]


@pytest.fixture
def redaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Redaction:
    (tmp_path / "work dir").mkdir()
    monkeypatch.chdir(tmp_path / "work dir")
    return Redaction(frozenset({"paths", "source"}), logdir=tmp_path / "log dir")


def test_paths_become_relative_or_a_hash(tmp_path: Path, redaction: Redaction) -> None:
    working = tmp_path / "work dir"
    assert redaction.path(str(working / "pkg/train.py")) == "pkg/train.py"
    assert redaction.path("pkg/train.py") == "pkg/train.py"
    assert redaction.path("<stdin>") == "<stdin>"
    assert redaction.path("/opt/venv/lib/python3.11/site-packages/keras/a.py") == "site-packages/keras/a.py"
    assert redaction.path(os.__file__) == f"python{sys.version_info[0]}.{sys.version_info[1]}/os.py"
    one, other = redaction.path("/home/me/a.py"), redaction.path("/home/me/b.py")
    assert (one[-5:], other[-5:], one[:-4], len(one)) == ("/a.py", "/b.py", other[:-4], 17)
    assert redaction.path("/home/you/a.py") != one
    assert "secret" not in redaction.path("../secret/a.py")
    again = Redaction(frozenset({"paths"}), logdir=tmp_path)
    assert again.path("/home/me/a.py") != one, "hashes differ by recording, so a directory cannot be guessed"


def test_a_working_directory_above_the_home_directory_hides_the_user_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/usr/hush")
    monkeypatch.chdir("/usr")
    redaction = Redaction(frozenset({"paths"}), logdir=Path("/usr/logdir"))
    assert "hush" not in redaction.path("/usr/hush/train.py")


def test_messages_lose_their_paths(tmp_path: Path, redaction: Redaction) -> None:
    row = {
        "subject": "model/dense/MatMul on /job:localhost/replica:0/task:0/device:CPU:0",
        "reason": f"OSError: [Errno 28] No space: '{tmp_path}/log dir/spool/x' and '{tmp_path}/work dir/y' and "
        "'/my home/z' at https://me:password@host/bucket, see /a/b/c.txt (s3://bucket/x)\n    hush = code",
    }
    (changed,) = redaction.rows("capture_stat", [row])
    assert changed["subject"] == row["subject"]
    hashes = redaction.path("/my home/z/x")[:12], redaction.path("/a/b/c.txt")
    assert changed["reason"] == (
        f"OSError: [Errno 28] No space: 'LOGDIR/spool/x' and 'y' and '{hashes[0]}' at https:… see {hashes[1]} (s3:…"
    )


def test_attributes_lose_their_paths_and_keep_names(redaction: Redaction) -> None:
    attributes = (
        '{"_class":["loc:@model/dense/kernel"],"shared_name":"hash_table_/my home/v.txt_-2","value":"/data/x",'
        '"device":"/job:worker/task:1","n":[1,{"f":"a/b"}]}'
    )
    (changed,) = redaction.rows("graph_op", [{"attributes": attributes}])
    assert changed["attributes"] == attributes.replace(
        "/my home/v.txt_-2", redaction.path("/my home/v.txt_-2")
    ).replace("/data/x", redaction.path("/data/x/y")[:12])


def test_a_program_on_the_command_line_counts_as_source(tmp_path: Path) -> None:
    redaction = Redaction(frozenset({"source"}), logdir=tmp_path)
    (changed,) = redaction.rows("run", [{"command_line": '["python","-c","hush()","-c","x"]', "host_name": "me"}])
    assert changed == {"command_line": '["python","-c","…","-c","x"]', "host_name": "me"}
