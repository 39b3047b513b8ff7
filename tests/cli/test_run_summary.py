"""Test the closing summary of `tfdbg-arrow run`: its time is bounded, and it reports what was not done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdbg_arrow.cli import run
from tfdbg_arrow.cli.run import Summary
from tfdbg_arrow.errors import TimeLimitError
from tfdbg_arrow.query import Logdir

from ..query.builder import CLEAN, INF, NAN, START_NS, RunBuilder


def summary(path: Path, health: dict[str, object]) -> Summary:
    recorded = RunBuilder("run-a")
    recorded.tensor(recorded.graph("f").op("x", "Log"), "x", health)
    return Summary(logdir=str(recorded.write(path)), run_ids=("run-a",), program_exit_code=0)


def test_a_search_that_is_cut_off_names_the_command_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_SUMMARY_S", 0.0)
    assert run._finish(summary(tmp_path / "logdir", NAN), shown_logdir="logs", json=False) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        "tfdbg-arrow: recorded in logs; the search for the first bad one took longer than 0 s",
        "tfdbg-arrow: to find it: tfdbg-arrow first-nonfinite logs",
    ]


@pytest.mark.parametrize(("health", "exit_code"), [(CLEAN, 0), (INF, 0), (NAN, 1)])
def test_a_nan_in_a_variable_decides_the_exit_code_if_the_search_is_cut_off(
    health: dict[str, object],
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def take_too_long(*args: object, **kwargs: object) -> None:
        raise TimeLimitError("stopped")

    monkeypatch.setattr(Logdir, "first_nonfinite", take_too_long)
    recorded = RunBuilder("run-a")
    execution = recorded.execution("Log", inputs=[1], outputs={2: "float32"})
    recorded.eager(execution, health, tensor_id=2)
    recorded.execution("AssignSubVariableOp", inputs=[9, 2])
    ended = Summary(logdir=str(recorded.write(tmp_path / "logdir")), run_ids=("run-a",), program_exit_code=0)
    assert run._finish(ended, shown_logdir="logs", json=False) == exit_code
    assert ("a NaN was written to a variable" in capsys.readouterr().err) == (exit_code == 1)


@pytest.mark.parametrize(("health", "exit_code"), [(CLEAN, 0), (NAN, 1)])
def test_a_finished_search_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, health: dict[str, object], exit_code: int
) -> None:
    monkeypatch.setattr(run, "_SUMMARY_S", 600.0)
    assert run._finish(summary(tmp_path / "logdir", health), shown_logdir="logs", json=False) == exit_code


def test_the_first_line_names_the_run_if_the_logdir_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "_SUMMARY_S", 600.0)
    old = RunBuilder("old", wall_time_ns=START_NS - 10**10)
    old.tensor(old.graph("f").op("x", "Log"), "x", NAN)
    old.write(tmp_path / "logdir")
    assert run._finish(summary(tmp_path / "logdir", CLEAN), shown_logdir="logs", json=False) == 0
    assert capsys.readouterr().err.splitlines() == [
        "tfdbg-arrow: About run run-a, the newest of 2. The other run recorded bad values.",
        "tfdbg-arrow: recorded 1 tensor in logs, none of them bad; for more: tfdbg-arrow info logs",
    ]
