"""Runs a Python script in a separate process."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

from tests.programs.running import run_to_end


def run_python(script: Path, text: str, *arguments: object, returncode: int = 0, **environment: str) -> str:
    """Writes a script, runs the script, and returns its output.

    Args:
        script: The path to which the script is written.
        text: The program. The script is dedented.
        *arguments: Command-line arguments of the script.
        returncode: The expected exit code.
        **environment: Environment variables to add.
    """
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    process = run_to_end(script, *arguments, environment=variables)
    assert process.returncode == returncode, f"exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process.stdout
