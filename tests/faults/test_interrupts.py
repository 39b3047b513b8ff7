"""Test that a recording does not change the effect of signals, exits and finalizers on a program."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.programs.running import run_to_end
from tests.sampling import mostly_slow
from tfdbg_arrow import open_logdir

START = """
import contextlib, gc, os, signal, sys, threading, time, weakref
import tensorflow as tf
import tfdbg_arrow
from tfdbg_arrow.spool.journal import Journal

logdir = sys.argv[1]
"""
IN_RECORDER = """
original = Journal.append
is_due = False
def append(self, *entry, **text):
    global is_due
    if is_due:
        is_due = False
        {interruption}
    return original(self, *entry, **text)
Journal.append = append
"""
"""Makes an event happen in the middle of the recorder's code, the next time that it writes a stack to its journal."""
RAISED = (
    ("KeyboardInterrupt", "signal.default_int_handler"),
    ("SystemExit", "lambda *_: sys.exit(3)"),
    ("TimeoutError", "raise_timeout"),
    ("LookupError", "raise_lookup"),
)
"""Errors, and the signal handlers that raise them."""
STEPS = ("tf.square(tf.ones([3]))", "tf.function(lambda x: tf.exp(x) + 7.0)(tf.ones([3]))")
INTERRUPTIONS = ("signal.raise_signal(signal.SIGUSR1)", "finalized.clear()", "weak.clear()", "stop()")


