"""SavedQueries: the queries that the user keeps for the SQL page, as .sql files in a directory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfdbg_arrow.errors import QueryError
from tfdbg_arrow.storage.disk import written_whole

_SUFFIX = ".sql"
NAME_PATTERN = r"[A-Za-z0-9_\(\),+\-]([A-Za-z0-9_ .\(\),+\-]{0,78}[A-Za-z0-9_\(\),+\-])?"
"""Pattern for names that are valid file names on every system: up to 80 characters, no `/`, no leading `.`. The pattern
works in Python and in browsers."""
_NAME = re.compile(NAME_PATTERN)
_MAX_LISTED = 200
"""Number of saved queries in the list; more would make the page long."""
_MAX_BYTES = 10_000
"""Maximum size of a query. A longer query would not fit into the page's address, where a byte can take three
characters."""


@dataclass(frozen=True, kw_only=True)
class SavedQuery:
    """A saved query: its name, and its text."""

    name: str
    query: str


class SavedQueries:
    """The queries in a directory of the user. Other programs may write and remove files there.

    Args:
        directory: The directory, with one file NAME.sql for each query. The directory is created when the first query
            is saved.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def read(self) -> tuple[SavedQuery, ...]:
        """Returns the saved queries by name. Files that cannot be read, or are too large, are left out."""
        return tuple(
            SavedQuery(name=path.stem, query=text) for path in self._paths() if (text := _text(path)) is not None
        )

    def state(self) -> tuple[tuple[str, int], ...]:
        """Returns the name and the time of each file. The result changes when a query is saved or deleted."""
        stated = []
        for path in self._paths():
            with contextlib.suppress(OSError):
                stated.append((path.name, path.stat().st_mtime_ns))
        return tuple(stated)

    def save(self, name: str, query: str) -> None:
        """Saves a query, and replaces a saved query with the same name.

        Raises:
            QueryError: The name cannot be the name of a file, the query is too long, or the file cannot be written.
        """
        path, data = self._path(name), query.replace("\r\n", "\n").encode()
        if len(data) > _MAX_BYTES:
            raise QueryError(f"the query has {len(data):,} bytes, and a saved one can have {_MAX_BYTES:,}.")
        with _writing(path):
            self.directory.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as temporary:
                temporary.write_bytes(data)

    def delete(self, name: str) -> None:
        """Deletes a saved query, if there is a query with this name.

        Raises:
            QueryError: The name cannot be the name of a file, or the file cannot be deleted.
        """
        path = self._path(name)
        with _writing(path):
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.directory), key=str.casefold)
        except OSError:  # no query was saved yet
            return []
        stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
        return [self._path(stem) for stem in stems if _NAME.fullmatch(stem)][:_MAX_LISTED]

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise QueryError(
                f"{name[:100]!r} cannot be the name of a query; use up to 80 letters of ASCII, digits, spaces and any "
                "of .,()+-_, and no space or dot first or last."
            )
        return self.directory / f"{name}{_SUFFIX}"


def default_directory() -> Path:
    """Returns the directory of the user's saved queries: tfdbg_arrow/queries in $XDG_DATA_HOME or ~/.local/share."""
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser().absolute() / "tfdbg_arrow" / "queries"


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError:  # the file was deleted meanwhile, or the path is a directory
        return None
    return None if len(content) > _MAX_BYTES else content.decode("utf-8", "replace")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise QueryError(f"{path} cannot be changed: {error.strerror}; choose a directory with --queries.") from error
