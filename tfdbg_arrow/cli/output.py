"""What the subcommands share: common options, an open logdir, and printing of safe text, JSON, CSV and progress.

rich is imported inside the functions, because `--help` and `--json` do not need it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tfdbg_arrow.query.present.blocks import Block, Line, Span, with_style
from tfdbg_arrow.safe_text import number_of, printable, printable_line, to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import ProgressColumn
    from rich.text import Text

    from tfdbg_arrow.query import AboutRuns, BrokenPart, Logdir

run_option = click.option(
    "--run",
    "run_id",
    metavar="RUN",
    help="Answer for this run, given by its ID or its name, or for `all`. Default: the newest run, with the other "
    "processes of its program.",
)
json_option = click.option("--json", is_flag=True, help="Print one JSON object.")
memory_limit_option = click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory limit of the queries, e.g. 500MB. Default: TFDBG_ARROW_MEMORY_LIMIT, or 2GiB if that is not set.",
)
_skip_broken_option = click.option(
    "--skip-broken",
    is_flag=True,
    help="Skip parts that are changed, truncated or missing, and list them on stderr. Checks every part, which takes "
    "time.",
)
_WIDTH_OF_A_FILE = 100_000
"""Width, in columns, of output to a file or a pipe. It exceeds usual lines, so that Rich does not wrap them."""
_MAX_SHOWN = 3
"""Maximum number of parts that the warning names, because it is one line. It counts the others."""


@dataclass(frozen=True)
class Opening:
    """How to open a logdir: whether to skip broken parts, and the memory limit of the queries; None is the default."""

    skip_broken: bool
    memory_limit: str | None


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Declares --skip-broken and --memory-limit for a command that reads a logdir. The command gets an Opening."""

    @functools.wraps(command)
    def with_opening(*args: Any, skip_broken: bool, memory_limit: str | None, **options: Any) -> None:
        command(*args, opening=Opening(skip_broken, memory_limit), **options)

    return _skip_broken_option(memory_limit_option(json_option(with_opening)))


@contextlib.contextmanager
def reading(logdir: str, opening: Opening, *, what: str | None = "Reading …") -> Iterator[Logdir]:
    """Yields an open logdir. On exit, prints the skipped parts on stderr.

    Args:
        logdir: The logdir's path or URL.
        opening: How to open it.
        what: The status text shown while the logdir is read, if stderr is a terminal; None shows nothing.
    """
    from tfdbg_arrow.query import open_logdir

    broken: Sequence[BrokenPart] = ()
    try:
        with contextlib.ExitStack() as stack:
            if what is not None:
                stack.enter_context(progress(what))
            opened = stack.enter_context(open_logdir(logdir, **vars(opening)))
            try:
                yield opened
            finally:
                broken = opened.broken_parts
    finally:
        tell_broken(logdir, broken)


def print_about(about: AboutRuns) -> None:
    """Prints which runs the answer is about, if the logdir has others."""
    if about.sentence is not None:
        click.echo(printable(f"{about.sentence} --run RUN selects one."))


def tell_broken(logdir: str, broken: Sequence[BrokenPart]) -> None:
    """Prints the skipped parts of a logdir on stderr; prints nothing if there are none."""
    if not broken:
        return
    named = "; ".join(f"{part.path} {part.reason}" for part in broken[:_MAX_SHOWN])
    others_text = f"; and {len(broken) - _MAX_SHOWN:,} more" if len(broken) > _MAX_SHOWN else ""
    rows = sum(part.rows or 0 for part in broken)
    number = f"{number_of(len(broken), 'broken file')} of {logdir} with {number_of(rows, 'known row')}"
    click.echo(
        printable(f"tfdbg-arrow: warning: left out {number}: {named}{others_text}; see: tfdbg-arrow verify"), err=True
    )


def console(*, stderr: bool = False) -> Console:
    """Returns a console on stdout or stderr.

    The console ignores markup in data, and does not wrap lines written to a file.
    """
    from rich.console import Console
    from rich.theme import Theme

    theme = Theme({"bad": "bold red", "warning": "yellow", "quiet": "dim", "option": "dim"})
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True, theme=theme)
    if not out.is_terminal:
        out.width = _WIDTH_OF_A_FILE
    return out


