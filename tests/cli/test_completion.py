"""Test that shells complete subcommands and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .commands import run_cli

_COMPLETE = """
eval "$(_TFDBG_ARROW_COMPLETE=source_bash tfdbg-arrow)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_tfdbg_arrow_completion tfdbg-arrow
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words: str) -> list[str]:
    """Returns what a bash offers for the last word."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", _COMPLETE, "bash", *words], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


def test_bash_completes_subcommands_options_and_choices() -> None:
    assert completed("tfdbg-arrow", "first") == ["first-nonfinite"]
    assert set(completed("tfdbg-arrow", "alerts", "logdir", "--ru")) == {"--rule", "--rules", "--run"}
    assert completed("tfdbg-arrow", "sql", "logdir", '"SELECT 1"', "--format", "") == ["table", "csv", "json"]


def test_zsh_gets_a_script_and_what_to_offer() -> None:
    environment = {**os.environ, "_TFDBG_ARROW_COMPLETE": "source_zsh"}
    command = [sys.executable, "-m", "tfdbg_arrow"]
    script = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert "compdef _tfdbg_arrow_completion tfdbg-arrow" in script
    environment |= {"_TFDBG_ARROW_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "tfdbg-arrow alerts --expa"}
    offered = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    assert '"--expand"' in offered


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_the_options_are_listed(option: str) -> None:
    assert option in run_cli("--help").stdout
