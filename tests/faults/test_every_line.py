"""Test that an interruption at any line of a recording changes nothing for the program.

The lines are those of enable(), the hooks, disable() and the code that runs at exit. Each interrupted program is
compared with the program without a recording, and then recorded a second time. The fast tests interrupt only a sample
of the lines.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tfdbg_arrow
from tests.faults.lines import Interruption, Line, Lines
from tfdbg_arrow import open_logdir, verify

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""An interruption right after open() leaves an open file that no variable refers to. Python closes the file and
warns."""
ALL = pytest.param(1, id="all", marks=pytest.mark.exhaustive)
_SOURCE = """
import tensorflow as tf

@tf.function
def train(x):
    y = tf.square(x)
    for _ in tf.range(2):
        y = inner(y)
    return tf.reduce_sum(y)

@tf.function
def inner(y):
    if tf.reduce_sum(y) > 1.0:
        y = tf.sqrt(y)
    return y

def step():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = train(x)
    gradient = tape.gradient(loss, x)
    return float(tf.reduce_sum(gradient * x))

def spoil():
    return tf.math.log(tf.constant([-1.0]))
"""
CULPRIT_LINE = _SOURCE.splitlines().index("    return tf.math.log(tf.constant([-1.0]))") + 1


class Program:
    """A small program with stacks, functions and lines that no recording has seen yet."""

    def __init__(self, path: Path) -> None:
        path.write_text(_SOURCE, encoding="utf-8")
        self.path = path
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(_SOURCE, str(path), "exec"), names)
        self.step: Callable[[], float] = names["step"]
        self.spoil: Callable[[], object] = names["spoil"]


@pytest.fixture(autouse=True)
def without_collections() -> Iterator[None]:
    """Turns garbage collection off.

    Python ignores errors in finalizers, so no finalizer may run where the test raises an error.
    """
    gc.disable()
    yield
    gc.enable()
    tfdbg_arrow.disable()


def check_recording(program: Program, logdir: Path) -> None:
    """Checks that the last recording of the program is complete and names the culprit."""
    assert verify(logdir).deviations == ()
    with open_logdir(logdir) as opened:
        assert opened.rows("SELECT count(*) FROM run WHERE NOT is_clean_end") == [(0,)]
        (run_id,) = opened.rows("SELECT run_id FROM run ORDER BY wall_time_ns DESC LIMIT 1")[0]
        found = opened.first_nonfinite(run_id=run_id)
        assert found is not None
        assert found.source is not None
        assert (found.op_type, found.source.file_path, found.source.lineno) == ("Log", str(program.path), CULPRIT_LINE)
        for table, column, referred, key in (
            ("stack_trace", "stack_frame_id", "stack_frame", "stack_frame_id"),
            ("stack_frame", "source_file_id", "source_file", "source_file_id"),
            ("execution", "stack_trace_id", "stack_trace", "stack_trace_id"),
            ("graph_op", "stack_trace_id", "stack_trace", "stack_trace_id"),
            ("graph", "outer_graph_id", "graph", "graph_id"),
            ("graph_op", "graph_id", "graph", "graph_id"),
        ):
            text = (
                f"SELECT count(*) FROM {table} AS t WHERE {column} IS NOT NULL AND NOT EXISTS "
                f"(SELECT 1 FROM {referred} AS r WHERE r.{key} = t.{column} AND r.run_id = t.run_id)"
            )
            assert opened.rows(text) == [(0,)], (table, column)
        for table, keys in (
            ("stack_frame", "stack_frame_id"),
            ("source_file", "source_file_id"),
            ("stack_trace", "stack_trace_id, depth"),
            ("graph", "graph_id"),
            ("graph_op", "graph_id, op_name"),
            ("executed_op", "executed_graph_id, node_name"),
        ):
            text = f"SELECT count(*) FROM (SELECT 1 FROM {table} GROUP BY run_id, {keys} HAVING count(*) > 1)"
            assert opened.rows(text) == [(0,)], table
        wrong = opened.rows(
            "SELECT file_path, lineno, func, code FROM stack_frame WHERE file_path = ? AND code IS NOT NULL",
            [str(program.path)],
        )
        lines = _SOURCE.splitlines()
        assert all(lines[lineno - 1].strip() == code for _, lineno, _, code in wrong)