def run(text: str, logdir: Path, *, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Runs a program with a logdir as its argument. Fails if the program hangs."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory, "program.py")
        script.write_text(START + textwrap.dedent(text))
        return run_to_end(script, logdir, timeout_s=timeout_s)


def test_uncaught_interrupt_ends_program_with_sigint(tmp_path: Path) -> None:
    done = run(
        """
        tfdbg_arrow.enable(logdir)
        print(float(tf.ones([2]) [0]))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
        """,
        tmp_path,
    )
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode == -signal.SIGINT, done.stderr  # a shell shows 130
    with open_logdir(tmp_path) as logdir:
        assert logdir.rows("SELECT is_clean_end FROM run") == [(True,)]


_INTERRUPTED_END = """
from tfdbg_arrow.writer.sink.sink import Sink
close = Sink.close
def close_later(self, **settings):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
    close(self, **settings)
Sink.close = close_later
"""
"""Sends SIGINT while the end of a recording is written."""


@pytest.mark.parametrize("how", mostly_slow(["enable", "capture"], fast=["enable"]))
def test_a_second_interrupt_at_the_end_does_not_abort_the_program(tmp_path: Path, how: str) -> None:
    done = run(
        _INTERRUPTED_END
        + textwrap.dedent(
            f"""
            with contextlib.ExitStack() as stack:
                if "{how}" == "capture":
                    stack.enter_context(tfdbg_arrow.capture(logdir))
                else:
                    tfdbg_arrow.enable(logdir)
                tf.exp(tf.ones([2]))
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            """
        ),
        tmp_path,
    )
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "terminate called" not in done.stderr
    with open_logdir(tmp_path) as logdir:
        assert logdir.rows("SELECT is_clean_end FROM run") == [(True,)]


def test_an_interrupt_in_disable_reaches_the_program_and_the_end_is_written(tmp_path: Path) -> None:
    done = run(
        _INTERRUPTED_END
        + textwrap.dedent(
            """
            tfdbg_arrow.enable(logdir)
            tf.exp(tf.ones([2]))
            try:
                tfdbg_arrow.disable()
            except KeyboardInterrupt:
                print("arrived", tfdbg_arrow.is_recording(), tfdbg_arrow.is_writing())
            Sink.close = close
            tfdbg_arrow.enable(logdir)  # it waits for the end of the first recording
            tf.exp(tf.ones([2]))
            tfdbg_arrow.disable()
            """
        ),
        tmp_path,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["arrived", "False", "True"]), done.stderr
    with open_logdir(tmp_path) as logdir:
        assert logdir.rows("SELECT is_clean_end FROM run") == [(True,)] * 2


@pytest.mark.parametrize(
    ("where", "error", "handler"),
    mostly_slow(
        [(where, *raised) for where in ("eager op", "call", "tracing") for raised in RAISED],
        fast=[("call", *RAISED[0])],
    ),
)
def test_exceptions_of_the_program_pass_through_the_recorder(
    tmp_path: Path, where: str, error: str, handler: str
) -> None:
    steps = {
        "eager op": "tf.square(tf.ones([3]))",
        "call": "function(tf.ones([3]))",
        "tracing": "tf.function(lambda x: tf.exp(x) + 7.0)(tf.ones([3]))",
    }
    done = run(
        IN_RECORDER.format(interruption="signal.raise_signal(signal.SIGINT)")
        + textwrap.dedent(
            f"""
            def raise_timeout(*_): raise TimeoutError("alarm")
            def raise_lookup(*_): raise LookupError("of the program")
            function = tf.function(lambda x: x + 1.0)
            tfdbg_arrow.enable(logdir)
            function(tf.ones([3]))
            signal.signal(signal.SIGINT, {handler})
            is_due = True
            try:
                {steps[where]}
            except {error}:
                print("arrived")
            assert not is_due
            print(float(tf.reduce_sum(function(tf.ones([3])))))
            tfdbg_arrow.disable()
            """
        ),
        tmp_path,
    )
    assert done.stdout.split() == ["arrived", "6.0"], done.stdout + done.stderr
    with open_logdir(tmp_path) as logdir:
        assert logdir.rows("SELECT is_clean_end FROM run") == [(True,)]
        assert logdir.rows("SELECT count(*) FROM capture_stat WHERE stat = 'failed'") == [(0,)]


@pytest.mark.slow
def test_errors_of_the_recorder_do_not_reach_the_program(tmp_path: Path) -> None:
    done = run(
        IN_RECORDER.format(interruption="raise LookupError('of the recorder')")
        + textwrap.dedent(
            """
            tfdbg_arrow.enable(logdir)
            tf.ones([3])
            is_due = True
            print(float(tf.reduce_sum(tf.square(tf.ones([3])))))
            assert not is_due
            tfdbg_arrow.disable()
            """
        ),
        tmp_path,
    )
    assert done.stdout.split() == ["3.0"], done.stdout + done.stderr
    with open_logdir(tmp_path) as logdir:
        ((reason,),) = logdir.rows("SELECT reason FROM capture_stat WHERE stat = 'failed'")
        assert "of the recorder" in reason


@pytest.mark.parametrize(
    ("step", "interruption"),
    mostly_slow(
        [(step, interruption) for step in STEPS for interruption in INTERRUPTIONS],
        fast=[(STEPS[1], INTERRUPTIONS[0])],
    ),
)
def test_disable_returns_in_the_middle_of_the_recorder(tmp_path: Path, step: str, interruption: str) -> None:
    done = run(
        IN_RECORDER.format(interruption=interruption)
        + textwrap.dedent(
            f"""
            def stop(*_):
                begin = time.monotonic()
                tfdbg_arrow.disable()
                assert time.monotonic() - begin < 10
                print("returned")
            class Finalized:
                def __del__(self): stop()
            class Referent: pass
            finalized, weak = [Finalized()], [Referent()]
            reference = weakref.ref(weak[0], stop)
            signal.signal(signal.SIGUSR1, stop)
            tfdbg_arrow.enable(logdir)
            tf.ones([3])
            is_due = True
            {step}
            assert not is_due
            assert not tfdbg_arrow.is_recording()
            stop = lambda *_: None
            print(float(tf.reduce_sum(tf.ones([3]))))
            run_id = tfdbg_arrow.enable(logdir)  # waits until the first recording has ended
            tf.ones([3])
            tfdbg_arrow.disable()
            """
        ),
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["returned", "3.0"], done.stdout + done.stderr
    with open_logdir(tmp_path) as logdir:
        assert logdir.rows("SELECT is_clean_end FROM run") == [(True,)] * 2
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.slow
def test_disable_inside_a_traced_function_has_written_everything_when_it_returns(tmp_path: Path) -> None:
    done = run(
        """
        tfdbg_arrow.enable(logdir)
        tf.square(tf.ones([3]))
        @tf.function
        def function(x):
            tfdbg_arrow.disable()
            with tfdbg_arrow.open_logdir(logdir) as opened:
                print(opened.rows("SELECT is_clean_end FROM run"))
            return x + 1.0
        print(float(tf.reduce_sum(function(tf.ones([3])))))
        """,
        tmp_path,
    )
    assert done.stdout.splitlines() == ["[(True,)]", "6.0"], done.stdout + done.stderr


@pytest.mark.slow
def test_disable_from_another_thread(tmp_path: Path) -> None:
    done = run(
        """
        function = tf.function(lambda x: x + 1.0)
        tfdbg_arrow.enable(logdir)
        function(tf.ones([3]))
        is_over = False
        def stop():
            global is_over
            tfdbg_arrow.disable()
            is_over = True
        thread = threading.Thread(target=stop)
        thread.start()
        while not is_over:
            function(tf.ones([3]))
        thread.join()
        print(tfdbg_arrow.is_recording())
        """,
        tmp_path,
    )
    assert done.stdout.split() == ["False"], done.stdout + done.stderr
