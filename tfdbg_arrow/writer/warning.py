"""Warnings that never raise exceptions in the program."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Issues a warning, or writes it to stderr if the warning raises an error.

    It can raise an error if the program turns warnings into errors or shows them itself.

    Args:
        message: The warning, as a sentence.
    """
    try:
        warnings.warn(f"tfdbg_arrow: {message}", RuntimeWarning, stacklevel=3)
    except Exception:
        sys.stderr.write(f"tfdbg_arrow: {message}\n")
