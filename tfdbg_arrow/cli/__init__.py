"""The command line, `tfdbg-arrow`: one module per subcommand. Only this package prints."""

from __future__ import annotations

from tfdbg_arrow.cli.app import app, main

__all__ = ["app", "main"]
