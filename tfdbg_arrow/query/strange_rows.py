"""Rows that no recording writes: whole Parquet, and yet a name that is NULL, or a graph that is not there."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, TfdbgArrowError
from tfdbg_arrow.schema.location import RemoteLocation

_STUMBLES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_READERS = frozenset(("tfdbg_arrow", "json", "re", "numpy", "pyarrow", "duckdb"))
"""Packages in which strange rows make code stumble. What a callback of the caller's raises is the caller's."""


@contextlib.contextmanager
def strange_rows_told(path: Path | RemoteLocation) -> Iterator[None]:
    """Has the block say in one sentence that it cannot make sense of a logdir's rows.

    The tables promise much (no NULL in most columns, references that lead somewhere), and the code that answers
    relies on it; a logdir of a stranger need not keep it.

    Args:
        path: The logdir.

    Raises:
        LogdirError: Code of ours stumbled over a value.
    """
    try:
        yield
    except TfdbgArrowError:
        raise
    except _STUMBLES as error:
        *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
        if str(innermost.f_globals.get("__name__")).partition(".")[0] not in _READERS:
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise LogdirError(
            f"the rows of {path} do not fit together ({what[:200]}): tfdbg_arrow writes no such rows, unless this is a "
            "defect of it; `tfdbg-arrow verify` compares the parts with their checksums."
        ) from error
