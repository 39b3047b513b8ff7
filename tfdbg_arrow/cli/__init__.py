"""The command line: `tfdbg-arrow`, one module a subcommand; the only place that prints."""

from __future__ import annotations

from tfdbg_arrow.cli.app import app, main

__all__ = ["app", "main"]
