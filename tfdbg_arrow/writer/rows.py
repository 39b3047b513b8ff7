"""Rows as dictionaries or as columns: their types, the conversion of values to JSON, and redaction.

The setting `redact=` leaves facts about the program's text and its machine out of the logdir. Rows are redacted before
they are written to any file, including the journal of rows in the spool.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import site
import socket
import sysconfig
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from tfdbg_arrow.errors import SettingError

PATHS, SOURCE = "paths", "source"
REDACTIONS = (PATHS, SOURCE)


Row = dict[str, object]

Columns = Mapping[str, Sequence[object]]
"""Rows as one or more columns of equal length, by name."""


class AppendColumns(Protocol):
    """Adds rows to write, given as columns; see Append."""

    def __call__(self, table: str, columns: Columns, /, *notes: Callable[[], object]) -> None:
        """Adds rows to a table, and calls the functions `notes` in the same step."""


class Append(Protocol):
    """Adds rows to write.

    Notes are C functions, such as partials of `dict.update`. Notes store the IDs of the rows, or that the rows exist.
    Nothing interrupts the program between adding the rows and calling these functions. So each ID has its row, and no
    row is added twice.
    """

    def __call__(self, table: str, rows: Sequence[Row], /, *notes: Callable[[], object]) -> None:
        """Adds rows to a table, and calls the functions `notes` in the same step."""


_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str)


def to_json(value: object) -> str:
    """Returns compact JSON; values that JSON cannot represent become text."""
    return _JSON.encode(value)


_HIDDEN_CODE = "…"
_INSTALLED = re.compile(r".*/((?:site|dist)-packages/.*)", re.DOTALL)
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://[^\s'\"]+")
_NO_DEVICE = r"/(?!job:|replica:|task:|device:)"
_QUOTED = re.compile(rf"(['\"`])({_NO_DEVICE}[^'\"`\n]*)\1")
_WORD = re.compile(rf"(?<![\w.\-/]){_NO_DEVICE}[^\s'\"`,;:()\[\]<>]+")
_IN_ATTRIBUTE = re.compile(rf"(?<![A-Za-z0-9.\-]){_NO_DEVICE}.+", re.DOTALL)
"""A path in an op's attribute, up to the attribute's end. A slash after a letter or digit belongs to an op's name."""


def parse_redact(value: str | Collection[str] | None) -> frozenset[str]:
    """Parses the setting `redact`.

    Args:
        value: `paths` or `source`, or both as a collection or separated by commas; None means nothing.

    Raises:
        SettingError: The value is not one of these.
    """
    if value is None:
        return frozenset()
    try:
        names = [name.strip() for name in value.split(",")] if isinstance(value, str) else list(value)
    except TypeError:
        names = [""]
    if not all(name in REDACTIONS for name in names):
        raise SettingError(f"redact is {value!r}; expected {' or '.join(map(repr, REDACTIONS))}, or a list of these")
    return frozenset(names)


