"""Runs a Python text in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def run_python(
    script: Path, text: str, *arguments: object, returncode: int = 0, options: tuple[str, ...] = (), **environment: str
) -> str:
    """Writes a script, runs it, and returns what it prints.

    Args:
        script: Where to write it.
        text: The program; it is dedented.
        *arguments: Its command line.
        returncode: How it has to end.
        options: The interpreter's.
        **environment: Variables to add.
    """
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    command = [sys.executable, *options, str(script), *map(str, arguments)]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=variables)
    assert process.returncode == returncode, f"exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process.stdout
