"""Warnings of the recorder never become exceptions of the program."""

from __future__ import annotations

import linecache
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdbg_arrow
from tfdbg_arrow.writer.recording.capture_stats import warn


def _refuse(*_: Any, **__: Any) -> None:
    raise ValueError("this program shows no warnings")


def test_a_warning_is_shown() -> None:
    with pytest.warns(RuntimeWarning, match="^tfdbg_arrow: something was left out$"):
        warn("something was left out")


def test_a_warning_names_the_line_of_the_program(tmp_path: Path) -> None:
    double = tf.function(lambda x: 2.0 * x).get_concrete_function(tf.TensorSpec([]))
    with pytest.warns(RuntimeWarning, match="is not recorded") as warned, tfdbg_arrow.capture(tmp_path):
        double(tf.ones([]))
    lines = {(warning.filename, linecache.getline(__file__, warning.lineno).strip()) for warning in warned}
    assert lines == {(__file__, "double(tf.ones([]))")}


def warn_in_a_thread() -> None:
    thread = threading.Thread(target=warn, args=["something was left out"])
    thread.start()
    thread.join()


def test_a_warning_without_a_line_of_the_program_names_one_outside_the_package() -> None:
    with pytest.warns(RuntimeWarning, match="left out") as warned:
        warn_in_a_thread()
    assert [warning.filename for warning in warned] == [threading.__file__]


def test_a_warning_goes_to_stderr_if_warnings_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("something was left out")
    assert capsys.readouterr().err == "tfdbg_arrow: something was left out\n"


def test_a_warning_goes_to_stderr_if_the_program_cannot_show_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", _refuse)
        warn("something was left out")
    assert capsys.readouterr().err == "tfdbg_arrow: something was left out\n"