class Redaction:
    """Redacts the rows of one recording.

    Args:
        what: `paths` for file paths, command line, working directory and host; `source` for the text of the program.
        logdir: The logdir of the recording, which can occur in messages.
    """

    def __init__(self, what: frozenset[str], *, logdir: Path) -> None:
        self._hides_paths, self._hides_source = PATHS in what, SOURCE in what
        # The key is never stored. Without the key, nobody can find out by trial which directory a hash stands for.
        self._key = secrets.token_bytes(16)
        self._hidden: dict[str, str] = {}
        self._logdir = str(logdir)
        self._directories = _known_directories()
        self._host = re.compile(rf"(?<![A-Za-z0-9]){re.escape(socket.gethostname() or 'localhost')}(?![A-Za-z0-9])")
        self.host_name = secrets.token_hex(4) if self._hides_paths else socket.gethostname()
        """The host name in the run id: the real one, or a random replacement."""

    def rows(self, table: str, rows: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
        """Returns the redacted rows of a table."""
        match table:
            case "run":
                return [self._run(row) for row in rows]
            case "source_file":
                return [self._with_path(row, "source_text") for row in rows]
            case "stack_frame":
                return [self._with_path(row, "code") for row in rows]
            case "graph_op" if self._hides_paths:
                return [{**row, "attributes": self._attributes(row["attributes"])} for row in rows]
            case "capture_stat":
                return [
                    {**row, "subject": self._sentence(row["subject"]), "reason": self._sentence(row["reason"])}
                    for row in rows
                ]
        return rows

    def path(self, path: str) -> str:
        """Returns the replacement for a file's path.

        The replacement is relative to the working directory or to the packages' directory, or consists of a hash and
        the file's name.
        """
        if path.startswith("<") or not (path.startswith("/") or ".." in path.split("/")):
            return path
        installed = _INSTALLED.fullmatch(path)
        if installed is not None:
            return installed[1]
        normal = os.path.normpath(path) if ".." in path.split("/") else path
        for directory, shown in self._directories:
            if normal.startswith(directory):
                return shown + normal.removeprefix(directory)
        directory, _, name = normal.rpartition("/")
        return f"{self._hash(directory)}/{name}"

    def _place(self, path: str) -> str:
        """Returns the replacement for a path in a text; a path without a suffix counts as a directory."""
        return self.path(path if "." in path.rpartition("/")[2] else path.rstrip("/") + "/").rstrip("/")

    def _hash(self, directory: str) -> str:
        hidden_name = self._hidden.get(directory)
        if hidden_name is None:
            digest = hashlib.blake2b(directory.encode(errors="surrogatepass"), digest_size=6, key=self._key)
            hidden_name = self._hidden[directory] = digest.hexdigest()
        return hidden_name

    def _run(self, row: Mapping[str, object]) -> dict[str, object]:
        if self._hides_paths:
            return {**row, "host_name": None, "command_line": None, "working_directory": None}
        return {**row, "command_line": _without_code(row["command_line"])}

    def _with_path(self, row: Mapping[str, object], text_column: str) -> dict[str, object]:
        changed = dict(row)
        if self._hides_source:
            changed[text_column] = None
        if self._hides_paths:
            changed["file_path"] = self.path(str(row["file_path"]))
        return changed

    def _sentence(self, text: object) -> object:
        """Returns a sentence, such as an exception message, without paths, the host's name and quoted code.

        Each of these is removed only if the settings ask for it.
        """
        if not isinstance(text, str):
            return text
        if self._hides_source:
            text = text.partition("\n")[0]
        if self._hides_paths:
            text = _URL.sub(r"\1:…", text.replace(self._logdir, "LOGDIR"))
            for directory, shown in self._directories:
                text = text.replace(directory, shown)
            text = _QUOTED.sub(lambda match: f"{match[1]}{self._place(match[2])}{match[1]}", text)
            text = _WORD.sub(lambda match: self._place(match[0]), text)
            text = self._host.sub("the host", text)
        return text

    def _attributes(self, text: object) -> object:
        if not isinstance(text, str) or "/" not in text:
            return text
        attributes: dict[str, object] = json.loads(text)
        return to_json({name: self._in_values(value) for name, value in attributes.items()})

    def _in_values(self, value: object) -> object:
        if isinstance(value, str):
            return _IN_ATTRIBUTE.sub(lambda match: self._place(match[0]), value)
        if isinstance(value, list):
            return [self._in_values(element) for element in value]
        if isinstance(value, dict):
            return {name: self._in_values(element) for name, element in value.items()}
        return value


@cache  # each call of get_path() computes all paths
def library_directories() -> tuple[str, ...]:
    """Returns the directories of Python's modules and of installed packages, each with a trailing slash."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(sorted({os.path.join(path, "") for path in paths if path}))


def _known_directories() -> tuple[tuple[str, str], ...]:
    """Returns known directories, each with a trailing slash, and their replacements; long directories come first."""
    replacement_of = {path: os.path.basename(os.path.dirname(path)) + "/" for path in library_directories()}
    home = os.path.join(os.path.expanduser("~"), "")
    for path in _working_directories():
        working = os.path.join(path, "")
        # A path relative to a directory above the home directory would reveal the name of the home directory.
        if working == home or not home.startswith(working):
            replacement_of.setdefault(working, "")
    return tuple(sorted(replacement_of.items(), key=lambda pair: -len(pair[0])))


def _working_directories() -> tuple[str, ...]:
    try:
        path = os.getcwd()
    except OSError:
        return ()
    return (path, os.path.realpath(path))


def _without_code(command_line: object) -> object:
    """Returns a command line, in JSON, without the program text after `-c`."""
    if not isinstance(command_line, str):
        return command_line
    arguments = json.loads(command_line)
    for index, argument in enumerate(arguments[:-1]):
        if argument == "-c":
            arguments[index + 1] = _HIDDEN_CODE
            break
    return to_json(arguments)
