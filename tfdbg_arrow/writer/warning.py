"""Warnings that never become exceptions of the program."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warns; where that raises, because the program turns warnings into errors or shows them itself, on stderr.

    Args:
        message: What is to be said, as a sentence.
    """
    try:
        warnings.warn(f"tfdbg_arrow: {message}", RuntimeWarning, stacklevel=3)
    except Exception:
        sys.stderr.write(f"tfdbg_arrow: {message}\n")
