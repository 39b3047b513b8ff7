"""What the subcommands share of printing: safe text, JSON, progress."""

from __future__ import annotations

import base64
import contextlib
import csv
import dataclasses
import json
import math
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_WIDTH_OF_A_FILE = 100_000
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str) -> str:
    r"""Returns a text with everything escaped that a terminal would act on, as `\x1b`, `\n`, `\u202e`.

    What a logdir holds is untrusted: file names, op names and source lines can carry control sequences.
    """
    return "".join(
        character if unicodedata.category(character) not in _UNPRINTABLE else _escape(character) for character in text
    )


def printable_line(text: str) -> str:
    """Returns a line of source as `printable` does, its tabs as spaces."""
    return printable(text.expandtabs(4))


def _escape(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")


def console(*, stderr: bool = False) -> Console:
    """Returns a console on stdout (or stderr) that takes no markup out of data and cuts no line in a file."""
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = _WIDTH_OF_A_FILE
    return out


def styled(*pieces: str | tuple[str, str]) -> Text:
    """Returns a line of text; a piece is a text or (text, style), and every one is made printable."""
    line = Text()
    for piece in pieces:
        text, style = (piece, "") if isinstance(piece, str) else piece
        line.append(printable(text), style=style)
    return line


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows as CSV on stdout, NULL as nothing; what a terminal would act on is escaped only on a terminal."""
    safe = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([safe(column) for column in columns])
    writer.writerows([["" if value is None else safe(cell_text(value)) for value in row] for row in rows])


def cell_text(value: Any) -> str:
    """Returns a value as one cell of a table."""
    plain = to_json(value)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object on stdout; see `to_json`."""
    typer.echo(json.dumps(to_json(value), allow_nan=False, indent=2))


def to_json(value: Any) -> Any:
    """Returns a value as JSON can hold it.

    A dataclass becomes an object with its attributes. A float that is not finite becomes "NaN",
    "Infinity" or "-Infinity"; bytes become base64; times ISO 8601; what else JSON lacks its text.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows that something is being done, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True, markup=False, emoji=False).status(Text(printable(what))):
        yield