def threads_of_recordings() -> set[str]:
    """Returns the names of the threads that belong to a recording. Threads that read URLs belong to the process."""
    names = {thread.name for thread in threading.enumerate()}
    return names & {"tfdbg_arrow-end", "tfdbg_arrow-sink", "tfdbg_arrow-upload"}


def interrupt(lines: Lines, action: Callable[[], object]) -> bool:
    """Returns whether the interruption reached the caller."""
    try:
        with lines:
            action()
    except Interruption:
        return True
    return False


class Problems:
    """Collects errors, so that an error at one line does not hide errors at other lines."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def at(self, target: object) -> Iterator[None]:
        """Collects the errors of the block, and then its garbage: graphs of TensorFlow contain reference cycles."""
        try:
            yield
        except Exception as error:
            self.found.append(f"{target}: {type(error).__name__}: {str(error)[:500]}")
        finally:
            tfdbg_arrow.disable()  # if there was an error: the next line gets its own recording
            gc.collect()


def sample(lines: Sequence[Line], every: int) -> list[Line]:
    """Returns every `every`-th line, or all lines if `every` is 1."""
    return list(lines[every // 2 :: every] if every > 1 else lines)


@pytest.mark.parametrize("every", [pytest.param(400, id="some"), ALL])
def test_enable(every: int, tmp_path: Path) -> None:
    program = Program(tmp_path / "program.py")
    expected = program.step()
    dry = Lines()
    with tfdbg_arrow.capture(tmp_path / "warm"):
        pass
    with dry:
        tfdbg_arrow.enable(tmp_path / "dry")
    tfdbg_arrow.disable()
    targets = sample(list(dry.seen), every)
    assert targets
    problems = Problems()
    for number, target in enumerate(targets):
        with problems.at(target):
            logdir = tmp_path / str(number)
            lines = Lines(target)
            arrived = interrupt(lines, lambda logdir=logdir: tfdbg_arrow.enable(logdir))  # type: ignore[misc]
            assert arrived == lines.has_raised, target
            if lines.has_raised:
                assert not tfdbg_arrow.is_recording(), target
                assert program.step() == expected
                tfdbg_arrow.enable(logdir)
            program = Program(tmp_path / f"program{number}.py")
            assert program.step() == expected
            program.spoil()
            tfdbg_arrow.disable()
            assert threads_of_recordings() == set(), target
            check_recording(program, logdir)
            with open_logdir(logdir) as opened:
                assert opened.rows("SELECT count(*) FROM run") == [(1,)], target
    assert problems.found == []


def step_if_tensorflow_can(program: Program) -> float | None:
    """Returns the result of a step; None if TensorFlow cannot use a function after an interruption of its tracing.

    If TensorFlow is interrupted while it makes the gradient of a branch or a loop, it leaves half of the gradient in
    the function. Every later call of the function then fails. Such failures also happen without a recording.
    """
    try:
        return program.step()
    except (AssertionError, IndexError) as error:
        if "/tensorflow/" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise
        return None


@pytest.mark.parametrize("every", [pytest.param(400, id="some"), ALL])
def test_hooks(every: int, tmp_path: Path) -> None:
    program = Program(tmp_path / "program.py")
    expected = program.step()
    dry = Lines()
    with tfdbg_arrow.capture(tmp_path / "warm"):
        Program(tmp_path / "warm.py").step()
    with tfdbg_arrow.capture(tmp_path / "dry"), dry:
        Program(tmp_path / "dry.py").step()
    targets = sample(list(dry.seen), every)
    assert targets
    problems = Problems()
    for number, target in enumerate(targets):
        with problems.at(target):
            logdir = tmp_path / str(number)
            interrupted, program = Program(tmp_path / f"interrupted{number}.py"), Program(tmp_path / f"{number}.py")
            lines = Lines(target)
            tfdbg_arrow.enable(logdir)
            arrived = interrupt(lines, interrupted.step)
            assert arrived == lines.has_raised, target
            assert tfdbg_arrow.is_recording()
            assert step_if_tensorflow_can(interrupted) in (expected, None), target
            assert program.step() == expected, target
            program.spoil()
            tfdbg_arrow.disable()
            check_recording(program, logdir)
    assert problems.found == []


@pytest.mark.parametrize("every", [pytest.param(30, id="some"), ALL])
def test_disable(every: int, tmp_path: Path) -> None:
    program = Program(tmp_path / "program.py")
    dry = Lines()
    with tfdbg_arrow.capture(tmp_path / "warm"):
        program.step()
    tfdbg_arrow.enable(tmp_path / "dry")
    program.step()
    with dry:
        tfdbg_arrow.disable()
    targets = sample(list(dry.seen), every)
    assert targets
    problems = Problems()
    for number, target in enumerate(targets):
        with problems.at(target):
            logdir = tmp_path / str(number)
            tfdbg_arrow.enable(logdir)
            program.spoil()
            lines = Lines(target)
            arrived = interrupt(lines, tfdbg_arrow.disable)
            assert arrived == lines.has_raised, target
            tfdbg_arrow.disable()  # ends the recording if it is still running, otherwise waits
            assert threads_of_recordings() == set(), target
            check_recording(program, logdir)
            with tfdbg_arrow.capture(logdir):
                program.spoil()
            check_recording(program, logdir)
    assert problems.found == []


_EXITS = r"""
import atexit, json, os, signal, sys, time
import tensorflow as tf
import tfdbg_arrow
from tests.faults.lines import Lines

