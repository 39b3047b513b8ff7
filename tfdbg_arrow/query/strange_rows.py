"""Rows that no recording writes: valid Parquet, but with a name that is NULL or a reference to a missing graph."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from tfdbg_arrow.errors import LogdirError, TfdbgArrowError
from tfdbg_arrow.schema.location import RemoteLocation

_STUMBLES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_READERS = frozenset(("tfdbg_arrow", "json", "re", "numpy", "pyarrow", "duckdb"))
"""Packages in which strange rows can raise errors. An error from a callback of the caller is passed on unchanged."""


@contextlib.contextmanager
def strange_rows_told(path: Path | RemoteLocation) -> Iterator[None]:
    """Turns errors of the block that strange rows cause into one LogdirError.

    The tables guarantee much (no NULL in most columns, references that lead to existing rows), and the code of the
    queries relies on it. A logdir from an untrusted source need not follow these guarantees.

    Args:
        path: The logdir.

    Raises:
        LogdirError: Code of this package failed on a value.
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
            f"the rows of {path} do not fit together ({what[:200]}): tfdbg_arrow does not write such rows, unless it "
            "has a bug; `tfdbg-arrow verify` compares the parts with their checksums."
        ) from error
