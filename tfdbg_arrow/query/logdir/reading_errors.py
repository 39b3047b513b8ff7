"""Translates DuckDB's errors: either a statement was refused, or a part cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import duckdb

from tfdbg_arrow.errors import (
    BrokenPartError,
    LogdirError,
    MemoryLimitError,
    MissingDependencyError,
    QueryError,
    TfdbgArrowError,
)
from tfdbg_arrow.query.logdir.broken_parts import BrokenParts
from tfdbg_arrow.query.logdir.live_views import literal

Check = Callable[[Sequence[str]], None]

_USER_ERRORS = (
    duckdb.ParserException,
    duckdb.SyntaxException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.TypeMismatchException,
    duckdb.OutOfRangeException,
    duckdb.NotImplementedException,
    duckdb.ConstraintException,
    duckdb.PermissionException,
    duckdb.InterruptException,
    duckdb.TransactionException,
)
"""DuckDB's errors that no file can cause. Every other error may come from a broken file."""
_NO_TEXT = "nanobind::str()"
"""Part of the RuntimeError for a name in a broken file that is not UTF-8. Every other RuntimeError comes from a
statement or parameters that cannot be bound."""


def error_text(error: Exception) -> str:
    """Returns the message of an error, or the name of its class if it has no message."""
    return str(error).strip() or type(error).__name__


def refused(error: Exception, *, memory_limit: int) -> TfdbgArrowError | None:
    """Returns the exception to raise for an error that no file can have caused; None for any other error.

    Args:
        error: DuckDB's error.
        memory_limit: The memory limit in bytes.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return MemoryLimitError(
            f"the query needs more memory than the limit of {memory_limit >> 20:,} MiB, even with temporary files. "
            "Raise the limit with memory_limit=, --memory-limit or TFDBG_ARROW_MEMORY_LIMIT, or ask for less, such as "
            f"one run. DuckDB says: {error_text(error).partition('Possible solutions')[0].strip()}"
        )
    if "module 'pytz'" in error_text(error):
        return MissingDependencyError(
            "a TIMESTAMP WITH TIME ZONE needs pytz in Python, which is not installed; run: pip install pytz, or ask "
            "for the column as a TIMESTAMP."
        )
    is_unbound = isinstance(error, RuntimeError)
    if isinstance(error, _USER_ERRORS) or (is_unbound and _NO_TEXT not in error_text(error)):
        return QueryError(error_text(error))
    return None


def find_broken_part(error: Exception, parts: Iterable[str], *, check: Check) -> tuple[str, str] | None:
    """Returns (path, reason) of a part that cannot be read, or None if all parts can be read.

    Args:
        error: DuckDB's error. If it names parts, only those are examined.
        parts: The live parts, the likely ones first. Each is read to its end.
        check: Refuses parts that must not be opened.
    """
    every = list(parts)
    text = error_text(error)
    named = [part for part in every if part in text] or every
    return next(unreadable_parts(named, check=check), None)


def broken_part_error(
    error: Exception, parts: Iterable[str], *, check: Check, cure: str
) -> BrokenPartError | QueryError:
    """Returns the exception to raise for an error that a part may have caused. It names the part if one is broken.

    Args:
        error: DuckDB's error.
        parts: The live parts.
        check: Refuses parts that must not be opened.
        cure: The advice to end the message with.
    """
    found = find_broken_part(error, parts, check=check)
    if found is None:
        return QueryError(error_text(error))
    return BrokenPartError(f"{found[0]} cannot be read as Parquet ({found[1]}); {cure}.")


def refuse_unreadable(broken: BrokenParts, error: Exception, parts: Sequence[str], *, check: Check) -> bool:
    """Leaves out all unreadable parts of the table that an error comes from.

    Args:
        broken: Leaves out the parts.
        error: DuckDB's error.
        parts: The live parts, the likely ones first.
        check: Refuses parts that must not be opened.

    Returns:
        True if there are unreadable parts.
    """
    found = find_broken_part(error, parts, check=check)
    if found is None:
        return False
    table = _table_directory(found[0])
    for path, reason in unreadable_parts([part for part in parts if _table_directory(part) == table], check=check):
        broken.refuse(path, f"cannot be read as Parquet ({reason})")
    return True


def _table_directory(part: str) -> str:
    return part.rsplit("/", 2)[0]


def unreadable_parts(parts: Iterable[str], *, check: Check) -> Iterator[tuple[str, str]]:
    """Yields (path, reason) for each part that cannot be read to its end."""
    # Opening a database takes longer than reading a small part, so one database reads many parts. After an error a new
    # one is opened, because DuckDB refuses all queries after a fatal error.
    rest = iter(parts)
    is_done = False
    while not is_done:
        with duckdb.connect(":memory:") as connection:
            for part in rest:
                reason = _why_unreadable(part, connection, check=check)
                if reason is not None:
                    yield part, reason
                    break
            else:
                is_done = True


def _why_unreadable(part: str, connection: duckdb.DuckDBPyConnection, *, check: Check) -> str | None:
    if not os.path.lexists(part):
        return "it does not exist"
    try:
        check([part])
        columns = connection.sql(f"SELECT * FROM read_parquet([{literal(part)}])").columns
        checks = ", ".join(f'count("{column}")' for column in columns)
        # The hash makes DuckDB decode every value; it may answer a count alone from statistics.
        connection.sql(f"SELECT {checks}, bit_xor(hash(p)) FROM read_parquet([{literal(part)}]) AS p").fetchall()
    except LogdirError as error:
        return error_text(error)
    except (duckdb.Error, UnicodeDecodeError, RuntimeError) as error:
        return error_text(error).splitlines()[0].removeprefix("Invalid Input Error: ").rstrip(".")
    return None
