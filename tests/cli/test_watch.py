"""Test `tfdbg-arrow watch`, and the progress that it shows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.query import open_logdir
from tfdbg_arrow.query.following import Figure, read_progress

from ..query.builder import CLEAN, NAN, START_NS, RunBuilder
from .commands import run_cli

SECONDS = 600.0


def harmful(path: Path) -> Path:
    """Writes a run in which an eager NaN is written to a variable in step 3."""
    run = RunBuilder("run-a")
    for step, health in ((2, CLEAN), (3, NAN)):
        execution = run.execution("Log", inputs=[1], outputs={2 + step: "float32"})
        run.eager(execution, health, tensor_id=2 + step)
        run.rows["tensor_health"][-1]["step"] = step
        run.execution("AssignVariableOp", inputs=[9, 2 + step])
    return run.write(path)


def start_watching(logdir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tfdbg_arrow", "watch", "--interval", "0.1", str(logdir)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_ended_recording_is_shown_once(healthy: Path) -> None:
    result = run_cli("watch", healthy)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "1 tensor, 0 of them bad",
        "the recording has ended",
    ]


def test_the_names_of_figures_keep_their_capitals_inside_a_line(tmp_path: Path) -> None:
    run = RunBuilder("run-a")
    execution = run.execution("Log", inputs=[1], outputs={2: "float32"})
    run.eager(execution, CLEAN, tensor_id=2)
    run.rows["tensor_health"][-1]["step"] = 0
    run.add("mark", event_index=2, wall_time_ns=START_NS, step=0, label="logs/accuracy", value="0.5")
    line = run_cli("watch", run.write(tmp_path / "logdir")).stdout.splitlines()[0]
    assert line.startswith("step 0: accuracy in Keras's logs 0.5, share of zeros in activations 0.0%")


@pytest.mark.slow
def test_a_bad_value_sets_the_exit_code_and_runs_the_command_once(tmp_path: Path) -> None:
    logdir, said = harmful(tmp_path / "logdir"), tmp_path / "said.json"
    result = run_cli("watch", logdir, "--exec", f"cat >> {said}; exit 7")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("step 3: share of zeros in activations 0.0%, share of bad tensors 100.0%, 2 tensors, 1")
    assert lines[1].startswith("NaN came up in Log:0 in step 3.")
    assert result.stderr == "tfdbg-arrow: the command of --exec ended with exit code 7\n"
    wanted = run_cli("first-nonfinite", logdir, "--run", "run-a", "--json").stdout
    assert json.loads(said.read_text()) == json.loads(wanted)


def test_a_harmless_value_neither_sets_the_exit_code_nor_runs_the_command(tmp_path: Path) -> None:
    attend = tf.function(lambda x: tf.nn.softmax(tf.where([True, False], x, float("-inf"))))
    with tfdbg_arrow.capture(tmp_path / "logdir"):
        attend(tf.constant([1.0, 2.0]))
    said = tmp_path / "said"
    result = run_cli("watch", tmp_path / "logdir", "--exec", f"touch {said}")
    assert (result.exit_code, said.exists()) == (0, False)
    assert "0 of them bad" not in result.stdout


def test_json_has_an_object_in_a_line_for_each_look(bad: Path) -> None:
    result = run_cli("watch", bad, "--json")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    progress = json.loads(line)
    assert (progress["run_ids"], progress["is_ended"], progress["num_nonfinite"]) == (["run-a"], True, 1)
    assert progress["nonfinite"] == json.loads(run_cli("first-nonfinite", bad, "--json").stdout)["nonfinite"]


def test_texts_of_the_recording_are_printed_without_control_characters(bad: Path) -> None:
    result = run_cli("watch", bad)
    assert "\x1b" not in result.stdout
    assert "[red]train" in result.stdout


@pytest.mark.parametrize(("words", "sentence"), [(("--run", "run-b"), "run 'run-b'"), (("--interval", "0"), "0.1")])
def test_wrong_options_are_refused(words: tuple[str, ...], sentence: str, healthy: Path) -> None:
    result = run_cli("watch", healthy, *words)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_another_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = run_cli("watch", tmp_path)
    assert result.exit_code == 2
    assert "is not a logdir" in result.stderr


@pytest.mark.slow
def test_it_waits_for_a_recording_and_follows_it_to_its_end(tmp_path: Path) -> None:
    """Another process watches: it sees the recording from its first to its last step."""
    logdir = tmp_path / "logdir"
    watching = start_watching(logdir)
    assert watching.stdout is not None
    assert watching.stderr is not None
    try:
        assert watching.stderr.readline() == f"Waiting for a recording in {logdir} …\n"
        with tfdbg_arrow.capture(logdir):
            tfdbg_arrow.mark(step=0, loss=0.5)
            tf.square(tf.constant(2.0))
            assert any(line.startswith("step 0: loss 0.5, ") for line in watching.stdout)  # which stops at the first
            tfdbg_arrow.mark(step=1, loss=0.25)
            tf.square(tf.constant(2.0))
        out, err = watching.communicate(timeout=SECONDS)
    finally:
        watching.kill()
    assert (watching.returncode, err) == (0, "")
    assert out.splitlines()[-2].startswith("step 1: loss 0.25, ")
    assert out.splitlines()[-1] == "the recording has ended"


class TestProgress:
    def test_a_recording_that_goes_on(self, tmp_path: Path) -> None:
        with tfdbg_arrow.capture(tmp_path), open_logdir(tmp_path) as logdir:
            tfdbg_arrow.mark(step=4, loss=float("nan"))
            tf.math.log(tf.constant([0.0, 1.0]))
            tfdbg_arrow.flush()
            logdir.refresh()
            progress = read_progress(logdir, seconds=SECONDS)
        assert progress is not None
        assert (progress.run_ids, progress.is_ended, progress.step) == ((progress.run.run_id,), False, 4)
        assert (progress.num_nonfinite, progress.has_harm, progress.is_cut) == (1, True, False)
        (loss,) = (figure for figure in progress.figures if figure.name == "loss")
        assert (loss.title, loss.is_bad) == ("Loss", True)

    def test_a_logdir_without_events(self, tmp_path: Path) -> None:
        with open_logdir(RunBuilder("run-a").write(tmp_path / "logdir")) as logdir:
            progress = read_progress(logdir, seconds=SECONDS)
        assert progress is not None
        assert (progress.figures, progress.last_event_ns, progress.step) == ((), None, None)
        assert (progress.num_tensors, progress.nonfinite, progress.rules) == (0, None, ())

    def test_what_could_not_be_read_in_time_is_that_of_the_round_before(self, tmp_path: Path) -> None:
        with open_logdir(harmful(tmp_path / "logdir")) as logdir:
            before = read_progress(logdir, seconds=SECONDS)
            logdir.forget()
            cut = read_progress(logdir, seconds=0.0, before=before)
            alone = read_progress(logdir, seconds=0.0)
        assert before is not None
        assert cut is not None
        assert alone is not None
        assert (before.is_cut, cut.is_cut, alone.is_cut) == (False, True, True)
        assert (cut.figures, cut.nonfinite, cut.rules) == (before.figures, before.nonfinite, before.rules)
        assert (alone.figures, alone.nonfinite, alone.rules) == ((), None, ())
        assert alone.num_nonfinite == 1

    def test_a_share_of_one_is_no_bad_figure(self) -> None:
        share = Figure(name="bad_share", title="Share of bad tensors", value=1.0, is_share=True)
        assert not share.is_bad


@pytest.mark.slow
def test_ctrl_c_ends_only_the_watching(tmp_path: Path) -> None:
    logdir = tmp_path / "logdir"
    with tfdbg_arrow.capture(logdir):
        tf.square(tf.constant(2.0))
        watching = start_watching(logdir)
        assert watching.stdout is not None
        reader = threading.Timer(SECONDS, watching.kill)
        reader.start()
        try:
            assert "tensors" in watching.stdout.readline()
            watching.send_signal(signal.SIGINT)
            _, err = watching.communicate()
        finally:
            reader.cancel()
            watching.kill()
        assert (watching.returncode, err) == (0, "\n")
        tf.square(tf.constant(3.0))
    with open_logdir(logdir) as opened:
        assert opened.rows("SELECT count(*) FROM execution WHERE op_type = 'Square'") == [(2,)]