logdirs, every, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(os.path.join(logdirs, "results"), "w") as results:
    targets, number = [None], 0
    while number < len(targets):
        child = os.fork()
        if child == 0:
            break
        deadline = time.monotonic() + 120
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                deadline += 60
            time.sleep(0.02)
        if number == 0:
            seen = [tuple(line) for line in json.load(open(os.path.join(logdirs, "seen")))]
            targets += seen[every // 2 :: every] if every > 1 else seen
        results.write(json.dumps([targets[number], number, os.waitstatus_to_exitcode(status)]) + "\n")
        results.flush()  # or a child writes it again
        number += 1
if child != 0:
    sys.exit(0)

class Interruption(KeyboardInterrupt):
    pass

lines = Lines(targets[number], error=Interruption)

@atexit.register
def write_seen():
    if number == 0:
        json.dump(list(lines.seen), open(os.path.join(logdirs, "seen"), "w"))

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
tfdbg_arrow.enable(os.path.join(logdirs, str(number)))
tf.math.log(tf.constant([-1.0]))
atexit.register(lines.__enter__)  # it runs before the recording ends
sys.stderr = open(os.devnull, "w")
if how == "interrupted":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["finished", "interrupted"])
@pytest.mark.parametrize("every", [pytest.param(100, id="some", marks=pytest.mark.slow), ALL])
def test_exit(every: int, how: str, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", _EXITS, str(tmp_path), str(every), how],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
    )
    results = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    assert len(results) > 1
    unrecorded = {"finished": 0, "interrupted": -signal.SIGINT}[how]
    assert [(target, status) for target, _, status in results if status != unrecorded] == []
    for target, number, _ in results:
        with open_logdir(tmp_path / str(number)) as opened:
            assert opened.rows("SELECT is_clean_end FROM run") == [(True,)], target
            found = opened.first_nonfinite()
            assert found is not None
            assert found.op_type == "Log"
