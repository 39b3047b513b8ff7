"""Warnings of the recorder never become exceptions of the program."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tfdbg_arrow.writer.recording.capture_stats import warn


def _refuse(*_: Any, **__: Any) -> None:
    raise ValueError("this program shows no warnings")


def test_a_warning_is_shown() -> None:
    with pytest.warns(RuntimeWarning, match="^tfdbg_arrow: something was left out$"):
        warn("something was left out")


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
