"""Failures: errors of the program do not change, and errors of the recorder do not reach the program."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer.hooks import autograph
from tfdbg_arrow.writer.recording.function_observer import FunctionObserver

from .lifecycle import X, doubling, stats
from .tables import rows

pytestmark = pytest.mark.usefixtures("not_recording")


def fail_in_gather(x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, 5)


def fail_in_assertion(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_less(x, 1.0, message="too large")
    return x


def fail_in_loop(x: tf.Tensor) -> tf.Tensor:
    for i in tf.range(4):
        x = tf.reshape(tf.gather(x, [i, i]), [2])
    return x


def fail_in_python(x: tf.Tensor) -> tf.Tensor:
    return tf.py_function(lambda y: 1 / 0, [x], tf.float32)


def fail_in_trace(x: tf.Tensor) -> tf.Tensor:
    raise KeyError("of the program")


def double(x: tf.Tensor) -> tf.Tensor:
    return x * 2.0


def triple(x: tf.Tensor) -> tf.Tensor:
    return x * 3.0


FAILING = {
    "function": fail_in_gather,
    "assertion": fail_in_assertion,
    "loop": fail_in_loop,
    "python": fail_in_python,
    "trace": fail_in_trace,
}


class TestFailures:
    def errors_of(self, run: Any) -> list[tuple[type, str]]:
        """Returns the errors of the first and second run of a program, without line numbers and function numbers."""
        found = []
        for _ in range(2):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                run()
            text = str(caught.value).partition("[Op:")[0]
            # TensorFlow's text of a Python error contains the traceback, which includes the frame of the recorder.
            text = "\n\n".join(paragraph for paragraph in text.split("\n\n") if "writer/hooks/" not in paragraph)
            found.append((caught.type, re.sub(r", line \d+|_\d+\b|generated_file\w+", "", text)))
        return found

    @pytest.mark.parametrize(
        "place", ["eager", "function", "assertion", pytest.param("loop", marks=pytest.mark.slow), "python", "trace"]
    )
    def test_exceptions_of_the_program_do_not_change(self, place: str, tmp_path: Path) -> None:
        def program() -> Any:
            if place == "eager":
                return tf.gather(X, 5)
            return tf.function(FAILING[place])(tf.constant(X))

        bare = self.errors_of(program)
        with tfdbg_arrow.capture(tmp_path):
            recorded = self.errors_of(program)
            result = doubling()(X).numpy()
        assert recorded == bare
        assert result.tolist() == [4.0, 0.0]
        assert stats(tmp_path) == []
        last = max(row["execution_index"] for row in rows(tmp_path, "execution"))
        assert (last, "graph") in {(row["execution_index"], row["scope"]) for row in rows(tmp_path)}

    def test_a_recorder_failure_is_one_warning_and_a_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(FunctionObserver, "_prepare", fail)
        match = "could not be instrumented: ValueError: broken"
        with pytest.warns(RuntimeWarning, match=match) as warned, tfdbg_arrow.capture(tmp_path):
            results = [doubling()(X).numpy().tolist() for _ in range(2)]
        assert results == [[4.0, 0.0]] * 2
        assert len([w for w in warned if "broken" in str(w.message)]) == 1
        assert {stat for stat, _ in stats(tmp_path)} == {"failed"}

    # AutoGraph converts each function once in a process.
    @pytest.mark.parametrize(("part", "function"), [("_note_span", double), ("_matched_spans", triple)])
    def test_lost_columns_of_a_converted_function_are_a_row(
        self, part: str, function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(autograph, part, fail)
        with tfdbg_arrow.capture(tmp_path):
            tf.function(function)(X)
        assert {stat for stat, _ in stats(tmp_path)} == {"failed"}

    def test_warnings_that_are_errors_do_not_break_the_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(FunctionObserver, "_prepare", fail)
        with warnings.catch_warnings(), tfdbg_arrow.capture(tmp_path):
            warnings.simplefilter("error")
            assert doubling()(X).numpy().tolist() == [4.0, 0.0]
        assert "could not be instrumented: ValueError: broken" in capsys.readouterr().err

    def test_a_removed_logdir_is_named_at_the_end(self, tmp_path: Path) -> None:
        logdir = tmp_path / "logdir"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with tfdbg_arrow.capture(logdir) as recorded:
                doubling()(X)
                shutil.rmtree(logdir)
                doubling()(X)
        text = str(caught[-1].message)
        assert f"{logdir} was removed or replaced while the run {recorded.run_id} was recorded into it" in text
        assert not [each for each in caught if "recover" in str(each.message)]

    def test_warnings_about_changes_do_not_break_the_training(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        f = doubling()
        held = f.get_concrete_function(tf.TensorSpec([2]))
        compiled = tf.function(lambda x: tf.reduce_sum(f(x)), jit_compile=True)
        with warnings.catch_warnings(), tfdbg_arrow.capture(tmp_path, xla="observe"):
            warnings.simplefilter("error")
            results = compiled(X).numpy(), held(tf.constant(X)).numpy()
        assert [value.tolist() for value in results] == [4.0, [4.0, 0.0]]
        assert {stat for stat, _ in stats(tmp_path)} == {"changed", "unobservable"}
        assert "without XLA" in capsys.readouterr().err

    def test_an_interrupt_while_tracing(self, tmp_path: Path) -> None:
        interrupts = [KeyboardInterrupt]

        @tf.function
        def f(x: tf.Tensor) -> tf.Tensor:
            y = x * 2.0
            if interrupts:
                raise interrupts.pop()
            return y

        with tfdbg_arrow.capture(tmp_path):
            with pytest.raises(KeyboardInterrupt):
                f(X)
            assert f(X).numpy().tolist() == [2.0, -2.0]
        assert sum(row["op_type"] == "Mul" for row in rows(tmp_path)) == 1
