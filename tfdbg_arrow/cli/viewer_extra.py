"""What the subcommands of the viewer need that a plain install has not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tfdbg_arrow.errors import MissingDependencyError


@contextlib.contextmanager
def viewer_extra(command: str) -> Iterator[None]:
    """Makes a failed import of the extra's packages an error that says what to install.

    Args:
        command: The subcommand that needs them.

    Raises:
        MissingDependencyError: One is not there.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "tfdbg_arrow"):
            raise
        raise MissingDependencyError(
            f"tfdbg-arrow {command} needs the package {package}; pip install 'tfdbg-arrow[viewer]'."
        ) from error
