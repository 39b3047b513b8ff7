"""BrokenParts: the files that a reader with `skip_broken` leaves out. Also finds the part that caused an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from tfdbg_arrow.errors import BrokenPartError, LogdirError, QueryError
from tfdbg_arrow.query.database import open_database
from tfdbg_arrow.query.engine import sql_literal
from tfdbg_arrow.query.integrity.parts import MISSING, file_identity, what_is_wrong
from tfdbg_arrow.storage.layout import manifest_path, run_of_part
from tfdbg_arrow.storage.manifest import ManifestEntry, read_live_parts

_ATTEMPTS = 20
"""Maximum number of times that a manifest is read again because a part that it named was gone."""
Check = Callable[[Sequence[str]], None]
"""Refuses parts that must not be opened."""


@dataclass(frozen=True, kw_only=True)
class BrokenPart:
    """A file whose rows are left out.

    Attributes:
        path: The path of a part or of a manifest. If a manifest is broken, no part of its run is read.
        run_id: The run.
        table: The table; None for a manifest.
        rows: Number of rows that are left out; None if unknown.
        reason: The problem of the file, as the end of a sentence that begins with the path.
    """

    path: str
    run_id: str
    table: str | None
    rows: int | None
    reason: str


class BrokenParts:
    """Compares the size and the SHA-256 of each part with the manifest, once, and again if the file changed.

    Args:
        logdir: The logdir; None if it is at a URL. Parts from a URL are checked when they are fetched.
    """

    def __init__(self, logdir: Path | None) -> None:
        self._logdir = logdir
        self._broken_of_path: dict[str, BrokenPart] = {}
        self._compared: dict[ManifestEntry, tuple[object, str | None]] = {}
        self._refused: dict[str, tuple[object, str]] = {}

    @property
    def parts(self) -> tuple[BrokenPart, ...]:
        """The files that are currently left out."""
        return tuple(self._broken_of_path.values())

    def begin(self) -> None:
        """Forgets the files found so far, because the logdir is listed again."""
        self._broken_of_path.clear()

    def tell_manifest(self, run_id: str, path: str, error: LogdirError) -> None:
        """Records a run whose manifest is damaged or whose spool cannot be read."""
        reason = str(error).removeprefix(f"{path}, ")
        self._broken_of_path[path] = BrokenPart(path=path, run_id=run_id, table=None, rows=None, reason=reason)

    def tell_part(self, path: str, *, rows: int | None, reason: str) -> None:
        """Records a broken part."""
        table = path.rsplit("/", 3)[-3]
        self._broken_of_path[path] = BrokenPart(
            path=path, run_id=run_of_part(path), table=table, rows=rows, reason=reason
        )

    def refuse_unreadable(self, error: Exception, parts: Sequence[str], *, check: Check) -> bool:
        """Leaves out all unreadable parts of the table that caused an error. Each is left out until its file changes.

        Args:
            error: DuckDB's error.
            parts: The live parts. Parts that are likely to be broken come first.
            check: Refuses parts that must not be opened.

        Returns:
            True if there are unreadable parts.
        """
        broken = _find_broken_part(error, parts, check=check)
        if broken is None:
            return False
        table = Path(broken[0]).parents[1]
        for path, reason in unreadable_parts((part for part in parts if Path(part).parents[1] == table), check=check):
            self._refused[path] = file_identity(path), f"cannot be read as Parquet ({reason})"
        return True

    def sound_parts(self, run_id: str) -> tuple[ManifestEntry, ...]:
        """Returns the live parts of a run that match its manifest, and records the other parts as broken."""
        assert self._logdir is not None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                entries = read_live_parts(self._logdir, run_id=run_id)
            except LogdirError as error:
                self.tell_manifest(run_id, f"{self._logdir / manifest_path(run_id)}", error)
                return ()
            reasons = {entry: self._reason(entry) for entry in entries}
            # A part that was replaced in the meantime is gone, not broken.
            if attempt == _ATTEMPTS or MISSING not in reasons.values() or self._still_hold(run_id, entries):
                break
        for entry, reason in reasons.items():
            if reason is not None:
                self.tell_part(f"{self._logdir}/{entry.path}", rows=entry.rows, reason=reason)
        return tuple(entry for entry, reason in reasons.items() if reason is None)

    def without_refused(self, parts: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Returns the parts by table without the refused parts, and records the refused parts as broken."""
        remaining: dict[str, tuple[str, ...]] = {}
        for table, paths in parts.items():
            remaining_paths = []
            for path in paths:
                identity, reason = self._refused.get(path, (None, ""))
                if identity is None or identity != file_identity(path):
                    remaining_paths.append(path)
                else:
                    self.tell_part(path, rows=None, reason=reason)
            remaining[table] = tuple(remaining_paths)
        return remaining

    def _still_hold(self, run_id: str, entries: tuple[ManifestEntry, ...]) -> bool:
        assert self._logdir is not None
        try:
            return read_live_parts(self._logdir, run_id=run_id) == entries
        except LogdirError:
            return False

    def _reason(self, entry: ManifestEntry) -> str | None:
        assert self._logdir is not None
        identity = file_identity(f"{self._logdir}/{entry.path}")
        compared, reason = self._compared.get(entry, (None, None))
        if identity is None or compared != identity:
            reason = what_is_wrong(self._logdir, entry)
            self._compared[entry] = identity, reason
        return reason


def error_text(error: Exception) -> str:
    """Returns the message of an error, or the name of its class if it has no message."""
    return str(error).strip() or type(error).__name__


def broken_part_error(
    error: Exception, parts: Iterable[str], *, check: Check, cure: str
) -> BrokenPartError | QueryError:
    """Returns the exception for an error that a part may have caused.

    If a part is broken, the exception names the part.

    Args:
        error: DuckDB's error.
        parts: The live parts.
        check: Refuses parts that must not be opened.
        cure: The advice to end the message with.
    """
    broken = _find_broken_part(error, parts, check=check)
    if broken is None:
        return QueryError(error_text(error))
    return BrokenPartError(f"{broken[0]} cannot be read as Parquet ({broken[1]}); {cure}.")


def _find_broken_part(error: Exception, parts: Iterable[str], *, check: Check) -> tuple[str, str] | None:
    """Returns (path, reason) of a part that cannot be read. If an error names parts, only these parts are examined."""
    every = list(parts)
    text = error_text(error)
    named = [part for part in every if part in text] or every
    return next(unreadable_parts(named, check=check), None)


def unreadable_parts(parts: Iterable[str], *, check: Check) -> Iterator[tuple[str, str]]:
    """Yields (path, reason) for each part that cannot be read to its end."""
    # Opening a database takes longer than reading a small part, so one database reads many parts. After an error, a new
    # database is opened, because DuckDB refuses all queries after a fatal error.
    rest = iter(parts)
    is_done = False
    while not is_done:
        with open_database() as connection:
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
        # The hash makes DuckDB decode every value. Without the hash, DuckDB may answer the count from statistics.
        query = f"SELECT count(COLUMNS(*)), bit_xor(hash(p)) FROM read_parquet([{sql_literal(part)}]) AS p"
        connection.sql(query).fetchall()
    except LogdirError as error:
        return error_text(error)
    except RecursionError:  # a RuntimeError that says nothing about the part
        raise
    except (duckdb.Error, UnicodeDecodeError, RuntimeError) as error:
        return error_text(error).splitlines()[0].removeprefix("Invalid Input Error: ").rstrip(".")
    return None
