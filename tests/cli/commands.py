"""Runs a command in this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from tfdbg_arrow.cli import app


def run_cli(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])
