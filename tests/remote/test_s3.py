"""Test recording to S3 and reading from it, with a local server."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdbg_arrow.errors import LogdirError
from tfdbg_arrow.query import NonFinite, first_nonfinite, open_logdir

from ..programs.running import run_to_end, start_python
from .stores import S3Server, live_in, s3_server

pytestmark = pytest.mark.slow

PROGRAM = """
    import os, signal, sys, time
    import tensorflow as tf
    import tfdbg_arrow

    weights = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.log(weights - x))
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    def train(first, last):
        for step in range(first, last):
            tfdbg_arrow.mark(step=step)
            train_step(tf.constant(float(step) * 0.4))

    def wait(text):
        tfdbg_arrow.flush()
        print(text, flush=True)
        sys.stdin.readline()

    local, url, how = sys.argv[1:]
    with tfdbg_arrow.capture(local):
        train(0, 10)
    weights.assign([1.0, 2.0, 3.0])
    tfdbg_arrow.enable(url)
    train(0, 2)
    wait("begun")
    train(2, 10)
    wait("done")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    # Without disable(), the recording ends with the program.
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TFDBG_ARROW_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("TFDBG_ARROW_LOCAL_DIR", str(tmp_path / "local"))
        yield made


class Program:
    """PROGRAM in its own process."""

    def __init__(self, here: Path, url: str, how: str = "ends") -> None:
        script = here / "program.py"
        script.write_text(textwrap.dedent(PROGRAM))
        self.errors = here / "errors"
        with self.errors.open("w") as errors:
            self.process = start_python(
                script, here / "logdir", url, how, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__()

    def reaches(self, text: str) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == f"{text}\n", self.errors.read_text()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Waits for the end of the program and returns its stderr."""
        with self.process:
            pass
        return self.errors.read_text()


def eventually(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, "the expected condition did not occur within 60 seconds"
        time.sleep(0.1)


def same_in_both(found: NonFinite | None) -> dict[str, Any]:
    """Returns the attributes that do not depend on the time and place of the recording."""
    assert found is not None
    inputs = []
    for each in found.inputs:
        assert each.health is not None
        assert each.producer is not None
        inputs.append((each.index, dataclasses.replace(each.health, event_index=0), each.producer.op_name))
    assert inputs
    kept = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    return {**kept, "run_id": None, "event_index": None, "wall_time_ns": None, "stack": None, "inputs": inputs}


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return run_to_end("-m", "tfdbg_arrow", *words)


@pytest.mark.exhaustive
def test_reading_a_running_training_from_s3_with_an_outage_of_the_server(tmp_path: Path, server: S3Server) -> None:
    url = "s3://bucket/logs/run"
    with Program(tmp_path, url) as program:
        program.reaches("begun")
        eventually(lambda: bool([key for key in server.files() if "/tensor_health/" in key and "manifest" not in key]))
        with open_logdir(url) as logdir:
            eventually(lambda: steps_of(logdir) == [0, 1])
            assert first_nonfinite(logdir) is None
            server.kill()
            program.go_on()
            program.reaches("done")  # training does not wait for the server
            # Fetched tables can still be read, but a refresh fails.
            assert logdir.rows("SELECT count(*) FROM mark") == [(2,)]
            with pytest.raises(LogdirError, match=r"^s3://bucket/logs/run cannot be read \("):
                logdir.refresh()
            eventually(lambda: "cannot be reached" in program.errors.read_text())
            server.start()
            eventually(lambda: steps_of(logdir) == list(range(10)))
        program.go_on()
        errors = program.end()
    assert program.process.returncode == 0, errors
    assert len(re.findall("cannot be reached", errors)) == 1, errors
    assert not list((tmp_path / "local").iterdir())

    (run_id,) = {key.split("/")[-1].removesuffix(".jsonl") for key in server.files() if "/manifest/" in key}
    files = server.files()
    assert len(files) == len(live_in(files, run_id, "logs/run")) + 2
    with open_logdir(tmp_path / "logdir") as here, open_logdir(url) as there:
        assert same_in_both(first_nonfinite(there)) == same_in_both(first_nonfinite(here))
        for query in (
            "SELECT count(*), count(*) FILTER (has_inf_or_nan) FROM tensor_health",
            "SELECT op_type, count(*) FROM graph_op GROUP BY ALL ORDER BY ALL",
            "SELECT step, label, value FROM mark ORDER BY event_index",
        ):
            assert there.rows(query) == here.rows(query)
        assert there.rows("SELECT is_clean_end FROM run") == [(True,)]
        (stat,) = there.rows("SELECT stat, subject, reason FROM capture_stat WHERE subject = 'upload'")
        assert stat[0] == "failed"
        assert stat[2].startswith("s3://bucket/logs/run cannot be reached (")

    # Use the command line with the same URL.
    found = cli("first-nonfinite", url, "--json")
    assert found.returncode == 1, found.stderr
    assert json.loads(found.stdout)["nonfinite"]["op_type"] == "Log"
    assert cli("sql", url, "SELECT count(*) AS n FROM mark", "--format", "csv").stdout == "n\n10\n"
    info = cli("info", url, "--json")
    assert (info.returncode, json.loads(info.stdout)["path"]) == (0, url)


def steps_of(logdir: Any) -> list[int]:
    try:
        logdir.refresh()
    except LogdirError:  # the server is still starting
        return []
    return [int(value) for (value,) in logdir.rows("SELECT value FROM mark WHERE label = 'step' ORDER BY event_index")]


def test_the_upload_command_sends_the_rest_of_a_killed_program(tmp_path: Path, server: S3Server) -> None:
    url = "s3://bucket/killed"
    with Program(tmp_path, url, "killed") as program:
        program.reaches("begun")
        server.kill()
        program.go_on()
        program.reaches("done")
        program.go_on()
        program.end()
    (left,) = (tmp_path / "local").iterdir()
    server.start()
    sent = cli("upload", "--remove", str(left), url)
    assert (sent.returncode, left.exists()) == (0, False), sent.stderr
    assert re.fullmatch(r"\S+: sent \d+ parts \([\d,]+ bytes\); complete at s3://bucket/killed\n", sent.stdout)
    with open_logdir(tmp_path / "logdir") as here, open_logdir(url) as there:
        assert same_in_both(first_nonfinite(there)) == same_in_both(first_nonfinite(here))
        assert there.rows("SELECT is_clean_end FROM run") == [(False,)]


def test_run_records_to_a_url(tmp_path: Path, server: S3Server) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import tensorflow as tf\n"
        "tf.debugging.experimental.enable_dump_debug_info('ignored', tensor_debug_mode='FULL_HEALTH')\n"
        "tf.math.log(tf.constant([-1.0]))\n"
    )
    found = cli("run", "--json", "--logdir", "s3://bucket/by-run", str(script))
    assert found.returncode == 1, found.stderr
    summary = json.loads(found.stderr.splitlines()[-1])
    assert (summary["logdir"], summary["nonfinite"]["op_type"]) == ("s3://bucket/by-run", "Log")
    # The program's own call replaced the first run, which is gone.
    assert [key.split("/")[-1] for key in server.files() if "/manifest/" in key] == [f"{summary['run_ids'][0]}.jsonl"]
    assert not list((tmp_path / "local").iterdir())
    assert not Path("s3:").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://no-such-bucket/x", "s3://no-such-bucket/x cannot be (read|written) .*bucket does not exist"),
        ("nonsense://bucket/x", "nonsense://bucket/x has the protocol 'nonsense', which fsspec does not know"),
        ("s3://", "s3:// names no bucket or directory"),
        ("gs://bucket/x", "gs://bucket/x needs a package that is not installed .*; run: pip install gcsfs"),
    ],
)
def test_the_error_for_an_unusable_url_is_one_sentence(tmp_path: Path, server: S3Server, url: str, said: str) -> None:
    (tmp_path / "program.py").write_text("import tensorflow\nprint('the program runs')\n")
    commands = [("info", url), ("run", "--logdir", url, str(tmp_path / "program.py"))]
    for command in commands:
        found = cli(*command)
        assert (found.returncode, found.stdout) == (2, ""), found.stderr
        ours = [line for line in found.stderr.splitlines() if "tfdbg" in line]  # TensorFlow logs as well
        assert len(ours) == 1, found.stderr
        assert re.fullmatch(f"tfdbg-arrow: {said}.*", ours[0]), found.stderr


def test_the_error_for_wrong_credentials_is_one_sentence(server: S3Server) -> None:
    from moto.core import set_initial_no_auth_action_count

    found = set_initial_no_auth_action_count(0)(lambda: cli("info", "s3://bucket/x"))()
    assert found.returncode == 2
    assert found.stderr.startswith("tfdbg-arrow: s3://bucket/x cannot be read (PermissionError: ")
    assert found.stderr.endswith("); check the credentials that the store's client finds, or give storage_options.\n")
