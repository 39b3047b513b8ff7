"""What DuckDB's errors mean: a statement that is refused, or a part that cannot be read."""

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
"""DuckDB's errors that a file cannot cause; every other may come from a broken one."""
_NO_TEXT = "nanobind::str()"
"""In the RuntimeError that comes of a name in a broken file that is no UTF-8. Every other RuntimeError comes of a
statement or parameters that cannot be bound."""


def error_text(error: Exception) -> str:
    """Returns what an error says."""
    return str(error).strip() or type(error).__name__


def refused(error: Exception, *, memory_limit: int) -> TfdbgArrowError | None:
    """Returns the error to raise for one that no file can have caused; None for any other.

    Args:
        error: What DuckDB said.
        memory_limit: The memory limit in bytes.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return MemoryLimitError(
            f"the query needs more memory than the limit of {memory_limit >> 20:,} MiB, also with temporary files. "
            "Raise the limit: memory_limit=, --memory-limit or TFDBG_ARROW_MEMORY_LIMIT; or ask for less, as for one "
            f"run. DuckDB says: {error_text(error).partition('Possible solutions')[0].strip()}"
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
    """Returns (the path of a part that cannot be read, why), None where all can be.

    Args:
        error: What DuckDB said: the parts that it names are looked at first, and alone.
        parts: The parts that hold, the likely ones first: each is read as a whole.
        check: Refuses parts that may not be opened.
    """
    every = list(parts)
    text = error_text(error)
    named = [part for part in every if part in text] or every
    return next(unreadable_parts(named, check=check), None)


def broken_part_error(
    error: Exception, parts: Iterable[str], *, check: Check, cure: str
) -> BrokenPartError | QueryError:
    """Returns the error to raise for one that a part may have caused: it names the part, where one is broken.

    Args:
        error: What DuckDB said.
        parts: The parts that hold.
        check: Refuses parts that may not be opened.
        cure: What to do about it.
    """
    found = find_broken_part(error, parts, check=check)
    if found is None:
        return QueryError(error_text(error))
    return BrokenPartError(f"{found[0]} cannot be read as Parquet ({found[1]}); {cure}.")


def refuse_unreadable(broken: BrokenParts, error: Exception, parts: Sequence[str], *, check: Check) -> bool:
    """Has the parts left out that cannot be read, of the table of the one that an error comes from.

    Args:
        broken: Leaves them out.
        error: What DuckDB said.
        parts: The parts that hold, the likely ones first.
        check: Refuses parts that may not be opened.

    Returns:
        Whether there are any.
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
    """Yields (path, why) of each part that cannot be read to its end."""
    # One database for many of them: it takes longer to open than a small part takes to read. Another one after an
    # error: a database that failed within refuses all that follows.
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
        # A hash makes DuckDB decode every value; a count alone may be answered by statistics.
        connection.sql(f"SELECT {checks}, bit_xor(hash(p)) FROM read_parquet([{literal(part)}]) AS p").fetchall()
    except LogdirError as error:
        return error_text(error)
    except (duckdb.Error, UnicodeDecodeError, RuntimeError) as error:
        return error_text(error).splitlines()[0].removeprefix("Invalid Input Error: ").rstrip(".")
    return None