def print_result(
    facts: object, answer: object | Iterator[Block], *, json: bool, about: AboutRuns | None = None
) -> None:
    """Prints what a command found on stdout.

    Args:
        facts: The JSON object.
        answer: The text: an answer of the query layer, or blocks. An iterator of blocks is used only without `json`.
        json: Whether to print JSON.
        about: The runs that the text is about.
    """
    if json:
        print_json(facts)
        return
    from tfdbg_arrow.query.present.answers import blocks_of

    if about is not None:
        print_about(about)
    print_blocks(answer if isinstance(answer, Iterator) else blocks_of(answer))


def print_blocks(blocks: Iterable[Block], *, stderr: bool = False) -> None:
    """Prints what an answer says on stdout or stderr."""
    out = console(stderr=stderr)
    for renderable in renderables(blocks):
        out.print(renderable)


def renderables(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    """Yields blocks as rich shows them: lines of text, and tables without borders."""
    from rich.table import Table

    from tfdbg_arrow.query.present.text import pieces

    def shown(*spans: Span) -> Text:
        return styled(*((printable_line(text), style) for text, style in map(with_style, spans)))

    for piece in pieces(blocks):
        if isinstance(piece, Line):
            yield shown(" " * piece.indent, *piece.spans)
            continue
        table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(piece.names))
        num_columns = len(piece.rows[0]) if piece.rows else len(piece.names)
        for number in range(num_columns):
            is_number = number >= num_columns - piece.num_numbers
            name = shown(piece.names[number]) if piece.names else ""
            table.add_column(
                name, justify="right" if is_number else "left", overflow="ellipsis" if is_number else "fold"
            )
        for row in piece.rows:
            table.add_row(*map(shown, row))
        yield table


def styled(*pieces: str | tuple[str, str]) -> Text:
    """Returns a line of text. Each piece is a text or (text, style); every piece is made printable."""
    from rich.text import Text

    line = Text()
    for piece in pieces:
        text, style = (piece, "") if isinstance(piece, str) else piece
        line.append(printable(text), style=style)
    return line


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints rows as CSV on stdout, NULL as an empty field. Control characters are escaped only on a terminal."""
    import csv

    safe = printable if sys.stdout.isatty() else str
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([safe(column) for column in columns])
    writer.writerows([["" if value is None else safe(cell_text(value)) for value in row] for row in rows])


def cell_text(value: Any) -> str:
    """Returns the text of a value for one cell of a table."""
    plain = to_json(value)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def print_json(value: object, *, indent: int | None = 2, err: bool = False) -> None:
    """Prints one JSON object on stdout or stderr, in one line if `indent` is None; see `to_json`."""
    click.echo(json.dumps(to_json(value), allow_nan=False, indent=indent), err=err)


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows a status line on stderr while the body runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True, markup=False, emoji=False).status(Text(printable(what))):
        yield


@contextlib.contextmanager
def progress_bar(
    what: str, columns: Callable[[Any], Sequence[ProgressColumn]], **fields: Any
) -> Iterator[Callable[..., None]]:
    """Yields a callback for (done, total, **fields); it draws a bar on stderr if stderr is a terminal.

    Args:
        what: The text before the bar.
        columns: Takes the module `rich.progress`, and returns what to show behind the bar.
        **fields: The first values of the fields that the columns show.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, **fields: None
        return
    from rich import progress as rich
    from rich.console import Console

    shown = (rich.TextColumn("{task.description}"), rich.BarColumn(), *columns(rich))
    with rich.Progress(*shown, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task(printable(what), total=None, **fields)
        yield lambda done, total, **fields: bar.update(task, completed=done, total=total, **fields)


def byte_progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Yields a callback for (bytes read, total bytes); it draws a bar on stderr if stderr is a terminal."""
    return progress_bar(
        what, lambda rich: (rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    )
