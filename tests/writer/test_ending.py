"""The end of a recording: the messages of an end that takes long, and disable(wait=False)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow import open_logdir
from tfdbg_arrow.writer import active_recording, ending
from tfdbg_arrow.writer.sink.parts import KEPT_PARTS
from tfdbg_arrow.writer.sink.sink import Sink

from .lifecycle import X, doubling
from .subprocesses import run_python

pytestmark = pytest.mark.usefixtures("not_recording")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Delays the end of each recording until the event is set."""
    may_end = threading.Event()
    close = Sink.close

    def close_later(self: Sink, **settings: Any) -> None:
        assert may_end.wait(60)
        close(self, **settings)

    monkeypatch.setattr(Sink, "close", close_later)
    yield may_end
    may_end.set()


def clean_ends(logdir: Path) -> list[bool]:
    with open_logdir(logdir) as opened:
        return [is_clean for (is_clean,) in opened.rows("SELECT is_clean_end FROM run ORDER BY wall_time_ns")]


def tell_progress(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> None:
    """Makes recordings report the progress of their end without delay."""
    monkeypatch.setattr(ending, "PATIENCE_S", 0.0)
    monkeypatch.setattr(ending, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(ending, "_is_terminal", lambda: is_terminal)


def write_only_while_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays the end of a recording until the program waits for it."""
    close = Sink.close

    def close_later(self: Sink, **settings: Any) -> None:
        end = active_recording._ending
        assert end is not None
        while not end._waits:
            time.sleep(0.001)
        close(self, **settings)

    monkeypatch.setattr(Sink, "close", close_later)


class TestWait:
    def test_it_returns_at_once_and_the_rest_is_written(self, tmp_path: Path, gate: threading.Event) -> None:
        tfdbg_arrow.enable(tmp_path)
        f = doubling()
        f(X)
        tfdbg_arrow.disable(wait=False)
        assert (tfdbg_arrow.is_recording(), tfdbg_arrow.is_writing()) == (False, True)
        assert f(X).numpy().tolist() == [4.0, 0.0]  # not recorded
        tf.exp(X)
        gate.set()
        tfdbg_arrow.disable()
        assert not tfdbg_arrow.is_writing()
        assert clean_ends(tmp_path) == [True]
        with open_logdir(tmp_path) as opened:
            assert opened.rows("SELECT count(*) FROM execution WHERE op_type = 'Exp'") == [(0,)]
            assert opened.rows("SELECT count(*) FROM execution WHERE op_type LIKE '%double%'") == [(1,)]
        assert list((tmp_path / "spool").iterdir()) == []

    @pytest.mark.parametrize("error", [None, ValueError])
    def test_capture(self, tmp_path: Path, gate: threading.Event, error: type[Exception] | None) -> None:
        def program() -> None:
            with tfdbg_arrow.capture(tmp_path, wait=False):
                doubling()(X)
                if error is not None:
                    raise error

        if error is None:
            program()
        else:
            with pytest.raises(error):
                program()
        assert tfdbg_arrow.is_writing()
        gate.set()
        tfdbg_arrow.disable()
        assert clean_ends(tmp_path) == [True]

    @pytest.mark.slow
    def test_the_next_recording_waits(self, tmp_path: Path, gate: threading.Event) -> None:
        with tfdbg_arrow.capture(tmp_path, wait=False):
            doubling()(X)
        threading.Timer(0.2, gate.set).start()
        with tfdbg_arrow.capture(tmp_path):
            assert not tfdbg_arrow.is_writing()
            doubling()(X)
        assert clean_ends(tmp_path) == [True, True]

    @pytest.mark.slow
    def test_the_end_of_the_process_waits(self, tmp_path: Path) -> None:
        text = """
            import sys, time
            import tensorflow as tf
            import tfdbg_arrow
            from tfdbg_arrow.writer import active_recording, ending
            from tfdbg_arrow.writer.sink.parts import PartWriter

            ending.PATIENCE_S = 0.2
            compact = PartWriter.compact
            PartWriter.compact = lambda *args, **kwargs: (time.sleep(0.3), compact(*args, **kwargs))
            with tfdbg_arrow.capture(sys.argv[1], wait=False):
                for _ in range(3):
                    tf.exp(1.0)
                    tfdbg_arrow.flush()
            sys.stderr = sys.stdout
        """
        printed = run_python(tmp_path / "program.py", text, tmp_path / "logdir")
        assert re.fullmatch(rf"tfdbg_arrow: writing the recording to {tmp_path}/logdir; \d+% is done\.\n", printed)
        assert clean_ends(tmp_path / "logdir") == [True]


class TestMayHaveBadValues:
    """`may_have_bad_values` is False only if queries find no bad value."""

    @staticmethod
    def eager(x: float) -> None:
        tf.math.log(x)

    @staticmethod
    def graph(x: float) -> None:
        tf.function(tf.math.log)(x)

    @staticmethod
    def xla(x: float) -> None:
        tf.function(tf.math.log, jit_compile=True)(x)

    @staticmethod
    def argument(x: float) -> None:
        tf.function(tf.identity)(np.log(np.float32(x), where=x > 0, out=np.array([-np.inf], np.float32)))

    @staticmethod
    def session(x: float) -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as running:
            fed = tf.compat.v1.placeholder(tf.float32)
            running.run(tf.math.log(fed), {fed: x})

    @pytest.mark.every_case
    @pytest.mark.parametrize("mode", ["CURT_HEALTH", "FULL_HEALTH", "SHAPE"])
    @pytest.mark.parametrize("program", [eager, graph, xla, argument, session])
    def test_it_agrees_with_the_queries(self, tmp_path: Path, program: Any, mode: str) -> None:
        answers = {}
        for x in (0.0, 1.0):
            run_id = tfdbg_arrow.enable(tmp_path / str(x), mode)
            assert run_id is not None
            program.__func__(x)
            assert active_recording.may_have_bad_values(run_id)
            tfdbg_arrow.disable()
            answers[x] = active_recording.may_have_bad_values(run_id)
            assert answers[x] is (tfdbg_arrow.first_nonfinite(tmp_path / str(x)) is not None)
        assert answers == {0.0: mode != "SHAPE", 1.0: False}

    def test_it_is_not_known_of_an_incomplete_run_or_an_earlier_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tfdbg_arrow.capture(tmp_path) as first:
            tf.math.log(1.0)
        with monkeypatch.context() as patched:
            patched.setattr(Sink, "is_all_written", False)
            with tfdbg_arrow.capture(tmp_path) as second:
                tf.math.log(1.0)
            assert active_recording.may_have_bad_values(str(second.run_id))
        assert active_recording.may_have_bad_values(str(first.run_id))


class TestProgress:
    @pytest.fixture
    def logdir(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The logdir of a recording that writes many parts before its end."""
        tfdbg_arrow.enable(tmp_path / "logdir")
        for _ in range(KEPT_PARTS + 1):
            doubling()(X)
            tfdbg_arrow.flush()
        return tmp_path / "logdir"

    def test_a_short_end_says_nothing(self, logdir: Path, capfd: pytest.CaptureFixture[str]) -> None:
        tfdbg_arrow.disable()
        assert capfd.readouterr() == ("", "")

    def test_a_file_gets_one_line(
        self, logdir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        tell_progress(monkeypatch, is_terminal=False)
        write_only_while_awaited(monkeypatch)
        tfdbg_arrow.disable()
        assert capfd.readouterr().err == f"tfdbg_arrow: writing the recording to {logdir}; 0% is done.\n"

    def test_a_terminal_gets_a_line_that_changes(
        self, logdir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        tell_progress(monkeypatch, is_terminal=True)
        write_only_while_awaited(monkeypatch)
        tfdbg_arrow.disable()
        *steps, last = capfd.readouterr().err.removeprefix("\r").split("\r")
        shares = [step.removeprefix(f"tfdbg_arrow: writing the recording to {logdir}: ") for step in steps]
        numbers = [int(share.removesuffix("%\033[K")) for share in shares]
        assert numbers == sorted(numbers)
        assert (numbers[0], numbers[-1]) == (0, 100)
        assert len(set(numbers)) > 3
        assert last == f"tfdbg_arrow: wrote the recording to {logdir}.\033[K\n"

    @pytest.mark.slow
    def test_nobody_who_waits_sees_nothing(
        self, logdir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        tell_progress(monkeypatch, is_terminal=False)
        tfdbg_arrow.disable(wait=False)
        while tfdbg_arrow.is_writing():
            pass
        assert capfd.readouterr().err == ""

    def test_a_closed_stderr_does_not_matter(self, logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ending, "PATIENCE_S", 0.0)
        monkeypatch.setattr("sys.stderr", None)
        tfdbg_arrow.disable()
        assert clean_ends(logdir) == [True]
