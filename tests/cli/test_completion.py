"""Test that shells complete subcommands and options."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMPLETE = """
eval "$(_TFDBG_ARROW_COMPLETE=bash_source tfdbg-arrow)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_tfdbg_arrow_completion tfdbg-arrow
printf '%s\\n' "${COMPREPLY[@]}"
"""


def output(*command: str, **variables: str) -> str:
    """Returns what a command prints if `tfdbg-arrow` is that of this Python, with more environment variables."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    words = command or ("tfdbg-arrow",)
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


def completed(*words: str) -> list[str]:
    """Returns what a bash offers for the last word."""
    return output("bash", "-c", _COMPLETE, "bash", *words).split()


def test_bash_completes_subcommands_options_and_choices() -> None:
    assert completed("tfdbg-arrow", "first") == ["first-nonfinite"]
    assert set(completed("tfdbg-arrow", "alerts", "logdir", "--ru")) == {"--rule", "--rules", "--run"}
    assert completed("tfdbg-arrow", "sql", "logdir", '"SELECT 1"', "--format", "") == ["table", "csv", "json"]


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("zsh", {"COMP_WORDS": "tfdbg-arrow alerts --expa", "COMP_CWORD": "2"}),
        ("fish", {"COMP_WORDS": "tfdbg-arrow alerts --expa", "COMP_CWORD": "--expa"}),
    ],
)
def test_other_shells_get_a_script_and_what_to_offer(shell: str, words: dict[str, str]) -> None:
    assert "_tfdbg_arrow_completion" in output(_TFDBG_ARROW_COMPLETE=f"{shell}_source")
    assert "--expand" in output(_TFDBG_ARROW_COMPLETE=f"{shell}_complete", **words)
