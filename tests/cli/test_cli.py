"""Test the command line as a whole: wrong options, help, and imported modules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfdbg_arrow._version import __version__
from tfdbg_arrow.cli.app import GROUPS

from .commands import run_cli


def test_version() -> None:
    result = run_cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"tfdbg-arrow {__version__}\n")


def test_a_wrong_option_gives_exit_code_2() -> None:
    assert run_cli("info").exit_code == 2
    assert run_cli("no-such-command").exit_code == 2


@pytest.mark.slow
def test_the_module_runs_like_the_command(bad: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tfdbg_arrow", "first-nonfinite", str(bad)],
        capture_output=True,
        text=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (found.returncode, found.stderr) == (1, "")
    assert found.stdout == run_cli("first-nonfinite", bad).stdout


def test_reading_a_logdir_loads_neither_tensorflow_nor_the_writer(bad: Path) -> None:
    code = (
        "import sys, tfdbg_arrow; assert 'duckdb' not in sys.modules\n"
        f"assert tfdbg_arrow.first_nonfinite({str(bad)!r}).op_name == 'Log'\n"
        "print([name for name in sys.modules if name.startswith(('tensorflow', 'tfdbg_arrow.writer'))])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert found.stdout == "[]\n"


def test_the_help_lists_each_command_once_by_group_with_a_whole_sentence() -> None:
    text = run_cli("--help").stdout
    assert [line for line in text.splitlines() if line.endswith(":") and " " not in line] == [
        *("Options:", "Record:", "Find:", "Look:", "Keep:")
    ]
    _, _, commands = text.partition("Record:")
    listed = re.findall(r"^  ([a-z][a-z-]*) ", commands, re.MULTILINE)
    assert listed == [name for names in GROUPS.values() for name in names]
    assert "..." not in commands


@pytest.mark.parametrize("name", [name for names in GROUPS.values() for name in names])
def test_the_help_of_a_command_names_no_types(name: str) -> None:
    result = run_cli(name, "--help")
    assert result.exit_code == 0
    assert re.findall(r"<(?!run id).*?>|\bTEXT\b|\bINTEGER\b|\bFLOAT\b|\{LOGDIR\}", result.stdout) == []


def test_a_wrong_command_and_a_wrong_op_are_answered_with_similar_names(bad: Path) -> None:
    assert "Did you mean 'alerts'?" in run_cli("alrets").stderr
    assert "Did you mean Log?" in run_cli("why", bad, "Logg").stderr
    assert run_cli("show", bad, "Lgo").stdout == "No recorded tensor matches Lgo. Did you mean Log?\n"
