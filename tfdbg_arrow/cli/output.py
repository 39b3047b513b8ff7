"""What the subcommands share: common options, an open logdir, and printing of safe text, JSON, CSV and progress.

The functions import rich, because `--help` and `--json` do not need it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from tfdbg_arrow.safe_text import number_of, printable, printable_line, to_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import ProgressColumn
    from rich.text import Text

    from tfdbg_arrow.query import AboutRuns, BrokenPart, Logdir
    from tfdbg_arrow.query.present.blocks import Block, Span

run_option = click.option(
    "--run",
    "run_id",
    metavar="RUN",
    help="Answer for this run, given by its ID or its name, or for `all`. Default: the newest run, with the other "
    "processes of its program.",
)
json_option = click.option("--json", is_flag=True, help="Print one JSON object.")
skip_broken_option = click.option(
    "--skip-broken",
    is_flag=True,
    help="Skip parts that are changed, truncated or missing, and list them on stderr. Checks every part, which takes "
    "time.",
)
memory_limit_option = click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory limit of the queries, e.g. 500MB. Default: TFDBG_ARROW_MEMORY_LIMIT, or 2GiB if that is not set.",
)
_WIDTH_OF_A_FILE = 100_000
_MAX_SHOWN = 3


@contextlib.contextmanager
def reading(
    logdir: str, *, skip_broken: bool, memory_limit: str | None, what: str | None = "Reading …"
) -> Iterator[Logdir]:
    """Yields an open logdir. On exit, prints the parts that were skipped on stderr.

    Args:
        logdir: The logdir's path or URL.
        skip_broken: Whether to skip broken parts.
        memory_limit: The memory limit of the queries; None means the default.
        what: The status text shown while the logdir is read, if stderr is a terminal; None shows nothing.
    """
    from tfdbg_arrow.query import open_logdir

    broken: Sequence[BrokenPart] = ()
    try:
        with contextlib.ExitStack() as stack:
            if what is not None:
                stack.enter_context(progress(what))
            opened = stack.enter_context(open_logdir(logdir, skip_broken=skip_broken, memory_limit=memory_limit))
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
    """Prints the parts of a logdir that were skipped on stderr; prints nothing if there are none."""
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
    """Returns a console on stdout or stderr. It ignores markup in data and does not wrap lines written to a file."""
    from rich.console import Console
    from rich.theme import Theme

    theme = Theme({"bad": "bold red", "warning": "yellow", "quiet": "dim", "option": "dim"})
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True, theme=theme)
    if not out.is_terminal:
        out.width = _WIDTH_OF_A_FILE
    return out


def print_answer(answer: object) -> None:
    """Prints an answer on stdout."""
    from tfdbg_arrow.query.present.answers import blocks_of

    print_blocks(blocks_of(answer))


def print_blocks(blocks: Iterable[Block], *, stderr: bool = False) -> None:
    """Prints what an answer says on stdout or stderr."""
    out = console(stderr=stderr)
    for renderable in renderables(blocks):
        out.print(renderable)


def renderables(blocks: Iterable[Block]) -> Iterator[RenderableType]:
    """Yields blocks as rich shows them: lines of text, and tables without borders."""
    from rich.table import Table

    from tfdbg_arrow.query.present.blocks import Line, with_style
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


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object on stdout; see `to_json`."""
    click.echo(json.dumps(to_json(value), allow_nan=False, indent=2))


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
    what: str, columns: Callable[[], Sequence[ProgressColumn]], **fields: Any
) -> Iterator[Callable[..., None]]:
    """Yields a callback for (done, total, **fields); it draws a bar on stderr if that is a terminal.

    Args:
        what: The text before the bar.
        columns: Returns what to show behind the bar.
        **fields: The first values of the fields that the columns show.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, **fields: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    shown = (TextColumn("{task.description}"), BarColumn(), *columns())
    with Progress(*shown, console=Console(stderr=True, markup=False, emoji=False), transient=True) as bar:
        task = bar.add_task(printable(what), total=None, **fields)
        yield lambda done, total, **fields: bar.update(task, completed=done, total=total, **fields)


def byte_progress(what: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Yields a callback for (bytes read, total bytes); it draws a bar on stderr if that is a terminal."""

    def columns() -> Sequence[ProgressColumn]:
        from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

        return DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()

    return progress_bar(what, columns)
