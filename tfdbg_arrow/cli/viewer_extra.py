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
        if error.name is not None and error.name.startswith("tfdbg_arrow"):
            raise
        raise MissingDependencyError(
            f"tfdbg-arrow {command} needs the package {error.name}; pip install 'tfdbg-arrow[viewer]'."
        ) from error
