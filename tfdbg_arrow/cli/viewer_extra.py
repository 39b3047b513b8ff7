"""Reports missing packages of the `viewer` extra."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdbg_arrow.errors import MissingDependencyError, install_command


@contextlib.contextmanager
def viewer_extra(command: str) -> Iterator[None]:
    """Turns a failed import in its body into an error that says what to install.

    Args:
        command: The subcommand that needs the packages.

    Raises:
        MissingDependencyError: A package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "tfdbg_arrow"):
            raise
        raise MissingDependencyError(
            f"tfdbg-arrow {command} needs the package {package}; run: {install_command('viewer')}"
        ) from error
