"""Printing functions that the subcommands share: safe text, JSON, CSV, progress."""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from tfdbg_arrow.json_values import to_json
from tfdbg_arrow.printable import printable, printable_line

__all__ = [
    "JsonOption",
    "byte_progress",
    "cell_text",
    "console",
    "print_csv",
    "print_json",
    "printable",
    "printable_line",
    "progress",
    "styled",
    "to_json",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_WIDTH_OF_A_FILE = 100_000


def console(*, stderr: bool = False) -> Console:
    """Returns a console on stdout or stderr. It ignores markup in data and does not wrap lines written to a file."""
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = _WIDTH_OF_A_FILE
    return out


def styled(*pieces: str | tuple[str, str]) -> Text:
    """Returns a line of text. Each piece is a text or (text, style); every piece is made printable."""
    line = Text()
    for piece in pieces:
        text, style = (piece, "") if isinstance(piece, str) else piece
        line.append(printable(text), style=style)
    return line


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows as CSV on stdout, NULL as an empty field. Control characters are escaped only on a terminal."""
    safe = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([safe(column) for column in columns])
    writer.writerows([["" if value is None else safe(cell_text(value)) for value in row] for row in rows])


def cell_text(value: Any) -> str:
    """Returns the text of a value for one cell of a table."""
    plain = to_json(value)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object on stdout; see `to_json`."""
    typer.echo(json.dumps(to_json(value), allow_nan=False, indent=2))


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows a status line on stderr while the body runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True, markup=False, emoji=False).status(Text(printable(what))):
        yield


@contextlib.contextmanager
def byte_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback for (bytes read, total bytes); it draws a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    columns = (TextColumn(printable(what)), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
